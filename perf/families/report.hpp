// What plans reached, family by family: quantiles, winners, records and their comparison.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perf/report/machine.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {

/// One collective at one size of one wiring.
struct FamilyResult {
  std::string collective;
  std::uint64_t bytes = 0;
  double share = 0;      ///< of the limit: 1 is the limit itself
  std::string strategy;  ///< that won
  std::string schedule;
  /// The best time of any other strategy over the winner's; 0: none was asked or served.
  double next_best = 0;

  bool operator==(const FamilyResult&) const = default;
};

/// One wiring.
struct FamilyRow {
  std::string family;
  std::string name;  ///< as `chorus synth` takes it
  int ranks = 0;
  double cpu_s = 0;     ///< for the whole plan and its limits
  double peak_gib = 0;  ///< resident
  std::string failure;  ///< why there are no results; empty: there are
  std::vector<FamilyResult> results;

  bool operator==(const FamilyRow&) const = default;
};

struct FamilyReport {
  Machine machine;
  std::string commit;
  std::string command;
  std::string date;
  std::vector<FamilyRow> rows;

  bool operator==(const FamilyReport&) const = default;
};

/// Format: docs/benchmarks.md.
[[nodiscard]] std::string to_json(const FamilyReport& report);
/// Throws chorus::InputError, naming `where`, for malformed JSON, for another format and for a
/// later version of this one.
[[nodiscard]] FamilyReport family_report_from_json(std::string_view text, std::string_view where);
/// True if `text` says that it is of this format.
[[nodiscard]] bool is_family_report(std::string_view text);

/// Median, fifth percentile and worst share by collective and size for each family and all
/// together; what plans cost by their ranks; which strategies won, and how often by 2 % and more;
/// the wirings that came off worst.
[[nodiscard]] std::string family_tables(const FamilyReport& report, Style style);

/// Of the wirings that are in both: the quantiles side by side, and each share that differs by 1 %
/// and more. `*mean`: the geometric mean of the times of `b` over those of `a`. Throws
/// chorus::InputError if no wiring is in both.
[[nodiscard]] std::string family_difference(const FamilyReport& a, const FamilyReport& b,
                                            Style style, double* mean);

}  // namespace chorus::perf
