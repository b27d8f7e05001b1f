// `chorus simulate`: times a schedule or plan on a topology, and shows the timeline.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/files.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "model/contract.hpp"
#include "model/cost.hpp"
#include "model/timeline.hpp"

namespace chorus {
namespace {

struct Arguments {
  std::string file, topology, collective, svg, trace;
  std::uint64_t bytes = 1 << 20;
};

/// The schedule of the plan that serves the arguments.
const Schedule& chosen(const Plan& plan, const Arguments& arguments) {
  for (const PlanEntry& entry : plan.entries) {
    const bool right_kind = arguments.collective.empty() ||
                            name_of(entry.schedule.collective.kind) == arguments.collective;
    if (right_kind && entry.min_bytes <= arguments.bytes && arguments.bytes <= entry.max_bytes) {
      return entry.schedule;
    }
  }
  throw InputError(fmt::format("{} has no schedule for {}{} bytes", arguments.file,
                               arguments.collective.empty() ? "" : arguments.collective + " of ",
                               arguments.bytes));
}

void run(const Arguments& arguments) {
  if (!arguments.collective.empty()) (void)parse_collective_kind(arguments.collective);
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

}  // namespace

void simulate_and_show(const Schedule& schedule, const Topology& topology, std::uint64_t bytes,
                       const std::string& svg, const std::string& trace) {
  if (topology.world_size() != schedule.world_size) {
    throw InputError(fmt::format("'{}' has {} ranks, the schedule {}: use one with {}",
                                 topology.name, topology.world_size(), schedule.world_size,
                                 schedule.world_size));
  }
  const Routes routes(topology);
  const auto size = static_cast<double>(bytes);
  const Simulation simulation = simulate(schedule, topology, routes, size);
  print(fmt::format("{} '{}' of {} bytes on {}: {:.2f} us simulated, {:.2f} us by the cost model\n",
                    name_of(schedule.collective.kind), schedule.name, bytes, topology.name,
                    simulation.seconds * 1e6,
                    cost(schedule, topology, routes).seconds(size) * 1e6));
  if (!svg.empty()) write_file(svg, timeline_svg(simulation, schedule, topology, routes));
  if (!trace.empty()) write_file(trace, timeline_trace(simulation, schedule, topology));
}

void add_simulate(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("simulate", "Time a schedule or plan on a topology, link by link");
  command->add_option("file", arguments->file, kSchedulesHelp)->required();
  command->add_option("collective", arguments->collective, "of a plan: all_reduce, all_gather, …");
  command->add_option("-t,--topology", arguments->topology,
                      "file, catalog name or generator string; default: the plan's own");
  command->add_option("-b,--bytes", arguments->bytes, "size of the collective")
      ->transform(byte_size())
      ->capture_default_str();
  command->add_option("--svg", arguments->svg, "write the timeline as a picture");
  command->add_option("--trace", arguments->trace, "write it as a Chrome/Perfetto trace");
  command->footer("Example: chorus simulate dgx1.json all_gather -b 64M --svg gather.svg");
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
