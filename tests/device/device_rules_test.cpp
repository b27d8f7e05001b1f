// What drivers demand, and what they promise not: contexts, faults, memory that peers cannot reach,
// handles that are used again, code that is loaded lazily.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device_floats.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

using Kind = Call::Kind;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Contexts and faults ---------------------------------------------------------------------------

TEST(DeviceRules, MemoryIsKnownInThreadsWithoutAContext) {
  expect_all_well(run_devices(device_world_of(1), Gpus::one, {}, [](DeviceRank& rank) {
    std::byte* const memory = rank.memory(100);
    int host = 0;
    std::thread([&] {
      EXPECT_EQ(DeviceCommunicator::place_of(memory, 0).kind, MemoryKind::device);
      EXPECT_EQ(DeviceCommunicator::place_of(memory, 1).device, 0);
      EXPECT_EQ(rank.device().place(memory).kind, MemoryKind::device);
      EXPECT_EQ(rank.device().place(&host).kind, MemoryKind::host);
    }).join();
  }));
}

TEST(DeviceRules, AfterAFaultMemoryIsNotTakenForTheHosts) {
  if (!fake_cuda()) GTEST_SKIP() << "a true GPU would be lost to the process";
  std::string thrown;
  static_cast<void>(run_devices(device_world_of(1), Gpus::one, {}, [&thrown](DeviceRank& rank) {
    float* const data = floats(rank, 10, 1.0F);
    fake_cuda_fault(0);
    try {
      rank.device().enqueue(sum(data, data, 10, rank.stream()));
    } catch (const DeviceError& error) {
      thrown = error.what();
    }
    fake_cuda_heal();
  }));
  EXPECT_THAT(thrown, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

// Before 12.0 cudaSetDevice() made no context: every rank would be thought to be on GPU 0.
TEST(DeviceRules, TheDeviceOfTheCudaRuntimeCountsWhereThereIsNoContext) {
  if (!fake_cuda()) GTEST_SKIP() << "the fake driver's runtime does as it is told";
  std::thread([] {
    EXPECT_EQ(DeviceCommunicator::current_device(), -1);
    fake_cuda_runtime_device(1);
    EXPECT_EQ(DeviceCommunicator::current_device(), 1);
    const cuda::PrimaryContext context(0);
    const cuda::Current current(context.get());
    EXPECT_EQ(DeviceCommunicator::current_device(), 0);
    fake_cuda_runtime_device(-1);
  }).join();
}

TEST(DeviceRules, TheProgramsEnvironmentIsLeftAlone) {
  if (!fake_cuda()) GTEST_SKIP() << "who runs this may have set it";
  static_cast<void>(cuda::driver());
  EXPECT_EQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), nullptr);
}

// Memory ----------------------------------------------------------------------------------------

// Threads of one process use each other's buffers where they lie: not those that only their owner's
// GPU reaches (cudaMallocAsync, cuMemMap).
TEST(DeviceRules, PeersAreNotOfferedMemoryThatTheyCannotReach) {
  for (const bool checked : {false, true}) {
    expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [checked](DeviceRank& rank) {
      constexpr std::size_t kCount = 200'000;
      const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
      const auto add = [&](const float* from, float* to) {
        DeviceCall call = sum(from, to, kCount, stream);
        call.checked = checked;
        rank.device().enqueue(call);
        rank.finish();
      };
      const cuda::Current current(rank.context());
      const cuda::Memory pool = cuda::allocate_local(2 * kCount * sizeof(float), stream);
      auto* const in = reinterpret_cast<float*>(pool.get());
      EXPECT_EQ(rank.device().place(in).peers_reach, cuda::driver().alloc_async == nullptr);
      float* const reached = floats(rank, kCount, 1.0F);
      EXPECT_TRUE(rank.device().place(reached).peers_reach);
      fill(rank, in, std::vector<float>(kCount, 1.0F));
      // Inputs, outputs, of one rank or both.
      add(in, in + kCount);
      expect_all(rank, in + kCount, kCount, 2.0F);
      add(rank.comm().rank() == 0 ? in : reached, reached);
      expect_all(rank, reached, kCount, 2.0F);
      add(reached, rank.comm().rank() == 1 ? in + kCount : reached);
      expect_all(rank, rank.comm().rank() == 1 ? in + kCount : reached, kCount, 4.0F);
    }));
  }
}

