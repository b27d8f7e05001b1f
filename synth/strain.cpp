#include "synth/strain.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/index.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::synth {

Strain strain(const Schedule& schedule, const Network& network) {
  if (!schedule.symmetry.empty()) return strain(expanded(schedule), network);
  std::map<int, int> chunks;  // by edge
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      if (const std::optional<int> edge = network.edge(transfer.src, transfer.dst)) ++chunks[*edge];
    }
  }
  struct Use {
    int streams = 0;
    double busy = 0;
  };
  std::vector<Use> uses(network.resources().size());
  double busiest = 0;
  for (const auto& [edge, count] : chunks) {
    for (const int resource : network.edges()[at(edge)].resources) {
      Use& use = uses[at(resource)];
      ++use.streams;
      use.busy += count * network.resources()[at(resource)].beta_s_per_byte;
      busiest = std::max(busiest, use.busy);
    }
  }
  Strain result;
  for (const Use& use : uses) {
    if (use.busy >= busiest / 2) result.streams = std::max(result.streams, use.streams);
    result.busy_s_per_byte += use.busy / schedule.num_chunks;
  }
  return result;
}

}  // namespace chorus::synth
