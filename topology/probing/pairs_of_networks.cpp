#include "topology/probing/pairs_of_networks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "model/json/json.hpp"
#include "model/price/max_flow.hpp"
#include "topology/probing/networks.hpp"
#include "topology/probing/several_networks.hpp"

namespace chorus::probing {
namespace {

/// Of so many hosts each set of peers is looked at, of more those that a network could make slow.
constexpr std::size_t kFewPeers = 5;
/// A limit that is closer to what others say already is left out.
constexpr double kTightens = 0.995;

using Hosts = std::vector<int>;

/// All that the hosts `from` send to the hosts `to`, where no network but those of `by` joins two.
struct Cut {
  Hosts from, to;
  NetworkSet by;

  auto operator<=>(const Cut&) const = default;
};

/// What a network carries from some of its hosts to some others.
class Carries {
 public:
  explicit Carries(const Networks& networks) : networks_(networks) {}

  [[nodiscard]] double bytes_per_s(const Cut& cut) const {
    double sum = 0;
    for (const int n : cut.by) sum += by(n, cut);
    return sum;
  }

 private:
  [[nodiscard]] double by(int network, const Cut& cut) const {
    const HostTree& tree = networks_.tree(network);
    const int hosts = tree.hosts();
    const auto groups = static_cast<int>(tree.groups.size());
    const int top = hosts + groups, source = top + 1, sink = top + 2;
    MaxFlow flow(sink + 1);
    const std::vector<int> group_of = tree.group_of_hosts();
    const auto above = [&](int group) { return group < 0 ? top : hosts + group; };
    for (const int h : cut.from) {
      flow.add_arc(source, h, tree.out[at(h)]);
      flow.add_arc(h, above(group_of[at(h)]), tree.out[at(h)]);
    }
    for (const int h : cut.to) {
      flow.add_arc(above(group_of[at(h)]), h, tree.in[at(h)]);
      flow.add_arc(h, sink, tree.in[at(h)]);
    }
    const std::vector<int> parents = tree.parents();
    for (int g = 0; g < groups; ++g) {
      flow.add_arc(hosts + g, above(parents[at(g)]), tree.groups[at(g)].out);
      flow.add_arc(above(parents[at(g)]), hosts + g, tree.groups[at(g)].in);
    }
    return flow.solve(source, sink);
  }

  const Networks& networks_;
};

/// Links that carry no more than so much together, and why.
struct Limited {
  std::vector<int> links;  ///< ascending
  double bytes_per_s = 0;
  Cut cut;
};

class Pairs {
 public:
  Pairs(const ProbedNetwork& network, std::span<const HostPart> parts)
      : network_(network),
        parts_(parts),
        networks_(network),
        carries_(networks_),
        builder_(title_of(network, parts.size())) {
    for (const HostPart& part : parts) hosts_.push_back(part.host);
    std::ranges::sort(hosts_);
    for (int n = 0; n < networks_.count(); ++n) all_.push_back(n);
    unions_ = unions_of(networks_.sets_between(hosts_));
    unions_.insert(all_);
  }

  Topology build() {
    std::size_t ranks = 0;
    for (const HostPart& part : parts_) ranks += part.ranks.size();
    std::vector<int> rank_nodes(ranks, -1);
    std::vector<int> nics(network_.hosts.size(), -1);
    std::vector<double> alpha_s(network_.hosts.size(), 0);
    for (const HostPart& part : parts_) {
      double out = 0, in = 0;
      for (const int n : networks_.of_host(part.host)) {
        out += networks_.cable(n, part.host).first;
        in += networks_.cable(n, part.host).second;
      }
      nics[at(part.host)] = add_host(builder_, network_, part, out, in, rank_nodes);
      alpha_s[at(part.host)] = cable_alpha_s(network_, part);
    }
    for (const int a : hosts_) {
      for (const int b : hosts_) {
        if (a == b) continue;
        const double rate = carries_.bytes_per_s({{a}, {b}, all_});
        links_[{a, b}] = builder_.one_way(
            nics[at(a)], nics[at(b)],
            wire_of(network_, rate, alpha_s[at(a)] + alpha_s[at(b)] + trunks_alpha_s(a, b),
                    "ethernet"));
      }
    }
    add_groups();
    for (const int node : rank_nodes) builder_.rank(node);
    return builder_.take();
  }