// Who need not be asked for the error's sake must be asked what peers reach.
TEST(DeviceRules, CallsWhoseBuffersWereCheckedAreDirectAllTheSame) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not tell";
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    expect_all_well(run_devices(device_world_of(2, ranks), Gpus::two, {}, [](DeviceRank& rank) {
      constexpr std::size_t kCount = 200'000;
      float* const data = floats(rank, kCount, 1.0F);
      rank.share(data, kCount * sizeof(float));
      DeviceCall call = sum(data, data, kCount, rank.stream());
      call.checked = true;
      rank.device().enqueue(call);
      rank.finish();
      expect_all(rank, data, kCount, 2.0F);
      if (!fake_cuda_last_launch().direct) throw std::runtime_error("the call took messages");
    }));
  }
}

TEST(DeviceRules, MemoryThatTookThePlaceOfSharedMemoryIsNotTakenForIt) {
  expect_all_well(
      run_devices(device_world_of(2, Ranks::processes), Gpus::one, {}, [](DeviceRank& rank) {
        constexpr std::size_t kCount = 400'000;
        const cuda::Current current(rank.context());
        cuda::Memory memory = cuda::allocate(kCount * sizeof(float));
        const cuda::Address before = memory.get();
        rank.share(reinterpret_cast<void*>(before), kCount * sizeof(float));
        // Freed without unshare(): the peer still has the old memory mapped.
        rank.comm().barrier();
        memory.reset();
        memory = cuda::allocate(kCount * sizeof(float));
        if (memory.get() != before) return;  // elsewhere: nothing to confuse
        auto* const data = reinterpret_cast<float*>(memory.get());
        fill(rank, data, std::vector<float>(kCount, 1.0F));
        rank.device().enqueue(sum(data, data, kCount, rank.stream()));
        rank.finish();
        expect_all(rank, data, kCount, 2.0F);
      }));
}

