#include "topology/probing/declared_networks.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "base/index.hpp"
#include "model/schedule/ways.hpp"

namespace chorus::probing {
namespace {

/// All links from one node to another together.
struct Joined {
  double bytes_per_s = 0;
  double alpha_s = 0;  ///< the least
};

/// A host's cable into a network.
struct Cable {
  int node = 0;  ///< that it leaves: the host or an adapter of it
  int to = 0;    ///< the switch
};

/// Switches that reach each other, and who has a cable to one of them.
struct Network {
  std::vector<int> switches;         ///< the lowest first, then by distance from it
  std::map<int, int> above = {};     ///< by switch: the next one on the way to the first
  std::size_t trunk_ends = 0;        ///< both of every trunk
  std::map<int, Cable> cables = {};  ///< by host
};

class Reader {
 public:
  explicit Reader(const Topology& topology) : topology_(topology), ways_(topology) {}

  std::optional<DeclaredNetworks> read() {
    if (!find_hosts() || !find_links() || !find_networks()) return std::nullopt;
    DeclaredNetworks declared;
    for (const auto& [node, ranks] : ranks_) {
      host_names_.push_back(topology_.nodes[at(node)].name);
      declared.nodes.push_back(node);
      declared.ranks.push_back(ranks);
    }
    for (std::size_t n = 0; n < networks_.size(); ++n) {
      if (n == 0) {
        declared.network = as_probed(networks_[n]);
      } else {
        declared.network.further.push_back(as_probed(networks_[n]));
      }
      declared.adapters.push_back(adapters_of(networks_[n]));
    }
    // Brings groups of hosts into the form that they have there.
    declared.network = restricted(declared.network, host_names_);
    return declared;
  }

 private:
  [[nodiscard]] int outermost(int node) const { return ways_.outermost[at(node)]; }
  [[nodiscard]] NodeKind kind(int node) const { return topology_.nodes[at(node)].kind; }

  bool find_hosts() {
    for (const Topology::Node& node : topology_.nodes) {
      if (node.kind == NodeKind::gpu) return false;
    }
    for (std::size_t r = 0; r < topology_.rank_nodes.size(); ++r) {
      const int host = outermost(topology_.rank_nodes[r]);
      if (kind(host) != NodeKind::host || kind(topology_.rank_nodes[r]) == NodeKind::nic) {
        return false;
      }
      ranks_[host].push_back(static_cast<Rank>(r));
    }
    return ranks_.size() > 1;
  }

  /// False if hosts are joined by anything but switches, or limits of another kind.
  bool find_links() {
    for (const Topology::PortGroup& group : topology_.port_groups) {
      for (const int link : group.links) {
        const auto& [src, dst] = ends(link);
        if (outermost(src) != outermost(dst)) return false;
      }
    }
    for (std::size_t i = 0; i < topology_.links.size(); ++i) {
      const Topology::Link& link = topology_.links[i];
      if (link.beta_s_per_byte <= 0) return false;
      if (outermost(link.src) != outermost(link.dst)) {
        const bool switched = kind(link.src) == NodeKind::network_switch ||
                              kind(link.dst) == NodeKind::network_switch;
        if (!switched) return false;
      } else if (kind(link.dst) == NodeKind::nic) {
        into_adapter_[link.dst] += 1 / link.beta_s_per_byte;
        continue;
      } else if (kind(link.src) == NodeKind::nic) {
        out_of_adapter_[link.src] += 1 / link.beta_s_per_byte;
        continue;
      } else {
        continue;
      }
      const auto [entry, is_new] =
          joined_.try_emplace({link.src, link.dst}, Joined{.alpha_s = link.alpha_s});
      entry->second.bytes_per_s += 1 / link.beta_s_per_byte;
      entry->second.alpha_s = std::min(entry->second.alpha_s, link.alpha_s);
    }
    return std::ranges::all_of(joined_, [&](const auto& link) {
      return joined_.contains({link.first.second, link.first.first});
    });
  }

  [[nodiscard]] std::pair<int, int> ends(int link) const {
    return {topology_.links[at(link)].src, topology_.links[at(link)].dst};
  }

  /// False if they are one, or a host has two cables into one, or the switches of one form a ring,
  /// or none joins all. The first that joins all comes first.
  bool find_networks() {
    std::vector<char> seen(topology_.nodes.size(), 0);
    for (int node = 0; node < static_cast<int>(seen.size()); ++node) {
      if (kind(node) != NodeKind::network_switch || seen[at(node)] != 0) continue;
      Network network{.switches = {node}};
      seen[at(node)] = 1;
      for (std::size_t next = 0; next < network.switches.size(); ++next) {
        if (!visit(network.switches[next], network, seen)) return false;
      }
      if (network.cables.size() < 2) continue;  // leads to none of the others
      if (network.trunk_ends != 2 * (network.switches.size() - 1)) return false;
      networks_.push_back(std::move(network));
    }
    const auto all = std::ranges::find_if(
        networks_, [&](const Network& network) { return network.cables.size() == ranks_.size(); });
    if (networks_.size() < 2 || networks_.size() > kMostNetworks || all == networks_.end()) {
      return false;
    }
    std::rotate(networks_.begin(), all, all + 1);
    return true;
  }

