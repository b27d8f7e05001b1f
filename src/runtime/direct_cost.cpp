#include "runtime/direct_cost.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "model/contract.hpp"

namespace chorus {
namespace {

// Measured on 2 cores of an AMD EPYC (family 26): telling a rank on another core, telling one
// that first has to be given the core, and one core moving bytes that another one wrote.
constexpr double kHandOffS = 0.15e-6;
constexpr double kTurnS = 0.8e-6;
constexpr double kLookS = 0.03e-6;  // at one more rank's offer
constexpr double kBytesPerS = 12e9;

}  // namespace

Cost direct_cost(std::span<const DirectProgram> programs, int cores) {
  const auto n = static_cast<int>(programs.size());
  const Schedule whole{.name = {},
                       .collective = programs[0].collective,
                       .world_size = n,
                       .num_chunks = programs[0].num_chunks,
                       .steps = {}};
  const double chunk = chunk_bytes(whole, 1.0);
  std::vector<double> moved(programs.size());
  std::set<std::pair<Rank, int>> staged;
  bool collects = false;
  for (const DirectProgram& program : programs) {
    double& mine = moved[static_cast<std::size_t>(program.rank)];
    for (const Move& move : program.moves) {
      const double bytes = chunk * move.count;
      mine += bytes * static_cast<double>(move.sources.size());
      for (const Place& place : move.sources) {
        if (place.rank == program.rank || !staged.insert({place.rank, place.index}).second)
          continue;
        moved[static_cast<std::size_t>(place.rank)] += bytes;
      }
      bool leaves = false;
      for (const Place& place : move.destinations) {
        moved[static_cast<std::size_t>(place.rank)] += bytes;
        leaves = leaves || place.rank != program.rank;
      }
      if (leaves) mine += bytes;
      collects = collects || leaves;
    }
  }
  const int phases = collects ? 2 : 1;
  const double sum = [&] {
    double all = 0;
    for (const double bytes : moved) all += bytes;
    return all;
  }();
  const double busiest = n > cores ? sum / cores : *std::max_element(moved.begin(), moved.end());
  const double turns = n > cores ? kTurnS * n / cores : kHandOffS;
  return {.alpha_s = phases * turns + kLookS * n, .beta_s_per_byte = busiest / kBytesPerS};
}

}  // namespace chorus
