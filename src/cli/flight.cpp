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
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/flight_record.hpp"
#include "runtime/flight_files.hpp"
#include "runtime/options_env.hpp"

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
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "flight", "Merge the flight records of a failed run: who was where, and what failed");
  command->add_option("files", *paths,
                      "Records, or folders: the job that failed last there. Left out: the folder "
                      "of CHORUS_FLIGHT_DIR");
  command->footer("Example: chorus flight");
  command->callback([paths, &exit_code] {
    exit_code = print_flights(records(*paths)) ? exit_fault_found : exit_well;
  });
}

}  // namespace chorus
