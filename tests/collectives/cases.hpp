// Walks every algorithm, collective and hierarchy at one world size.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

inline constexpr CollectiveKind kKinds[] = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::gather,     CollectiveKind::scatter,    CollectiveKind::barrier,
};

inline std::string schedule_name(const Schedule& schedule) {
  return fmt::format("{} {} on {}", schedule.name, name_of(schedule.collective.kind),
                     schedule.world_size);
}

/// All ways to write n as an ordered product of at least two factors above 1.
inline std::vector<std::vector<int>> all_hierarchies(int n) {
  std::vector<std::vector<int>> result;
  for (int inner = 2; inner * 2 <= n; ++inner) {
    if (n % inner != 0) continue;
    result.push_back({inner, n / inner});
    for (std::vector<int> outer : all_hierarchies(n / inner)) {
      outer.insert(outer.begin(), inner);
      result.push_back(outer);
    }
  }
  return result;
}

/// Calls visit(schedule, its name in words) for everything that can be made for n ranks, flat and
/// with each of `hierarchies`, in the compact form or the one that names every transfer. Stops at
/// the first fatal failure.
template <class Visit>
void for_each_schedule(int n, const std::vector<std::vector<int>>& hierarchies, Visit visit,
                       bool compact = false) {
  const auto all = [&](const std::vector<int>& levels, bool flat) {
    for (const Algorithm& algorithm : algorithms()) {
      for (const CollectiveKind kind : kKinds) {
        const bool served_flat = !algorithm.why_not({kind, n, {}, compact});
        const AlgorithmInput input{kind, n, levels, compact};
        if (served_flat != flat || algorithm.why_not(input)) continue;
        const Schedule schedule = algorithm.make(input);
        visit(schedule,
              fmt::format("{}, levels {}", schedule_name(schedule), fmt::join(levels, " x ")));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  };
  all({}, true);
  for (const auto& levels : hierarchies) all(levels, false);
}

}  // namespace chorus
