// Many communicators at once: each rank has few files open for each, however many ranks there are,
// and is let have as many as the hard limit allows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/calls.hpp"
#include "runtime/control/control_harness.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::size_t num_open() {
  return static_cast<std::size_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

void limit_descriptors(rlim_t soft, rlim_t hard) {
  const rlimit limit{soft, hard};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("setrlimit");
}

/// Splits that all live at once, under limits that each rank sets for itself.
Outcomes many_splits(int num_splits, rlim_t soft, rlim_t hard) {
  return run_world({.size = 4, .ranks = Ranks::processes}, [=](Communicator& comm) {
    limit_descriptors(soft, hard);
    std::vector<std::optional<Communicator>> parts;
    for (int i = 0; i < num_splits; ++i) parts.push_back(comm.split(0));
    expect_it_goes_on(*parts.front());
    expect_it_goes_on(*parts.back());
    for (auto& part : parts) part.reset();
  });
}

TEST(Descriptors, OfACommunicatorAreOneWhateverItsSize) {
  for (const int n : {2, 4, 8}) {
    expect_all_well(run_world({.size = n, .ranks = Ranks::processes}, [](Communicator& comm) {
      std::vector<std::optional<Communicator>> parts(20);
      const std::size_t before = num_open();
      for (auto& part : parts) {
        part = comm.split(0);
        expect_it_goes_on(*part);
      }
      EXPECT_EQ(num_open() - before, parts.size());
      for (auto& part : parts) part.reset();
      EXPECT_EQ(num_open(), before);
    }));
  }
}

TEST(Descriptors, AreEnoughForHundredsOfSplitsWithTheUsualLimits) {
  expect_all_well(many_splits(300, 1024, 1024));
}

TEST(Descriptors, AreRaisedToWhatTheHardLimitAllows) {
  expect_all_well(many_splits(150, 64, 1024));
}

TEST(Descriptors, ThatAreUsedUpAreNamedWithTheLimitAndTheCommand) {
  EXPECT_THAT(many_splits(150, 64, 64),
              Each(AllOf(HasSubstr("Too many open files"),
                         HasSubstr("this process may have 64, its hard limit,"),
                         HasSubstr("ulimit -H -n 128"))));
}

// Those that have come in, and those for whom there is no room.
TEST(Descriptors, OfACoordinatorThatAreUsedUpAreNamedToAllRanks) {
  constexpr int kRanks = 12;
  const testing_control::Pipe id;
  const pid_t coordinators = ::fork();
  if (coordinators == 0) {
    limit_descriptors(num_open() + 8, num_open() + 8);
    const Coordinator coordinator(kRanks, "", 0, Secret::random());
    id.say(coordinator.id());
    for (;;) ::pause();
  }
  const std::string place = id.hear();
  const auto said = testing_control::run_ranks(kRanks, [&](Rank rank) {
    (void)Control::join(place, rank, kRanks, testing_control::kPatience_ms);
  });
  ::kill(coordinators, SIGKILL);
  ::waitpid(coordinators, nullptr, 0);
  EXPECT_THAT(said, Each(AllOf(HasSubstr(fmt::format("the coordinator (pid {} ", coordinators)),
                               HasSubstr("can take no more connections: Too many open files"),
                               HasSubstr("raise the limit (ulimit -H -n "))));
}

}  // namespace
}  // namespace chorus::testing
