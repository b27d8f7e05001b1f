#include "model/price/slow_links.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "base/index.hpp"

namespace chorus {

std::vector<bool> slow_links(const Topology& topology) {
  constexpr double kFarBelow = 2;  // times the median's time per byte
  std::map<std::tuple<std::string, NodeKind, NodeKind>, std::vector<std::size_t>> families;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Topology::Link& link = topology.links[i];
    families[{link.type, topology.nodes[at(link.src)].kind, topology.nodes[at(link.dst)].kind}]
        .push_back(i);
  }
  std::vector<bool> slow(topology.links.size(), false);
  for (const auto& [family, members] : families) {
    std::vector<double> betas;
    for (const std::size_t i : members) betas.push_back(topology.links[i].beta_s_per_byte);
    std::nth_element(betas.begin(), betas.begin() + static_cast<std::ptrdiff_t>(betas.size() / 2),
                     betas.end());
    const double limit = kFarBelow * betas[betas.size() / 2];
    const auto far_below = [&](std::size_t i) { return topology.links[i].beta_s_per_byte > limit; };
    if (3 * std::count_if(members.begin(), members.end(), far_below) >
        static_cast<std::ptrdiff_t>(members.size())) {
      continue;
    }
    for (const std::size_t i : members) slow[i] = far_below(i);
  }
  return slow;
}

}  // namespace chorus
