// What it takes to start a job: to join, and to make the first call of each kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/communicator.hpp"
#include "perf/report/machine.hpp"

namespace chorus::perf {

/// What a job has done once: "join", or the first call of a collective, in the order of doing.
inline constexpr std::string_view kFirsts[] = {"join", "barrier", "all_reduce", "all_gather",
                                               "all_to_all"};
inline constexpr std::size_t kNumFirsts = std::size(kFirsts);

/// One rank's.
struct RankCost {
  double wall_s[kNumFirsts] = {};  ///< from the beginning to the end, as this rank saw it
  /// In the program and in the kernel for it; of the join: from the start of the process.
  double cpu_s[kNumFirsts] = {};
  double private_bytes = 0;  ///< memory of this process alone, after the calls
  double descriptors = 0;    ///< open, after the calls
  double wrong = 0;          ///< elements of results
};

struct Spread {
  double mean = 0, most = 0;
};

/// Of all ranks of one job.
struct StartupRow {
  int ranks = 0;
  double wall_s[kNumFirsts] = {};  ///< the longest of any rank
  Spread cpu_s[kNumFirsts];
  /// Of the join, the barrier, all_reduce and all_gather together.
  Spread cpu_of_start_s;
  Spread private_bytes, descriptors;
  double wrong = 0;
};

/// Joins the job that this process was started in, makes each call once with one element for each
/// rank, checks what comes out and tells all ranks' costs to rank 0; on the others `ranks` is 0.
/// `began`: when this process began, by the steady clock. Throws chorus::Error.
[[nodiscard]] StartupRow measure_startup(std::chrono::steady_clock::time_point began);

/// The row of a job of as many ranks. Throws chorus::InputError if there is none.
[[nodiscard]] StartupRow summary(std::span<const RankCost> costs);

[[nodiscard]] std::string startup_header();
[[nodiscard]] std::string startup_line(const StartupRow& row);

struct StartupRecord {
  std::string commit, command, date;
  Machine machine;
  std::vector<StartupRow> rows;
};

/// "chorus-startup", version 1 (docs/benchmarks.md).
[[nodiscard]] std::string startup_json(const StartupRecord& record);
/// The rows of a record. Throws chorus::InputError for anything else; `name` is said then.
[[nodiscard]] std::vector<StartupRow> startup_rows(const std::string& json,
                                                   const std::string& name);

/// The commands of gnuplot that write `svg`: processor time, time and memory against ranks.
[[nodiscard]] std::string startup_script(const StartupRecord& record, const std::string& svg);

}  // namespace chorus::perf
