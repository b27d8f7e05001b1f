#include "topology/probing/several_networks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "model/json/json.hpp"
#include "topology/probing/networks.hpp"
#include "topology/probing/pairs_of_networks.hpp"

namespace chorus::probing {
namespace {

/// Rates each way, bytes per second: out of hosts, and into them.
struct Rates {
  double out = 0;
  double in = 0;

  Rates& operator+=(const Rates& more) {
    out += more.out;
    in += more.in;
    return *this;
  }
};

/// Links of trees of several sets that their networks' rates limit together.
struct Shared {
  std::string name;
  std::vector<std::pair<NetworkSet, int>> out, in;  ///< the set of the tree, the link
};

class Several {
 public:
  Several(const ProbedNetwork& network, std::span<const HostPart> parts)
      : network_(network),
        parts_(parts),
        networks_(network),
        builder_(title_of(network, parts.size())) {
    std::vector<int> hosts;
    for (const HostPart& part : parts) hosts.push_back(part.host);
    sets_ = networks_.sets_between(hosts);
  }

  Topology build() {
    std::size_t ranks = 0;
    for (const HostPart& part : parts_) ranks += part.ranks.size();
    std::vector<int> rank_nodes(ranks, -1);
    for (const HostPart& part : parts_) {
      const Rates all = cables(part.host, networks_.of_host(part.host));
      nics_.push_back(add_host(builder_, network_, part, all.out, all.in, rank_nodes));
    }
    cables_.resize(parts_.size());
    for (const NetworkSet& set : sets_) add_tree(set);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      cables_[p].name = network_.hosts[at(parts_[p].host)];
      limit(cables_[p], [&](const NetworkSet& of) { return cables(parts_[p].host, of); });
    }
    int number = 0;
    for (auto& [hosts, trunk] : trunks_) {
      trunk.name = fmt::format("trunk{}", number++);
      const auto& behind = hosts;
      limit(trunk, [&](const NetworkSet& of) { return trunks(of, behind, everybody()); });
    }
    for (const int node : rank_nodes) builder_.rank(node);
    return builder_.take();
  }

 private:
  using Hosts = std::vector<int>;

  [[nodiscard]] Hosts everybody() const {
    Hosts all;
    for (const HostPart& part : parts_) all.push_back(part.host);
    std::ranges::sort(all);
    return all;
  }

  /// Of a host's cables into these networks together.
  [[nodiscard]] Rates cables(int host, const NetworkSet& of) const {
    Rates sum;
    for (const int n : of) {
      const auto [out, in] = networks_.cable(n, host);
      sum += {out, in};
    }
    return sum;
  }

  /// What these networks carry between the hosts `behind` and the rest of `all`.
  [[nodiscard]] Rates trunks(const NetworkSet& of, const Hosts& behind, const Hosts& all) const {
    Rates sum;
    for (const int n : of) {
      Rates inside, outside;
      for (const int host : all) {
        const auto [out, in] = networks_.cable(n, host);
        (holds(behind, host) ? inside : outside) += {out, in};
      }
      Rates most{std::min(inside.out, outside.in), std::min(inside.in, outside.out)};
      for (const HostTree::Group& group : networks_.groups(n)) {
        if (!same_cut(group.hosts, behind, n, all)) continue;
        const bool turned = !holds(group.hosts, first_in(behind, n));
        most.out = std::min(most.out, turned ? group.in : group.out);
        most.in = std::min(most.in, turned ? group.out : group.in);
      }
      sum += most;
    }
    return sum;
  }

  [[nodiscard]] int first_in(const Hosts& hosts, int network) const {
    for (const int host : hosts) {
      if (networks_.has(network, host)) return host;
    }
    return -1;
  }

  /// Whether `group` of `network` parts those of `all` that are in it as `behind` does.
  [[nodiscard]] bool same_cut(const Hosts& group, const Hosts& behind, int network,
                              const Hosts& all) const {
    int equal = 0, turned = 0, members = 0;
    for (const int host : all) {
      if (!networks_.has(network, host)) continue;
      ++members;
      (holds(group, host) == holds(behind, host) ? equal : turned) += 1;
    }
    return members > 0 && (equal == members || turned == members);
  }

  /// The groups of hosts behind a trunk of one of the set's networks, those that overlap an earlier
  /// one left out: a tree has no place for them.
  [[nodiscard]] std::vector<Hosts> groups_of(const NetworkSet& set, const Hosts& members) const {
    std::vector<Hosts> groups;
    for (const int n : set) {
      for (const HostTree::Group& group : networks_.groups(n)) {
        Hosts part;
        std::ranges::set_intersection(group.hosts, members, std::back_inserter(part));
        if (part.empty() || part.size() == members.size()) continue;
        const bool fits = std::ranges::all_of(groups, [&](const Hosts& other) {
          Hosts both;
          std::ranges::set_intersection(part, other, std::back_inserter(both));
          return both.empty() || both.size() == std::min(part.size(), other.size());
        });
        if (fits && std::ranges::find(groups, part) == groups.end()) groups.push_back(part);
      }
    }
    std::ranges::stable_sort(groups, std::greater(), &Hosts::size);
    return groups;
  }

