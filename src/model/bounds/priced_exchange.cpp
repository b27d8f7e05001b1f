// Rates of all-to-all where a linear program would be too large, and over the routes of messages.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "model/bounds/cheapest.hpp"
#include "model/bounds/exchange.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/ways.hpp"

namespace chorus::bounds {
namespace {

constexpr std::size_t kMostLooks = 100'000'000;  // at arcs, in all sweeps over the sources
constexpr std::size_t kLeastSweeps = 8, kMostSweeps = 80;
constexpr std::size_t kSweepsToProof = 4;
constexpr double kMet = 1.005;  // times what the routing reaches: a limit can hardly be lower
// How steeply prices rise, and what part of what a source sends is moved: the steeper the prices
// get, the less at a time, or all sources rush from one way to another.
constexpr double kSharpness = 10, kSharper = 1.02;
constexpr double kMoved = 0.3, kMovedLess = 0.3;
constexpr double kOfMean = 0.2;                      // that the prices of one sweep make
constexpr double kFull[] = {0.97, 0.99, 0.998};      // of the busiest
constexpr double kSteep[] = {100, 1000};             // for a routing that is even already
constexpr double kLimiting = 0.1;                    // of the mean cost of a capacity
constexpr std::size_t kMostRouteLooks = 30'000'000;  // at routes, in one sweep

/// What data can do in one go: cross an arc, or follow the route of a message.
class Hops {
 public:
  Hops(const Network& network, bool are_routes)
      : from_(at(network.num_nodes())), are_routes_(are_routes) {}

  void add(int src, int dst, std::span<const int> arcs) {
    from_[at(src)].push_back(static_cast<int>(count()));
    src_.push_back(src);
    dst_.push_back(dst);
    arcs_.insert(arcs_.end(), arcs.begin(), arcs.end());
    arcs_end_.push_back(arcs_.size());
  }

  [[nodiscard]] bool are_routes() const { return are_routes_; }
  [[nodiscard]] std::size_t count() const { return dst_.size(); }
  [[nodiscard]] const std::vector<std::vector<int>>& by_source() const { return from_; }
  [[nodiscard]] int src(int hop) const { return src_[at(hop)]; }
  [[nodiscard]] int dst(int hop) const { return dst_[at(hop)]; }
  [[nodiscard]] std::span<const int> arcs(int hop) const {
    return std::span(arcs_).subspan(arcs_end_[at(hop)],
                                    arcs_end_[at(hop) + 1] - arcs_end_[at(hop)]);
  }

 private:
  std::vector<std::vector<int>> from_;  // by node: hops
  std::vector<int> src_, dst_;          // by hop: nodes
  std::vector<int> arcs_;               // grouped by the hop that crosses them
  std::vector<std::size_t> arcs_end_ = {0};
  bool are_routes_;
};

Hops arcs_of(const Network& network) {
  Hops hops(network, false);
  for (int arc = 0; at(arc) < network.arcs.size(); ++arc) {
    hops.add(network.arcs[at(arc)].src, network.arcs[at(arc)].dst, std::span(&arc, 1));
  }
  return hops;
}

Hops routes_of(const Network& network) {
  Hops hops(network, true);
  const RouteFinder finder(network.topology);
  for (const int src : network.terminals) {
    const std::vector<Route> routes = finder.from(network.ranks_on[at(src)].front());
    for (const int dst : network.terminals) {
      const Route& route = routes[at(network.ranks_on[at(dst)].front())];
      if (dst != src && route.connected) hops.add(src, dst, route.path);
    }
  }
  return hops;
}

/// Whether two hosts are joined by more than one network. Which of them carries a message is then
/// for the sender to choose, who may also divide it.
bool has_several_networks(const Topology& topology) {
  const auto is_switch = [&](int node) {
    return topology.nodes[at(node)].kind == NodeKind::network_switch;
  };
  const Ways ways(topology);
  DisjointSets joined(topology.nodes.size());
  for (const Topology::Link& link : topology.links) {
    if (is_switch(link.src) && is_switch(link.dst)) joined.join(link.src, link.dst);
  }
  std::map<int, std::set<int>> networks;  // by host
  for (const Topology::Link& link : topology.links) {
    if (!is_switch(link.dst) || is_switch(link.src)) continue;
    networks[ways.outermost[at(link.src)]].insert(joined.find(link.dst));
  }
  std::set<std::pair<int, int>> seen;
  for (const auto& [host, of_it] : networks) {
    for (auto one = of_it.begin(); one != of_it.end(); ++one) {
      for (auto other = std::next(one); other != of_it.end(); ++other) {
        if (!seen.insert({*one, *other}).second) return true;
      }
    }
  }
  return false;
}

class PricedExchange {
 public:
  PricedExchange(const Network& network, Hops hops)
      : network_(network),
        hops_(std::move(hops)),
        all_(exchanged(network)),
        out_(arcs_by_source(network)),
        orbit_(orbits_of_arcs(network)),
        cells_(network.repetition ? network.repetition->cells.count() : 1),
        share_of_orbit_(orbit_.size(), 0),
        load_(orbit_.size(), 0),
        mean_worth_(orbit_.size() + network.groups.size(), 0),
        byte_price_(orbit_.size(), 0) {
    for (const int orbit : orbit_) share_of_orbit_[at(orbit)] += 1;
    for (double& members : share_of_orbit_) members = members > 0 ? cells_ / members : 0;
    price_bytes(std::vector<double>(mean_worth_.size(), 1));
    for (std::size_t i = 0; i < all_.size(); ++i) {
      std::vector<double> load(orbit_.size(), 0);
      if (!hops_.are_routes()) {
        ShortestPaths(network, out_, all_[i].source).spread(network, out_, all_[i], load);
      }
      flows_.emplace_back(load.begin(), load.end());
      for (std::size_t arc = 0; arc < load.size(); ++arc) add(arc, load[arc]);
      if (hops_.are_routes()) move(i, 1);
    }
  }

