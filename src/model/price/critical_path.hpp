// Which transfers of a simulation could not have ended later without the whole ending later.
#pragma once

#include <cstddef>
#include <vector>

#include "model/price/cost.hpp"

namespace chorus {

/// A transfer of the path, without the time that the one before it covers.
struct CriticalTransfer {
  std::size_t entry = 0;  ///< of Simulation::timeline
  double begin_s = 0;
  double flow_s = 0;  ///< its bytes follow from here; before is latency
  double end_s = 0;
};

/// First to last: the transfer that ends last, before it the one that it waited for (the latest
/// arrival of its chunk at its source, or its predecessor between the same ranks), and so on to one
/// that waited for none.
[[nodiscard]] std::vector<CriticalTransfer> critical_path(const Simulation& simulation,
                                                          const Routes& routes);

}  // namespace chorus
