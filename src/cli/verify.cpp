// `chorus verify`: proves the schedules of a file, or names the first fault.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/counted.hpp"
#include "base/text/printable.hpp"
#include "chorus/options.hpp"
#include "cli/cli.hpp"
#include "formats/fault.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "runtime/executors/ports.hpp"

namespace chorus {
namespace {

/// Transfers of a symmetric schedule whose programs are still run against each other.
constexpr std::size_t kMostLowered = 1 << 16;

// The first fault of the schedule or of the programs it is cut into; nothing if it can run.
std::optional<std::string> fault_of(const Schedule& schedule) {
  if (auto fault = first_fault(schedule)) return fault;
  if (num_transfers(schedule) > kMostLowered && !schedule.symmetry.empty()) {
    // Each rank cuts its own program; that one is well formed shows for one rank of each kind.
    for (Rank rank = 0; rank < cells_of(schedule).size(); ++rank) {
      (void)lower_alone(schedule, rank);
    }
    return std::nullopt;
  }
  const std::vector<Program> programs = lower(schedule);
  const int slots = SlotLayout{.slots = Options{}.slots}.guaranteed_slots();
  for (const bool in_place : {false, true}) {
    if (auto fault = first_fault(programs, slots, in_place)) return "lowered: " + *fault;
  }
  return std::nullopt;
}

std::string symmetry_of(const Schedule& schedule) {
  if (schedule.symmetry.empty()) return "";
  const Cells cells = cells_of(schedule);
  return fmt::format(", {} of {}", counted(cells.count(), "cell"), counted(cells.size(), "rank"));
}

bool verify(const std::string& path) {
  bool proved = true;
  try {
    const Plan plan = schedules_from_argument(path);
    for (const PlanEntry& entry : plan.entries) {
      const Schedule& schedule = entry.schedule;
      const auto fault = fault_of(schedule);
      print(fmt::format("{}: {} '{}' for {}{}, {}, {}, {}: {}\n", path,
                        name_of(schedule.collective.kind), printable_name(schedule.name),
                        counted(schedule.world_size, "rank"), symmetry_of(schedule),
                        counted(schedule.num_chunks, "chunk"),
                        counted(std::ssize(schedule.steps), "step"),
                        counted(static_cast<long long>(num_transfers(schedule)), "transfer"),
                        fault ? "WRONG: " + *fault : "proved"));
      proved = proved && !fault;
    }
  } catch (const formats::ProgramFault& fault) {  // of a foreign file, which names itself
    print(fmt::format("{}: WRONG\n", fault.what()));
    return false;
  }
  return proved;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "verify",
      "Prove schedules, plans and other systems' programs (0 proved, 1 a fault, 2 unreadable)");
  command->add_option("files", *paths, kSchedulesHelp)->required();
  command->footer("Example: chorus schedule ring all_reduce -n 8 | chorus verify -");
  command->callback([paths, &exit_code] {
    bool proved = true;
    for (const std::string& path : *paths) proved = verify(path) && proved;
    exit_code = proved ? 0 : 1;
  });
}

}  // namespace chorus
