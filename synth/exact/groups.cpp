// Subgroups of the automorphism group that are worth imposing on a schedule.
#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/index.hpp"
#include "synth/exact/automorphisms.hpp"

namespace chorus::synth::exact {
namespace {

using Group = std::vector<Permutation>;

// Beyond these a group is looked at in part: one that suits is nearly always among the first.
constexpr std::size_t kMostElements = 4096;
constexpr std::size_t kMostOfProduct = 2048;

Permutation identity(int size) {
  Permutation result(at(size));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

/// First `b`, then `a`.
Permutation after(const Permutation& a, const Permutation& b) {
  Permutation result(b.size());
  for (std::size_t i = 0; i < b.size(); ++i) result[i] = a[at(b[i])];
  return result;
}

Permutation inverse(const Permutation& a) {
  Permutation result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[at(a[i])] = static_cast<Rank>(i);
  return result;
}

bool moves_all(const Permutation& a) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == static_cast<Rank>(i)) return false;
  }
  return true;
}

/// Cycle length if all cycles are equally long (then every power but the identity moves all), else
/// 0.
int equal_cycles(const Permutation& a) {
  int common = 0;
  std::vector<char> seen(a.size(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (seen[i] != 0) continue;
    int length = 0;
    for (auto rank = static_cast<Rank>(i); seen[at(rank)] == 0; rank = a[at(rank)], ++length) {
      seen[at(rank)] = 1;
    }
    if (common != 0 && length != common) return 0;
    common = length;
  }
  return common;
}

bool acts_freely(const Group& group) {
  return std::all_of(group.begin() + 1, group.end(), moves_all);
}

/// r → r + 1 in one digit of r written in mixed radix (high, middle, low): what generated and
/// catalogued machines have.
Group usual_translations(const RoundNetwork& network) {
  const int n = network.world_size;
  Group found;
  const auto consider = [&](const Permutation& a) {
    if (is_automorphism(network, a)) found.push_back(a);
  };
  for (int low = 1; low < n; ++low) {
    if (n % low != 0) continue;
    for (int digit = 2; low * digit <= n; ++digit) {
      if (n % (low * digit) != 0) continue;
      Permutation a(at(n));
      for (int r = 0; r < n; ++r) {
        const int value = r / low % digit;
        a[at(r)] = r + ((value + 1) % digit - value) * low;
      }
      consider(a);
    }
  }
  return found;
}

/// Elements that move every rank equally far come first: translations of regular networks do. Of
/// those the shortest, of those the ones of highest order.
Group free_elements(const RoundNetwork& network, const Group& all) {
  const std::vector<std::vector<int>> distance = network.distances();
  struct Rated {
    std::tuple<bool, int, int, Permutation> key;
  };
  std::vector<Rated> rated;
  for (const Permutation& a : all) {
    const int order = equal_cycles(a);
    if (order < 2) continue;
    int nearest = kUnreachable;
    int farthest = 0;
    for (std::size_t r = 0; r < a.size(); ++r) {
      nearest = std::min(nearest, distance[r][at(a[r])]);
      farthest = std::max(farthest, distance[r][at(a[r])]);
    }
    rated.push_back({{nearest != farthest, farthest, -order, a}});
  }
  std::sort(rated.begin(), rated.end(),
            [](const Rated& a, const Rated& b) { return a.key < b.key; });
  Group result;
  for (Rated& one : rated) {
    Permutation& a = std::get<3>(one.key);
    if (result.empty() || result.back() != a) result.push_back(std::move(a));
  }
  return result;
}

/// Grows a group that acts freely from `first`; every group on the way, the smallest first.
std::vector<Group> growing(const Group& candidates, std::size_t first) {
  const auto n = candidates[first].size();
  std::vector<Group> chain;
  std::vector<Permutation> generators;
  std::vector<char> reached(n, 0);
  for (std::size_t i = first; i < candidates.size(); ++i) {
    const Permutation& a = candidates[i];
    if (reached[at(a[0])] != 0) continue;
    generators.push_back(a);
    Group group = elements(generators, static_cast<int>(n), n + 1);
    if (group.size() > n || !acts_freely(group)) {
      generators.pop_back();
      continue;
    }
    for (const Permutation& element : group) reached[at(element[0])] = 1;
    chain.push_back(std::move(group));
    if (chain.back().size() == n) break;
  }
  return chain;
}

bool normalizes(const Permutation& a, const Group& group) {
  const std::set<Permutation> members(group.begin(), group.end());
  const Permutation back = inverse(a);
  return std::all_of(group.begin(), group.end(), [&](const Permutation& element) {
    return members.contains(after(after(a, element), back));
  });
}

int order_of(const Permutation& a) {
  int order = 1;
  for (Permutation power = a; !std::is_sorted(power.begin(), power.end());
       power = after(a, power)) {
    ++order;
  }
  return order;
}

/// `regular` times rotations about rank 0 whose order divides the number of chunks: they send a
/// rank's chunks on ways like spokes.
std::optional<Group> with_rotations(const Group& regular, const Group& all, int chunks) {
  std::optional<Permutation> best;
  int best_order = 1;
  for (const Permutation& a : all) {
    if (a[0] != 0) continue;
    const int order = order_of(a);
    if (order <= best_order || chunks % order != 0) continue;
    if (regular.size() * at(order) > kMostOfProduct || !normalizes(a, regular)) continue;
    best = a;
    best_order = order;
  }
  if (!best) return std::nullopt;
  Group product;
  Permutation power = identity(static_cast<int>(best->size()));
  for (int i = 0; i < best_order; ++i, power = after(*best, power)) {
    for (const Permutation& element : regular) product.push_back(after(element, power));
  }
  return product;
}

/// Cyclic groups (that keep `root`, unless it is negative), the largest first.
std::vector<Group> cyclic_groups(Rank root, const Group& all) {
  constexpr std::size_t kMostCyclic = 16;
  std::vector<std::pair<int, Permutation>> rotations;
  for (const Permutation& a : all) {
    if (root >= 0 && a[at(root)] != root) continue;
    if (const int order = order_of(a); order > 1) rotations.emplace_back(-order, a);
  }
  std::sort(rotations.begin(), rotations.end());
  std::vector<Group> groups;
  std::set<std::set<Permutation>> seen;
  for (const auto& [order, a] : rotations) {
    Group group = elements({a}, static_cast<int>(a.size()), at(-order));
    if (seen.emplace(group.begin(), group.end()).second) groups.push_back(std::move(group));
    if (groups.size() == kMostCyclic) break;
  }
  return groups;
}

/// Groups that act freely on ranks, the largest first; before them, if one of them acts
/// transitively, its product with rotations.
std::vector<Group> free_groups(const RoundNetwork& network, const Group& every, int chunks) {
  Group pool = usual_translations(network);
  pool.insert(pool.end(), every.begin(), every.end());
  const Group candidates = free_elements(network, pool);
  const std::size_t n = at(network.world_size);
  std::vector<Group> chain;
  constexpr std::size_t kMostBeginnings = 16;
  for (std::size_t first = 0; first < std::min(candidates.size(), kMostBeginnings); ++first) {
    std::vector<Group> next = growing(candidates, first);
    if (chain.empty() || next.back().size() > chain.back().size()) chain = std::move(next);
    if (chain.back().size() == n) break;
  }
  std::vector<Group> groups;
  if (!chain.empty() && chain.back().size() == n) {
    if (auto product = with_rotations(chain.back(), every, chunks)) {
      groups.push_back(std::move(*product));
    }
  }
  for (std::size_t i = chain.size(); i-- > 0;) groups.push_back(std::move(chain[i]));
  return groups;
}

}  // namespace

std::vector<Permutation> elements(const std::vector<Permutation>& generators, int world_size,
                                  std::size_t most) {
  std::vector<Permutation> found = {identity(world_size)};
  std::set<Permutation> seen(found.begin(), found.end());
  for (std::size_t head = 0; head < found.size() && found.size() < most; ++head) {
    for (const Permutation& generator : generators) {
      Permutation next = after(generator, found[head]);
      if (seen.insert(next).second) found.push_back(std::move(next));
      if (found.size() >= most) break;
    }
  }
  return found;
}

std::vector<std::vector<Permutation>> promising_groups(const RoundNetwork& network,
                                                       const Automorphisms& all, Rank root,
                                                       int chunks_per_block) {
  const Group every = elements(all.generators, network.world_size, kMostElements);
  std::vector<Group> groups;
  if (root < 0) groups = free_groups(network, every, chunks_per_block);
  for (Group& group : cyclic_groups(root, every)) groups.push_back(std::move(group));
  return groups;
}

}  // namespace chorus::synth::exact
