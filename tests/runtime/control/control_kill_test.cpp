// A rank that is killed at any moment is named by every other rank within two seconds.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/communicator.hpp"
#include "control_harness.hpp"
#include "runtime/control/coordinator/host.hpp"

namespace chorus {
namespace {

using namespace testing_control;

constexpr int kWorld = 4;
constexpr int kNoticed_ms = 2'000;
/// Below the two seconds, so that a rank killed before it ever connected, of whom nobody knows
/// but a launcher, is named as missing in time.
constexpr int kJoinTimeout_ms = 1'000;

/// Where the coordinator lives.
enum class Place { launcher, parent, rank0 };

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

/// Joins, then exchanges and waits for each other like collectives do, until somebody fails.
std::string life_of(const std::string& id, Rank rank) {
  try {
    const auto control = Control::join(id, rank, kWorld, kJoinTimeout_ms);
    control->open_group("all", all_ranks(kWorld));
    std::minstd_rand random(static_cast<unsigned>(rank));
    for (int round = 0;; ++round) {
      if (round % 2 == 0) {
        (void)control->exchange(fmt::format("round {}", round), all_ranks(kWorld), bytes_of("abc"),
                                10'000);
      } else {
        control->report_waiting("all", static_cast<std::uint64_t>(round), "barrier", -1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      control->poll();
      if (const auto verdict = control->verdict("all")) return *verdict;
    }
  } catch (const Error& error) {
    return error.what();
  }
}

/// What a rank writes at its end: when, and why.
void confess(int fd, const std::string& sentence) {
  const std::string line = fmt::format("{} {}", now_us(), sentence);
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
}

std::string read_line(int fd) {
  std::string line(2048, '\0');
  const ssize_t size = ::read(fd, line.data(), line.size());
  line.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return line;
}

struct Trial {
  Place place;
  Rank victim;
  int after_us;
};

std::string describe(int status) {
  return WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status))
                             : fmt::format("exited with status {}", WEXITSTATUS(status));
}

/// What a survivor said, and how long after the kill.
struct Confession {
  std::int64_t after_us = 0;
  std::string sentence;
};

/// Lets the ranks live until one is killed. The ranks are forked before a coordinator's thread
/// exists: a process with threads cannot be forked safely.
std::vector<Confession> live_and_die(const Trial& trial) {
  std::vector<Pipe> confessions(kWorld), ids(kWorld);
  Pipe id_of_rank0;
  std::vector<pid_t> pids;
  for (Rank rank = 0; rank < kWorld; ++rank) {
    const auto self = static_cast<std::size_t>(rank);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string id;
      if (rank == 0 && trial.place == Place::rank0) {
        id = UniqueId::make(kWorld).text;
        [[maybe_unused]] const auto written =
            ::write(id_of_rank0.write.get(), id.data(), id.size());
      } else {
        id = read_line(ids[self].read.get());
      }
      confess(confessions[self].write.get(), life_of(id, rank));
      ::_exit(1);
    }
    pids.push_back(pid);
  }
  std::unique_ptr<Coordinator> coordinator;
  if (trial.place != Place::rank0) {
    coordinator = std::make_unique<Coordinator>(
        kWorld, "", 0, Secret::random(),
        Coordinator::Host{.launcher = trial.place == Place::launcher});
  }
  const std::string id = coordinator ? coordinator->id() : read_line(id_of_rank0.read.get());
  for (const Pipe& pipe : ids) {
    [[maybe_unused]] const auto written = ::write(pipe.write.get(), id.data(), id.size());
  }
  std::this_thread::sleep_for(std::chrono::microseconds(trial.after_us));
  const std::int64_t killed_at = now_us();
  ::kill(pids[static_cast<std::size_t>(trial.victim)], SIGKILL);
  for (int left = kWorld; left > 0; --left) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, 0);
    for (Rank rank = 0; rank < kWorld; ++rank) {
      if (pids[static_cast<std::size_t>(rank)] != pid || trial.place != Place::launcher) continue;
      coordinator->report_death(rank, describe(status));
    }
  }
  std::vector<Confession> said;
  for (Rank rank = 0; rank < kWorld; ++rank) {
    confessions[static_cast<std::size_t>(rank)].write.reset();
    if (rank == trial.victim) continue;
    const std::string line = read_line(confessions[static_cast<std::size_t>(rank)].read.get());
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) {
      said.push_back({0, "nothing"});
    } else {
      said.push_back({std::stoll(line) - killed_at, line.substr(space + 1)});
    }
  }
  return said;
}

