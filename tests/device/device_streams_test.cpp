// What the stream promises: order, groups, graphs, several streams and communicators; and what the
// hot path does not do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "device/fake/fake_cuda.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

using Kind = Call::Kind;

class DeviceStreams : public Exchanging {};

World two_ranks(Ranks ranks = Ranks::threads) {
  World world{.size = 2, .ranks = ranks};
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  return world;
}

/// `count` floats on the GPU, all `value`.
float* floats(DeviceRank& rank, std::size_t count, float value) {
  auto* const memory = reinterpret_cast<float*>(rank.memory(count * sizeof(float)));
  const std::vector<float> data(count, value);
  const cuda::Current current(rank.context());
  const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
  cuda::check(cuda::driver().copy_to_device(reinterpret_cast<std::uint64_t>(memory), data.data(),
                                            count * sizeof(float), stream),
              "copy");
  cuda::check(cuda::driver().stream_synchronize(stream), "copy");
  return memory;
}

std::vector<float> read(DeviceRank& rank, const float* memory, std::size_t count) {
  std::vector<float> data(count);
  const cuda::Current current(rank.context());
  const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
  cuda::check(cuda::driver().copy_to_host(data.data(), reinterpret_cast<std::uint64_t>(memory),
                                          count * sizeof(float), stream),
              "copy");
  cuda::check(cuda::driver().stream_synchronize(stream), "copy");
  return data;
}

void expect_all(DeviceRank& rank, const float* memory, std::size_t count, float value) {
  for (const float found : read(rank, memory, count)) {
    if (found != value) {
      throw std::runtime_error(
          fmt::format("rank {}: {} in place of {}", rank.comm().rank(), found, value));
    }
  }
}

DeviceCall sum(DeviceRank& rank, const float* in, float* out, std::size_t count) {
  return {.call = {.kind = Kind::all_reduce,
                   .input = in,
                   .output = out,
                   .count = count,
                   .type = DataType::float32},
          .stream = rank.stream()};
}

TEST_P(DeviceStreams, CallsReturnBeforeTheyRunAndRunInTheOrderOfTheStream) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 1000;
    float* const data = floats(rank, kCount, 1.0F);
    rank.comm().barrier();
    if (rank.comm().rank() == 0) fake_cuda_hold(0, true);
    rank.comm().barrier();
    // Each reduces what the one before left. None can run before the GPU is let go.
    for (int i = 0; i < 5; ++i) rank.device().enqueue(sum(rank, data, data, kCount));
    rank.comm().barrier();
    if (rank.comm().rank() == 0) fake_cuda_hold(0, false);
    rank.finish();
    expect_all(rank, data, kCount, 32.0F);
  }));
}

TEST_P(DeviceStreams, NothingIsAllocatedOrWaitedForAfterTheFirstCallOfAShape) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    float* const data = floats(rank, 300'000, 1.0F);
    const auto all_shapes = [&] {
      for (const std::size_t count : {2U, 9'000U, 300'000U}) {
        rank.device().enqueue(sum(rank, data, data, count));
      }
      rank.finish();
    };
    all_shapes();
    rank.comm().barrier();
    const auto costs = [] {
      return std::vector<int>{fake_cuda_calls("cuMemAlloc_v2"), fake_cuda_calls("cuMemHostAlloc"),
                              fake_cuda_calls("cuEventSynchronize"),
                              fake_cuda_calls("cuMemcpyHtoDAsync_v2"),
                              fake_cuda_calls("cuMemcpyDtoDAsync_v2")};
    };
    const auto before = costs();
    const int launches = fake_cuda_calls("cuLaunchKernel");
    rank.comm().barrier();
    all_shapes();
    all_shapes();
    rank.comm().barrier();
    EXPECT_EQ(costs(), before);
    if (fake_cuda()) {  // the true driver does not count
      EXPECT_EQ(fake_cuda_calls("cuLaunchKernel") - launches, 2 * 2 * 3);  // ranks, rounds, shapes
    }
    rank.comm().barrier();
  }));
}

