#include "synth/exact/automorphisms.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/check.hpp"
#include "base/disjoint_sets.hpp"
#include "base/index.hpp"

namespace chorus::synth::exact {
namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b = 0) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + std::rotl(b, 31) + 0x632be59bd9b4e019ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

int find_way(const RoundNetwork& network, Way way) {
  const auto found = std::lower_bound(network.ways.begin(), network.ways.end(), way);
  if (found == network.ways.end() || *found != way) return -1;
  return static_cast<int>(found - network.ways.begin());
}

std::size_t distinct(std::vector<std::uint64_t> colors) {
  std::sort(colors.begin(), colors.end());
  return at(static_cast<int>(std::unique(colors.begin(), colors.end()) - colors.begin()));
}

/// Colours of ranks as 64-bit hashes of what can be seen from them. Equal surroundings give equal
/// colours, also between two colourings: that is what makes colourings comparable. (A collision of
/// hashes could only make the search try in vain: what it finds is checked.)
class Refiner {
 public:
  explicit Refiner(const RoundNetwork& network) : network_(network) {
    for (const Limit& limit : network.limits) {
      // Sizes are quotients of floating-point numbers: equal to six digits is equal.
      size_colors_.push_back(
          mixed(static_cast<std::uint64_t>(std::llround(limit.per_round * 1e6))));
    }
  }

  /// Refines until ranks are told apart no further.
  void refine(std::vector<std::uint64_t>& ranks) const {
    std::vector<std::uint64_t> ways(network_.ways.size(), 0);
    std::vector<std::uint64_t> limits = size_colors_;
    std::size_t cells = distinct(ranks);
    for (int stable = 0; stable < 2 && cells < ranks.size();) {
      step(ranks, ways, limits);
      const std::size_t now = distinct(ranks);
      stable = now == cells ? stable + 1 : 0;
      cells = now;
    }
  }

 private:
  void step(std::vector<std::uint64_t>& ranks, std::vector<std::uint64_t>& ways,
            std::vector<std::uint64_t>& limits) const {
    std::vector<std::uint64_t> from_limits(ways.size(), 0);
    for (std::size_t l = 0; l < limits.size(); ++l) {
      std::uint64_t sum = size_colors_[l];
      for (const auto& [way, times] : network_.limits[l].crossed) {
        sum += mixed(ways[at(way)], static_cast<std::uint64_t>(times));
      }
      limits[l] = mixed(sum, 1);
      for (const auto& [way, times] : network_.limits[l].crossed) {
        from_limits[at(way)] += mixed(limits[l], static_cast<std::uint64_t>(times));
      }
    }
    std::vector<std::uint64_t> next(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) next[r] = mixed(ranks[r], 2);
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const Way& way = network_.ways[w];
      ways[w] = mixed(mixed(ranks[at(way.src)], 3) + mixed(ranks[at(way.dst)], 4), from_limits[w]);
      next[at(way.src)] += mixed(ways[w], 5);
      next[at(way.dst)] += mixed(ways[w], 6);
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = mixed(next[r], 7);
  }

  const RoundNetwork& network_;
  std::vector<std::uint64_t> size_colors_;
};

using Colors = std::vector<std::uint64_t>;

std::vector<std::uint64_t> sorted(Colors colors) {
  std::sort(colors.begin(), colors.end());
  return colors;
}

/// Which orbit each rank is in, under the permutations added so far.
class Orbits : public DisjointSets {
 public:
  using DisjointSets::DisjointSets;
  void add(const Permutation& permutation) {
    for (std::size_t i = 0; i < permutation.size(); ++i) join(static_cast<int>(i), permutation[i]);
  }
};

class Search {
 public:
  Search(const RoundNetwork& network, int most_nodes)
      : network_(network), refiner_(network), left_(most_nodes) {
    Colors colors(at(network.world_size), 1);
    refiner_.refine(colors);
    path_.push_back(colors);
    while (const std::optional<Rank> next = undecided(path_.back())) {
      base_.push_back(*next);
      path_.push_back(individualized(path_.back(), *next));
    }
  }