/// The same in a process of its own, so that no thread of one trial is there when the next forks.
std::vector<Confession> run(const Trial& trial) {
  Pipe answers;
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text;
    for (const auto& [after_us, sentence] : live_and_die(trial)) {
      text += fmt::format("{} {}\n", after_us, sentence);
    }
    [[maybe_unused]] const auto written = ::write(answers.write.get(), text.data(), text.size());
    ::_exit(0);
  }
  answers.write.reset();
  std::string text;
  for (std::string part; !(part = read_line(answers.read.get())).empty();) text += part;
  ::waitpid(pid, nullptr, 0);
  std::vector<Confession> said;
  std::istringstream lines(text);
  for (Confession one; lines >> one.after_us && std::getline(lines >> std::ws, one.sentence);) {
    said.push_back(one);
  }
  EXPECT_EQ(said.size(), kWorld - 1U);
  return said;
}

void kill_many(Place place, int trials, int longest_us) {
  std::minstd_rand random(17);
  std::int64_t slowest_us = 0;
  int right = 0;
  for (int i = 0; i < trials; ++i) {
    const Trial trial{place, static_cast<Rank>(random() % kWorld),
                      static_cast<int>(random() % static_cast<unsigned>(longest_us))};
    const std::string culprit = fmt::format("rank {}", trial.victim);
    bool all_right = true;
    for (const auto& [after_us, sentence] : run(trial)) {
      const bool named = sentence.find(culprit) != std::string::npos;
      EXPECT_TRUE(named) << "trial " << i << ": " << culprit << " killed after " << trial.after_us
                         << " us, but a survivor says: " << sentence;
      EXPECT_LT(after_us, kNoticed_ms * 1000) << "trial " << i << ": " << sentence;
      all_right = all_right && named && after_us < kNoticed_ms * 1000;
      slowest_us = std::max(slowest_us, after_us);
    }
    right += all_right ? 1 : 0;
  }
  EXPECT_EQ(right, trials);
  std::printf("%d of %d killed ranks were named by all others, the slowest after %.0f ms\n", right,
              trials, static_cast<double>(slowest_us) / 1000);
}

TEST(KilledRank, IsNamedByAllWithTheCoordinatorInALauncher) {
  kill_many(Place::launcher, 80, 30'000);
}
TEST(KilledRank, IsNamedByAllWithTheCoordinatorInAnotherProcess) {
  kill_many(Place::parent, 60, 30'000);
}
TEST(KilledRank, IsNamedByAllWithTheCoordinatorInRankZero) { kill_many(Place::rank0, 80, 30'000); }

TEST(KilledRank, IsNamedThoughAChildOfItsOwnLivesOn) {
  Pipe ready, id;
  std::fflush(stdout);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto control = Control::join(read_line(id.read.get()), 1, 2, kPatience_ms);
    const pid_t child = ::fork();
    if (child == 0) {
      ::sleep(30);
      ::_exit(0);
    }
    [[maybe_unused]] const auto written = ::write(ready.write.get(), &child, sizeof child);
    ::sleep(30);
    ::_exit(0);
  }
  Coordinator coordinator(2, "", 0, Secret::random());
  const std::string text = coordinator.id();
  ASSERT_EQ(::write(id.write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const auto control = Control::join(text, 0, 2, kPatience_ms);
  control->open_group("g", all_ranks(2));
  pid_t child = 0;
  ASSERT_EQ(::read(ready.read.get(), &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ::kill(pid, SIGKILL);
  EXPECT_THAT(verdict_within(*control, "g", kNoticed_ms),
              ::testing::HasSubstr("died: its connection closed"));
  ::kill(child, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace chorus
