// Messages between GPUs that cannot reach each other, when adapters reach both: straight out of one
// GPU's memory into the other's; and what becomes of them when some of that is missing or fails.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device_rank.hpp"
#include "rdma/fake_fabric.hpp"
#include "rdma/fake_verbs.hpp"
#include "runtime/reference.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr DeviceTuning kApart{.reach = false};
/// Of all that host collectives and slots of puts write out of host memory: no message.
constexpr std::uint64_t kNoMessage = 256;

World world_of(int size) {
  World world{.size = size, .ranks = Ranks::threads};
  world.options.transports = "rdma,tcp";
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  world.options.log_level = "info";
  world.options.slot_bytes = 1024;  // small data crosses many slots
  return world;
}

/// Every collective, of sizes about which anything changes.
void run_all(DeviceRank& rank) {
  const auto n = static_cast<std::size_t>(rank.comm().world_size());
  for (int k = 0; k <= static_cast<int>(CollectiveKind::scatter); ++k) {
    for (const std::size_t count : {1U, 37U, 259U, 3001U}) {
      const Case test{.kind = static_cast<Call::Kind>(k),
                      .type = k % 2 == 0 ? DataType::float32 : DataType::bfloat16,
                      .count = count,
                      .root = static_cast<Rank>(count % n),
                      .in_place = count == 259};
      run_case(rank.comm().rank(), n, test, [&](const Call& call) { rank.run(call); });
    }
  }
}

class DeviceGpuDirect : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::reset(2);
    fake_cuda_gpu_direct({});
    set_log_sink([this](LogLevel, std::string_view, std::string_view message) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(message);
    });
    // Memory that goes while an adapter may still reach it would be somebody else's next.
    fake_cuda_watch(
        [this](std::uint64_t address) {
          const std::string file = fake::file_at(address);
          for (const std::string& registered : fake::registered_dmabufs()) {
            if (registered != file) continue;
            const std::lock_guard lock(mutex_);
            faults_.emplace_back("GPU memory was freed that an adapter still knows");
          }
        },
        [] { fake::flush_dmabufs(); });
  }
  void TearDown() override {
    fake_cuda_watch({}, {});
    set_log_sink({});
    set_log_level(LogLevel::warn);
    EXPECT_THAT(fake::violations(), IsEmpty());
    EXPECT_THAT(fake::registered_dmabufs(), IsEmpty());
    EXPECT_THAT(faults_, IsEmpty());
  }
  /// The lines that say how messages go.
  [[nodiscard]] std::vector<std::string> ways() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_) {
      if (line.find("messages of GPU memory") != std::string::npos) found.push_back(line);
    }
    lines_.clear();
    EXPECT_THAT(found, Not(IsEmpty()));
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::vector<std::string> faults_;
};

TEST_F(DeviceGpuDirect, MessagesGoFromGpuToGpuAndTouchNoHostMemory) {
  for (const int size : {2, 3, 4, 8}) {
    fake::reset(2);
    expect_all_well(run_devices(world_of(size), Gpus::one, kApart, run_all));
    const fake::Calls calls = fake::calls();
    EXPECT_GT(calls.bytes_of_dmabufs, 100'000u);
    EXPECT_EQ(calls.bytes_of_dmabufs, calls.bytes_to_dmabufs);
    EXPECT_LE(calls.most_of_host, kNoMessage) << size;
    const auto said = ways();
    EXPECT_EQ(said.size(), static_cast<std::size_t>(size)) << "once per rank";
    EXPECT_THAT(said, Each(HasSubstr("read messages of GPU memory directly and write them "
                                     "directly")));
  }
  EXPECT_EQ(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), 0) << "this GPU keeps order";
}

// What adapters have written is not there before the flush: who tells the kernel sooner is found
// out.
TEST_F(DeviceGpuDirect, AGpuThatKeepsNoOrderIsFlushedBeforeItsKernelsAreTold) {
  fake_cuda_gpu_direct({.ordered = false});
  fake::adapter(0).delays_dmabufs = fake::adapter(1).delays_dmabufs = true;
  const int before = fake_cuda_calls("cuFlushGPUDirectRDMAWrites");
  expect_all_well(run_devices(world_of(3), Gpus::one, kApart, run_all));
  EXPECT_GT(fake_cuda_calls("cuFlushGPUDirectRDMAWrites"), before);
  EXPECT_LE(fake::calls().most_of_host, kNoMessage);
  EXPECT_THAT(ways(), Each(HasSubstr("flushed")));
}

