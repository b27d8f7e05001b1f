// How the bytes between two hosts are divided among the networks that join them.
#pragma once

#include <span>
#include <vector>

#include "topology/probing/networks.hpp"

namespace chorus::probing {

/// What one host sends to another in the course of a collective.
struct Demand {
  int src = 0;
  int dst = 0;
  double bytes = 0;
};

/// Of one Demand.
struct Divided {
  NetworkSet networks;         ///< that join its hosts
  std::vector<double> shares;  ///< [networks], 1 together
};

struct Division {
  std::vector<Divided> demands;
  /// That the busiest cable or trunk takes for its part of all demands, if all run throughout.
  double seconds = 0;
};

/// The division that keeps the busiest cable or trunk of all networks busy for the shortest time,
/// to a hundredth or so. Pure: equal arguments, equal result.
[[nodiscard]] Division divide(const Networks& networks, std::span<const Demand> demands);

}  // namespace chorus::probing
