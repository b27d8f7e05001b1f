// Which way every chunk goes under a sketch. For synth/sketch only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "synth/budget.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/sketch/logical.hpp"

namespace chorus::synth {

/// What decides between ways.
struct RoutingWeights {
  /// How much longer than the shortest a way may be, as a share; negative: any length.
  double detour = 0;
  /// A second of delay, in seconds of the load on what is loaded most.
  double hurry = 0.1;
  /// A link of a switch that nobody uses yet (or that many use, for SwitchUse::most), in times of
  /// its own.
  double switch_weight = 0;
};

/// Ways for all chunks of a collective that only copies, equal for what the symmetry maps onto each
/// other: those of a representative are found, the others are its images.
///
/// Every chunk gets a tree (to one rank: a path) of edges; prices rise with the load of links and
/// port groups that all images together make, and one chunk after the other is taken out and finds
/// its way anew.
class Ways {
 public:
  /// `pieces` chunks per block. Broadcast: no symmetry, as it has one root.
  Ways(const Logical& logical, Collective collective, int pieces, double chunk_bytes);

  /// The budget's own seed goes by the prices as they are, others by blurred ones. Looks no further
  /// where the load alone takes more than `give_up_s`.
  [[nodiscard]] MulticastRouting find(const RoutingWeights& weights, std::uint64_t seed,
                                      const Budget& budget, double give_up_s);
  /// Of the last routing found.
  [[nodiscard]] double load_s() const { return best_load_s_; }
  /// Links of switches with a use that the last routing goes over.
  [[nodiscard]] int switch_links() const { return switch_links_; }

 private:
  struct Item {
    Rank origin = 0;
    Rank destination = -1;  // -1: all
    int piece = 0;
  };
  struct Use {
    int resource = 0;
    double weight_s = 0;  ///< of one chunk
  };
  /// A rank by the cheapest way known to it.
  struct Reached {
    double key = std::numeric_limits<double>::infinity();
    int via = -1;
    double cost = 0;  ///< of a path so far
    double arrival_s = 0;
    bool done = false;  ///< no cheaper one is left
  };
  [[nodiscard]] std::span<const Use> uses_of(int edge) const {
    const auto e = static_cast<std::size_t>(edge);
    return std::span(uses_).subspan(first_use_[e], first_use_[e + 1] - first_use_[e]);
  }

  void clear();
  void change(const std::vector<int>& way, int by);
  void reprice(double sharpness);
  [[nodiscard]] double price(int edge, const RoutingWeights& weights);
  [[nodiscard]] const std::vector<std::vector<int>>& permitted(Rank origin, double detour);
  [[nodiscard]] std::vector<int> grow(const Item& item, const RoutingWeights& weights,
                                      const std::vector<int>& before);
  [[nodiscard]] double worst() const;
  [[nodiscard]] double delay(const Item& item, const std::vector<int>& way) const;
  [[nodiscard]] MulticastRouting multicast_of(const std::vector<std::vector<int>>& ways);

  const Logical& logical_;
  const Network& network_;
  Collective collective_;
  int pieces_;
  Symmetry symmetry_;
  std::vector<Item> items_;
  std::vector<double> time_s_;                            // by edge: alpha and bytes
  std::vector<std::vector<int>> images_;                  // by edge
  std::vector<Use> uses_;                                 // of all edges, one after the other
  std::vector<std::size_t> first_use_;                    // by edge, and their number
  std::vector<double> load_s_, price_;                    // by resource
  std::vector<int> users_;                                // by edge
  std::vector<std::vector<std::vector<int>>> permitted_;  // by origin, or empty
  double detour_ = 0;                                     // of permitted_
  std::vector<Reached> reached_;                          // memory of grow()
  std::vector<std::pair<double, int>> heap_;
  double sharpness_ = 1, scale_s_ = 1;
  double noise_ = 0;  // relative, on prices
  std::mt19937_64 random_;
  double best_load_s_ = 0;
  int switch_links_ = 0;
};

}  // namespace chorus::synth