TEST_P(DeviceStreams, AGroupIsOneLaunch) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 50;
    float* const a = floats(rank, kCount, 1.0F);
    float* const b = floats(rank, 100'000, 2.0F);
    float* const c = floats(rank, kCount, static_cast<float>(rank.comm().rank()));
    float* const d = floats(rank, kCount, -1.0F);
    const Rank other = 1 - rank.comm().rank();
    rank.comm().barrier();
    const int launches = fake_cuda_calls("cuLaunchKernel");
    rank.comm().barrier();
    const DeviceCall group[] = {
        {.call = {.kind = Kind::send,
                  .input = c,
                  .count = kCount,
                  .type = DataType::float32,
                  .peer = other},
         .stream = rank.stream()},
        sum(rank, a, a, kCount),
        {.call = {.kind = Kind::recv,
                  .output = d,
                  .count = kCount,
                  .type = DataType::float32,
                  .peer = other},
         .stream = rank.stream()},
        sum(rank, b, b, 100'000),
        sum(rank, a, a, kCount),
    };
    rank.device().enqueue(group);
    rank.finish();
    rank.comm().barrier();
    EXPECT_EQ(fake_cuda_calls("cuLaunchKernel") - launches, fake_cuda() ? 2 : 0);
    expect_all(rank, a, kCount, 4.0F);
    expect_all(rank, b, 100'000, 4.0F);
    expect_all(rank, d, kCount, static_cast<float>(other));
  }));
}

/// Messages of every size class, each way, several to one peer, to itself too, and empty ones.
void exchange(DeviceRank& rank) {
  const auto n = static_cast<std::size_t>(rank.comm().world_size());
  const auto me = static_cast<std::size_t>(rank.comm().rank());
  const std::size_t counts[] = {1, 0, 5'000, 100'000};
  std::vector<DeviceCall> group;
  std::vector<std::pair<float*, std::pair<std::size_t, float>>> expected;
  for (std::size_t peer = 0; peer < n; ++peer) {
    for (const std::size_t count : counts) {
      const auto value = [&](std::size_t from, std::size_t to) {
        return static_cast<float>(1000 * from + 100 * to + count % 97);
      };
      const auto call = [&](Kind kind, float* memory) {
        group.push_back({.call = {.kind = kind,
                                  .input = kind == Kind::send ? memory : nullptr,
                                  .output = kind == Kind::recv ? memory : nullptr,
                                  .count = count,
                                  .type = DataType::float32,
                                  .peer = static_cast<Rank>(peer)},
                         .stream = rank.stream()});
      };
      call(Kind::send, floats(rank, count, value(me, peer)));
      float* const to = floats(rank, count, -1.0F);
      call(Kind::recv, to);
      expected.push_back({to, {count, value(peer, me)}});
    }
  }
  rank.device().enqueue(group);
  rank.finish();
  for (const auto& [memory, what] : expected) {
    expect_all(rank, memory, what.first, what.second);
  }
}

TEST_P(DeviceStreams, MessagesOfAGroupCannotBlockEachOther) {
  for (const int size : {1, 2, 4}) {
    World world = two_ranks();
    world.size = size;
    expect_all_well(run(world, Gpus::one, exchange));
  }
}

TEST_P(DeviceStreams, GroupsOfManyCallsRunInTheirOrder) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    float* const data = floats(rank, 64, 1.0F);
    const std::vector<DeviceCall> group(20, sum(rank, data, data, 1));
    rank.device().enqueue(group);
    std::vector<DeviceCall> large;
    for (int i = 0; i < 50; ++i) large.push_back(sum(rank, data + 1 + i, data + 1 + i, 1));
    rank.device().enqueue(large);
    rank.finish();
    EXPECT_EQ(read(rank, data, 1)[0], 1048576.0F);
    expect_all(rank, data + 1, 50, 2.0F);
    // More than one launch takes.
    const std::vector<DeviceCall> very_large(500, sum(rank, data + 60, data + 61, 1));
    rank.device().enqueue(very_large);
    rank.finish();
    EXPECT_EQ(read(rank, data + 61, 1)[0], 2.0F);
  }));
}

