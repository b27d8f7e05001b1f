// The networks of a ProbedNetwork, the one of all hosts and the further ones, by number.
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "topology/probing/probed_network.hpp"

namespace chorus::probing {

/// A network that addresses of hosts make.
struct HostNetwork {
  std::string name;        ///< as NetworkShare has it; empty: by their first addresses
  std::vector<int> hosts;  ///< ascending
  std::vector<std::string> interfaces = {};  ///< [hosts]: what their operating systems call them

  bool operator==(const HostNetwork&) const = default;
};

/// Numbers of networks, ascending: 0 is the one that joins all hosts, 1 the first of
/// ProbedNetwork::further.
using NetworkSet = std::vector<int>;

/// All unions of some of `sets`; where there are very many, as of hosts that are cabled one to one,
/// single sets and all together only.
[[nodiscard]] std::set<NetworkSet> unions_of(std::span<const NetworkSet> sets);

/// Hosts are numbered as in the network of all, everywhere.
class Networks {
 public:
  explicit Networks(const ProbedNetwork& network);

  [[nodiscard]] int count() const { return static_cast<int>(trees_.size()); }
  [[nodiscard]] bool has(int network, int host) const;
  [[nodiscard]] const NetworkSet& of_host(int host) const {
    return of_hosts_[static_cast<std::size_t>(host)];
  }
  /// That join both.
  [[nodiscard]] NetworkSet between(int a, int b) const;
  /// Of any two of `hosts`, each once, the smaller first.
  [[nodiscard]] std::vector<NetworkSet> sets_between(std::span<const int> hosts) const;
  /// Bytes per second out of a host into the network, and into the host; 0 where it has no cable.
  [[nodiscard]] std::pair<double, double> cable(int network, int host) const;
  /// Behind the trunks of one network.
  [[nodiscard]] const std::vector<HostTree::Group>& groups(int network) const {
    return trees_[static_cast<std::size_t>(network)].groups;
  }
  /// With a rate of 0 for hosts that are not in it.
  [[nodiscard]] const HostTree& tree(int network) const {
    return trees_[static_cast<std::size_t>(network)];
  }

 private:
  std::vector<HostTree> trees_;
  std::vector<NetworkSet> of_hosts_;
};

}  // namespace chorus::probing
