// Communicators whose coordinator's process ends: the others go on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <numeric>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "runtime/control/control.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

std::vector<Rank> all_of(int world_size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// An id whose coordinator lives in rank 0, as under mpirun, srun and torchrun.
std::string id_of_rank_zero(const UniqueId& parents, Rank rank, int world_size) {
  const auto meeting = Control::join(parents.text, rank, world_size, 30'000);
  const std::string mine = rank == 0 ? UniqueId::make(world_size).text : "";
  const auto all =
      meeting->exchange("id", all_of(world_size), std::as_bytes(std::span(mine)), 30'000);
  return {reinterpret_cast<const char*>(all[0].data()), all[0].size()};
}

Outcomes run_without_launcher(const std::string& transports, int world_size,
                              const std::function<void(Communicator&)>& body) {
  World world = threads(world_size, transports);
  world.ranks = Ranks::processes;
  return run_ranks(world, [&](const UniqueId& parents, Rank rank) {
    const UniqueId id{id_of_rank_zero(parents, rank, world_size)};
    auto comm = Communicator::join(id, rank, world_size, world.options);
    body(comm);
  });
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Calls all_reduce() until it fails; why. Rank 0 dies after the first: all have joined by then.
std::string death_of_rank_zero(Communicator& comm) {
  std::vector<float> data(1000, 1.0F);
  try {
    for (;;) {
      comm.all_reduce<float>(data);
      if (comm.rank() == 0) ::raise(SIGKILL);
    }
  } catch (const CollectiveError& error) {
    return error.what();
  }
}

void expect_sum(Communicator& comm) {
  std::vector<std::int64_t> sum(50'000, std::int64_t{1} << comm.rank());
  comm.all_reduce<std::int64_t>(sum);
  const std::int64_t expected = (std::int64_t{1} << comm.world_size()) - 1;
  require(sum.front() == expected && sum.back() == expected, fmt::format("sum {}", sum.back()));
}

class SuccessionWorld : public ::testing::TestWithParam<std::string> {};

TEST_P(SuccessionWorld, ShrinksWithoutEachCoordinatorInTurn) {
  constexpr int kWorldSize = 5;
  const Outcomes outcomes = run_without_launcher(GetParam(), kWorldSize, [](Communicator& world) {
    std::vector<Communicator> all;
    all.push_back(std::move(world));
    while (all.back().world_size() > 2) {
      Communicator& comm = all.back();
      expect_sum(comm);
      const std::string failure = death_of_rank_zero(comm);
      require(failure.find("rank 0 (") != std::string::npos &&
                  failure.find("died: its connection closed") != std::string::npos,
              failure);
      Communicator smaller = comm.shrink(std::vector<Rank>{0});
      expect_sum(smaller);
      auto half = smaller.split(smaller.rank() % 2);
      expect_sum(*half);
      all.push_back(std::move(smaller));
    }
    expect_sum(all.back());
  });
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (r + 2 < outcomes.size()) {
      EXPECT_THAT(outcomes[r], HasSubstr("signal 9")) << "rank " << r;
    } else {
      EXPECT_EQ(outcomes[r], "") << "rank " << r;
    }
  }
}

TEST_P(SuccessionWorld, ACommunicatorWithoutTheDeadRankGoesOnAndItsCallsAreStillMatched) {
  const Outcomes outcomes = run_without_launcher(GetParam(), 4, [](Communicator& world) {
    auto part = world.split(world.rank() == 0 ? 0 : 1);
    expect_sum(*part);
    const std::string failure = death_of_rank_zero(world);
    require(failure.find("rank 0 (") != std::string::npos, failure);
    for (int i = 0; i < 100; ++i) expect_sum(*part);
    auto again = part->split(0);
    expect_sum(*again);
    std::vector<float> data(1000, 1.0F);
    try {
      if (again->rank() == 1) {
        again->broadcast<float>(data, 0);
      } else {
        again->all_reduce<float>(data);
      }
      again->barrier();
      throw std::runtime_error("different calls went well");
    } catch (const CollectiveError& error) {
      const std::string why = error.what();
      require(why.find(" called all_reduce(") != std::string::npos &&
                  why.find("rank 1 (world rank 2) called broadcast(") != std::string::npos,
              why);
    }
    expect_sum(*part);
  });
  for (const std::size_t r : {1U, 2U, 3U}) EXPECT_EQ(outcomes[r], "") << "rank " << r;
  EXPECT_THAT(outcomes[0], HasSubstr("signal 9"));
}

TEST_P(SuccessionWorld, RankZeroMayEndLongBeforeTheOthersDo) {
  const Outcomes outcomes = run_without_launcher(GetParam(), 3, [](Communicator& world) {
    auto part = world.split(world.rank() == 0 ? 0 : 1);
    // An exception takes rank 0 away: the coordinator stays for a second only.
    if (world.rank() == 0) throw std::runtime_error("rank 0 has had enough");
    const std::string failure = death_of_rank_zero(world);
    require(failure.find("rank 0") != std::string::npos, failure);
    const auto begin = std::chrono::steady_clock::now();
    int more = 1;
    while (more != 0) {
      expect_sum(*part);
      std::vector<int> late(1, std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
      part->all_reduce<int>(late);
      more = late[0];
    }
    Communicator smaller = world.shrink(std::vector<Rank>{0});
    expect_sum(smaller);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("had enough"));
  EXPECT_EQ(outcomes[1], "");
  EXPECT_EQ(outcomes[2], "");
}

INSTANTIATE_TEST_SUITE_P(Transports, SuccessionWorld, ::testing::Values("shm", "tcp"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace chorus::testing
