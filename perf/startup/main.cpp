// chorus-perf-startup: how long a job of some ranks takes until its first calls have returned, and
// what that costs each rank. Started as ranks it measures; else it starts jobs of `--ranks`.
#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "command/arguments.hpp"
#include "command/command_line.hpp"
#include "perf/commit.hpp"
#include "perf/process.hpp"
#include "perf/report/plot.hpp"
#include "perf/session.hpp"
#include "perf/startup/simulation.hpp"
#include "perf/startup/startup.hpp"

namespace chorus::perf {
namespace {

/// Ranks of a job that is started.
constexpr int kMostReal = 2048;

struct Arguments {
  std::vector<int> ranks = {2, 16, 64, 256};
  std::string json, svg;
  bool simulate = false, direct = false;
  int ranks_per_host = 8;
};

void keep(const Arguments& arguments, const std::string& command, std::vector<StartupRow> rows) {
  const StartupRecord record{.commit = kCommit,
                             .command = command,
                             .date = utc_now(),
                             .machine = this_machine(),
                             .rows = std::move(rows)};
  if (!arguments.json.empty()) write_output(arguments.json, startup_json(record));
  if (arguments.svg.empty()) return;
  draw_svg([&](const std::string& picture) { return startup_script(record, picture); },
           arguments.svg);
}

/// As a rank of a job. Exit code.
int measure_job(const Arguments& arguments, const std::string& command,
                std::chrono::steady_clock::time_point began) {
  const bool first = chorus::Launch::from_env().rank == 0;
  // Before the others know this rank: what they would report of its end is not the cause.
  if (first && !arguments.json.empty()) require_writable(arguments.json);
  const StartupRow row = measure_startup(began);
  if (!first) return 0;
  if (!one_is_standard_output({arguments.json})) {
    fmt::print("{}{}", startup_header(), startup_line(row));
  }
  keep(arguments, command, {row});
  return row.wrong == 0 ? 0 : 1;
}

/// Throws chorus::Error with its last words unless it ends well.
void run_quietly(const Command& command, const std::string& name) {
  Child child(command);
  while (child.ended().empty()) {
    throw_if_stopped();
    child.drain();
    ::poll(nullptr, 0, 5);
  }
  child.drain();
  if (child.ended() == "exited with 0") return;
  throw Error(fmt::format("{} {}{}", name, child.ended(), words_of(child.output())));
}

/// One job after the other.
void measure_jobs(const Arguments& arguments, const std::string& command) {
  for (const std::string& path : {arguments.json, arguments.svg}) {
    if (!path.empty()) require_writable(path);
  }
  stop_on_signals();
  const Scratch scratch;
  const bool told = !one_is_standard_output({arguments.json, arguments.svg});
  if (told) fmt::print("{}", startup_header());
  std::vector<StartupRow> rows;
  for (const int ranks : arguments.ranks) {
    const std::string part = fmt::format("{}/{}.json", scratch.path(), ranks);
    Command job;
    job.argv = {beside_driver("chorus"),
                "run",
                "-n",
                std::to_string(ranks),
                "--",
                beside_driver("chorus-perf-startup"),
                "--json",
                part};
    run_quietly(job, fmt::format("the job of {} ranks", ranks));
    rows.push_back(startup_rows(read_file(part), part).at(0));
    if (told) fmt::print("{}", startup_line(rows.back()));
    std::fflush(stdout);
  }
  keep(arguments, command, std::move(rows));
}

/// Jobs that no machine holds. Exit code.
int simulate_jobs(const Arguments& arguments, const std::string& command) {
  for (const std::string& path : {arguments.json, arguments.svg}) {
    if (!path.empty()) require_writable(path);
  }
  const bool told = !one_is_standard_output({arguments.json, arguments.svg});
  if (told) fmt::print("{}", simulation_header());
  std::vector<SimulatedJoin> joins;
  std::size_t wrong = 0;
  for (const int ranks : arguments.ranks) {
    joins.push_back(simulate_join({.ranks = ranks,
                                   .ranks_per_host = arguments.ranks_per_host,
                                   .by_relay = !arguments.direct}));
    wrong += joins.back().wrong;
    if (told) fmt::print("{}", simulation_line(joins.back()));
    std::fflush(stdout);
  }
  if (!arguments.json.empty()) {
    write_output(arguments.json, simulation_json(joins, {}, kCommit, command));
  }
  if (!arguments.svg.empty()) {
    draw_svg([&](const std::string& picture) { return simulation_script(joins, picture); },
             arguments.svg);
  }
  return wrong == 0 ? 0 : 1;
}

int run(int argc, char** argv, std::chrono::steady_clock::time_point began) {
  CLI::App app(
      "Start jobs of some ranks on this machine, and measure what joining and the first calls "
      "take.\nStarted as ranks of a job: that job alone.\nExit code: 0 well, 1 a failure or a "
      "wrong result, 2 bad input or usage.",
      "chorus-perf-startup");
  Arguments arguments;
  app.add_option("-n,--ranks", arguments.ranks, "Ranks of each job: 2,16,64,256")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 17))
      ->capture_default_str();
  app.add_option("--json", arguments.json, "Write all figures to this file; - for standard output");
  app.add_option("--svg", arguments.svg,
                 "Draw time and memory against ranks (needs gnuplot); - for standard output");
  app.add_flag("--simulate", arguments.simulate,
               "Join on simulated connections instead, with the real coordinator and relays: any "
               "number of ranks");
  app.add_option("--ranks-per-host", arguments.ranks_per_host, "In the simulation")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_flag("--direct", arguments.direct,
               "In the simulation: every rank connects to the coordinator, without relays");
  app.footer("Example: chorus-perf-startup -n 2,16,64,256,1024 --svg startup.svg");
  add_common_options(app);
  if (const auto leave = read_command_line(app, argc, argv)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  const std::string command = command_given("chorus-perf-startup", argc, argv);
  if (arguments.simulate) return simulate_jobs(arguments, command);
  if (*std::max_element(arguments.ranks.begin(), arguments.ranks.end()) > kMostReal) {
    throw InputError(
        fmt::format("more than {} ranks are simulated alone: add --simulate", kMostReal));
  }
  if (chorus::Launch::from_env().world_size > 1) return measure_job(arguments, command, began);
  measure_jobs(arguments, command);
  return 0;
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) {
  const auto began = std::chrono::steady_clock::now();
  return chorus::exit_code_of("chorus-perf-startup", [&] {
    try {
      return chorus::perf::run(argc, argv, began);
    } catch (const chorus::perf::Interrupted& interrupted) {
      return 128 + interrupted.signal;
    }
  });
}
