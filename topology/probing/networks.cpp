#include "topology/probing/networks.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/index.hpp"

namespace chorus::probing {
namespace {

constexpr std::size_t kMostUnions = 256;

NetworkSet joined(const NetworkSet& a, const NetworkSet& b) {
  NetworkSet both;
  std::ranges::set_union(a, b, std::back_inserter(both));
  return both;
}

}  // namespace

std::set<NetworkSet> unions_of(std::span<const NetworkSet> sets) {
  std::set<NetworkSet> unions;
  for (const NetworkSet& set : sets) {
    std::set<NetworkSet> larger = {set};
    for (const NetworkSet& other : unions) larger.insert(joined(set, other));
    unions.merge(larger);
    if (unions.size() <= kMostUnions) continue;
    NetworkSet all;
    for (const NetworkSet& each : sets) all = joined(all, each);
    unions = {all};
    unions.insert(sets.begin(), sets.end());
    break;
  }
  return unions;
}

Networks::Networks(const ProbedNetwork& network) : of_hosts_(network.hosts.size(), {0}) {
  trees_.push_back(network.tree);
  for (const ProbedNetwork& further : network.further) {
    const int number = count();
    std::vector<int> host_of;  // by host of `further`
    for (const std::string& name : further.hosts) {
      const auto found = std::ranges::find(network.hosts, name);
      host_of.push_back(static_cast<int>(found - network.hosts.begin()));
    }
    HostTree tree{.out = std::vector<double>(network.hosts.size(), 0),
                  .in = std::vector<double>(network.hosts.size(), 0),
                  .groups = further.tree.groups,
                  .core = further.tree.core};
    for (std::size_t h = 0; h < host_of.size(); ++h) {
      tree.out[at(host_of[h])] = further.tree.out[h];
      tree.in[at(host_of[h])] = further.tree.in[h];
      of_hosts_[at(host_of[h])].push_back(number);
    }
    for (HostTree::Group& group : tree.groups) {
      for (int& host : group.hosts) host = host_of[at(host)];
      std::ranges::sort(group.hosts);
    }
    trees_.push_back(std::move(tree));
  }
}

bool Networks::has(int network, int host) const {
  return std::ranges::binary_search(of_host(host), network);
}

NetworkSet Networks::between(int a, int b) const {
  NetworkSet both;
  std::ranges::set_intersection(of_host(a), of_host(b), std::back_inserter(both));
  return both;
}

std::vector<NetworkSet> Networks::sets_between(std::span<const int> hosts) const {
  std::set<NetworkSet> sets;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    for (std::size_t j = i + 1; j < hosts.size(); ++j) sets.insert(between(hosts[i], hosts[j]));
  }
  std::vector<NetworkSet> sorted(sets.begin(), sets.end());
  std::ranges::stable_sort(sorted, std::less(), &NetworkSet::size);
  return sorted;
}

std::pair<double, double> Networks::cable(int network, int host) const {
  const HostTree& tree = trees_[at(network)];
  return {tree.out[at(host)], tree.in[at(host)]};
}

}  // namespace chorus::probing