 private:
  [[nodiscard]] Hosts without(const Hosts& some) const {
    Hosts rest;
    std::ranges::set_difference(hosts_, some, std::back_inserter(rest));
    return rest;
  }

  /// Of the trunks that part them in the network that joins all.
  [[nodiscard]] double trunks_alpha_s(int a, int b) const {
    double sum = 0;
    for (std::size_t g = 0; g < network_.trunk_alpha_s.size(); ++g) {
      const Hosts& behind = network_.tree.groups[g].hosts;
      if (holds(behind, a) != holds(behind, b)) sum += network_.trunk_alpha_s[g];
    }
    return sum;
  }

  /// The hosts of this part behind the trunks of all networks.
  [[nodiscard]] std::set<Hosts> behind_trunks() const {
    std::set<Hosts> behind;
    for (int n = 0; n < networks_.count(); ++n) {
      for (const HostTree::Group& group : networks_.groups(n)) {
        Hosts part;
        std::ranges::set_intersection(group.hosts, hosts_, std::back_inserter(part));
        if (part.empty() || part.size() == hosts_.size()) continue;
        behind.insert(part);
        behind.insert(without(part));
      }
    }
    return behind;
  }

  /// Sets of the peers of `host` that may be slow together. `rate(network, peer)` is that of a
  /// peer's cable.
  template <class Rate>
  [[nodiscard]] std::set<Hosts> sets_of_peers(int host, const std::set<Hosts>& behind,
                                              const Rate& rate) const {
    const Hosts peers = without({host});
    std::set<Hosts> sets = {peers};
    if (peers.size() <= kFewPeers) {
      for (unsigned members = 1; members < 1U << peers.size(); ++members) {
        Hosts some;
        for (std::size_t p = 0; p < peers.size(); ++p) {
          if ((members >> p & 1) != 0) some.push_back(peers[p]);
        }
        sets.insert(std::move(some));
      }
      return sets;
    }
    // The slowest of a network, as many as may be.
    for (const int n : networks_.of_host(host)) {
      Hosts sorted = peers;
      std::ranges::stable_sort(sorted, {}, [&](int peer) { return rate(n, peer); });
      for (std::size_t few = 2; few < sorted.size(); ++few) {
        Hosts some(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(few));
        std::ranges::sort(some);
        sets.insert(std::move(some));
      }
    }
    for (const Hosts& part : behind) {
      Hosts some = part;
      std::erase(some, host);
      if (!some.empty()) sets.insert(std::move(some));
    }
    return sets;
  }

  /// All that may say more than the links of their pairs do.
  [[nodiscard]] std::set<Cut> cuts() const {
    const std::set<Hosts> behind = behind_trunks();
    std::set<Cut> cuts;
    const auto add = [&](const Hosts& from, const Hosts& to) {
      for (const NetworkSet& by : unions_) cuts.insert({from, to, by});
    };
    for (const int host : hosts_) {
      const auto in = [&](int n, int peer) { return networks_.cable(n, peer).second; };
      for (const Hosts& to : sets_of_peers(host, behind, in)) add({host}, to);
      const auto out = [&](int n, int peer) { return networks_.cable(n, peer).first; };
      for (const Hosts& from : sets_of_peers(host, behind, out)) add(from, {host});
    }
    for (const Hosts& part : behind) add(part, without(part));
    return cuts;
  }

