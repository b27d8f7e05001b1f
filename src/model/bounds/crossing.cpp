// Small sizes: what is combined or handed on waits for a hop, what is not crosses a cut in full.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "model/bounds/bounds.hpp"
#include "model/bounds/cheapest.hpp"
#include "model/bounds/network.hpp"
#include "model/bounds/partitions.hpp"

namespace chorus {
namespace {

/// The integral of counts_before(t) · counts_after(whole - t) over t in [0, whole].
double covered(const Bound::Crossing& crossing, double whole_s) {
  std::vector<double> borders = {0, whole_s};
  for (const Bound::Reached& step : crossing.before) borders.push_back(step.after_s);
  for (const Bound::Reached& step : crossing.behind) borders.push_back(whole_s - step.after_s);
  std::sort(borders.begin(), borders.end());
  const auto count = [](const std::vector<Bound::Reached>& steps, double time_s) {
    int ranks = 1;
    for (const Bound::Reached& step : steps) {
      if (step.after_s <= time_s) ranks = step.ranks;
    }
    return static_cast<double>(ranks);
  };
  double sum = 0;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const double from = std::clamp(borders[i], 0.0, whole_s);
    const double to = std::clamp(borders[i + 1], 0.0, whole_s);
    if (to <= from) continue;
    const double middle = (from + to) / 2;
    sum += (to - from) * count(crossing.before, middle) * count(crossing.behind, whole_s - middle);
  }
  return sum;
}

}  // namespace

double Bound::Crossing::seconds(double size_bytes) const {
  const double wanted = pairs_s_per_byte * size_bytes;
  double low = 0;
  double high = wanted;  // one rank before and one behind always
  for (int i = 0; i < 60 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (covered(*this, middle) < wanted ? low : high) = middle;
  }
  return alpha_s + low;
}

double Bound::seconds(double size_bytes) const {
  double seconds = std::max(latency_s, seconds_per_byte * size_bytes);
  for (const Crossing& crossing : crossings) {
    seconds = std::max(seconds, crossing.seconds(size_bytes));
  }
  return seconds;
}

namespace bounds {
namespace {

/// Least sums of alpha from the nearest of `sources` to every node.
std::vector<double> distances(const Network& network, const std::vector<int>& sources,
                              bool backwards) {
  std::vector<std::vector<int>> next(at(network.num_nodes()));
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    const Network::Arc& ends = network.arcs[arc];
    next[at(backwards ? ends.dst : ends.src)].push_back(static_cast<int>(arc));
  }
  Cheapest cheapest;
  find_cheapest(
      next, sources, [&](int arc) { return network.topology.links[at(arc)].alpha_s; },
      [&](int arc) { return backwards ? network.arcs[at(arc)].src : network.arcs[at(arc)].dst; },
      cheapest);
  return std::move(cheapest.distance);
}

/// The least alpha of a hop from the ranks of `outside` to the others.
double hop_across_s(const Network& network, const Side& outside) {
  std::vector<int> sources;
  for (const int node : network.terminals) {
    if (outside[at(node)] != 0) sources.push_back(node);
  }
  const std::vector<double> reached = distances(network, sources, /*backwards=*/false);
  double least_s = std::numeric_limits<double>::infinity();
  for (const int node : network.terminals) {
    if (outside[at(node)] == 0) least_s = std::min(least_s, reached[at(node)]);
  }
  return least_s;
}

/// The most ranks that any rank can reach (be reached from) within a time, itself among them.
std::vector<Bound::Reached> profile(const Network& network, bool backwards) {
  std::set<double> times;
  std::vector<std::vector<double>> all;
  for (const int node : network.representatives) {
    const std::vector<double> reached = distances(network, {node}, backwards);
    std::vector<double>& times_of = all.emplace_back();
    for (const int other : network.topology.rank_nodes) times_of.push_back(reached[at(other)]);
    std::sort(times_of.begin(), times_of.end());
    times.insert(times_of.begin(), times_of.end());
  }
  std::vector<Bound::Reached> steps;
  for (const double time_s : times) {
    // Sums of the same alphas in another order differ in the last bits: a little early is safe.
    const double by_s = time_s * (1 + 1e-9);
    std::ptrdiff_t most = 1;
    for (const std::vector<double>& reached : all) {
      most =
          std::max(most, std::upper_bound(reached.begin(), reached.end(), by_s) - reached.begin());
    }
    if (!steps.empty() && steps.back().ranks == most) continue;
    steps.push_back({time_s * (1 - 1e-9), static_cast<int>(most)});
  }
  return steps;
}

std::vector<Bound::Reached> at_most(std::vector<Bound::Reached> steps, int ranks) {
  for (Bound::Reached& step : steps) step.ranks = std::min(step.ranks, ranks);
  return steps;
}

}  // namespace

