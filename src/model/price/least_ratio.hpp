// The cut that limits spreading: least capacity for what is behind it.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace chorus {

struct CapacityArc {
  int src = 0;
  int dst = 0;
  double capacity = 0;
};

struct LeastRatio {
  double ratio = std::numeric_limits<double>::infinity();
  std::vector<char> side = {};  ///< by node: 1 in the set; empty if no set has weight
};

/// The least B(S)/w(S) over node sets S that leave one of `targets` out: w(S) is the sum of
/// `weights` (by node) in S, B(S) what `crossing` says leaves it, at most the arcs' capacities.
///
/// Newton's method on the ratio (Dinkelbach 1967): at the present x look for a set S with
/// B(S) < x·w(S); its own ratio is the next x. Ends, after a few rounds, on the exact least ratio,
/// with no fraction to round: the ratio of a real cut.
[[nodiscard]] LeastRatio least_ratio(
    std::span<const CapacityArc> arcs, const std::vector<double>& weights,
    const std::vector<int>& targets,
    const std::function<double(const std::vector<char>& side)>& crossing);

}  // namespace chorus
