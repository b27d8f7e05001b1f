// The `chorus` command: one file per subcommand, each adding itself to the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "command/arguments.hpp"

namespace chorus {

/// What the command returns to the shell. InputError and wrong usage become bad_input, any other
/// chorus::Error fault_found: main() sees to both, so that a subcommand just throws.
enum ExitCode : int { exit_well = 0, exit_fault_found = 1, exit_bad_input = 2 };

/// The exit code of `chorus --help` and friends; set it to exit_fault_found from a callback that
/// found a fault and has named it.
///
/// To add a subcommand: write src/cli/NAME.cpp with such a function, name it in kSubcommands of
/// main.cpp and in CMakeLists.txt. Its options live in a struct owned by the callback.
using AddSubcommand = void (*)(CLI::App& app, int& exit_code);

void add_algorithms(CLI::App& app, int& exit_code);
void add_convert(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_env(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_flight(CLI::App& app, int& exit_code);
void add_layout(CLI::App& app, int& exit_code);
void add_probe(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_schedule(CLI::App& app, int& exit_code);
void add_synth(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_topo(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);

/// For options that name a topology.
inline constexpr const char* kTopologyHelp =
    "A file (Chorus JSON, NCCL or hwloc XML, nvidia-smi topo -m), a directory (chorus topo "
    "--record), a name or string (chorus topo --list), or - for standard input; this machine if "
    "left out";
/// The topology that such an option means; empty discovers this machine. `boxes` is how many there
/// are of what a topology of TACCL describes. Throws InputError.
[[nodiscard]] Topology topology_from_argument(const std::string& source, int boxes = 1);

/// For arguments that name schedules.
inline constexpr const char* kSchedulesHelp =
    "A schedule or plan of Chorus, MSCCL XML, an algorithm of SCCL in JSON, or - for standard "
    "input";
/// The schedules that such an argument means, each with the sizes it is for (all, where the file
/// does not say); with a topology if it is a plan that kept its own. Throws InputError if it cannot
/// be read, formats::ProgramFault if a foreign file holds a wrong program.
[[nodiscard]] Plan schedules_from_argument(const std::string& path);

/// Prints how long a schedule takes on a topology; `svg` and `trace` are files to write the
/// timeline to, or empty. Throws InputError if their numbers of ranks differ.
void simulate_and_show(const Schedule& schedule, const Topology& topology, std::uint64_t bytes,
                       const std::string& svg, const std::string& trace);

/// The whole of a file, or of standard input for "-". Throws InputError naming the path if it
/// cannot be read or is larger than 64 MiB.
[[nodiscard]] std::string read_input(const std::string& path);
/// Writes what is printable to standard output and flushes it. Throws InputError where that is
/// full or closed, as a file that is named would be.
void print(std::string_view text);

}  // namespace chorus
