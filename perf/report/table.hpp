// Tables for people: aligned text, or Markdown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perf/report/report.hpp"

namespace chorus::perf {

enum class Style : std::uint8_t { text, markdown };

/// Cells in rows; the first column is left-aligned, the others right.
struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::size_t left_columns = 1;  ///< how many columns from the left are left-aligned
};

[[nodiscard]] std::string render(const Table& table, Style style);

/// "4 B", "64 KiB", "1.5 MiB"
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// Four significant digits or so: "0.43", "12.3", "1234". A dash for nothing.
[[nodiscard]] std::string microseconds(std::optional<double> us);

/// Every row with all its columns, one table for each collective and transport.
[[nodiscard]] std::string detail_tables(const Report& report, Style style);

/// p50 of the first library (the baseline: Chorus if it was measured), of every other one with the
/// ratio baseline/other (below 1: the baseline is faster), and the ratio to the best of them; below
/// it the geometric means. Empty if there is only one library.
[[nodiscard]] std::string comparison_table(const Report& report, Style style);

/// p50 of the same rows in two reports and the ratio b/a (below 1: b is faster), with the geometric
/// mean, which also goes to *mean if that is given. Throws chorus::InputError if no row is in both.
[[nodiscard]] std::string difference_table(const Report& a, const Report& b, Style style,
                                           double* mean = nullptr);

/// Machine, libraries with their versions, and what the columns mean.
[[nodiscard]] std::string preamble(const Report& report, Style style);

/// Rows without a figure, with wrong results or with load from others, one line each.
[[nodiscard]] std::string remarks(const Report& report);

}  // namespace chorus::perf