  void add_tree(const NetworkSet& set) {
    Hosts members;
    for (const HostPart& part : parts_) {
      const NetworkSet& mine = networks_.of_host(part.host);
      if (std::ranges::includes(mine, set)) members.push_back(part.host);
    }
    std::ranges::sort(members);
    const std::string tag = fmt::format("network{}", fmt::join(set, "+"));
    const int top = builder_.node(tag, NodeKind::network_switch);
    const std::vector<Hosts> groups = groups_of(set, members);
    std::vector<int> switches;
    const auto above = [&](const Hosts& inner, std::size_t before) {
      for (std::size_t g = before; g-- > 0;) {
        if (std::ranges::includes(groups[g], inner)) return switches[g];
      }
      return top;
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const int below = builder_.node(fmt::format("{}/switch{}", tag, g), NodeKind::network_switch);
      const int parent = above(groups[g], g);
      switches.push_back(below);
      const Rates rates = trunks(set, groups[g], members);
      Shared& trunk = trunks_[whole(groups[g], set)];
      trunk.out.emplace_back(
          set, builder_.one_way(below, parent, wire_of(network_, rates.out, 0, "trunk")));
      trunk.in.emplace_back(
          set, builder_.one_way(parent, below, wire_of(network_, rates.in, 0, "trunk")));
    }
    // Of the sets that join two hosts the largest is theirs: it has the least latency by a little.
    constexpr double kRatherNotS = 1e-9;
    const auto missing = static_cast<double>(networks_.count() - std::ssize(set));
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const HostPart& part = parts_[p];
      if (!holds(members, part.host)) continue;
      const Rates rates = cables(part.host, set);
      const double alpha_s =
          cable_alpha_s(network_, part) + trunks_alpha_s(part.host) + kRatherNotS * missing;
      const int parent = above({part.host}, groups.size());
      cables_[p].out.emplace_back(
          set,
          builder_.one_way(nics_[p], parent, wire_of(network_, rates.out, alpha_s, "ethernet")));
      cables_[p].in.emplace_back(
          set,
          builder_.one_way(parent, nics_[p], wire_of(network_, rates.in, alpha_s, "ethernet")));
    }
  }

  /// The group of one of the set's networks that `part`, of the members of the set, belongs to.
  [[nodiscard]] Hosts whole(const Hosts& part, const NetworkSet& set) const {
    Hosts largest = part;
    for (const int n : set) {
      for (const HostTree::Group& group : networks_.groups(n)) {
        if (group.hosts.size() > largest.size() && std::ranges::includes(group.hosts, part) &&
            same_members(group.hosts, part, set)) {
          largest = group.hosts;
        }
      }
    }
    return largest;
  }

  /// Whether `group` has no more hosts in all of the set's networks than `part` has.
  [[nodiscard]] bool same_members(const Hosts& group, const Hosts& part,
                                  const NetworkSet& set) const {
    return std::ranges::all_of(group, [&](int host) {
      return holds(part, host) || !std::ranges::includes(networks_.of_host(host), set);
    });
  }

  /// Of the trunks between a host and the top of the network that joins all.
  [[nodiscard]] double trunks_alpha_s(int host) const {
    double sum = 0;
    for (std::size_t g = 0; g < network_.trunk_alpha_s.size(); ++g) {
      if (holds(network_.tree.groups[g].hosts, host)) sum += network_.trunk_alpha_s[g];
    }
    return sum;
  }

  /// For each union of sets, what all trees of sets within it may carry together.
  template <class Most>
  void limit(const Shared& shared, const Most& most) {
    std::vector<NetworkSet> sets;
    for (const auto& [set, link] : shared.out) sets.push_back(set);
    for (const NetworkSet& together : unions_of(sets)) {
      const auto within = [&](const std::vector<std::pair<NetworkSet, int>>& links) {
        std::vector<int> found;
        for (const auto& [set, link] : links) {
          if (std::ranges::includes(together, set)) found.push_back(link);
        }
        return found;
      };
      std::vector<int> out = within(shared.out);
      if (out.size() < 2) continue;
      const Rates rates = most(together);
      const std::string tag = fmt::format("{}/networks {}", shared.name, fmt::join(together, "+"));
      builder_.group(tag + " out", std::move(out), rates.out * 1e-9);
      builder_.group(tag + " in", within(shared.in), rates.in * 1e-9);
    }
  }

  const ProbedNetwork& network_;
  const std::span<const HostPart> parts_;
  const Networks networks_;
  TopologyBuilder builder_;
  std::vector<NetworkSet> sets_;
  std::vector<int> nics_;           // by part
  std::vector<Shared> cables_;      // by part
  std::map<Hosts, Shared> trunks_;  // by the hosts behind
};

}  // namespace

Topology topology_of_several(const ProbedNetwork& network, std::span<const HostPart> parts) {
  if (parts.size() <= kMostHostsInPairs) return topology_of_pairs(network, parts);
  return sound(Several(network, parts).build(), "the probed network");
}

}  // namespace chorus::probing
