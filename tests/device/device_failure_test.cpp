// Peers that are late, die, abort or call something else; arguments that are wrong: an error that
// names the culprit, never a hang.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text/log.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = Call::Kind;

class DeviceFailure : public Exchanging {};

World world_of(int size, Ranks ranks = Ranks::threads) {
  World world{.size = size, .ranks = ranks};
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  return world;
}

DeviceCall sum(DeviceRank& rank, std::byte* data, std::size_t count,
               DataType type = DataType::float32) {
  return {.call = {.kind = Kind::all_reduce,
                   .input = data,
                   .output = data,
                   .count = count,
                   .type = type},
          .stream = rank.stream()};
}

/// The failure that the communicator shows before long.
std::string failure_of(DeviceRank& rank) {
  while (rank.device().error() == nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return *rank.device().error();
}

TEST_P(DeviceFailure, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  for (const std::size_t count : {4U, 20'000U, 500'000U}) {  // by words, by bulk, directly
    World world = world_of(3);
    world.options.timeout_ms = 300;
    expect_all_well(run(world, Gpus::one, [count](DeviceRank& rank) {
      std::byte* const data = rank.memory(count * 4);
      // Who enqueues late, on a busy machine, must not find that the other one's time is up.
      const bool first = rank.comm().rank() == 0;
      if (first) fake_cuda_hold(0, true);
      rank.comm().barrier();
      if (rank.comm().rank() != 2) rank.device().enqueue(sum(rank, data, count));
      rank.comm().barrier();
      if (first) fake_cuda_hold(0, false);
      const std::string failure = failure_of(rank);
      EXPECT_THAT(failure, AllOf(HasSubstr("all_reduce(count"), HasSubstr("for 300 ms"),
                                 HasSubstr("rank 2")))
          << count;
      // The kernels have ended, and the communicator says so from now on.
      const cuda::Current current(rank.context());
      EXPECT_EQ(cuda::driver().stream_synchronize(static_cast<cuda::StreamHandle>(rank.stream())),
                cuda::kSuccess);
      EXPECT_THROW(rank.device().enqueue(sum(rank, data, count)), CollectiveError);
    }));
  }
}

TEST_P(DeviceFailure, ASlowRankIsWaitedFor) {
  expect_all_well(run(world_of(2), Gpus::one, [](DeviceRank& rank) {
    std::byte* const data = rank.memory(4000);
    for (int i = 0; i < 3; ++i) {
      if (rank.comm().rank() == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(120));
      rank.device().enqueue(sum(rank, data, 1000));
    }
    rank.finish();
  }));
}

TEST_P(DeviceFailure, AnAbortFromAnotherThreadEndsKernelsOnAllRanks) {
  expect_all_well(run(world_of(3), Gpus::one, [](DeviceRank& rank) {
    std::byte* const data = rank.memory(400);
    const bool aborts = rank.comm().rank() == 2;
    if (!aborts) rank.device().enqueue(sum(rank, data, 100));
    rank.comm().barrier();  // the kernels of the others wait
    if (aborts) std::thread([&] { rank.device().abort("the user has had enough"); }).join();
    EXPECT_THAT(failure_of(rank), HasSubstr("the user has had enough"));
    EXPECT_THROW(rank.finish(), CollectiveError);
  }));
}

// A stream ends alike where its call is finished and where its kernel was stopped: whoever has
// waited for it is told which of the two it was, however soon it asks.
TEST_P(DeviceFailure, ACallThatWasStoppedIsNeverTakenForFinished) {
  for (int i = 0; i < 20; ++i) {
    expect_all_well(run(world_of(3), Gpus::one, [](DeviceRank& rank) {
      std::byte* const data = rank.memory(400);
      const bool comes = rank.comm().rank() != 2;
      if (comes) rank.device().enqueue(sum(rank, data, 100));
      rank.comm().barrier();
      if (rank.comm().rank() == 1) rank.device().abort("the user has had enough");
      if (comes) {
        EXPECT_THROW(rank.finish(), CollectiveError);
      } else {
        EXPECT_THAT(failure_of(rank), HasSubstr("the user has had enough"));
      }
    }));
  }
}

// The verdict reaches ranks that are leaving between any two of their steps.
TEST_P(DeviceFailure, AnAbortWhileRanksLeaveKeepsNobodyWaiting) {
  World world = world_of(2, Ranks::processes);
  world.options.join_timeout_ms = 5'000;
  expect_all_well(run(world, Gpus::one, [](DeviceRank& rank) {
    std::mutex mutex;
    std::string kept;
    set_log_sink([&](LogLevel, std::string_view, std::string_view message) {
      const std::lock_guard lock(mutex);
      if (message.find("is kept") != std::string_view::npos) kept = message;
    });
    for (int i = 0; i < 40; ++i) {
      auto device = std::make_unique<DeviceCommunicator>(rank.comm(), 0, GetParam().tuning);
      rank.comm().barrier();
      if (rank.comm().rank() == i % 2) {
        std::this_thread::sleep_for(std::chrono::microseconds(i / 2 * 50));
        device->abort("the user has had enough");
      }
      device.reset();
    }
    set_log_sink({});
    EXPECT_EQ(kept, "");
  }));
}

TEST_P(DeviceFailure, BitwiseOperationsAreRefusedAndTheCommunicatorGoesOn) {
  expect_all_well(run(world_of(2), Gpus::one, [](DeviceRank& rank) {
    std::byte* const data = rank.memory(400);
    DeviceCall bits = sum(rank, data, 100, DataType::int32);
    bits.call.reduction = ReduceOp::band;
    try {
      rank.device().enqueue(bits);
      ADD_FAILURE() << "accepted";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bitwise operations are for host memory"));
    }
    rank.device().enqueue(sum(rank, data, 100));
    rank.finish();
  }));
}

// Calls that differ in what their ranks call, or how much of it.
TEST_P(DeviceFailure, CallsThatDoNotMatchAreShownWithBothSignatures) {
  for (const std::size_t count : {10U, 20'000U, 500'000U}) {
    World world = world_of(2);
    world.options.timeout_ms = 3'000;
    expect_all_well(run(world, Gpus::one, [count](DeviceRank& rank) {
      std::byte* const data = rank.memory(8 * count);
      const bool first = rank.comm().rank() == 0;
      rank.device().enqueue(sum(rank, data, count, first ? DataType::float32 : DataType::int32));
      EXPECT_THAT(failure_of(rank), AllOf(HasSubstr("float32"), HasSubstr("int32"))) << count;
    }));
  }
}

TEST_P(DeviceFailure, ARankThatDiesIsNamedByAllOthersWithinSeconds) {
  World world = world_of(3, Ranks::processes);
  world.launcher = true;
  const Outcomes outcomes = run(world, Gpus::one, [](DeviceRank& rank) {
    std::byte* const data = rank.memory(400);
    rank.device().enqueue(sum(rank, data, 100));
    rank.finish();
    if (rank.comm().rank() == 1) ::raise(SIGKILL);
    rank.device().enqueue(sum(rank, data, 100));
    rank.finish();
  });
  // Whether its end or that of its connection is seen first, it is rank 1 that died.
  for (const Rank rank : {0, 2}) {
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)], HasSubstr("rank 1 (pid"));
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)],
                AnyOf(HasSubstr("killed by signal 9"), HasSubstr("died")));
  }
}