  /// The largest share of a capacity, per unit of the rate.
  [[nodiscard]] double busiest() const {
    double most = 0;
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc) most = std::max(most, use_of(arc));
    for (const Network::Group& group : network_.groups) {
      most = std::max(most, load_of(group) / group.capacity);
    }
    return most;
  }

  Rate best() {
    const std::size_t looks = all_.size() * hops_.count();
    const std::size_t sweeps = std::clamp(kMostLooks / looks, kLeastSweeps, kMostSweeps);
    for (const double sharpness : kSteep) {
      set_prices(sharpness);
      prove(worth_);
    }
    for (std::size_t sweep = 1; sweep <= sweeps; ++sweep) {
      const auto before = static_cast<double>(sweep - 1);
      for (std::size_t i = 0; i < all_.size(); ++i) {
        set_prices(kSharpness * std::pow(kSharper, before));
        move(i, kMoved / (1 + kMovedLess * before));
      }
      if (sweep % kSweepsToProof != 0) continue;
      price_bytes(mean_worth_);
      prove(mean_worth_);
      if (!hops_.are_routes()) {
        for (const double full : kFull) prove_by_cuts(full);
      }
      if (busiest() * rate_.gb_s <= kMet) break;
    }
    return std::move(rate_);
  }

 private:
  /// What one cell's commodities load an arc with, its images load the arcs of its orbit with.
  void add(std::size_t arc, double load) {
    load_[at(orbit_[arc])] += load * share_of_orbit_[at(orbit_[arc])];
  }
  [[nodiscard]] double load_of(const Network::Group& group) const {
    double sum = 0;
    for (const int arc : group.arcs) sum += load_[at(orbit_[at(arc)])];
    return sum;
  }
  [[nodiscard]] double use_of(std::size_t arc) const {
    return load_[at(orbit_[arc])] / network_.arcs[arc].capacity;
  }

  void set_prices(double sharpness) {
    const double most = busiest();
    worth_.clear();
    const auto add = [&](double use) { worth_.push_back(std::exp(sharpness * (use / most - 1))); };
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc) add(use_of(arc));
    for (const Network::Group& group : network_.groups) add(load_of(group) / group.capacity);
    double sum = 0;
    for (const double worth : worth_) sum += worth;
    const double part = kOfMean / static_cast<double>(all_.size());
    for (std::size_t i = 0; i < worth_.size(); ++i) {
      mean_worth_[i] += part * (worth_[i] / sum - mean_worth_[i]);
    }
    price_bytes(worth_);
  }

