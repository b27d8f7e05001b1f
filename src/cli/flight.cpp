// `chorus flight`: reads the records that ranks left when a collective failed, and says who was
// where.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "chorus/error.hpp"
#include "cli/cli.hpp"

namespace chorus {
namespace {

using Json = nlohmann::json;

struct FlightCall {
  std::uint64_t sequence = 0;
  std::string text, schedule;
  std::int64_t begun_us = 0;
  bool message = false;  // send or recv: numbered per pair, not per communicator
  bool finished = false;
};

struct Flight {
  std::string communicator, host, failure, waiting;
  int rank = 0, world_size = 0;
  std::vector<FlightCall> calls;
};

int whole(const Json& json, int low, int high, const std::string& path) {
  const auto small = json.is_number_unsigned() && json.get<std::uint64_t>() <= INT_MAX;
  const int number = small ? json.get<int>() : -1;
  if (number >= low && number <= high) return number;
  throw InputError(fmt::format("{}: not a flight record: {:.60} is no whole number in [{}, {}]",
                               path, json.dump(), low, high));
}

Flight read_flight(const std::string& path) {
  const std::string text = read_input(path);
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != "chorus-flight") throw InputError(path + ": not a flight record");
    if (json.at("version") != 1) {
      throw InputError(
          fmt::format("{}: written by a later Chorus (version {:.40} of the format; this "
                      "build reads 1): use that one's `chorus flight`",
                      path, json.at("version").dump()));
    }
    Flight flight;
    flight.communicator = json.at("communicator").get<std::string>();
    flight.host = json.at("host").get<std::string>();
    flight.failure = json.at("failure").get<std::string>();
    flight.waiting = json.at("waiting").get<std::string>();
    flight.world_size = whole(json.at("world_size"), 1, INT_MAX, path);
    flight.rank = whole(json.at("rank"), 0, flight.world_size - 1, path);
    for (const Json& entry : json.at("calls")) {
      flight.calls.push_back({.sequence = entry.at("sequence").get<std::uint64_t>(),
                              .text = entry.at("call").get<std::string>(),
                              .schedule = entry.at("schedule").get<std::string>(),
                              .begun_us = entry.at("begun_us").get<std::int64_t>(),
                              .message = entry.contains("peer"),
                              .finished = !entry.at("finished_us").is_null()});
    }
    return flight;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: not a flight record: {}", path, error.what()));
  }
}

// The last collective a rank began, or null.
const FlightCall* last_collective(const Flight& flight) {
  const auto it = std::find_if(flight.calls.rbegin(), flight.calls.rend(),
                               [](const FlightCall& call) { return !call.message; });
  return it == flight.calls.rend() ? nullptr : &*it;
}

void print_communicator(const std::string& name, const std::vector<Flight>& flights) {
  const int world_size = flights.front().world_size;
  print(fmt::format("communicator {}: {} ranks, {} records\n", name, world_size, flights.size()));
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
    print(fmt::format("  failure (ranks{}): {}\n", ranks, sentence));
  }
}

}  // namespace

void add_flight(CLI::App& app, int& exit_code) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "flight", "Merge the flight records of a failed run: who was where, and what failed");
  command->add_option("files", *paths, "chorus-flight-*.json")->required();
  command->footer("Example: chorus flight /tmp/chorus-flight-*.json");
  command->callback([paths, &exit_code] {
    std::map<std::string, std::vector<Flight>> communicators;
    for (const std::string& path : *paths) {
      Flight flight = read_flight(path);
      communicators[flight.communicator].push_back(std::move(flight));
    }
    bool failed = false;
    for (auto& [name, flights] : communicators) {
      std::sort(flights.begin(), flights.end(),
                [](const Flight& a, const Flight& b) { return a.rank < b.rank; });
      print_communicator(name, flights);
      for (const Flight& flight : flights) failed = failed || !flight.failure.empty();
    }
    exit_code = failed ? 1 : 0;
  });
}

}  // namespace chorus
