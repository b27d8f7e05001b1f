// The command line of chorus-perf.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "perf/campaign.hpp"
#include "perf/cluster/command.hpp"
#include "perf/explain.hpp"
#include "perf/table.hpp"

namespace chorus::perf {

/// Measure, and show or save the result.
struct MeasureOptions {
  Settings settings;
  std::string json, svg;  ///< files to write, or empty
  Style style = Style::text;
  bool details = true;      ///< all columns of all rows before the comparison
  bool nccl_tests = false;  ///< both placements, in the form of nccl-tests, instead of tables
};

/// chorus-perf compare A.json B.json
struct CompareOptions {
  std::string a, b;
  Style style = Style::text;
  double fail_above = 0;  ///< exit 1 if the geometric mean of b/a exceeds this; 0: never
};

/// chorus-perf show A.json: the tables and the plot of an earlier run.
struct ShowOptions {
  std::string file, svg;
  Style style = Style::text;
  bool details = true;
};

/// Print this and leave with this code: help, or what is wrong with the arguments.
struct Leave {
  std::string text;
  int exit_code = 0;
};

using CommandLine = std::variant<MeasureOptions, ExplainOptions, CompareOptions, ShowOptions,
                                 ClusterOptions, Leave>;

/// `available`: the libraries found. Throws nothing; bad arguments give Leave with exit code 2.
[[nodiscard]] CommandLine parse_options(int argc, const char* const* argv,
                                        const std::vector<Library>& available);

/// "4", "64K", "1M", "2G" (powers of 1024). Throws chorus::InputError naming the text.
[[nodiscard]] std::uint64_t parse_size(const std::string& text);

}  // namespace chorus::perf