TEST_P(DeviceFailure, HostMemoryIsRefusedWithTheRemedy) {
  expect_all_well(run(world_of(2), Gpus::two, [](DeviceRank& rank) {
    std::vector<float> host(10);
    const auto complaint = [&](const void* in, void* out) -> std::string {
      try {
        rank.device().enqueue({.call = {.kind = Kind::all_reduce,
                                        .input = in,
                                        .output = out,
                                        .count = 10,
                                        .type = DataType::float32},
                               .stream = rank.stream()});
      } catch (const InputError& error) {
        return error.what();
      }
      return "none";
    };
    std::byte* const data = rank.memory(40);
    EXPECT_THAT(
        complaint(host.data(), data),
        AllOf(HasSubstr("the input"), HasSubstr("host memory"), HasSubstr("cudaHostRegister")));
    EXPECT_THAT(complaint(data, host.data()), HasSubstr("the output"));
    EXPECT_THAT(complaint(nullptr, data), HasSubstr("the input is null"));
    void* const other = DeviceCommunicator::allocate(1 - rank.device().device(), 40);
    EXPECT_THAT(complaint(other, data), HasSubstr("memory of GPU"));
    DeviceCommunicator::free(other, 1 - rank.device().device());
    EXPECT_THROW(DeviceCommunicator::free(other, 1 - rank.device().device()), InputError);
    // None of this was enqueued: the ranks still match.
    rank.device().enqueue(sum(rank, data, 10));
    rank.finish();
  }));
}