  Automorphisms run() {
    Automorphisms result;
    Orbits orbits(at(network_.world_size));
    // From the last base point to the first: what was found then fixes the points before.
    for (std::size_t level = base_.size(); level-- > 0;) {
      const Rank point = base_[level];
      for (Rank rank = 0; rank < network_.world_size; ++rank) {
        if (path_[level][at(rank)] != path_[level][at(point)]) continue;
        if (orbits.find(rank) == orbits.find(point)) continue;
        if (auto found = extend(level, path_[level], rank)) {
          orbits.add(*found);
          result.generators.push_back(std::move(*found));
        }
        if (left_ <= 0) result.complete = false;
      }
      double size = 0;
      for (Rank rank = 0; rank < network_.world_size; ++rank) {
        if (orbits.find(rank) == orbits.find(point)) ++size;
      }
      result.order *= size;
    }
    return result;
  }

 private:
  /// A rank that still shares its colour, of the smallest such colour class.
  static std::optional<Rank> undecided(const Colors& colors) {
    std::map<std::uint64_t, int> sizes;
    for (const std::uint64_t color : colors) ++sizes[color];
    std::optional<Rank> best;
    for (std::size_t r = 0; r < colors.size(); ++r) {
      const int size = sizes[colors[r]];
      if (size > 1 && (!best || size < sizes[colors[at(*best)]])) best = static_cast<Rank>(r);
    }
    return best;
  }

  [[nodiscard]] Colors individualized(Colors colors, Rank rank) const {
    colors[at(rank)] = mixed(colors[at(rank)], 8);
    refiner_.refine(colors);
    return colors;
  }

  /// An automorphism that fixes what was individualized before `level` and maps base_[level] to
  /// `rank`, if there is one below this node.
  std::optional<Permutation> extend(std::size_t level, const Colors& colors, Rank rank) {
    if (left_-- <= 0) return std::nullopt;
    const Colors next = individualized(colors, rank);
    const Colors& wanted = path_[level + 1];
    if (sorted(next) != sorted(wanted)) return std::nullopt;
    if (level + 1 == base_.size()) return leaf(wanted, next);
    const std::uint64_t color = wanted[at(base_[level + 1])];
    for (std::size_t r = 0; r < next.size(); ++r) {
      if (next[r] != color) continue;
      if (auto found = extend(level + 1, next, static_cast<Rank>(r))) return found;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Permutation> leaf(const Colors& from, const Colors& to) const {
    std::map<std::uint64_t, Rank> where;
    for (std::size_t r = 0; r < to.size(); ++r) where[to[r]] = static_cast<Rank>(r);
    Permutation permutation(from.size());
    for (std::size_t r = 0; r < from.size(); ++r) permutation[r] = where.at(from[r]);
    if (!is_automorphism(network_, permutation)) return std::nullopt;
    return permutation;
  }

  const RoundNetwork& network_;
  Refiner refiner_;
  int left_;
  std::vector<Rank> base_;
  std::vector<Colors> path_;  ///< [level]: base_[0, level) individualized
};

using Crossed = std::vector<std::pair<int, int>>;

}  // namespace

bool is_automorphism(const RoundNetwork& network, const Permutation& permutation) {
  std::vector<int> becomes(network.ways.size());
  for (std::size_t w = 0; w < becomes.size(); ++w) {
    const Way& way = network.ways[w];
    becomes[w] = find_way(network, {permutation[at(way.src)], permutation[at(way.dst)]});
    if (becomes[w] < 0) return false;
  }
  std::map<Crossed, double> sizes;
  for (const Limit& limit : network.limits) sizes[limit.crossed] = limit.per_round;
  for (const Limit& limit : network.limits) {
    Crossed image = limit.crossed;
    for (auto& crossing : image) crossing.first = becomes[at(crossing.first)];
    std::sort(image.begin(), image.end());
    const auto found = sizes.find(image);
    if (found == sizes.end()) return false;
    if (std::abs(found->second - limit.per_round) > 1e-6 * limit.per_round) return false;
  }
  return true;
}

std::vector<int> way_permutation(const RoundNetwork& network, const Permutation& permutation) {
  std::vector<int> becomes;
  becomes.reserve(network.ways.size());
  for (const Way& way : network.ways) {
    becomes.push_back(find_way(network, {permutation[at(way.src)], permutation[at(way.dst)]}));
    CHORUS_CHECK(becomes.back() >= 0, "an automorphism maps ways to ways");
  }
  return becomes;
}

Automorphisms automorphisms(const RoundNetwork& network, int most_nodes) {
  return Search(network, most_nodes).run();
}

}  // namespace chorus::synth::exact
