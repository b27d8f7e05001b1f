// `chorus schedule`: makes a classic schedule and shows it: as JSON, as what it costs, as a
// picture.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string_view>
#include <vector>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "collectives/algorithms.hpp"
#include "model/json/json.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

struct ScheduleArguments {
  std::string algorithm, collective;
  int ranks = 0;
  std::vector<int> levels;
  bool programs = false;
  std::string topology, svg, trace;
  std::uint64_t bytes = 1 << 20;
};

/// What serves a group without levels is made the same with them. Throws InputError naming those
/// that could use them.
void require_use_of_levels(const Algorithm& chosen, const AlgorithmInput& input) {
  const auto uses_them = [&input](const Algorithm& one) {
    return one.why_not({input.kind, input.world_size, {}}) && !one.why_not(input);
  };
  if (input.levels.empty() || chosen.why_not(input) || uses_them(chosen)) return;
  std::vector<std::string_view> others;
  for (const Algorithm& other : algorithms()) {
    if (uses_them(other)) others.push_back(other.name);
  }
  throw InputError(fmt::format(
      "--levels {}: {} takes no levels: leave them out{}", fmt::join(input.levels, ","),
      chosen.name, others.empty() ? "" : fmt::format(", or choose {}", fmt::join(others, ", "))));
}

void run_schedule(const ScheduleArguments& arguments) {
  const Algorithm& chosen = algorithm(arguments.algorithm);
  const AlgorithmInput input{.kind = parse_collective_kind(arguments.collective),
                             .world_size = arguments.ranks,
                             .levels = arguments.levels};
  require_use_of_levels(chosen, input);
  if (const auto reason = chosen.why_not(input)) {
    throw InputError(fmt::format("{} cannot make {} for {}: {}", arguments.algorithm,
                                 arguments.collective, counted(arguments.ranks, "rank"), *reason));
  }
  if (arguments.topology.empty() && !(arguments.svg.empty() && arguments.trace.empty())) {
    throw InputError("--svg and --trace show a simulation: say on which topology (-t)");
  }
  const Schedule schedule = chosen.make(input);
  if (!arguments.topology.empty()) {
    simulate_and_show(schedule, topology_from_argument(arguments.topology), arguments.bytes,
                      arguments.svg, arguments.trace);
  } else if (arguments.programs) {
    print(to_json(lower(schedule)));
  } else {
    write_json(schedule, print);
  }
}

}  // namespace

void add_schedule(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ScheduleArguments>();
  CLI::App* command =
      app.add_subcommand("schedule", "Make a classic schedule; print it or simulate it");
  command->add_option("algorithm", arguments->algorithm, "a name of `chorus algorithms`")
      ->required();
  command->add_option("collective", arguments->collective, "all_reduce, all_gather, …")
      ->required()
      ->check(collective());
  command->add_option("-n,--ranks", arguments->ranks, "how many")
      ->required()
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--levels", arguments->levels,
                   "sizes of the hierarchy, innermost first: 8,4 for 4 hosts of 8 ranks")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::PositiveNumber)
      ->option_text("INT,INT,...");
  command->add_flag("--programs", arguments->programs, "print what each rank executes");
  command->add_option("-t,--topology", arguments->topology,
                      "simulate on this file, catalog name or generator string");
  command->add_option("-b,--bytes", arguments->bytes, "size to simulate")
      ->transform(byte_size())
      ->capture_default_str();
  command->add_option("--svg", arguments->svg,
                      "write the simulated timeline as a picture; - for standard output");
  command->add_option("--trace", arguments->trace,
                      "write it as a Chrome/Perfetto trace; - for standard output");
  command->footer("Example: chorus schedule ring all_reduce -n 8 -t dgx1 -b 16M --svg ring.svg");
  command->callback([arguments, &exit_code] {
    run_schedule(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
