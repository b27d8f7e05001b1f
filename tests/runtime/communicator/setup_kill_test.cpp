// Ranks that are killed while communicators are made: at any moment of joining, splitting, probing
// and probing again everybody else says who it was, in time.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Phase {
  std::string name, transports;
  bool own_hosts;  ///< each rank believes itself on a host of its own
  std::function<void(Communicator&)> work;
};

bool can_rename_hosts() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWUTS) == 0 ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

void live_on_a_host_of_its_own(Rank rank) {
  const std::string name = "setup-kill-" + std::to_string(rank);
  if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(name.data(), name.size()) != 0) ::_exit(9);
}

void split_for_ever(Communicator& comm) {
  for (int round = 0;; ++round) {
    auto all = comm.split(0, -comm.rank());
    auto part = comm.split((comm.rank() + round) % 2);
    std::vector<int> data(1000, 1);
    all->all_reduce<int>(data);
    if (round % 2 == 0) part->all_reduce<int>(data);
  }
}

void reprobe_for_ever(Communicator& comm) {
  for (;;) comm.reprobe();
}

class SetupKill : public ::testing::TestWithParam<Phase> {};

TEST_P(SetupKill, EveryOtherRankNamesTheDeadOneInTime) {
  const Phase& phase = GetParam();
  if (phase.own_hosts && !can_rename_hosts()) GTEST_SKIP() << "no right to make a UTS namespace";
  std::mt19937 random(11);
  double worst_s = 0;
  for (int i = 0; i < 16; ++i) {
    const int n = 2 + i % 4;
    const auto victim = static_cast<Rank>(random() % static_cast<unsigned>(n));
    const auto after = std::chrono::microseconds(random() % (phase.own_hosts ? 900'000 : 60'000));
    World world{.size = n, .ranks = Ranks::processes, .launcher = true, .timeout_s = 30};
    world.options.transports = phase.transports;
    world.options.flight_dir.clear();
    world.options.timeout_ms = 5'000;
    world.options.join_timeout_ms = 10'000;
    Clock::time_point killed;
    std::vector<Clock::time_point> ended;
    world.ended = &ended;
    pid_t dead = 0;
    world.meanwhile = [&](const std::vector<pid_t>& pids) {
      std::this_thread::sleep_for(after);
      dead = pids[static_cast<std::size_t>(victim)];
      killed = Clock::now();
      ::kill(dead, SIGKILL);
    };
    const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
      if (phase.own_hosts) live_on_a_host_of_its_own(rank);
      Communicator comm = Communicator::join(id, rank, n, world.options);
      phase.work(comm);
    });
    for (Rank r = 0; r < n; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r == victim) continue;
      // In a part of the world it goes by another number.
      EXPECT_THAT(outcomes[at],
                  AnyOf(HasSubstr(fmt::format("pid {} ", dead)),
                        HasSubstr(fmt::format("rank {} ended before it joined", victim))))
          << "round " << i << ", rank " << r << " of " << n << ", victim " << victim << " after "
          << after.count() << " us";
      worst_s = std::max(worst_s, std::chrono::duration<double>(ended[at] - killed).count());
    }
  }
  EXPECT_LT(worst_s, 2.0);
  RecordProperty("worst_ms", static_cast<int>(worst_s * 1000));
}

INSTANTIATE_TEST_SUITE_P(Phases, SetupKill,
                         ::testing::Values(Phase{"SplittingShm", "shm", false, split_for_ever},
                                           Phase{"SplittingTcp", "tcp", false, split_for_ever},
                                           Phase{"ProbingAndSplitting", "tcp", true,
                                                 split_for_ever},
                                           Phase{"ProbingAgain", "tcp", true, reprobe_for_ever}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace chorus::testing
