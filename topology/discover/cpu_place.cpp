#include "topology/discover/cpu_place.hpp"

#include <algorithm>
#include <set>

namespace chorus {
namespace {

/// How many places in a row have each number of this kind, if that is the same for all numbers; 0
/// if it is not, or if a number is not known.
std::size_t block_size(std::span<const CpuPlace> places, int CpuPlace::*kind) {
  std::set<int> seen;
  std::size_t size = 0;
  for (std::size_t begin = 0; begin < places.size();) {
    const int number = places[begin].*kind;
    if (number < 0 || !seen.insert(number).second) return 0;
    std::size_t end = begin;
    while (end < places.size() && places[end].*kind == number) ++end;
    if (size != 0 && end - begin != size) return 0;
    size = end - begin;
    begin = end;
  }
  return size;
}

}  // namespace

Distance distance(const CpuPlace& a, const CpuPlace& b) {
  if (a.core >= 0 && a.core == b.core) return Distance::siblings;
  if (a.cache >= 0 && a.cache == b.cache) return Distance::cache;
  if (a.package >= 0 && a.package == b.package) return Distance::package;
  return Distance::packages;
}

// Whatever all share is shared by any two; and what not all share some two do not.
Distance span_of(std::span<const CpuPlace> places) {
  if (places.empty()) return Distance::packages;
  Distance span = Distance::siblings;
  for (const CpuPlace& place : places) span = std::max(span, distance(places.front(), place));
  return span;
}

CpuPlace common(const CpuPlace& a, const CpuPlace& b) {
  const auto both = [](int x, int y) { return x == y ? x : -1; };
  return {.core = both(a.core, b.core),
          .cache = both(a.cache, b.cache),
          .numa = both(a.numa, b.numa),
          .package = both(a.package, b.package)};
}

std::vector<int> levels_inside(std::span<const CpuPlace> places) {
  std::vector<int> levels;
  std::size_t inner = 1;
  for (int CpuPlace::*kind : {&CpuPlace::cache, &CpuPlace::package}) {
    const std::size_t size = block_size(places, kind);
    if (size <= inner || size == places.size() || size % inner != 0) continue;
    levels.push_back(static_cast<int>(size / inner));
    inner = size;
  }
  levels.push_back(static_cast<int>(places.size() / inner));
  return levels;
}

}  // namespace chorus
