// Plans for wirings of every family, each in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/families/report.hpp"

namespace chorus::perf {

struct FamilyWishes {
  std::vector<std::string> families;  ///< all if none is named
  std::vector<std::string> names;     ///< wirings to plan for in place of drawn ones
  std::uint64_t seed = 1;
  int instances = 34;  ///< of each family
  int most_ranks = 1024;
  std::vector<std::uint64_t> sizes = {1 << 20, 1 << 30};
  int most_cpu_s = 240;     ///< for one plan; who takes longer has failed
  bool exhaustive = false;  ///< ask every strategy, also where one has reached the limit
};

/// Adds to `report` one row per wiring that it has none for, and calls `added` after each; a plan
/// that fails, crashes or takes too long is a row with its reason. `say` is told what is being done
/// and what came of it. Throws InputError for a family or name that does not exist.
void measure_families(const FamilyWishes& wishes, FamilyReport& report,
                      const std::function<void()>& added,
                      const std::function<void(std::string_view)>& say);

}  // namespace chorus::perf