TEST_P(DeviceStreams, StreamsOfOneGroupMeetInIt) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    const cuda::Current current(rank.context());
    const cuda::Stream other = cuda::make_stream();
    constexpr std::size_t kCount = 100;
    float* const a = floats(rank, kCount, 1.0F);
    float* const b = floats(rank, kCount, 1.0F);
    for (int i = 0; i < 4; ++i) {
      DeviceCall second = sum(rank, b, b, kCount);
      second.stream = other.get();
      const DeviceCall group[] = {sum(rank, a, a, kCount), second};
      rank.device().enqueue(group);
      // The next ones alternate: the communicator orders what streams do not.
      rank.device().enqueue(second);
    }
    cuda::check(cuda::driver().stream_synchronize(other.get()), "wait");
    rank.finish();
    expect_all(rank, a, kCount, 16.0F);
    expect_all(rank, b, kCount, 256.0F);
  }));
}

TEST_P(DeviceStreams, SeveralCommunicatorsRunAtOnce) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    const cuda::Current current(rank.context());
    const cuda::Stream other = cuda::make_stream();
    auto split = rank.comm().split(0, -rank.comm().rank());
    DeviceCommunicator second(*split, 0, GetParam().tuning);
    constexpr std::size_t kCount = 100;
    float* const a = floats(rank, kCount, 1.0F);
    float* const b = floats(rank, kCount, 1.0F);
    for (int i = 0; i < 5; ++i) {
      DeviceCall call = sum(rank, b, b, kCount);
      call.stream = other.get();
      // One rank calls in one order, the other in the other.
      if (rank.comm().rank() == 0) second.enqueue(call);
      rank.device().enqueue(sum(rank, a, a, kCount));
      if (rank.comm().rank() == 1) second.enqueue(call);
    }
    cuda::check(cuda::driver().stream_synchronize(other.get()), "wait");
    rank.finish();
    expect_all(rank, a, kCount, 32.0F);
    expect_all(rank, b, kCount, 32.0F);
  }));
}

/// Captures `calls` in `mode`, replays the graph `times` times.
void capture_and_replay(DeviceRank& rank, int mode, int times, const std::function<void()>& calls) {
  const cuda::Api& api = cuda::driver();
  const cuda::Current current(rank.context());
  const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
  // Current lets this thread do anything; who captures is not that generous.
  int strict = mode;
  api.exchange_capture_mode(&strict);
  cuda::check(api.capture_begin(stream, mode), "capture");
  calls();
  cuda::Graph graph = nullptr;
  cuda::check(api.capture_end(stream, &graph), "capture");
  api.exchange_capture_mode(&strict);
  cuda::GraphExec exec = nullptr;
  cuda::check(api.graph_instantiate(&exec, graph, 0), "instantiate");
  for (int i = 0; i < times; ++i) cuda::check(api.graph_launch(exec, stream), "launch");
  rank.finish();
  api.graph_exec_destroy(exec);
  api.graph_destroy(graph);
}