  /// All that a switch is joined with.
  bool visit(int from, Network& network, std::vector<char>& seen) const {
    const auto first = joined_.lower_bound({from, std::numeric_limits<int>::min()});
    for (auto link = first; link != joined_.end() && link->first.first == from; ++link) {
      const int to = link->first.second;
      if (kind(to) == NodeKind::network_switch) {
        ++network.trunk_ends;
        if (std::exchange(seen[at(to)], 1) != 0) continue;
        network.switches.push_back(to);
        network.above[to] = from;
      } else if (ranks_.contains(outermost(to)) &&
                 !network.cables.try_emplace(outermost(to), Cable{to, from}).second) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] ProbedNetwork as_probed(const Network& network) const {
    ProbedNetwork probed{.name = topology_.nodes[at(network.switches.front())].name,
                         .provenance = Provenance::declared};
    std::map<int, std::vector<int>> hosts_behind;  // by switch
    for (const auto& [host, cable] : network.cables) {
      hosts_behind[cable.to].push_back(static_cast<int>(probed.hosts.size()));
      probed.hosts.push_back(topology_.nodes[at(host)].name);
      const Joined& out = joined_.at({cable.node, cable.to});
      const Joined& in = joined_.at({cable.to, cable.node});
      probed.tree.out.push_back(std::min(out.bytes_per_s, most(into_adapter_, cable.node)));
      probed.tree.in.push_back(std::min(in.bytes_per_s, most(out_of_adapter_, cable.node)));
      probed.cable_alpha_s.push_back((out.alpha_s + in.alpha_s) / 2);
    }
    // From the farthest switches on: all that is behind one is known when its turn comes.
    for (std::size_t s = network.switches.size(); s-- > 1;) {
      const int from = network.switches[s], to = network.above.at(from);
      std::vector<int> behind = std::move(hosts_behind[from]);
      std::ranges::sort(behind);
      std::vector<int>& above = hosts_behind[to];
      above.insert(above.end(), behind.begin(), behind.end());
      const Joined& out = joined_.at({from, to});
      const Joined& in = joined_.at({to, from});
      probed.tree.groups.push_back(
          {.hosts = std::move(behind), .out = out.bytes_per_s, .in = in.bytes_per_s});
      probed.trunk_alpha_s.push_back((out.alpha_s + in.alpha_s) / 2);
    }
    return probed;
  }

  [[nodiscard]] static double most(const std::map<int, double>& adapters, int node) {
    const auto found = adapters.find(node);
    return found == adapters.end() ? std::numeric_limits<double>::infinity() : found->second;
  }

  [[nodiscard]] std::vector<std::string> adapters_of(const Network& network) const {
    std::vector<std::string> adapters;
    for (const auto& [host, cable] : network.cables) {
      const std::string& name = topology_.nodes[at(cable.node)].name;
      adapters.push_back(kind(cable.node) == NodeKind::nic ? name.substr(name.rfind('/') + 1)
                                                           : std::string());
    }
    return adapters;
  }

  const Topology& topology_;
  const Ways ways_;
  std::map<int, std::vector<Rank>> ranks_;               // by host
  std::map<std::pair<int, int>, Joined> joined_;         // between hosts and switches, both ways
  std::map<int, double> into_adapter_, out_of_adapter_;  // from and to its host
  std::vector<Network> networks_;
  std::vector<std::string> host_names_;
};

}  // namespace

std::optional<DeclaredNetworks> declared_networks(const Topology& topology) {
  return Reader(topology).read();
}

Topology with_joined_networks(const Topology& topology) {
  const auto declared = declared_networks(topology);
  if (!declared) return topology;
  std::vector<HostPart> parts;
  for (std::size_t h = 0; h < declared->ranks.size(); ++h) {
    parts.push_back({.host = static_cast<int>(h),
                     .ranks = declared->ranks[h],
                     .declared = &topology,
                     .node = declared->nodes[h]});
  }
  Topology joined = topology_of(declared->network, parts);
  joined.name = topology.name;
  return joined;
}

std::optional<ProbedNetwork> with_addresses(const DeclaredNetworks& declared,
                                            const std::vector<int>& hosts,
                                            const std::vector<std::string>& names,
                                            const std::vector<HostNetwork>& addressed) {
  if (addressed.empty()) return std::nullopt;
  const auto number = [&](const std::string& name) {  // of a declared host, in `addressed`
    const auto found = std::ranges::find(declared.network.hosts, name);
    return hosts[static_cast<std::size_t>(found - declared.network.hosts.begin())];
  };
  std::vector<char> taken(addressed.size(), 0);
  std::vector<ProbedNetwork> found;
  for (std::size_t n = 0; n < declared.adapters.size(); ++n) {
    ProbedNetwork network = n == 0 ? declared.network : declared.network.further[n - 1];
    network.further.clear();
    std::map<int, std::string> adapters;  // by number of the host
    for (std::size_t h = 0; h < network.hosts.size(); ++h) {
      const int host = number(network.hosts[h]);
      adapters[host] = declared.adapters[n][h];
      network.hosts[h] = names[at(host)];
    }
    std::optional<std::size_t> best;
    for (std::size_t a = n == 0 ? 0 : 1; a < (n == 0 ? 1 : addressed.size()); ++a) {
      const HostNetwork& other = addressed[a];
      if (taken[a] != 0 || !std::ranges::equal(other.hosts, adapters, {}, {},
                                               [](const auto& adapter) { return adapter.first; })) {
        continue;
      }
      const bool named_alike = std::ranges::equal(
          other.interfaces, adapters, {}, {}, [](const auto& adapter) { return adapter.second; });
      if (!best || named_alike) best = a;
      if (named_alike) break;
    }
    if (!best) return std::nullopt;
    taken[*best] = 1;
    network.name = addressed[*best].name;
    found.push_back(std::move(network));
  }
  ProbedNetwork all = std::move(found.front());
  all.further.assign(std::make_move_iterator(found.begin() + 1),
                     std::make_move_iterator(found.end()));
  return restricted(all, names);
}

}  // namespace chorus::probing