TEST_P(DeviceFailure, WhatCannotBeMadeIsSaidByAllRanks) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not fail on command";
  fake_cuda_fail("cuMemAlloc_v2", 2);  // one rank of the two
  for (const std::string& outcome : run(world_of(2), Gpus::one, [](DeviceRank&) {})) {
    EXPECT_THAT(outcome, HasSubstr("out of memory"));
  }
  fake_cuda_fail("cuMemAlloc_v2", 2, 0);
  for (const std::string& outcome : run_world(world_of(1), [](Communicator& comm) {
         EXPECT_THROW(DeviceCommunicator(comm, 7), InputError);
       })) {
    EXPECT_EQ(outcome, "");
  }
}

TEST_P(DeviceFailure, GoingOnWithoutRanksThatDieIsRefused) {
  World world = world_of(2);
  world.options.on_loss = "shrink";
  for (const std::string& outcome :
       run_world(world, [](Communicator& comm) { const DeviceCommunicator device(comm, 0); })) {
    EXPECT_THAT(outcome, HasSubstr("Options::on_loss is of calls on host memory"));
  }
}

TEST_P(DeviceFailure, RanksWithOtherSettingsDoNotMeet) {
  for (const std::string& outcome : run_world(world_of(2), [](Communicator& comm) {
         DeviceTuning tuning;
         tuning.words_bytes = comm.rank() == 0 ? 64 : 128;
         DeviceCommunicator device(comm, 0, tuning);
       })) {
    EXPECT_THAT(outcome, HasSubstr("disagree"));
  }
}

/// What rank 0 warns of while a world of ranks on two GPUs is made and adds up numbers.
void warnings_of(Ranks ranks, const std::function<void(const std::vector<std::string>&)>& judge) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view, std::string_view message) {
    const std::lock_guard lock(mutex);
    if (level <= LogLevel::warn) warnings.emplace_back(message);
  });
  expect_all_well(run_devices(world_of(4, ranks), Gpus::two, {}, [&](DeviceRank& rank) {
    constexpr std::size_t kCount = 50'000;
    constexpr std::size_t kAround = 16;  // run() mirrors 64 bytes around the output, too
    std::vector<float> data(kCount + 2 * kAround, 1.0F);
    rank.run({.kind = Kind::all_reduce,
              .input = data.data() + kAround,
              .output = data.data() + kAround,
              .count = kCount,
              .type = DataType::float32});
    EXPECT_EQ(std::count(data.begin(), data.end(), 4.0F), kCount);
    const std::lock_guard lock(mutex);
    if (rank.comm().rank() == 0) judge(warnings);
  }));
  set_log_sink({});
}

TEST(DeviceProof, DataDamagedBetweenGpusIsNamedAndGoesThroughHostMemory) {
  if (!fake_cuda()) GTEST_SKIP() << "sound GPUs damage nothing";
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    warnings_of(ranks, [](const auto& warnings) { EXPECT_THAT(warnings, IsEmpty()); });
    fake_cuda_damage(true);
    warnings_of(ranks, [](const auto& warnings) {
      EXPECT_THAT(warnings,
                  ElementsAre(AllOf(HasSubstr("4 of 6 pairs of GPUs exchange through their hosts"),
                                    HasSubstr("ranks 0 and 1: peer access is offered, but of"),
                                    HasSubstr("damaged"), HasSubstr("IOMMU"))));
    });
    fake_cuda_damage(false);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceFailure, ::testing::ValuesIn(exchanges()), name_of);

}  // namespace
}  // namespace chorus::testing