// To allocate may mean to wait for the kernels that run, and one of them waits for this rank.
TEST(DeviceRules, FirstCallsOfAShapeDoNotWaitForKernelsOfOthers) {
  if (!fake_cuda()) GTEST_SKIP() << "whether a true driver waits is its own affair";
  for (const Gpus gpus : {Gpus::one, Gpus::two}) {
    expect_all_well(run_devices(device_world_of(2), gpus, {}, [](DeviceRank& rank) {
      float* const data = floats(rank, 1'000'000, 1.0F);
      float* const more = floats(rank, 1'000'000, 1.0F);
      rank.comm().barrier();
      fake_cuda_allocation_waits(true);
      for (const std::size_t count : {2U, 9'000U, 200'000U, 500'000U}) {
        for (const Kind kind :
             {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all}) {
          if (rank.comm().rank() == 1) {  // rank 0's kernel has begun, and waits for this one's
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          DeviceCall call = sum(data, kind == Kind::all_to_all ? data : more, count, rank.stream());
          call.call.kind = kind;
          rank.device().enqueue(call);
          rank.finish();
        }
      }
      rank.comm().barrier();
      fake_cuda_allocation_waits(false);
    }));
  }
}

// Order -----------------------------------------------------------------------------------------

TEST(DeviceRules, AStreamWithTheHandleOfADestroyedOneIsOrderedBehindIt) {
  expect_all_well(run_devices(device_world_of(2), Gpus::one, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    const cuda::Current current(rank.context());
    cuda::Stream stream = cuda::make_stream();
    while_held(rank, [&] {
      rank.device().enqueue(sum(data, data, 100, stream.get()));
      stream.reset();
      stream = cuda::make_stream();
      rank.device().enqueue(sum(data, data, 100, stream.get()));
    });
    synchronize(rank, stream.get());
    expect_all(rank, data, 100, 4.0F);
  }));
}

TEST(DeviceRules, GraphsAndStreamsOfACommunicatorRunOneAfterTheOther) {
  expect_all_well(run_devices(device_world_of(2), Gpus::one, {}, [](DeviceRank& rank) {
    const cuda::Api& api = cuda::driver();
    const cuda::Current current(rank.context());
    const cuda::Stream one = cuda::make_stream();
    const cuda::Stream other = cuda::make_stream();
    float* const a = floats(rank, 100, 1.0F);
    float* const b = floats(rank, 100, 1.0F);
    float* const c = floats(rank, 100, 1.0F);
    // The first of all calls is captured, too.
    const cuda::GraphExec first =
        captured(one.get(), [&] { rank.device().enqueue(sum(a, a, 100, one.get())); });
    const cuda::GraphExec second =
        captured(other.get(), [&] { rank.device().enqueue(sum(b, b, 100, other.get())); });
    while_held(rank, [&] {
      for (int round = 0; round < 3; ++round) {
        cuda::check(api.graph_launch(first, one.get()), "launch");
        rank.device().enqueue(sum(c, c, 100, rank.stream()));
        cuda::check(api.graph_launch(second, other.get()), "launch");
        cuda::check(api.graph_launch(first, one.get()), "launch");
      }
    });
    for (const cuda::StreamHandle stream : {one.get(), other.get()}) synchronize(rank, stream);
    rank.finish();
    expect_all(rank, a, 100, 64.0F);
    expect_all(rank, b, 100, 8.0F);
    expect_all(rank, c, 100, 8.0F);
    for (const cuda::GraphExec exec : {first, second}) api.graph_exec_destroy(exec);
  }));
}

// Branches of a graph have no order but what the library gives them.
TEST(DeviceRules, BranchesOfAGraphRunOneAfterTheOther) {
  expect_all_well(run_devices(device_world_of(2), Gpus::one, {}, [](DeviceRank& rank) {
    const cuda::Api& api = cuda::driver();
    const cuda::Current current(rank.context());
    const cuda::Stream one = cuda::make_stream();
    const cuda::Stream other = cuda::make_stream();
    const cuda::Event fork = cuda::make_event();
    const cuda::Event join = cuda::make_event();
    float* const a = floats(rank, 100, 1.0F);
    float* const b = floats(rank, 100, 1.0F);
    const cuda::GraphExec exec = captured(one.get(), [&] {
      cuda::check(api.event_record(fork.get(), one.get()), "fork");
      cuda::check(api.stream_wait(other.get(), fork.get(), 0), "fork");
      rank.device().enqueue(sum(a, a, 100, one.get()));
      rank.device().enqueue(sum(b, b, 100, other.get()));
      rank.device().enqueue(sum(a, a, 100, one.get()));
      cuda::check(api.event_record(join.get(), other.get()), "join");
      cuda::check(api.stream_wait(one.get(), join.get(), 0), "join");
    });
    for (int i = 0; i < 2; ++i) cuda::check(api.graph_launch(exec, one.get()), "launch");
    synchronize(rank, one.get());
    expect_all(rank, a, 100, 16.0F);
    expect_all(rank, b, 100, 4.0F);
    api.graph_exec_destroy(exec);
  }));
}

// Code and GPUs ---------------------------------------------------------------------------------

TEST(DeviceRules, EachCallsScheduleIsLogged) {
  std::mutex mutex;
  std::vector<std::string> lines;
  World world = device_world_of(2);
  world.options.log_level = "debug";
  set_log_sink([&](LogLevel level, std::string_view who, std::string_view message) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::debug) lines.push_back(std::string(who) + ' ' + std::string(message));
  });
  const Outcomes outcomes = run_devices(world, Gpus::one, {}, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 1000;
    float* const memory = floats(rank, kCount, 1.0F);
    DeviceCall call = sum(memory, memory, kCount, rank.stream());
    rank.device().enqueue({&call, 1});
    call.schedule = "ring";
    rank.device().enqueue({&call, 1});
    rank.finish();
    expect_all(rank, memory, kCount, 4.0F);
  });
  set_log_sink({});
  set_log_level(LogLevel::warn);
  expect_all_well(outcomes);
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("[rank 1/2"), HasSubstr("GPU call 1 all_reduce"),
                                    HasSubstr("1000"), Not(HasSubstr("the caller names it")))));
  EXPECT_THAT(lines,
              Contains(AllOf(StartsWith("[rank 0/2"), HasSubstr("GPU call 2 all_reduce"),
                             HasSubstr("runs ring on GPU 0"), HasSubstr("the caller names it"))));
}

