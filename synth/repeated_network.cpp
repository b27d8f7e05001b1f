#include "synth/repeated_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "model/price/cost.hpp"

namespace chorus::synth {
namespace {

std::vector<int> orbits_of(const Repetition& repetition, std::size_t count,
                           std::vector<int> Automorphism::*map) {
  std::vector<const std::vector<int>*> maps;
  for (const Automorphism& generator : repetition.generators) maps.push_back(&(generator.*map));
  return orbits(count, maps);
}

/// Routes from `moved` of a rank are the images of routes from it, as far as they are edges.
bool alike(const RouteFinder& finder, const Repetition& repetition, Rank rank,
           const std::vector<Route>& routes) {
  int by = 1;
  for (std::size_t i = 0; i < repetition.generators.size(); ++i) {
    const std::vector<Route> images = finder.from(repetition.cells.moved(rank, by));
    for (std::size_t dst = 0; dst < routes.size(); ++dst) {
      if (routes[dst].relayed) continue;
      std::vector<int> expected;
      for (const int link : routes[dst].path) {
        expected.push_back(repetition.generators[i].links[at(link)]);
      }
      const Rank to = repetition.cells.moved(static_cast<Rank>(dst), by);
      if (images[at(to)].path != expected) return false;
    }
    by *= repetition.cells.radices()[i];
  }
  return true;
}

/// Orbits that some edge crosses, in order of first use, and how often each edge brings one member
/// of each a byte.
class Orbits {
 public:
  Orbits(const Topology& topology, const Repetition& repetition)
      : topology_(topology),
        cells_(repetition.cells.count()),
        groups_of_(port_groups_of_links(topology)),
        orbit_of_link_(orbits_of(repetition, topology.links.size(), &Automorphism::links)),
        orbit_of_group_(orbits_of(repetition, topology.port_groups.size(), &Automorphism::groups)),
        links_(topology.links.size(), 0),
        group_sizes_(topology.port_groups.size(), 0) {
    for (const int orbit : orbit_of_link_) ++links_[at(orbit)];
    for (const int orbit : orbit_of_group_) ++group_sizes_[at(orbit)];
  }

  void add(const std::vector<int>& path) {
    std::map<int, int>& load = loads_.emplace_back();
    std::map<int, int>& messages = messages_.emplace_back();
    for (const int link : path) {
      if (topology_.links[at(link)].beta_s_per_byte > 0) {
        const int orbit = orbit_of_link_[at(link)];
        load[number({0, orbit})] += cells_ / links_[at(orbit)];
      }
      for (const int group : groups_of_[at(link)]) {
        const Topology::PortGroup& port = topology_.port_groups[at(group)];
        if (port.beta_s_per_byte <= 0 && port.message_s <= 0) continue;
        const int orbit = orbit_of_group_[at(group)];
        load[number({1, orbit})] += cells_ / group_sizes_[at(orbit)];
        if (port.message_s > 0) ++messages[number({1, orbit})];
      }
    }
  }

  /// Fills in what `edges`, in the order of add(), cross.
  Network network(const Cells& cells, std::vector<Edge> edges) const {
    std::vector<int> least(numbers_.size(), std::numeric_limits<int>::max());
    for (const auto& load : loads_) {
      for (const auto& [resource, times] : load)
        least[at(resource)] = std::min(least[at(resource)], times);
    }
    std::vector<Resource> resources(numbers_.size());
    for (const auto& [what, number] : numbers_)
      resources[at(number)] = resource_of(topology_, what.first == 1, what.second);
    for (std::size_t i = 0; i < edges.size(); ++i) {
      for (const auto& [resource, times] : loads_[i]) {
        const int unit = least[at(resource)];
        edges[i].resources.insert(edges[i].resources.end(), at((times + unit - 1) / unit),
                                  resource);
        edges[i].beta_s_per_byte =
            std::max(edges[i].beta_s_per_byte, times * resources[at(resource)].beta_s_per_byte);
      }
    }
    for (std::size_t i = 0; i < resources.size(); ++i) {
      resources[i].beta_s_per_byte *= least[i];
      resources[i].message_s *= least[i];
    }
    return {cells, std::move(edges), std::move(resources)};
  }

  /// A link for every resource, followed by one for the messages of each; routes over them.
  Topology topology() const {
    Topology result;
    result.links.resize(2 * numbers_.size());
    for (const auto& [what, number] : numbers_) {
      const Resource facts = resource_of(topology_, what.first == 1, what.second);
      result.links[at(number)].beta_s_per_byte = facts.beta_s_per_byte;
      if (facts.message_s <= 0) continue;
      const int messages = number + static_cast<int>(numbers_.size());
      result.port_groups.push_back({facts.name, {messages}, 0, facts.message_s});
    }
    return result;
  }
  std::vector<Route> routes(const std::vector<Edge>& edges) const {
    std::vector<Route> result;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      Route& route = result.emplace_back();
      route.alpha_s = edges[i].alpha_s;
      route.connected = true;
      for (const auto& [resource, load] : loads_[i]) {
        route.path.insert(route.path.end(), at(load), resource);
      }
      for (const auto& [resource, times] : messages_[i]) {
        route.path.insert(route.path.end(), at(times),
                          resource + static_cast<int>(numbers_.size()));
      }
    }
    return result;
  }

 private:
  int number(std::pair<int, int> what) {
    return numbers_.try_emplace(what, static_cast<int>(numbers_.size())).first->second;
  }

  const Topology& topology_;
  int cells_;
  std::vector<std::vector<int>> groups_of_;
  std::vector<int> orbit_of_link_, orbit_of_group_;
  std::vector<int> links_, group_sizes_;  // by orbit: how many
  std::map<std::pair<int, int>, int> numbers_;
  std::vector<std::map<int, int>> loads_;     // by edge: resource, times
  std::vector<std::map<int, int>> messages_;  // by edge: resource, own crossings
};

}  // namespace

std::optional<RepeatedNetwork> RepeatedNetwork::of(const Topology& topology) {
  const Repetition repetition = repetition_of(topology);
  if (repetition.cells.count() == 1) return std::nullopt;
  const RouteFinder finder(topology);
  Orbits orbits(topology, repetition);
  std::vector<Edge> edges;
  for (Rank src = 0; src < repetition.cells.size(); ++src) {
    const std::vector<Route> routes = finder.from(src);
    if (!alike(finder, repetition, src, routes)) return std::nullopt;
    for (Rank dst = 0; dst < topology.world_size(); ++dst) {
      const Route& route = routes[at(dst)];
      if (dst == src || !route.connected || route.relayed) continue;
      orbits.add(route.path);
      edges.push_back({src, dst, route.alpha_s, 0, {}});
    }
  }
  std::vector<Route> routes = orbits.routes(edges);  // sorted as the network's edges are
  RepeatedNetwork result(orbits.network(repetition.cells, std::move(edges)));
  result.orbits_ = orbits.topology();
  result.routes_ = std::move(routes);
  return result;
}

std::optional<double> RepeatedNetwork::simulated_seconds(const Schedule& schedule,
                                                         double size_bytes,
                                                         double give_up_s) const {
  if (schedule.symmetry != cells().radices()) return std::nullopt;
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      if (!folded_.edge(transfer.src, transfer.dst)) return std::nullopt;
    }
  }
  return chorus::simulated_seconds(
      schedule, orbits_, routes_, [&](Rank src, Rank dst) { return at(*folded_.edge(src, dst)); },
      size_bytes, give_up_s);
}

}  // namespace chorus::synth
