// A network as a sketch leaves it. For synth/sketch only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/schedule/sketch.hpp"
#include "synth/network.hpp"
#include "synth/sketch/symmetry.hpp"

namespace chorus::synth {

/// Ranks of a host that the network shows; all of them if it shows no equal hosts in a row.
[[nodiscard]] int ranks_per_host(const Network& network);

class Logical {
 public:
  /// Throws InputError as logical_network() does.
  Logical(const Network& network, const Sketch& sketch);

  /// Every edge turned round; what senders send for no longer binds.
  [[nodiscard]] Logical reversed() const;

  [[nodiscard]] const Network& network() const { return network_; }
  [[nodiscard]] const Symmetry& symmetry() const { return symmetry_; }
  [[nodiscard]] int per_host() const { return per_host_; }
  /// Data of `origin` may cross the edge, as the sketch's relays and senders have it.
  [[nodiscard]] bool permitted(Rank origin, const Edge& edge) const;
  /// How the switch that the edge belongs to is to be used; any if to none.
  [[nodiscard]] SwitchUse use(const Edge& edge) const;
  [[nodiscard]] bool leaves_host(const Edge& edge) const {
    return edge.src / per_host_ != edge.dst / per_host_;
  }
  /// A pair of which the first's data cannot get to the second.
  [[nodiscard]] std::optional<std::pair<Rank, Rank>> cut_off() const;

 private:
  friend class Culprit;
  /// Without looking whether everybody can be reached, nor at the symmetry.
  Logical(const Network& network, const Sketch& sketch, int per_host);
  void impose_symmetry(const Network& whole, const Sketch& sketch);

  int per_host_ = 0;
  Network network_;
  Symmetry symmetry_;
  std::vector<char> relays_;                  // by local rank
  std::vector<std::vector<char>> sends_for_;  // by local sender, local origin
  std::vector<char> bound_;                   // by local origin: some sender is named for it
  std::vector<std::pair<std::vector<char>, SwitchUse>> switches_;  // by local rank
};

}  // namespace chorus::synth
