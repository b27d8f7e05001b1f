// The result of a run: rows with their circumstances, saved as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perf/report/machine.hpp"

namespace chorus::perf {

/// See Row::faster_us.
inline constexpr int kFasterCables = 4;

/// One benchmark at one size through one library. Bandwidths are GB/s = 10⁹ bytes per second.
struct Row {
  std::string collective;
  std::string transport;
  std::string library;
  int ranks = 0;
  std::uint64_t bytes = 0;  ///< the buffer, or all blocks (docs/benchmarks.md)
  std::uint64_t count = 0;  ///< elements of one block
  std::string type;
  std::string op;
  /// Medians over the rounds of the percentiles over a round's iterations; nothing: not measured.
  std::optional<double> p50_us, p99_us;
  double min_us = 0;                    ///< the fastest iteration of all
  std::vector<double> p50_us_by_round;  ///< how repeatable it is
  std::uint64_t iterations = 0;         ///< of all rounds
  double algbw = 0;                     ///< bytes / p50; twice that for bibandwidth; 0 for barrier
  double busbw = 0;                     ///< algbw · bus factor
  std::uint64_t wrong = 0;              ///< elements, over all checks of all ranks and rounds
  std::string first_wrong;
  double idle_share = 0, others_share = 0;  ///< Load while this row was measured
  std::string reason;                       ///< why (some) rounds are missing
  std::string note;                         ///< algorithm chosen for the library, if any
  /// What no algorithm can beat on an emulated cluster's cables (docs/bounds.md); 0: no such row.
  double bound_us = 0;
  /// Of Chorus' rows: what it takes on the same hosts by cables kFasterCables times as fast, which
  /// is as long where this machine's cores are the limit; 0: not measured.
  double faster_us = 0;

  bool operator==(const Row&) const = default;
};

/// A library as it was run.
struct Peer {
  std::string name;
  std::string transport;
  std::string version;
  std::string command;  ///< of its launcher

  bool operator==(const Peer&) const = default;
};

/// A host of a job that another launcher started.
struct ReportHost {
  std::string name;
  std::vector<int> ranks;
  Machine machine;

  bool operator==(const ReportHost&) const = default;
};

/// A library that might have been measured and was not, and why.
struct Absent {
  std::string library;
  std::string reason;

  bool operator==(const Absent&) const = default;
};

struct Report {
  Machine machine;                ///< of rank 0
  std::vector<ReportHost> hosts;  ///< empty: all ranks were on `machine`
  std::string launcher;           ///< of the job, if another one than chorus-perf
  std::vector<Absent> absent;
  std::string commit;
  std::string command;
  std::string date;
  int rounds = 0;
  bool in_place = false;
  bool dirty = false;
  int offset_bytes = 0;
  std::vector<Peer> peers;
  std::vector<Row> rows;

  bool operator==(const Report&) const = default;
};

/// Format: docs/benchmarks.md.
[[nodiscard]] std::string to_json(const Report& report);
/// Throws chorus::InputError, naming `where`, for malformed JSON, for another format and for a
/// later version of this one.
[[nodiscard]] Report report_from_json(std::string_view text, std::string_view where);

/// Throws chorus::InputError naming the file.
[[nodiscard]] Report load_report(const std::string& path);

/// The libraries that have rows, in the order in which they appear.
[[nodiscard]] std::vector<std::string> libraries_of(const std::vector<Row>& rows);

}  // namespace chorus::perf