double least_hop_s(const Network& network) {
  double least_s = std::numeric_limits<double>::infinity();
  for (const int node : network.representatives) {
    const std::vector<double> reached = distances(network, {node}, /*backwards=*/false);
    for (const int other : network.terminals) {
      if (other != node) least_s = std::min(least_s, reached[at(other)]);
    }
  }
  return least_s;
}

std::vector<Bound::Crossing> crossings(const Network& network, bool combines, bool spreads) {
  std::vector<Side> sides;
  std::vector<Bound::Crossing> volumes;
  for (const Partition& partition : natural_partitions(network)) {
    std::set<int> parts;
    for (const int node : network.representatives) {
      if (partition.part_of[at(node)] >= 0) parts.insert(partition.part_of[at(node)]);
    }
    double alpha_s = std::numeric_limits<double>::infinity();  // of the shortest hop into a part
    for (const int part : parts) {
      sides.push_back(partition.side(part));
      if (combines && spreads) {
        alpha_s = std::min(alpha_s, hop_across_s(network, turned(sides.back())));
      }
    }
    if (!combines || !spreads) continue;
    const double gb_s = std::min(network.crossing(partition.arcs(network, /*leaving=*/true)),
                                 network.crossing(partition.arcs(network, /*leaving=*/false)));
    if (gb_s > 2 * network.total) continue;  // a link without a limit leads across
    volumes.push_back(
        {.alpha_s = alpha_s, .pairs_s_per_byte = partition.messages() / (gb_s * 1e9)});
  }
  for (Side& side : block_sides(network)) sides.push_back(std::move(side));
  const std::size_t given = sides.size();
  for (std::size_t i = 0; i < given; ++i) sides.push_back(turned(sides[i]));
  const std::vector<Bound::Reached> reached_from = profile(network, /*backwards=*/true);
  const std::vector<Bound::Reached> reaching = profile(network, /*backwards=*/false);
  std::vector<Bound::Crossing> result;
  for (const Side& outside : sides) {  // crossed from there to the rest
    int far = 0, near = 0;
    for (const int node : network.terminals) {
      const auto ranks = static_cast<int>(network.ranks_on[at(node)].size());
      (outside[at(node)] != 0 ? far : near) += ranks;
    }
    if (far == 0 || near == 0) continue;
    const double gb_s = network.crossing(outside);
    if (gb_s > 2 * network.total) continue;  // a link without a limit leads across
    Bound::Crossing crossing;
    crossing.alpha_s = hop_across_s(network, outside);
    const double share = combines && spreads ? 1.0 : 1.0 / network.topology.world_size();
    crossing.pairs_s_per_byte = share * far * near / (gb_s * 1e9);
    if (combines) crossing.before = at_most(reached_from, far);
    if (spreads) crossing.behind = at_most(reaching, near);
    crossing.far_ranks = far;
    crossing.near_ranks = near;
    const bool known = std::any_of(result.begin(), result.end(), [&](const Bound::Crossing& other) {
      return other.far_ranks == far && other.near_ranks == near &&
             other.alpha_s >= crossing.alpha_s * (1 - 1e-9) &&
             other.pairs_s_per_byte >= crossing.pairs_s_per_byte * (1 - 1e-9);
    });
    if (!known) result.push_back(std::move(crossing));
  }
  result.insert(result.end(), volumes.begin(), volumes.end());
  return result;
}

}  // namespace bounds
}  // namespace chorus
