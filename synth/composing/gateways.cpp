#include "synth/composing/gateways.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/index.hpp"
#include "model/price/cost.hpp"
#include "synth/packing.hpp"
#include "synth/routing.hpp"

namespace chorus::synth {
namespace {

constexpr double kAsFast = 0.9;         // of the fastest: a rank that may speak for others
constexpr double kAboutFull = 0.95;     // of a trunk: one more stream is not worth it
constexpr int kMostGatewayRanks = 160;  // as for trees

/// What the route of an edge passes between its two islands.
struct Crossing {
  int edge = 0;
  int from = 0;           ///< the first switch on the way
  int to = 0;             ///< the last one
  double trunk_s = 0;     ///< seconds per byte of what lies between the two
  double access_s = 0;    ///< of the rest
  std::vector<int> path;  ///< links, from the one into the first switch to the one out of the last
};

class Gateways {
 public:
  Gateways(const Topology& topology, const Network& network)
      : topology_(topology),
        network_(network),
        groups_of_(port_groups_of_links(topology)),
        switch_of_(at(network.world_size()), -1),
        uses_(topology.nodes.size(), 0) {}

  std::optional<Gatewayed> choose() {
    if (!find_crossings()) return std::nullopt;
    std::map<std::pair<int, int>, std::vector<const Crossing*>> between;
    for (const Crossing& crossing : crossings_) {
      if (neighbours(crossing)) between[{crossing.from, crossing.to}].push_back(&crossing);
    }
    std::vector<char> keep(network_.edges().size(), 1);
    for (const Crossing& crossing : crossings_) keep[at(crossing.edge)] = 0;
    std::vector<const Crossing*> left;
    for (const auto& [ends, ways] : between) {
      for (const Crossing* way : chosen(ways)) {
        keep[at(way->edge)] = 1;
        left.push_back(way);
      }
    }
    if (left.size() == crossings_.size()) return std::nullopt;
    Network network = network_.restricted_to(keep);
    if (!connected(network)) return std::nullopt;  // routes that no tree explains
    return Gatewayed{std::move(network), with_links(left)};
  }

 private:
  [[nodiscard]] bool is_switch(int node) const {
    return topology_.nodes[at(node)].kind == NodeKind::network_switch;
  }

  [[nodiscard]] double seconds_per_byte(int link) const {
    double most = topology_.links[at(link)].beta_s_per_byte;
    for (const int group : groups_of_[at(link)]) {
      most = std::max(most, topology_.port_groups[at(group)].beta_s_per_byte);
    }
    return most;
  }

  /// False if a rank enters the network by several switches.
  bool find_crossings() {
    const Routes routes(topology_);
    for (std::size_t i = 0; i < network_.edges().size(); ++i) {
      const Edge& edge = network_.edges()[i];
      const std::vector<int>& path = routes.path(edge.src, edge.dst);
      const auto into = std::find_if(path.begin(), path.end(), [&](int link) {
        return is_switch(topology_.links[at(link)].dst);
      });
      if (into == path.end()) continue;  // inside a host
      const auto out = std::find_if(path.rbegin(), path.rend(), [&](int link) {
                         return is_switch(topology_.links[at(link)].src);
                       }).base();
      Crossing crossing;
      crossing.edge = static_cast<int>(i);
      crossing.from = topology_.links[at(*into)].dst;
      crossing.to = topology_.links[at(*std::prev(out))].src;
      crossing.path.assign(into, out);
      if (!enters(edge.src, crossing.from) || !enters(edge.dst, crossing.to)) return false;
      if (crossing.from == crossing.to) continue;
      for (const int link : path) {
        const Topology::Link& facts = topology_.links[at(link)];
        double& part =
            is_switch(facts.src) && is_switch(facts.dst) ? crossing.trunk_s : crossing.access_s;
        part = std::max(part, seconds_per_byte(link));
      }
      crossings_.push_back(std::move(crossing));
    }
    return true;
  }

  bool enters(Rank rank, int node) {
    int& known = switch_of_[at(rank)];
    if (known < 0) islands_.insert(known = node);
    return known == node;
  }

  [[nodiscard]] bool neighbours(const Crossing& crossing) const {
    return std::none_of(crossing.path.begin() + 1, crossing.path.end() - 1, [&](int link) {
      const int node = topology_.links[at(link)].dst;
      return node != crossing.to && islands_.contains(node);
    });
  }