  /// What a byte costs that crosses an arc, by what each capacity costs as a whole.
  void price_bytes(const std::vector<double>& worth) {
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc) {
      byte_price_[arc] = worth[arc] / network_.arcs[arc].capacity;
    }
    for (std::size_t group = 0; group < network_.groups.size(); ++group) {
      const double price = worth[orbit_.size() + group] / network_.groups[group].capacity;
      for (const int arc : network_.groups[group].arcs) byte_price_[at(arc)] += price;
    }
  }

  /// A part of what commodity `i` sends goes over the cheapest ways from now on.
  void move(std::size_t i, double part) {
    (void)pay(all_[i]);
    std::vector<double> beyond = all_[i].demand;  // to this node or through it
    moved_.assign(orbit_.size(), 0);
    for (auto node = cheapest_.order.rbegin(); node != cheapest_.order.rend(); ++node) {
      const int hop = cheapest_.by[at(*node)];
      if (hop < 0) continue;
      for (const int arc : hops_.arcs(hop)) moved_[at(arc)] += beyond[at(*node)];
      beyond[at(hops_.src(hop))] += beyond[at(*node)];
    }
    std::vector<float>& flow = flows_[i];
    for (std::size_t arc = 0; arc < flow.size(); ++arc) {
      const double more = part * (moved_[arc] - static_cast<double>(flow[arc]));
      if (more == 0) continue;
      flow[arc] += static_cast<float>(more);
      add(arc, more);
    }
  }

  /// What a commodity's demand pays over the cheapest ways, which stay in cheapest_.
  double pay(const Commodity& commodity) {
    const auto price = [&](int hop) {
      double sum = 0;
      for (const int arc : hops_.arcs(hop)) sum += byte_price_[at(arc)];
      return sum;
    };
    find_cheapest(
        hops_.by_source(), std::span(&commodity.source, 1), price,
        [&](int hop) { return hops_.dst(hop); }, cheapest_);
    double paid = 0;
    for (const int node : cheapest_.order) {
      paid += commodity.demand[at(node)] * cheapest_.distance[at(node)];
    }
    return paid;
  }

  /// By the prices of bytes that `capacity_worth` has led to.
  void prove(const std::vector<double>& capacity_worth) {
    double worth = 0, paid = 0;
    for (const double one : capacity_worth) worth += one;
    for (const Commodity& commodity : all_) paid += cells_ * pay(commodity);
    if (worth / paid >= rate_.gb_s) return;
    rate_ = {.gb_s = worth / paid,
             .method = hops_.are_routes() ? "prices of routes" : "prices",
             .tight = false};
    rate_.words = "no single cut, full at once";
    const double least = kLimiting * worth / static_cast<double>(capacity_worth.size());
    std::vector<char> limiting(orbit_.size(), 0);
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc)
      limiting[arc] = capacity_worth[arc] >= least;
    for (std::size_t group = 0; group < network_.groups.size(); ++group) {
      if (capacity_worth[orbit_.size() + group] < least) continue;
      rate_.groups.push_back(static_cast<int>(group));
      for (const int arc : network_.groups[group].arcs) limiting[at(arc)] = 1;
    }
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc) {
      if (limiting[arc] != 0) rate_.arcs.push_back(static_cast<int>(arc));
    }
  }

  /// Around what a terminal reaches without crossing what is full, and around what it does not.
  void prove_by_cuts(double share) {
    const double full_from = share * busiest();
    std::vector<char> full(orbit_.size(), 0);
    for (std::size_t arc = 0; arc < orbit_.size(); ++arc) full[arc] = use_of(arc) >= full_from;
    for (const Network::Group& group : network_.groups) {
      if (load_of(group) < full_from * group.capacity) continue;
      for (const int arc : group.arcs) full[at(arc)] = 1;
    }
    std::set<Side> seen;
    for (const Commodity& commodity : all_) {
      Side side = reached_before(network_, out_, full, commodity.source);
      if (!seen.insert(side).second) continue;
      Side others = turned(side);
      for (Side* const each : {&side, &others}) {
        const double demand = demand_across(network_, *each);
        if (demand <= 0 || network_.crossing(*each) >= rate_.gb_s * demand) continue;
        rate_ = {.gb_s = network_.crossing(*each) / demand, .method = "min cut", .tight = false};
        rate_.arcs = network_.arcs_across(*each);
        rate_.side = std::move(*each);
      }
    }
  }

  const Network& network_;
  const Hops hops_;
  const std::vector<Commodity> all_;
  const std::vector<std::vector<int>> out_;
  const std::vector<int> orbit_;  // by arc
  const double cells_;
  std::vector<double> share_of_orbit_;      // of what one cell sends, all cells on each arc
  std::vector<double> load_;                // of each arc, by orbit, per unit of the rate
  std::vector<std::vector<float>> flows_;   // by commodity, then arc
  std::vector<double> worth_, mean_worth_;  // what capacities cost: of arcs, then of groups
  std::vector<double> byte_price_;          // by arc
  std::vector<double> moved_;               // by arc: what one commodity puts on the cheapest ways
  Cheapest cheapest_;
  Rate rate_{.gb_s = kNoLimit};
};

}  // namespace

Rate priced_exchange_rate(const Network& network) {
  return PricedExchange(network, arcs_of(network)).best();
}

std::optional<Rate> routed_exchange_rate(const Network& network, double most_gb_s) {
  const std::size_t ends = network.terminals.size();
  const bool switches = ends < at(network.num_nodes());
  if (!switches || network.representatives.size() * ends * ends > kMostRouteLooks) return {};
  if (has_several_networks(network.topology)) return {};
  PricedExchange exchange(network, routes_of(network));
  if (exchange.busiest() * most_gb_s <= kMet) return {};
  Rate rate = exchange.best();
  if (rate.gb_s * kMet >= most_gb_s) return {};
  return rate;
}

}  // namespace chorus::bounds
