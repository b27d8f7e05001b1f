// `chorus flight`: reads the records that ranks left when a collective failed, and says who was
// where.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/flight/flight_record.hpp"
#include "cli/flight/flight_torch.hpp"
#include "runtime/options/flight_files.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

/// "2026-11-23 01:42:09 UTC", or nothing for records that do not say.
std::string date(std::uint64_t unix_us) {
  return unix_us == 0 ? "" : utc(unix_us, "%Y-%m-%d %H:%M:%S UTC");
}

// The last collective a rank began, or null.
const FlightCall* last_collective(const Flight& flight) {
  const auto it = std::find_if(flight.calls.rbegin(), flight.calls.rend(),
                               [](const FlightCall& call) { return !call.message; });
  return it == flight.calls.rend() ? nullptr : &*it;
}

void print_communicator(const std::string& name, const std::vector<Flight>& flights) {
  const int world_size = flights.front().world_size;
  std::uint64_t first_us = flights.front().written_us;
  for (const Flight& flight : flights) first_us = std::min(first_us, flight.written_us);
  print(fmt::format("communicator {}: {}, {}{}{}\n", name, counted(world_size, "rank"),
                    counted(std::ssize(flights), "record"), first_us > 0 ? ", failed " : "",
                    date(first_us)));
  std::uint64_t newest = 0;
  for (const Flight& flight : flights) {
    if (const FlightCall* call = last_collective(flight)) newest = std::max(newest, call->sequence);
  }
  std::map<std::string, std::string> failures;  // sentence without the rank that says it → who
  for (const Flight& flight : flights) {
    const FlightCall* call = last_collective(flight);
    const std::string state =
        call == nullptr ? "has called no collective"
                        : fmt::format("{} call {} {} [{}]{}", call->finished ? "finished" : "in",
                                      call->sequence, call->text, call->schedule,
                                      call->sequence < newest ? "  <- behind" : "");
    print(fmt::format("  rank {:>4} {:<20} {}\n", flight.rank, flight.host, state));
    if (!flight.waiting.empty()) print(fmt::format("{:32}{}\n", "", flight.waiting));
    const std::string prefix = fmt::format("rank {}: ", flight.rank);
    std::string sentence = flight.failure;
    if (sentence.starts_with(prefix)) sentence.erase(0, prefix.size());
    if (!sentence.empty()) failures[sentence] += fmt::format(" {}", flight.rank);
  }
  int next = 0;  // the first rank not spoken of yet
  const auto absent_until = [&](int end) {
    if (end == next + 1) print(fmt::format("  rank {:>4} left no record\n", next));
    if (end > next + 1) print(fmt::format("  ranks {} to {} left no record\n", next, end - 1));
  };
  for (const Flight& flight : flights) {  // in the order of ranks
    absent_until(flight.rank);
    next = flight.rank + 1;
  }
  absent_until(world_size);
  for (const auto& [sentence, ranks] : failures) {
    const bool one = ranks.find(' ', 1) == std::string::npos;  // they are " 0 1"
    print(fmt::format("  failure (rank{}{}): {}\n", one ? "" : "s", ranks, sentence));
  }
}

/// The files that `paths` mean: folders stand for the last job that failed there.
std::vector<std::string> records(const std::vector<std::string>& paths) {
  if (paths.empty()) return latest_flights(flight_folder(Options::from_env().flight_dir));
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (std::string& file : latest_flights(path)) files.push_back(std::move(file));
  }
  return files;
}

/// Writes the records of the communicator `name`, of the last job among `files` that has it, into
/// `folder`, one file per rank, and says how to read them.
void write_for_torch(const std::vector<std::string>& files, const std::string& name,
                     const std::string& folder) {
  std::map<std::string, std::vector<Flight>> jobs;  // names of jobs begin with their time
  for (const std::string& file : files) {
    Flight flight = flight_from_json(read_input(file), file);
    if (flight.communicator == name) jobs[flight.job].push_back(std::move(flight));
  }
  if (jobs.empty()) {
    throw InputError(fmt::format("no record is of the communicator {}: see chorus flight", name));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError(fmt::format("{}: {}", folder, error.message()));
  const std::vector<Flight>& flights = jobs.rbegin()->second;
  for (const Flight& flight : flights) {
    write_output(fmt::format("{}/trace_{}", folder, flight.rank), torch_trace(flight));
  }
  print(fmt::format(
      "{} in {}; read them with\n"
      "  python3 -m torch.distributed.flight_recorder.fr_trace {} -p trace_{}\n",
      counted(std::ssize(flights), "record"), folder, folder,
      std::ssize(flights) < flights.front().world_size ? " --allow-incomplete-ranks" : ""));
}

/// True if any of them failed.
bool print_flights(const std::vector<std::string>& files) {
  std::map<std::string, std::map<std::string, std::vector<Flight>>> jobs;
  for (const std::string& file : files) {
    Flight flight = flight_from_json(read_input(file), file);
    jobs[flight.job][flight.communicator].push_back(std::move(flight));
  }
  bool failed = false;
  for (auto& [job, communicators] : jobs) {
    if (!job.empty()) print(fmt::format("job {}\n", job));
    for (auto& [name, flights] : communicators) {
      std::sort(flights.begin(), flights.end(),
                [](const Flight& a, const Flight& b) { return a.rank < b.rank; });
      print_communicator(name, flights);
      for (const Flight& flight : flights) failed = failed || !flight.failure.empty();
    }
  }
  return failed;
}

}  // namespace

void add_flight(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::vector<std::string> paths;
    std::string as, out = "flight-torch", communicator = "world";
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "flight", "Merge the flight records of a failed run: who was where, and what failed");
  command->add_option("files", arguments->paths,
                      "Records, or folders: the job that failed last there. Left out: the folder "
                      "of CHORUS_FLIGHT_DIR");
  auto* as = command
                 ->add_option("--as", arguments->as,
                              "torch: write the collectives as torch's flight recorder does, for "
                              "its analyser")
                 ->check(CLI::IsMember({"torch"}));
  command->add_option("-o,--out", arguments->out, "With --as: the folder to write into")
      ->needs(as)
      ->capture_default_str();
  command->add_option("--communicator", arguments->communicator, "With --as: which one's")
      ->needs(as)
      ->capture_default_str();
  command->footer("Example: chorus flight");
  command->callback([arguments, &exit_code] {
    const std::vector<std::string> files = records(arguments->paths);
    if (!arguments->as.empty()) {
      write_for_torch(files, arguments->communicator, arguments->out);
      exit_code = exit_well;
    } else {
      exit_code = print_flights(files) ? exit_fault_found : exit_well;
    }
  });
}

}  // namespace chorus
