// The symmetry that a sketch imposes: a group of renamings of ranks. For synth/sketch only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/schedule/sketch.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// The renamings that turns by offsets make together. Renaming 0 changes nothing.
class Symmetry {
 public:
  /// Only the renaming that changes nothing.
  explicit Symmetry(int world_size);
  /// Throws InputError if an offset does not fit the world, or if a renaming that is not the first
  /// leaves some rank where it is.
  Symmetry(int world_size, const std::vector<Sketch::Offset>& offsets);

  [[nodiscard]] int order() const { return static_cast<int>(renamings_.size()); }
  [[nodiscard]] Rank image(int renaming, Rank rank) const {
    return renamings_[static_cast<std::size_t>(renaming)][static_cast<std::size_t>(rank)];
  }
  /// One rank, the lowest, of all that are mapped onto each other.
  [[nodiscard]] const std::vector<Rank>& representatives() const { return representatives_; }

 private:
  void represent();

  std::vector<std::vector<Rank>> renamings_;
  std::vector<Rank> representatives_;
};

/// Why this turn does not map the network onto itself, as a clause; nothing if it does: every edge
/// onto one as fast, every resource onto one that limits as much.
[[nodiscard]] std::optional<std::string> symmetry_fault(const Network& network,
                                                        const Sketch::Offset& offset);

/// Where the turn takes a rank.
[[nodiscard]] Rank turned(const Sketch::Offset& offset, Rank rank);

[[nodiscard]] std::string name_of(const Sketch::Offset& offset);

}  // namespace chorus::synth
