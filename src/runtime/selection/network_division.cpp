#include "runtime/selection/network_division.hpp"

#include <map>
#include <set>
#include <utility>

#include "base/index.hpp"
#include "model/schedule/symmetry.hpp"
#include "topology/probing/division.hpp"

namespace chorus {

using probing::Demand;
using probing::Divided;

NetworkDivision::NetworkDivision(const probing::ProbedNetwork& network,
                                 const std::vector<probing::HostPart>& parts)
    : networks_(network), names_{network.name} {
  for (const probing::ProbedNetwork& further : network.further) names_.push_back(further.name);
  std::size_t ranks = 0;
  for (const probing::HostPart& part : parts) ranks += part.ranks.size();
  host_of_.resize(ranks);
  for (const probing::HostPart& part : parts) {
    for (const Rank rank : part.ranks) host_of_[at(rank)] = part.host;
  }
}

std::vector<std::shared_ptr<const NetworkShares>> NetworkDivision::shares(
    const Schedule& schedule, Rank rank, const std::vector<Rank>& peers) const {
  std::map<std::pair<int, int>, double> chunks;  // from host to host
  std::set<std::pair<Rank, Rank>> pairs;
  const auto count = [&](const Schedule& all) {
    for (const Step& step : all.steps) {
      for (const Transfer& transfer : step) {
        const int src = host_of_[at(transfer.src)];
        const int dst = host_of_[at(transfer.dst)];
        if (src == dst) continue;
        chunks[{src, dst}] += 1;
        pairs.insert({transfer.src, transfer.dst});
      }
    }
  };
  if (schedule.symmetry.empty()) {
    count(schedule);
  } else {
    count(expanded(schedule));
  }
  std::map<std::pair<int, int>, int> links;  // that share in it
  for (const auto& [src, dst] : pairs) {
    ++links[{host_of_[at(src)], host_of_[at(dst)]}];
  }
  std::vector<Demand> demands;
  for (const auto& [hosts, bytes] : chunks) demands.push_back({hosts.first, hosts.second, bytes});
  const probing::Division division = probing::divide(networks_, demands);

  std::map<int, std::shared_ptr<const NetworkShares>> to_host;
  for (std::size_t d = 0; d < demands.size(); ++d) {
    const Divided& divided = division.demands[d];
    if (demands[d].src != host_of_[at(rank)] || divided.networks.size() < 2) continue;
    auto shares = std::make_shared<NetworkShares>();
    for (std::size_t i = 0; i < divided.networks.size(); ++i) {
      const double rate = divided.shares[i] * demands[d].bytes / division.seconds;
      shares->push_back({.network = names_[at(divided.networks[i])],
                         .share = divided.shares[i],
                         .bytes_per_s = rate / links[{demands[d].src, demands[d].dst}]});
    }
    to_host[demands[d].dst] = std::move(shares);
  }
  std::vector<std::shared_ptr<const NetworkShares>> result;
  for (const Rank peer : peers) {
    const auto found = to_host.find(host_of_[at(peer)]);
    result.push_back(found == to_host.end() ? nullptr : found->second);
  }
  return result;
}

}  // namespace chorus