TEST_P(DeviceStreams, GraphsReplayCallsEvenIfTheFirstOnesWereCaptured) {
  for (const int mode : {cuda::kCaptureModeGlobal, cuda::kCaptureModeThreadLocal}) {
    expect_all_well(run(two_ranks(), Gpus::one, [mode](DeviceRank& rank) {
      float* const a = floats(rank, 100, 1.0F);
      float* const b = floats(rank, 200'000, 1.0F);
      float* const c = floats(rank, 5, static_cast<float>(rank.comm().rank()));
      float* const d = floats(rank, 5, -1.0F);
      const Rank other = 1 - rank.comm().rank();
      capture_and_replay(rank, mode, 3, [&] {
        rank.device().enqueue(sum(rank, a, a, 100));
        rank.device().enqueue(sum(rank, b, b, 200'000));
        const DeviceCall group[] = {{.call = {.kind = Kind::send,
                                              .input = c,
                                              .count = 5,
                                              .type = DataType::float32,
                                              .peer = other},
                                     .stream = rank.stream()},
                                    {.call = {.kind = Kind::recv,
                                              .output = d,
                                              .count = 5,
                                              .type = DataType::float32,
                                              .peer = other},
                                     .stream = rank.stream()}};
        rank.device().enqueue(group);
      });
      expect_all(rank, a, 100, 8.0F);
      expect_all(rank, b, 200'000, 8.0F);
      expect_all(rank, d, 5, static_cast<float>(other));
      // Calls go on outside the graph, and inside again.
      rank.device().enqueue(sum(rank, a, a, 100));
      capture_and_replay(rank, mode, 2, [&] { rank.device().enqueue(sum(rank, a, a, 100)); });
      expect_all(rank, a, 100, 64.0F);
    }));
  }
}

// A link would tear words from their flags, but not those between other ranks.
TEST(DeviceProtocols, RanksThatReachEachOtherKeepWordsWhereOthersAreRelayed) {
  for (const int ranks : {4, 2}) {  // two of four share a GPU each; of two none reaches the other
    World world = two_ranks();
    world.size = ranks;
    expect_all_well(run_devices(world, Gpus::two_apart, {}, [ranks](DeviceRank& rank) {
      for (const std::size_t count : {1U, 31U, 500U, 1024U}) {
        float* const data = floats(rank, count, 1.0F);
        rank.device().enqueue(sum(rank, data, data, count));
        rank.finish();
        expect_all(rank, data, count, static_cast<float>(ranks));
        if (fake_cuda() && fake_cuda_last_launch().words != (ranks == 4)) {
          throw std::runtime_error("a call took the wrong protocol");
        }
      }
    }));
  }
}

TEST_P(DeviceStreams, ProcessesShareAGpu) {
  expect_all_well(run(two_ranks(Ranks::processes), Gpus::one, exchange));
}

TEST_P(DeviceStreams, ProcessesReachWhatTheyShareAndOnlyThat) {
  expect_all_well(run(two_ranks(Ranks::processes), Gpus::one, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 200'000;
    float* const a = floats(rank, 2 * kCount, 1.0F);
    float* const alone = floats(rank, kCount, 1.0F);
    rank.share(a, 2 * kCount * sizeof(float));
    const auto run = [&](float* in, float* out, float expected) {
      rank.device().enqueue(sum(rank, in, out, kCount));
      rank.finish();
      expect_all(rank, out, kCount, expected);
    };
    run(a, a + kCount, 2.0F);
    // One rank's buffer is not shared: all take slots.
    run(rank.comm().rank() == 0 ? alone : a, a + kCount, 2.0F);
    run(a + kCount, a, 4.0F);
    rank.device().unshare(a);
    run(a, a, 8.0F);
  }));
}

TEST_P(DeviceStreams, ScaledSumsReadTheirFactorWhenTheyRun) {
  expect_all_well(run(two_ranks(), Gpus::one, [](DeviceRank& rank) {
    for (const std::size_t count : {10U, 200'000U}) {
      float* const a = floats(rank, count, 4.0F);
      float* const b = floats(rank, count, 0.0F);
      DeviceCall call = sum(rank, a, b, count);
      call.call.reduction = {ReduceOp::sum, rank.comm().rank() == 0 ? 0.5 : 0.25};
      rank.device().enqueue(call);
      rank.finish();
      expect_all(rank, b, count, 3.0F);

      float* const factor = floats(rank, 1, rank.comm().rank() == 0 ? 2.0F : 3.0F);
      call.call.reduction = {};
      call.scale_at = factor;
      rank.device().enqueue(call);
      rank.finish();
      expect_all(rank, b, count, 20.0F);
      expect_all(rank, a, count, 4.0F);
    }
  }));
}

TEST_P(DeviceStreams, EverythingIsFreedInTheEnd) {
  expect_all_well(run(two_ranks(), Gpus::two, [](DeviceRank& rank) {
    float* const a = floats(rank, 1000, 1.0F);
    rank.device().enqueue(sum(rank, a, a, 1000));
    rank.finish();
  }));
  EXPECT_EQ(fake_cuda_allocated(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceStreams, ::testing::ValuesIn(exchanges()), name_of);

}  // namespace
}  // namespace chorus::testing