  /// Of cuts of the same links the one that carries least; those of few links first.
  [[nodiscard]] std::vector<Limited> limits() const {
    std::vector<Limited> limits;
    for (const Cut& cut : cuts()) {
      std::vector<int> links = links_of(cut);
      if (links.size() > 1) limits.push_back({std::move(links), carries_.bytes_per_s(cut), cut});
    }
    std::ranges::sort(limits, {}, [](const Limited& limit) {
      return std::make_tuple(limit.links.size(), std::cref(limit.links), limit.bytes_per_s);
    });
    const auto same_links = [](const Limited& a, const Limited& b) { return a.links == b.links; };
    limits.erase(std::unique(limits.begin(), limits.end(), same_links), limits.end());
    return limits;
  }

  void add_groups() {
    std::vector<Limited> kept;
    for (Limited& limit : limits()) {
      if (limit.bytes_per_s < kTightens * by_parts(limit.links, kept)) {
        kept.push_back(std::move(limit));
      }
    }
    // What a larger one says need not be said again.
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const auto larger = std::span(kept).subspan(k + 1);
      const bool implied = std::ranges::any_of(larger, [&](const Limited& other) {
        return other.bytes_per_s <= kept[k].bytes_per_s &&
               std::ranges::includes(other.links, kept[k].links);
      });
      if (!implied) {
        builder_.group(name_of(kept[k].cut), kept[k].links, kept[k].bytes_per_s * 1e-9);
      }
    }
  }

  /// Ascending.
  [[nodiscard]] std::vector<int> links_of(const Cut& cut) const {
    std::vector<int> links;
    for (const int a : cut.from) {
      for (const int b : cut.to) {
        const bool confined = std::ranges::includes(cut.by, networks_.between(a, b));
        if (confined) links.push_back(links_.at({a, b}));
      }
    }
    std::ranges::sort(links);
    return links;
  }

  /// The least that is said of `links` by each of them and by one of the `kept` within them, with
  /// the others that this leaves.
  [[nodiscard]] double by_parts(const std::vector<int>& links,
                                std::span<const Limited> kept) const {
    const auto sum = [&](const std::vector<int>& of) {
      double all = 0;
      for (const int link : of) all += 1 / builder_.peek().links[at(link)].beta_s_per_byte;
      return all;
    };
    const double all = sum(links);
    double least = all;
    for (const Limited& part : kept) {
      if (std::ranges::includes(links, part.links)) {
        least = std::min(least, all - sum(part.links) + part.bytes_per_s);
      }
    }
    return least;
  }

  [[nodiscard]] std::string name_of(const Cut& cut) const {
    constexpr std::size_t kMostNames = 4;
    const auto names = [&](const Hosts& hosts) {
      std::vector<std::string> all;
      for (const int host : hosts) all.push_back(network_.hosts[at(host)]);
      return all.size() > kMostNames ? counted(std::ssize(all), "host")
                                     : fmt::format("{}", fmt::join(all, "+"));
    };
    const auto rest = [&](const Hosts& some, const Hosts& other) {
      return some.size() + other.size() == hosts_.size() && some.size() > other.size();
    };
    std::string by;
    if (cut.by != all_) {
      by = fmt::format(" by network{} {} alone", cut.by.size() == 1 ? "" : "s",
                       fmt::join(cut.by, "+"));
    }
    if (rest(cut.to, cut.from)) return names(cut.from) + " out" + by;
    if (rest(cut.from, cut.to)) return names(cut.to) + " in" + by;
    return fmt::format("{} to {}{}", names(cut.from), names(cut.to), by);
  }

  const ProbedNetwork& network_;
  const std::span<const HostPart> parts_;
  const Networks networks_;
  const Carries carries_;
  TopologyBuilder builder_;
  Hosts hosts_;
  NetworkSet all_;
  std::set<NetworkSet> unions_;               // that may be all that join several pairs
  std::map<std::pair<int, int>, int> links_;  // from host to host
};

}  // namespace

Topology topology_of_pairs(const ProbedNetwork& network, std::span<const HostPart> parts) {
  return sound(Pairs(network, parts).build(), "the probed network");
}

}  // namespace chorus::probing
