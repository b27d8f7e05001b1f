// Where the processing units of a machine are, and the ranks that run on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chorus {

/// What a processing unit lies in: numbers that are distinct within the machine, by kind; -1: not
/// known. Of a rank that may run on several units: what these have in common, -1 for the rest.
struct CpuPlace {
  int core = -1;   ///< units of one core are SMT siblings
  int cache = -1;  ///< the last one
  int numa = -1;
  int package = -1;

  bool operator==(const CpuPlace&) const = default;
};

/// How far apart two places are, by the nearest thing that they share.
enum class Distance : std::uint8_t { siblings, cache, package, packages };
inline constexpr std::size_t kNumDistances = 4;

/// `packages` where nothing is known to be shared.
[[nodiscard]] Distance distance(const CpuPlace& a, const CpuPlace& b);

/// Of the two that are farthest apart; `packages` of none.
[[nodiscard]] Distance span_of(std::span<const CpuPlace> places);

/// What both have in common.
[[nodiscard]] CpuPlace common(const CpuPlace& a, const CpuPlace& b);

/// AlgorithmInput::levels of the ranks of one host, by rank: those of one cache, caches of a
/// package, packages; {their number} where ranks are not placed in equal blocks.
[[nodiscard]] std::vector<int> levels_inside(std::span<const CpuPlace> places);

}  // namespace chorus
