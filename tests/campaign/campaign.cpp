// chorus-campaign: so many jobs to each of which one thing happens at a random moment, and the
// distribution of how long it took until it was named, and until the others went on.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "command/arguments.hpp"
#include "command/command_line.hpp"
#include "diary.hpp"
#include "perf/commit.hpp"
#include "perf/report/plot.hpp"
#include "record.hpp"

namespace chorus::campaign {
namespace {

struct Arguments {
  int count = 200, jobs = 4;
  std::uint64_t seed = 1;
  double for_s = kMostSeconds;
  std::string json, svg, phase, fault;
  std::optional<int> job;
  bool goes_on = false;
};

Record begin(const Arguments& arguments) {
  Record record{.seed = arguments.seed, .machine = perf::this_machine()};
  const bool some = !arguments.phase.empty() || !arguments.fault.empty() || arguments.job;
  if (!arguments.json.empty() && some) {
    throw InputError("a record is of all jobs: leave out --phase, --fault and --job");
  }
  if (!arguments.goes_on) return record;
  if (arguments.json.empty()) throw InputError("--continue needs --json FILE, which it continues");
  record = record_from(read_file(arguments.json), arguments.json);
  if (record.seed != arguments.seed) {
    throw InputError(
        fmt::format("{} is of seed {}, not {}", arguments.json, record.seed, arguments.seed));
  }
  if (!(record.machine == perf::this_machine())) {
    throw InputError(arguments.json + " is of another machine");
  }
  return record;
}

/// Exit code.
int run(const Arguments& arguments, const std::string& command) {
  for (const std::string& path : {arguments.json, arguments.svg}) {
    if (!path.empty()) require_writable(path);
  }
  Record record = begin(arguments);
  Part part{.commit = perf::kCommit,
            .command = command,
            .date = perf::utc_now(),
            .from = record.trials,
            .to = record.trials};
  const std::int64_t until_us = now_us() + static_cast<std::int64_t>(arguments.for_s * 1e6);
  run_all([&](int number) { return draw(arguments.seed, arguments.job.value_or(number)); },
          part.from, arguments.count, arguments.jobs,
          [&](int number, const Trial& trial, const Result& result) {
            part.to = std::max(part.to, number + 1);
            if (!result.broken) return record.rows[{trial.phase, trial.fault}].add(result);
            record.broken.push_back({number, trial.text(), *result.broken});
            fmt::print("trial {}: {}: {}\n", number, trial.text(), *result.broken);
            std::fflush(stdout);
          },
          [&] { return now_us() < until_us; },
          [&](const Trial& trial) {
            return (arguments.phase.empty() || arguments.phase == name_of(trial.phase)) &&
                   (arguments.fault.empty() || arguments.fault == name_of(trial.fault));
          });
  record.trials = part.to;
  if (part.to > part.from) record.parts.push_back(part);
  fmt::print("{}", table(record));
  if (!arguments.json.empty()) write_output(arguments.json, to_json(record));
  if (!arguments.svg.empty()) {
    perf::draw_svg([&](const std::string& picture) { return script(record, picture); },
                   arguments.svg);
  }
  return record.broken.empty() ? 0 : 1;
}

int read_and_run(int argc, char** argv) {
  CLI::App app(
      "Start jobs, to each of which one thing happens at a random moment, and tell whether all "
      "ended as promised, and how long it took.\nExit code: 0 all did, 1 one did not, 2 bad input "
      "or usage.",
      "chorus-campaign");
  Arguments arguments;
  app.add_option("-n,--count", arguments.count, "Jobs, with those that a record has already")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--seed", arguments.seed, "The same jobs for the same seed")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("-j,--jobs", arguments.jobs, "Jobs at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--job", arguments.job, "The job of this number alone, as often as -n says")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--phase", arguments.phase, "Those alone that are struck in this phase");
  app.add_option("--fault", arguments.fault, "Those alone that are struck so");
  app.add_option("--for", arguments.for_s, "Begin no job after so many seconds")
      ->check(number_within(kLeastSeconds, kMostSeconds));
  app.add_option("--json", arguments.json, "Write all figures to this file");
  app.add_flag("--continue", arguments.goes_on, "Go on behind the jobs of the record in --json");
  app.add_option("--svg", arguments.svg, "Draw the distributions (needs gnuplot)");
  add_common_options(app);
  if (const auto leave = read_command_line(app, argc, argv)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  const std::string command = command_given("chorus-campaign", argc, argv);
  return run(arguments, command);
}

}  // namespace
}  // namespace chorus::campaign

int main(int argc, char** argv) {
  using namespace chorus;
  return exit_code_of("chorus-campaign", [&] {
    // As a rank of `chorus run`, with what the trial's processes share.
    if (argc == 3 && std::strcmp(argv[1], "--rank") == 0) {
      campaign::live(*campaign::open_shared_memory(argv[2]), Launch::from_env().rank);
    }
    return campaign::read_and_run(argc, argv);
  });
}
