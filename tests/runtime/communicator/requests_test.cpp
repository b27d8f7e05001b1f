// What a rank that computes and talks in several groups needs: waits that move all of them, polls
// that keep the core, and counts of what was moved.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

Call message(std::vector<int>& data, bool sending, Rank peer) {
  return {.kind = sending ? Call::Kind::send : Call::Kind::recv,
          .input = sending ? data.data() : nullptr,
          .output = sending ? nullptr : data.data(),
          .count = data.size(),
          .type = DataType::int32,
          .peer = peer};
}

class TransportTest : public ::testing::TestWithParam<std::string> {};

// Rank 1 takes what rank 0 sends on the second communicator before it sends on the first: rank 0,
// which waits on the first, must go on sending.
TEST_P(TransportTest, WaitingMovesEveryCommunicator) {
  for (const bool any : {false, true}) {
    expect_all_well(run_world(threads(2, GetParam()), [&](Communicator& first) {
      auto second = first.split(0);
      std::vector<int> up(200'000, 7), down(200'000, first.rank() == 0 ? -1 : 9);
      if (first.rank() == 1) {
        std::vector<int> got(up.size(), -1);
        second->recv<int>(got, 0);
        EXPECT_EQ(got, up);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // long enough for a sleep
        first.send<int>(down, 0);
        return;
      }
      Request wanted = first.start(message(down, false, 1));
      Request sent = second->start(message(up, true, 1));
      Request* const both[] = {&wanted, &sent};
      if (any) {
        EXPECT_EQ(wait_any(both), 1U);
        EXPECT_EQ(wait_any(std::span(both).first(1)), 0U);
      } else {
        wait_all(both);
      }
      EXPECT_TRUE(wanted.test() && sent.test());
      EXPECT_EQ(down, std::vector<int>(200'000, 9));
    }));
  }
}

TEST_P(TransportTest, PollsComplete) {
  expect_all_well(run_world(threads(3, GetParam()), [](Communicator& comm) {
    std::vector<int> data(10'000, comm.rank());
    Request request = comm.start({.kind = Call::Kind::all_reduce,
                                  .input = data.data(),
                                  .output = data.data(),
                                  .count = data.size(),
                                  .type = DataType::int32});
    while (!request.poll()) {
    }
    EXPECT_EQ(data, std::vector<int>(10'000, 3));
  }));
}

TEST_P(TransportTest, WaitsForSeveralEndWhenAPeerLeaves) {
  const Outcomes outcomes = run_world(threads(2, GetParam()), [](Communicator& first) {
    auto second = first.split(0);
    if (first.rank() == 1) throw InputError("rank 1 has had enough");
    std::vector<int> a(10), b(10);
    Request one = first.start(message(a, false, 1));
    Request two = second->start(message(b, false, 1));
    Request* const both[] = {&one, &two};
    wait_all(both);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("rank 1"));
}

// Whoever takes messages of any rank must not wait for one that sends none.
TEST_P(TransportTest, AMessageIsKnownToHaveComeBeforeAnybodyTakesIt) {
  expect_all_well(run_world(threads(3, GetParam()), [](Communicator& comm) {
    const std::size_t counts[] = {0, 5, 200'000};  // of which the last takes many slots
    if (comm.rank() != 0) {
      comm.barrier();
      if (comm.rank() == 1) {
        for (const std::size_t count : counts) comm.send<int>(std::vector<int>(count, 3), 0);
      }
      return;
    }
    EXPECT_FALSE(comm.has_message(1));
    comm.barrier();
    for (const std::size_t count : counts) {
      while (!comm.has_message(1)) EXPECT_FALSE(comm.has_message(2));
      EXPECT_TRUE(comm.has_message(1));
      std::vector<int> got(count);
      comm.recv<int>(got, 1);
      EXPECT_EQ(got, std::vector<int>(count, 3));
    }
    EXPECT_FALSE(comm.has_message(1));
    EXPECT_THROW(static_cast<void>(comm.has_message(0)), InputError);
    EXPECT_THROW(static_cast<void>(comm.has_message(3)), InputError);
    comm.abort("enough");
    EXPECT_THROW(static_cast<void>(comm.has_message(1)), CollectiveError);
  }));
}

INSTANTIATE_TEST_SUITE_P(Over, TransportTest, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return each.param; });

TEST(WaitAny, NeedsARequest) { EXPECT_THROW(wait_any({}), InputError); }

// A rank of n sends 2m(n−1)/n for an all_reduce of m bytes by rings, m(n−1)/n for the others.
TEST(Traffic, IsTheFormulaToTheByteOverMessages) {
  for (const int n : {2, 3, 4}) {
    World world = threads(n, "tcp");
    world.options.algorithm = "ring";
    expect_all_well(run_world(world, [&](Communicator& comm) {
      const auto ranks = static_cast<std::size_t>(n);
      std::vector<int> all(60'000), mine(all.size() / ranks);
      const std::uint64_t m = all.size() * sizeof(int);
      EXPECT_EQ(comm.traffic().bytes(), 0U);
      comm.all_reduce<int>(all);
      EXPECT_EQ(comm.traffic().message_bytes, 2 * m * (ranks - 1) / ranks);
      comm.all_gather<int>(mine, all);
      EXPECT_EQ(comm.traffic().message_bytes, 3 * m * (ranks - 1) / ranks);
      comm.reduce_scatter<int>(all, mine);
      EXPECT_EQ(comm.traffic().message_bytes, 4 * m * (ranks - 1) / ranks);
      EXPECT_EQ(comm.traffic().direct_bytes, 0U);
      const Traffic before = comm.traffic();
      std::vector<int> few(10);
      if (comm.rank() == 0) comm.send<int>(few, 1);
      if (comm.rank() == 1) comm.recv<int>(few, 0);
      EXPECT_EQ(comm.traffic().messages, before.messages + (comm.rank() == 0 ? 1 : 0));
      EXPECT_EQ(comm.traffic().messages_taken, before.messages_taken + (comm.rank() == 1 ? 1 : 0));
    }));
  }
}

TEST(Traffic, IsTheSameWhereRanksReachEachOthersMemory) {
  for (const int n : {2, 4}) {
    expect_all_well(run_world(threads(n, "shm"), [&](Communicator& comm) {
      const auto ranks = static_cast<std::size_t>(n);
      std::vector<int> all(60'000), mine(all.size() / ranks);
      const std::uint64_t m = all.size() * sizeof(int);
      comm.all_gather<int>(mine, all);
      EXPECT_EQ(comm.traffic(), (Traffic{.direct_bytes = m * (ranks - 1) / ranks}));
    }));
  }
}

TEST(Topology, IsWhatTheCommunicatorTakesItToBe) {
  expect_all_well(run_world(threads(3, "shm"), [](Communicator& comm) {
    EXPECT_EQ(comm.topology().world_size(), 3);
    const auto part = comm.split(comm.rank() == 2 ? 1 : 0);
    EXPECT_EQ(part->topology().world_size(), comm.rank() == 2 ? 1 : 2);
  }));
}

}  // namespace
}  // namespace chorus::testing
