// The command line of chorus-perf.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "command/command_line.hpp"
#include "perf/cluster/command.hpp"
#include "perf/report/campaign.hpp"
#include "perf/report/explain.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {

/// Measure, and show or save the result.
struct MeasureOptions {
  Settings settings;
  std::string json, svg;  ///< files to write, or empty
  Style style = Style::text;
  bool details = true;      ///< all columns of all rows before the comparison
  bool continued = false;   ///< `json` may have rows already, which are kept
  bool nccl_tests = false;  ///< both placements, in the form of nccl-tests, instead of tables
};

/// chorus-perf compare A.json B.json
struct CompareOptions {
  std::string a, b;
  Style style = Style::text;
  double fail_above = 0;  ///< exit 1 if the geometric mean of b/a exceeds this; 0: never
};

/// chorus-perf show A.json: the tables and the plot of an earlier run, or of some of its
/// benchmarks.
struct ShowOptions {
  std::vector<std::string> benchmarks;  ///< none: all
  std::string file, svg;
  Style style = Style::text;
  bool details = true;
};

using CommandLine = std::variant<MeasureOptions, ExplainOptions, CompareOptions, ShowOptions,
                                 ClusterOptions, Leave>;

/// `available`: the libraries found; `job_ranks`: how many ranks the job has that this process was
/// started in, 0 if in none. Throws nothing; bad arguments give Leave with exit code 2.
[[nodiscard]] CommandLine parse_options(int argc, const char* const* argv,
                                        const std::vector<Library>& available, int job_ranks = 0);

}  // namespace chorus::perf
