// `chorus simulate`: times a schedule or plan on a topology, and shows the timeline.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "model/draw/timeline.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/contract.hpp"
#include "topology/probing/declared_networks.hpp"

namespace chorus {
namespace {

struct SimulateArguments {
  std::string file, topology, collective, svg, trace;
  std::uint64_t bytes = 1 << 20;
};

/// The schedule of the plan that serves the arguments.
const Schedule& chosen(const Plan& plan, const SimulateArguments& arguments) {
  for (const PlanEntry& entry : plan.entries) {
    const bool right_kind = arguments.collective.empty() ||
                            name_of(entry.schedule.collective.kind) == arguments.collective;
    if (right_kind && entry.min_bytes <= arguments.bytes && arguments.bytes <= entry.max_bytes) {
      return entry.schedule;
    }
  }
  throw InputError(fmt::format("{} has no schedule for {}{}", arguments.file,
                               arguments.collective.empty() ? "" : arguments.collective + " of ",
                               counted(static_cast<long long>(arguments.bytes), "byte")));
}

void run_simulate(const SimulateArguments& arguments) {
  const Plan plan = schedules_from_argument(arguments.file);
  if (arguments.topology.empty() && plan.topology.nodes.empty()) {
    throw InputError(
        fmt::format("{} does not say for which topology: give one with -t", arguments.file));
  }
  simulate_and_show(
      chosen(plan, arguments),
      arguments.topology.empty() ? plan.topology : topology_from_argument(arguments.topology),
      arguments.bytes, arguments.svg, arguments.trace);
}

/// The simulated time, which is the one to believe, beside the cost model's and why that differs.
std::string times_text(double simulated_s, double cost_s) {
  constexpr double kAlike = 0.02;
  const char* why = "";
  if (cost_s > simulated_s * (1 + kAlike)) {
    why =
        ", too long here: it adds up the steps as if each began when the one before has ended "
        "everywhere, but they overlap";
  } else if (cost_s < simulated_s * (1 - kAlike)) {
    why =
        ", too short here: it looks at one step at a time, but transfers of several steps share "
        "links";
  }
  return fmt::format(
      "{:.2f} us simulated transfer by transfer, which is the time to believe\n"
      "  (cost model, the quick estimate: {:.2f} us{})\n",
      simulated_s * 1e6, cost_s * 1e6, why);
}

}  // namespace

void simulate_and_show(const Schedule& schedule, const Topology& topology, std::uint64_t bytes,
                       const std::string& svg, const std::string& trace) {
  if (topology.world_size() != schedule.world_size) {
    throw InputError(fmt::format(
        "'{}' has {}, the schedule {}: use one with {}", printable_name(topology.name),
        counted(topology.world_size(), "rank"), schedule.world_size, schedule.world_size));
  }
  const Topology priced = probing::with_joined_networks(topology);
  const Routes routes(priced);
  const auto size = static_cast<double>(bytes);
  const Simulation simulation = simulate(schedule, priced, routes, size);
  const std::string times = printable(fmt::format(
      "{} '{}' of {} on {}: {}", name_of(schedule.collective.kind), printable_name(schedule.name),
      counted(static_cast<long long>(bytes), "byte"), printable_name(topology.name),
      times_text(simulation.seconds, cost(schedule, priced, routes).seconds(size))));
  if (one_is_standard_output({svg, trace})) {
    fmt::print(stderr, "{}", times);
  } else {
    print(times);
  }
  if (!svg.empty()) write_output(svg, timeline_svg(simulation, schedule, priced, routes, size));
  if (!trace.empty()) write_output(trace, timeline_trace(simulation, schedule, priced));
}

void add_simulate(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "Time a schedule or plan on a topology, link by link");
  command->add_option("file", arguments->file, kSchedulesHelp)->required();
  command->add_option("collective", arguments->collective, "of a plan: all_reduce, all_gather, …")
      ->check(collective());
  command->add_option("-t,--topology", arguments->topology,
                      "file, catalog name or generator string; default: the plan's own");
  command->add_option("-b,--bytes", arguments->bytes, "size of the collective")
      ->transform(byte_size())
      ->capture_default_str();
  command->add_option("--svg", arguments->svg,
                      "write the timeline as a picture; - for standard output");
  command->add_option("--trace", arguments->trace,
                      "write it as a Chrome/Perfetto trace; - for standard output");
  command->footer("Example: chorus simulate dgx1.json all_gather -b 64M --svg gather.svg");
  command->callback([arguments, &exit_code] {
    run_simulate(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