TEST(DeviceRules, KernelsAreLoadedOncePerGpuAndStay) {
  expect_all_well(run_devices(device_world_of(2), Gpus::one, {}, [](DeviceRank& rank) {
    const int loads = fake_cuda_calls("cuModuleLoadData");
    rank.comm().barrier();
    auto part = rank.comm().split(0);
    { const DeviceCommunicator second(*part, 0); }
    rank.comm().barrier();
    EXPECT_EQ(fake_cuda_calls("cuModuleLoadData"), loads);
    EXPECT_EQ(fake_cuda_calls("cuModuleUnload"), 0);
  }));
}

// The memory model defines the scope of a GPU among the threads of one program.
TEST(DeviceRules, ProcessesThatShareAGpuOrderMemoryForTheSystem) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not tell";
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    expect_all_well(
        run_devices(device_world_of(2, ranks), Gpus::one, {}, [ranks](DeviceRank& rank) {
          float* const data = floats(rank, 100, 1.0F);
          rank.device().enqueue(sum(data, data, 100, rank.stream()));
          rank.finish();
          if (fake_cuda_last_launch().beyond_device != (ranks == Ranks::processes)) {
            throw std::runtime_error("the scope is wrong");
          }
        }));
  }
}

/// Messages between all pairs, many each way, asked for in an order of each rank's own; those of
/// one pair and way in theirs.
void exchange_many(DeviceRank& rank, std::size_t each) {
  const auto n = static_cast<std::size_t>(rank.comm().world_size());
  const auto me = static_cast<std::size_t>(rank.comm().rank());
  float* const out = floats(rank, n * each, 0.0F);
  float* const in = floats(rank, n * each, -1.0F);
  std::vector<float> mine(n * each);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>(1000 * me + i);
  fill(rank, out, mine);
  std::vector<std::size_t> order;  // peer and way of each call
  for (std::size_t i = 0; i < 2 * n; ++i) order.insert(order.end(), each, i);
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(me)));
  std::vector<std::size_t> next(2 * n);
  std::vector<DeviceCall> group;
  for (const std::size_t which : order) {
    const std::size_t peer = which / 2;
    const bool sends = which % 2 == 0;
    const std::size_t at = peer * each + next[which]++;
    group.push_back({.call = {.kind = sends ? Kind::send : Kind::recv,
                              .input = sends ? out + at : nullptr,
                              .output = sends ? nullptr : in + at,
                              .count = 1,
                              .type = DataType::float32,
                              .peer = static_cast<Rank>(peer)},
                     .stream = rank.stream()});
  }
  rank.device().enqueue(group);
  rank.finish();
  for (std::size_t peer = 0; peer < n; ++peer) {
    for (std::size_t i = 0; i < each; ++i) {
      expect_all(rank, in + peer * each + i, 1, static_cast<float>(1000 * peer + me * each + i));
    }
  }
}

TEST(DeviceRules, AGroupMayHaveMoreMessagesThanOneLaunchTakes) {
  expect_all_well(run_devices(device_world_of(3), Gpus::one, {},
                              [](DeviceRank& rank) { exchange_many(rank, 90); }));
}

TEST(DeviceRules, SmallGpusTakeGroupsInSeveralLaunches) {
  fake_cuda_multiprocessors(6);  // 12 blocks at a time, one for each of the 12 ranks
  DeviceTuning tuning;
  tuning.blocks = 1;
  expect_all_well(run_devices(device_world_of(12), Gpus::one, tuning,
                              [](DeviceRank& rank) { exchange_many(rank, 2); }));
  fake_cuda_multiprocessors(0);
}

}  // namespace
}  // namespace chorus::testing
