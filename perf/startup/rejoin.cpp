// chorus-perf-rejoin: how long a process that is started anew takes until its first collective in a
// job that runs, and how fast it gets the state of the others. Every process of a job runs it; the
// last rank leaves and starts anew, over and over.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/files/files.hpp"
#include "chorus/communicator.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "command/arguments.hpp"
#include "command/command_line.hpp"
#include "perf/commit.hpp"
#include "perf/report/json.hpp"
#include "perf/report/machine.hpp"

namespace chorus::perf {
namespace {

struct Arguments {
  std::uint64_t state_bytes = 64 << 20;
  int rounds = 5;
  double link_gb_s = 0;
  std::string json;
  std::int64_t began_ns = 0;  ///< of a process that was started anew; 0: of one of the first
  int round = 0;
};

/// Of one process that came, s since its start.
struct Came {
  double taken_in_s = 0;
  double first_collective_s = 0;
  double copy_s = 0;         ///< the state, after that
  double from = 0;           ///< so many ranks
  double wrong = 0;          ///< bytes
  double memory_copy_s = 0;  ///< of as many bytes, by this process, the best of a few
};

/// Alike in all processes of a machine.
std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double since_s(std::int64_t then_ns) { return 1e-9 * static_cast<double>(now_ns() - then_ns); }

std::byte byte_at(std::size_t i) { return static_cast<std::byte>((i * 2654435761U) >> 16); }

/// Neither side is in a cache where the state is not.
double memory_copy_s(const std::vector<std::byte>& from) {
  constexpr int kTimes = 5;
  std::vector<std::byte> to(from.size(), std::byte{1});
  double best_s = 0;
  for (int i = 0; i < kTimes; ++i) {
    const std::int64_t begin_ns = now_ns();
    std::memcpy(to.data(), from.data(), from.size());
    const double took_s = since_s(begin_ns);
    if (i == 0 || took_s < best_s) best_s = took_s;
  }
  return best_s;
}

/// The first collective of the grown communicator, and the state.
Came come(Communicator& grown, const Arguments& arguments, bool has) {
  Came came{.taken_in_s = since_s(arguments.began_ns)};
  grown.barrier();
  came.first_collective_s = since_s(arguments.began_ns);
  std::vector<std::byte> state(arguments.state_bytes);
  if (has) {
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = byte_at(i);
  } else {
    std::fill(state.begin(), state.end(), std::byte{1});  // its pages are there
  }
  grown.barrier();
  const std::int64_t begin_ns = now_ns();
  const StateCopy copy = grown.copy_state(std::vector<std::span<std::byte>>{state}, has);
  came.copy_s = since_s(begin_ns);
  came.from = static_cast<double>(copy.from.size());
  for (std::size_t i = 0; i < state.size(); ++i) came.wrong += state[i] == byte_at(i) ? 0 : 1;
  if (!has) came.memory_copy_s = memory_copy_s(state);
  grown.broadcast(std::span(reinterpret_cast<double*>(&came), sizeof came / sizeof(double)),
                  grown.world_size() - 1);
  return came;
}

[[noreturn]] void start_anew(const Arguments& arguments, int round) {
  ::setenv("CHORUS_REJOIN", "1", 1);
  const std::vector<std::string> words = {"chorus-perf-rejoin",
                                          "--state",
                                          std::to_string(arguments.state_bytes),
                                          "--rounds",
                                          std::to_string(arguments.rounds),
                                          "--round",
                                          std::to_string(round),
                                          "--began",
                                          std::to_string(now_ns())};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  std::perror("chorus-perf-rejoin: cannot start anew");
  ::_exit(1);
}

void show(const Came& came, const Arguments& arguments, Json& rows) {
  const double gb_s = 1e-9 * static_cast<double>(arguments.state_bytes) / came.copy_s;
  const double memory_gb_s = 1e-9 * static_cast<double>(arguments.state_bytes) / came.memory_copy_s;
  std::string share = fmt::format(", {:.2f} of a memory copy", gb_s / memory_gb_s);
  Json row{{"taken_in_s", came.taken_in_s},
           {"first_collective_s", came.first_collective_s},
           {"copy_s", came.copy_s},
           {"copy_gb_s", gb_s},
           {"memory_copy_gb_s", memory_gb_s},
           {"share_of_memory_copy", gb_s / memory_gb_s},
           {"holders", came.from},
           {"wrong_bytes", came.wrong}};
  if (arguments.link_gb_s > 0) {
    row["share_of_link"] = gb_s / arguments.link_gb_s;
    share += fmt::format(", {:.2f} of the link", gb_s / arguments.link_gb_s);
  }
  rows.push_back(std::move(row));
  fmt::print(
      "taken in {:.3f} s after its start, first collective {:.3f} s; state of {:.0f} MB in "
      "{:.3f} s: {:.3f} GB/s from {:.0f} ranks{}; wrong bytes {:.0f}\n",
      came.taken_in_s, came.first_collective_s, 1e-6 * static_cast<double>(arguments.state_bytes),
      came.copy_s, gb_s, came.from, share, came.wrong);
  std::fflush(stdout);
}

/// Exit code.
int stay(Communicator world, const Arguments& arguments, const std::string& command) {
  const int ranks = world.world_size();
  if (ranks < 2)
    throw InputError("it takes a job of two ranks at least: chorus run --respawn 0 -n 3 -- …");
  if (world.rank() == ranks - 1) {
    { const Communicator leaves = std::move(world); }
    start_anew(arguments, 0);
  }
  // The rank that leaves waits for the others to end the world, too.
  Communicator members = std::move(world);
  members = members.shrink(std::vector<Rank>{ranks - 1});
  Json rows = Json::array();
  double wrong = 0;
  for (int round = 0; round < arguments.rounds; ++round) {
    for (int waiting = 0; waiting == 0;) {
      if (members.rank() == 0) waiting = members.num_waiting();
      members.broadcast(std::span(&waiting, 1), 0);
    }
    Communicator grown = members.take_in(1);
    const Came came = come(grown, arguments, true);
    wrong += came.wrong;
    if (members.rank() == 0) show(came, arguments, rows);
  }
  if (members.rank() == 0 && !arguments.json.empty()) {
    const Json record{{"format", "chorus-rejoin"},
                      {"version", 1},
                      {"commit", kCommit},
                      {"command", command},
                      {"date", utc_now()},
                      {"machine", machine_json(this_machine())},
                      {"ranks", ranks},
                      {"state_bytes", arguments.state_bytes},
                      {"link_gb_s", arguments.link_gb_s},
                      {"rows", rows}};
    write_output(arguments.json, record.dump(1) + "\n");
  }
  return wrong == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  CLI::App app(
      "In every process of a job: its last rank leaves and is started anew, and what that takes is "
      "measured.\nExit code: 0 well, 1 a failure or a wrong byte, 2 bad input or usage.",
      "chorus-perf-rejoin");
  Arguments arguments;
  app.add_option("--state", arguments.state_bytes, "Bytes that each process that comes gets")
      ->transform(byte_size());
  app.add_option("--rounds", arguments.rounds, "How often")->check(CLI::Range(1, 1000));
  app.add_option("--link", arguments.link_gb_s, "GB/s of the link, of which a share is told")
      ->check(number_within(kLeastGbS, kMostGbS));
  app.add_option("--json", arguments.json, "Rank 0 writes all figures to this file");
  app.add_option("--began", arguments.began_ns)->group("");
  app.add_option("--round", arguments.round)->group("");
  app.footer(
      "Examples: chorus run --respawn 0 -n 3 -- chorus-perf-rejoin\n"
      "          chorus-perf cluster run lan:4,rate=0.1 -- chorus-perf-rejoin --link 0.1");
  add_common_options(app);
  if (const auto leave = read_command_line(app, argc, argv)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  const std::string command = command_given("chorus-perf-rejoin", argc, argv);
  Communicator joined = Communicator::join();
  if (arguments.began_ns == 0) return stay(std::move(joined), arguments, command);
  {
    Communicator grown = std::move(joined);
    (void)come(grown, arguments, false);
  }
  if (arguments.round + 1 < arguments.rounds) start_anew(arguments, arguments.round + 1);
  return 0;
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) {
  return chorus::exit_code_of("chorus-perf-rejoin", [&] { return chorus::perf::run(argc, argv); });
}
