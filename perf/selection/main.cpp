// chorus-perf-selection: started as the ranks of a job; measures every schedule that could run at
// each point of a grid, and counts where the chosen one is not the fastest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/files.hpp"
#include "base/text/progress.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "command/arguments.hpp"
#include "command/command_line.hpp"
#include "model/schedule/contract.hpp"
#include "perf/commit.hpp"
#include "perf/selection/selection.hpp"
#include "runtime/host/assumed_topology.hpp"

namespace chorus::perf {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;

struct Arguments {
  std::vector<std::string> kinds = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast"};
  std::uint64_t least = 4;
  std::uint64_t most = 16 << 20;
  std::vector<std::uint64_t> sizes;
  double milliseconds = 20;
  bool explain = false;
  std::string output;
};

void run(const Arguments& arguments, const std::string& command) {
  Grid grid;
  grid.seconds_per_contender = arguments.milliseconds * 1e-3;
  for (const std::string& kind : arguments.kinds) grid.kinds.push_back(parse_collective_kind(kind));
  grid.sizes = arguments.sizes;
  for (std::uint64_t size = arguments.least; arguments.sizes.empty() && size <= arguments.most;
       size *= 4) {
    grid.sizes.push_back(size);
  }
  const bool first = Launch::from_env().rank == 0;
  // Before the others know this rank: what they would report of its end is not the cause.
  if (first && !arguments.output.empty()) require_writable(arguments.output);
  const auto joined = Communicator::Impl::join(Options::from_env());
  Communicator::Impl& communicator = *joined;
  communicator.await_plan();
  std::optional<Progress> progress;
  if (first) progress.emplace(stderr, "chorus-perf-selection");
  const std::vector<Point> points =
      measure(communicator, grid, [&](int done, int total, std::string_view what) {
        if (progress) progress->show(done, total, what);
      });
  progress.reset();
  if (!first) return;
  if (!one_is_standard_output({arguments.output})) {
    fmt::print("{}", text(points, arguments.explain));
  }
  if (arguments.output.empty()) return;
  write_output(
      arguments.output,
      json(points, {.commit = kCommit,
                    .command = command,
                    .date = utc_now(),
                    .machine = this_machine(),
                    .ranks = static_cast<int>(communicator.place.members.size()),
                    .hosts = static_cast<int>(num_hosts(communicator.connections->members()))}));
}

int run(int argc, char** argv) {
  CLI::App app(
      "Measure every schedule that could run, next to the one that would.\nExit code: 0 well, 1 a "
      "failure, 2 bad input or usage.",
      "chorus-perf-selection");
  Arguments arguments;
  app.add_option("collectives", arguments.kinds, "all_reduce, all_gather, …")
      ->delimiter(',')
      ->check(collective())
      ->capture_default_str();
  app.add_option("--min", arguments.least, "least bytes")
      ->transform(byte_size())
      ->check(CLI::Range(std::uint64_t{1}, kMostBytes));
  app.add_option("--max", arguments.most, "most bytes; sizes grow by four")
      ->transform(byte_size())
      ->check(CLI::Range(std::uint64_t{1}, kMostBytes));
  app.add_option("--sizes", arguments.sizes, "just these: 4,64K,16M")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(byte_size())
      ->check(CLI::Range(std::uint64_t{1}, kMostBytes));
  app.add_option("--ms", arguments.milliseconds, "time for each schedule at each size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--explain", arguments.explain, "Print every schedule, predicted and measured");
  app.add_option("--json", arguments.output,
                 "Write all figures to this file; - for standard output");
  app.footer("Example: chorus run -n 4 -- chorus-perf-selection all_reduce --explain");
  add_common_options(app);
  if (const auto leave = read_command_line(app, argc, argv)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  const std::string command = command_given("chorus-perf-selection", argc, argv);
  run(arguments, command);
  return 0;
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) {
  return chorus::exit_code_of("chorus-perf-selection",
                              [&] { return chorus::perf::run(argc, argv); });
}
