#include "chorus/grid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "chorus/error.hpp"
#include "model/price/cost.hpp"

namespace chorus {
namespace {

constexpr int kMostRanks = 1024;
/// Nearness is what a message of so many bytes takes: large enough for bandwidth to count.
constexpr double kProbeBytes = 256 * 1024;

using Groups = std::vector<std::vector<std::size_t>>;

/// Places of the grid by group of `dims`, in the order of their places.
Groups groups_of(std::span<const int> sizes, const std::vector<int>& dims) {
  const auto places =
      static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>()));
  std::vector<std::size_t> group_of_key(places, places);
  Groups groups;
  for (std::size_t place = 0; place < places; ++place) {
    // The place with the coordinates along `dims` set to 0 names its group.
    std::size_t key = place;
    std::size_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      const auto size = static_cast<std::size_t>(sizes[d]);
      if (std::ranges::find(dims, static_cast<int>(d)) != dims.end()) {
        key -= place / stride % size * stride;
      }
      stride *= size;
    }
    if (group_of_key[key] == places) {
      group_of_key[key] = groups.size();
      groups.emplace_back();
    }
    groups[group_of_key[key]].push_back(place);
  }
  return groups;
}

/// Adds up what crosses every link and port group while all groups of a flow move.
class Pricer {
 public:
  explicit Pricer(const Topology& topology)
      : topology_(topology),
        routes_(topology),
        groups_of_(port_groups_of_links(topology)),
        on_link_(topology.links.size()),
        on_group_(topology.port_groups.size()),
        messages_(topology.port_groups.size()) {}

  [[nodiscard]] const Routes& routes() const { return routes_; }

  GridMapping::Price price(const GridFlow& flow, const Groups& groups,
                           const std::vector<Rank>& ranks) {
    std::ranges::fill(on_link_, 0.0);
    std::ranges::fill(on_group_, 0.0);
    std::ranges::fill(messages_, 0.0);
    alpha_s_ = 0;
    for (const auto& group : groups) {
      const std::size_t n = group.size();
      if (n == 1) continue;
      const auto rank = [&](std::size_t i) { return ranks[group[i % n]]; };
      for (std::size_t i = 0; i < n; ++i) {
        switch (flow.pattern) {
          case GridFlow::Pattern::ring:
            add(rank(i), rank(i + 1), 1);
            break;
          case GridFlow::Pattern::chain:
            if (i + 1 == n) break;
            add(rank(i), rank(i + 1), 1);
            add(rank(i + 1), rank(i), 1);
            break;
          case GridFlow::Pattern::pairs:
            for (std::size_t j = 1; j < n; ++j) {
              add(rank(i), rank(i + j), 1.0 / static_cast<double>(n - 1));
            }
        }
      }
    }
    double beta = 0;
    double message_s = 0;
    for (std::size_t l = 0; l < on_link_.size(); ++l) {
      beta = std::max(beta, on_link_[l] * topology_.links[l].beta_s_per_byte);
    }
    for (std::size_t g = 0; g < on_group_.size(); ++g) {
      beta = std::max(beta, on_group_[g] * topology_.port_groups[g].beta_s_per_byte);
      message_s = std::max(message_s, messages_[g] * topology_.port_groups[g].message_s);
    }
    return {alpha_s_ + message_s, beta};
  }

 private:
  void add(Rank src, Rank dst, double share) {
    if (!routes_.connected(src, dst)) {
      throw TopologyError(fmt::format("the topology '{}' has no path from rank {} to rank {}",
                                      topology_.name, src, dst));
    }
    alpha_s_ = std::max(alpha_s_, routes_.alpha_s(src, dst));
    for (const int link : routes_.path(src, dst)) {
      const auto l = static_cast<std::size_t>(link);
      on_link_[l] += share;
      for (const int g : groups_of_[l]) {
        on_group_[static_cast<std::size_t>(g)] += share;
        messages_[static_cast<std::size_t>(g)] += share;
      }
    }
  }

  const Topology& topology_;
  Routes routes_;
  std::vector<std::vector<int>> groups_of_;
  std::vector<double> on_link_, on_group_, messages_;
  double alpha_s_ = 0;
};

/// Ranks so that those near each other stand side by side: clusters are joined from the nearest
/// pair on, the one with the lower first rank in front.
std::vector<Rank> by_nearness(const Topology& topology, const Routes& routes) {
  struct Pair {
    double distance_s;
    Rank a, b;
  };
  const auto groups = port_groups_of_links(topology);
  const auto distance = [&](Rank a, Rank b) {
    double beta = 0;
    for (const int link : routes.path(a, b)) {
      const auto l = static_cast<std::size_t>(link);
      beta = std::max(beta, topology.links[l].beta_s_per_byte);
      for (const int g : groups[l]) {
        beta = std::max(beta, topology.port_groups[static_cast<std::size_t>(g)].beta_s_per_byte);
      }
    }
    return routes.connected(a, b) ? routes.alpha_s(a, b) + beta * kProbeBytes : 1e9;
  };
  const int n = topology.world_size();
  std::vector<Pair> pairs;
  for (Rank a = 0; a < n; ++a) {
    for (Rank b = a + 1; b < n; ++b) {
      pairs.push_back({std::max(distance(a, b), distance(b, a)), a, b});
    }
  }
  std::ranges::stable_sort(pairs, {}, &Pair::distance_s);
  std::vector<std::size_t> cluster(static_cast<std::size_t>(n));
  std::iota(cluster.begin(), cluster.end(), std::size_t{0});
  std::vector<std::vector<Rank>> members(cluster.size());
  for (std::size_t r = 0; r < members.size(); ++r) members[r] = {static_cast<Rank>(r)};
  for (const Pair& pair : pairs) {
    const std::size_t one = cluster[static_cast<std::size_t>(pair.a)];
    const std::size_t other = cluster[static_cast<std::size_t>(pair.b)];
    if (one == other) continue;
    // A cluster is named by its lowest rank.
    const std::size_t front = std::min(one, other);
    const std::size_t back = std::max(one, other);
    for (const Rank r : members[back]) cluster[static_cast<std::size_t>(r)] = front;
    members[front].insert(members[front].end(), members[back].begin(), members[back].end());
    members[back].clear();
  }
  std::vector<Rank> order;
  for (const auto& list : members) order.insert(order.end(), list.begin(), list.end());
  return order;
}