  /// Of the edges between two neighbours, one way, those that stay: as many as fill what is between
  /// them, all where that would take every rank of an island.
  std::vector<const Crossing*> chosen(const std::vector<const Crossing*>& ways) {
    const double trunk_s = ways.front()->trunk_s;
    if (trunk_s <= 0) return ways;  // nothing limits it
    double fastest_s = ways.front()->access_s;
    for (const Crossing* way : ways) fastest_s = std::min(fastest_s, way->access_s);
    const double wanted = kAboutFull * fastest_s / trunk_s;  // of streams
    std::vector<const Crossing*> left;
    std::set<Rank> sources, destinations;
    do {
      const Crossing* best = nullptr;
      for (const Crossing* way : ways) {
        const Edge& edge = network_.edges()[at(way->edge)];
        if (way->access_s * kAsFast > fastest_s) continue;
        if (sources.contains(edge.src) || destinations.contains(edge.dst)) continue;
        if (best == nullptr || burden(*way) < burden(*best)) best = way;
      }
      if (best == nullptr) return ways;
      const Edge& edge = network_.edges()[at(best->edge)];
      sources.insert(edge.src);
      destinations.insert(edge.dst);
      speaks_.insert({edge.src, edge.dst});
      ++uses_[at(machine_of(edge.src))];
      ++uses_[at(machine_of(edge.dst))];
      left.push_back(best);
    } while (static_cast<double>(left.size()) < wanted);
    return left;
  }

  /// The topology with a link for each of `ways` in place of all between switches.
  [[nodiscard]] Topology with_links(const std::vector<const Crossing*>& ways) const {
    Topology result = topology_;
    result.links.clear();
    std::vector<int> place(topology_.links.size(), -1);
    for (std::size_t i = 0; i < topology_.links.size(); ++i) {
      const Topology::Link& link = topology_.links[i];
      if (is_switch(link.src) && is_switch(link.dst)) continue;
      place[i] = static_cast<int>(result.links.size());
      result.links.push_back(link);
    }
    for (Topology::PortGroup& group : result.port_groups) {
      for (int& link : group.links) link = place[at(link)];
      std::erase(group.links, -1);
    }
    std::map<int, std::vector<int>> across;  // new links, by the link between switches they cross
    for (const Crossing* way : ways) {
      // From rank to rank: past an adapter of theirs others could go, too.
      const Edge& edge = network_.edges()[at(way->edge)];
      Topology::Link link = topology_.links[at(way->path.front())];
      link.src = topology_.rank_nodes[at(edge.src)];
      link.dst = topology_.rank_nodes[at(edge.dst)];
      link.alpha_s = edge.alpha_s;
      link.beta_s_per_byte = edge.beta_s_per_byte;
      for (const int crossed : way->path) {
        if (place[at(crossed)] < 0) {
          across[crossed].push_back(static_cast<int>(result.links.size()));
        }
      }
      result.links.push_back(link);
    }
    for (auto& [crossed, links] : across) {
      if (links.size() == 1) continue;
      result.port_groups.push_back({"trunk", std::move(links), seconds_per_byte(crossed), 0});
    }
    return result;
  }

  /// The pair that speaks the other way speaks this way too; else who speaks least so far.
  [[nodiscard]] std::pair<bool, int> burden(const Crossing& way) const {
    const Edge& edge = network_.edges()[at(way.edge)];
    return {!speaks_.contains({edge.dst, edge.src}),
            uses_[at(machine_of(edge.src))] + uses_[at(machine_of(edge.dst))]};
  }

  /// The outermost node that contains the rank's.
  [[nodiscard]] int machine_of(Rank rank) const {
    int node = topology_.rank_nodes[at(rank)];
    while (topology_.nodes[at(node)].parent >= 0) node = topology_.nodes[at(node)].parent;
    return node;
  }

  const Topology& topology_;
  const Network& network_;
  const std::vector<std::vector<int>> groups_of_;
  std::vector<int> switch_of_;  // by rank; -1: not known yet
  std::set<int> islands_;       // switches by which ranks enter the network
  std::vector<Crossing> crossings_;
  std::vector<int> uses_;                   // by node: streams that a machine speaks in
  std::set<std::pair<Rank, Rank>> speaks_;  // those that stay
};

}  // namespace

std::optional<Gatewayed> through_gateways(const Topology& topology, const Network& network) {
  return Gateways(topology, network).choose();
}

std::vector<Schedule> gateways(const Task& task, const Budget& budget) {
  using enum CollectiveKind;
  std::vector<Schedule> found;
  if (task.network.world_size() > kMostGatewayRanks) return found;
  const std::optional<Gatewayed> wiring = through_gateways(task.topology, task.network);
  if (!wiring) return found;
  std::optional<Schedule> schedule;
  switch (task.collective.kind) {
    case all_gather:
    case broadcast:
    case all_reduce:
      schedule = trees(wiring->topology, task.collective, task.size_bytes, budget.without_times(),
                       {.by_prices_alone = true});
      break;
    case all_to_all:
    case gather:
    case scatter:
      schedule = routed(wiring->network, task.collective, task.size_bytes, budget.without_times());
      break;
    default:
      break;
  }
  if (!schedule) return found;
  schedule->name = "gateways";
  found.push_back(*std::move(schedule));
  return found;
}

}  // namespace chorus::synth
