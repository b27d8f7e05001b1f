// chorus-perf --explain: every schedule that could run, predicted and measured.
#pragma once

#include <string>
#include <vector>

#include "perf/report/campaign.hpp"

namespace chorus::perf {

/// What of a measurement's settings says which schedules are to be explained.
struct ExplainOptions {
  std::vector<Kind> kinds;  ///< collectives that are planned
  std::vector<std::string> transports;
  int ranks = 2;
  std::vector<std::uint64_t> sizes;  ///< bytes
  double budget_ms = 20;             ///< for each schedule at each size
  std::string plan;                  ///< file of a plan that Chorus runs with, or empty
  std::string json;                  ///< file to write, or empty; for one transport
};

/// Runs chorus-perf-selection as the ranks of one job per transport. Exit code: that of the first
/// job that failed. Throws InputError for a benchmark that no schedule is made for.
[[nodiscard]] int explain(const ExplainOptions& options);

}  // namespace chorus::perf