/// Gives the places their ranks when dimension nesting[0] takes neighbours in `order`, and so on.
std::vector<Rank> nested(std::span<const int> sizes, const std::vector<int>& nesting,
                         const std::vector<Rank>& order) {
  std::vector<std::size_t> stride(sizes.size());
  std::size_t step = 1;
  for (const int d : nesting) {
    stride[static_cast<std::size_t>(d)] = step;
    step *= static_cast<std::size_t>(sizes[static_cast<std::size_t>(d)]);
  }
  std::vector<Rank> ranks(order.size());
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    std::size_t at = 0;
    std::size_t rest = place;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      at += rest % static_cast<std::size_t>(sizes[d]) * stride[d];
      rest /= static_cast<std::size_t>(sizes[d]);
    }
    ranks[place] = order[at];
  }
  return ranks;
}

void check(const Topology& topology, std::span<const int> sizes) {
  long places = 1;
  for (const int size : sizes) {
    if (size < 1) throw InputError(fmt::format("a grid cannot be {} ranks wide", size));
    places = std::min(places * size, 1L << 40);
  }
  if (places != topology.world_size() || places > kMostRanks) {
    throw InputError(fmt::format(
        "a grid of {} is {} ranks, but the topology '{}' has {}; at most "
        "{} can be mapped",
        fmt::join(sizes, " x "), places, topology.name, topology.world_size(), kMostRanks));
  }
}

GridMapping priced(Pricer& pricer, std::span<const GridFlow> flows,
                   const std::vector<Groups>& groups, std::vector<Rank> ranks) {
  GridMapping mapping{.ranks = std::move(ranks), .prices = {}, .nesting = {}};
  for (std::size_t f = 0; f < flows.size(); ++f) {
    const auto price = pricer.price(flows[f], groups[f], mapping.ranks);
    mapping.prices.push_back(price);
    mapping.seconds += flows[f].messages * price.alpha_s + flows[f].bytes * price.beta_s_per_byte;
  }
  return mapping;
}

std::vector<Groups> all_groups(std::span<const int> sizes, std::span<const GridFlow> flows) {
  std::vector<Groups> groups;
  for (const GridFlow& flow : flows) groups.push_back(groups_of(sizes, flow.dims));
  return groups;
}

}  // namespace

GridMapping map_grid(const Topology& topology, std::span<const int> sizes,
                     std::span<const GridFlow> flows) {
  check(topology, sizes);
  Pricer pricer(topology);
  const std::vector<Groups> groups = all_groups(sizes, flows);
  std::vector<Rank> numbered(static_cast<std::size_t>(topology.world_size()));
  std::iota(numbered.begin(), numbered.end(), 0);
  // Dimensions of one rank may stand anywhere: they stay where they are, outermost.
  std::vector<int> wide, flat;
  for (int d = static_cast<int>(sizes.size()); d-- > 0;) {
    (sizes[static_cast<std::size_t>(d)] > 1 ? wide : flat).push_back(d);
  }
  GridMapping best;
  for (const auto& order : {numbered, by_nearness(topology, pricer.routes())}) {
    // From the last dimension inwards: so the first candidate is the grid as it is numbered.
    std::vector<std::size_t> turn(wide.size());
    std::iota(turn.begin(), turn.end(), std::size_t{0});
    do {
      std::vector<int> nesting;
      for (const std::size_t i : turn) nesting.push_back(wide[i]);
      nesting.insert(nesting.end(), flat.begin(), flat.end());
      GridMapping mapping = priced(pricer, flows, groups, nested(sizes, nesting, order));
      mapping.nesting = nesting;
      // What is better by less than a thousandth is not worth another numbering.
      if (best.ranks.empty() || mapping.seconds < best.seconds * 0.999) best = std::move(mapping);
    } while (std::ranges::next_permutation(turn).found);
  }
  return best;
}

GridMapping price_grid(const Topology& topology, std::span<const int> sizes,
                       std::span<const GridFlow> flows, std::vector<Rank> ranks) {
  check(topology, sizes);
  std::vector<Rank> sorted = ranks;
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted.size() != static_cast<std::size_t>(topology.world_size()) ||
        sorted[i] != static_cast<Rank>(i)) {
      throw InputError("price_grid: every rank must have one place");
    }
  }
  Pricer pricer(topology);
  return priced(pricer, flows, all_groups(sizes, flows), std::move(ranks));
}

}  // namespace chorus