TEST_F(DeviceGpuDirect, WhereNobodyKnowsWhenWritesAreSeenOnlyTheSendingHalfIsDirect) {
  fake_cuda_gpu_direct({.ordered = false, .flushes = false});
  expect_all_well(run_devices(world_of(3), Gpus::one, kApart, run_all));
  EXPECT_GT(fake::calls().bytes_of_dmabufs, 10'000u);
  EXPECT_EQ(fake::calls().bytes_to_dmabufs, 0u);
  EXPECT_THAT(ways(), Each(AllOf(HasSubstr("directly and write them through host memory"),
                                 HasSubstr("cannot say when"))));
}

TEST_F(DeviceGpuDirect, TheVariableTurnsItOffByHalves) {
  for (const int setting : {0, 1}) {
    fake::reset(2);
    World world = world_of(2);
    world.options.rdma_gpu = setting;
    expect_all_well(run_devices(world, Gpus::one, kApart, run_all));
    EXPECT_EQ(fake::calls().bytes_of_dmabufs > 0, setting == 1);
    EXPECT_EQ(fake::calls().bytes_to_dmabufs, 0u);
    EXPECT_THAT(ways(), Each(HasSubstr("CHORUS_RDMA_GPU")));
  }
}

TEST_F(DeviceGpuDirect, WhatIsMissingIsNamedAndMessagesAreStaged) {
  const auto staged = [&](const std::string& why) {
    expect_all_well(run_devices(world_of(3), Gpus::one, kApart, run_all));
    EXPECT_EQ(fake::calls().bytes_of_dmabufs + fake::calls().bytes_to_dmabufs, 0u);
    EXPECT_THAT(ways(), Each(AllOf(HasSubstr("through host memory"), HasSubstr(why)))) << why;
  };
  fake_cuda_gpu_direct({.exports = false});
  staged("open kernel modules");
  fake_cuda_gpu_direct({});
  fake::adapter(1).refuses_dmabufs = true;
  staged("fake1 port 1 does not take");
}

// One rank's driver refuses once: whatever half of its messages is staged then meets the others'
// direct halves.
TEST_F(DeviceGpuDirect, RanksThatCanMeetRanksThatCannot) {
  for (const int refusals : {1, 2, 3}) {
    fake_cuda_fail("cuMemGetHandleForAddressRange", 801, refusals);
    expect_all_well(run_devices(world_of(3), Gpus::one, kApart, run_all));
    EXPECT_THAT(ways(), Contains(HasSubstr("through host memory")));
  }
  EXPECT_GT(fake::calls().bytes_of_dmabufs, 0u);
  EXPECT_GT(fake::calls().bytes_to_dmabufs, 0u);
}

TEST_F(DeviceGpuDirect, RailsThatFailInMidUseLoseNothing) {
  for (const int adapters : {2, 1}) {  // to the other one; to tcp, staged
    for (const long after : {150L, 400L, 900L}) {
      fake::reset(adapters);
      fake::adapter(0).breaks_after = after;
      fake::adapter(0).unheard = 2;
      expect_all_well(run_devices(world_of(3), Gpus::one, kApart, run_all));
      EXPECT_GT(fake::calls().bytes_to_dmabufs, 0u);
      EXPECT_THAT(fake::violations(), IsEmpty());
    }
  }
}

TEST_F(DeviceGpuDirect, AnAbortInMidTransferLeavesNoAdapterWithTheMemory) {
  for (int i = 0; i < 4; ++i) {
    expect_all_well(run_devices(world_of(3), Gpus::one, kApart, [i](DeviceRank& rank) {
      constexpr std::size_t kCount = 200'000;
      std::byte* const data = rank.memory(4 * kCount);
      const auto call = [&] {
        rank.device().enqueue({.call = {.kind = Call::Kind::all_reduce,
                                        .input = data,
                                        .output = data,
                                        .count = kCount,
                                        .type = DataType::float32},
                               .stream = rank.stream()});
      };
      try {
        call();
        if (rank.comm().rank() != 2) call();  // which waits for ever
      } catch (const CollectiveError&) {      // rank 2 was sooner
      }
      if (rank.comm().rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(i));
        rank.device().abort("the user has had enough");
      }
      while (rank.device().error() == nullptr) std::this_thread::yield();
      EXPECT_THAT(*rank.device().error(), HasSubstr("had enough"));
    }));
  }
}

// Ranks with peer access use it, beside peers that only adapters reach.
TEST_F(DeviceGpuDirect, OnlyPairsThatCannotReachEachOtherUseAdapters) {
  expect_all_well(run_devices(world_of(4), Gpus::two_apart, {}, run_all));
  EXPECT_GT(fake::calls().bytes_of_dmabufs, 10'000u);
  EXPECT_LE(fake::calls().most_of_host, kNoMessage);
}

}  // namespace
}  // namespace chorus::testing
