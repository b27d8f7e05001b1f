// How often a call on GPU memory calls the driver. Ranks are processes, so each counts its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "device/fake/fake_cuda.hpp"
#include "device_floats.hpp"
#include "device_rank.hpp"
#include "runtime/gpu/stream.hpp"

namespace chorus::testing {
namespace {

using Kind = Call::Kind;

constexpr std::size_t kCount = 2000;
constexpr int kPlain = 4;  // what captures it, what it waits for, the launch, the mark

struct Buffers {
  float* in;
  float* out;
};

DeviceCall call_of(Kind kind, const Buffers& buffers, std::size_t count, void* stream) {
  DeviceCall call = sum(buffers.in, buffers.out, count, stream);
  call.call.kind = kind;
  call.checked = true;
  return call;
}

/// Calls of the driver that each of some collectives makes, the most. They follow one another at
/// once, and are those after the first one of their shape.
int calls_of(DeviceRank& rank, const std::vector<DeviceCall>& group) {
  rank.device().enqueue(group);
  int most = 0;
  for (int i = 0; i < 3; ++i) {
    const int before = fake_cuda_calls();
    rank.device().enqueue(group);
    most = std::max(most, fake_cuda_calls() - before);
  }
  rank.device().finish();
  return most;
}

void expect_at_most(int most, int calls, const std::string& what) {
  if (calls > most || calls == 0) {
    throw std::runtime_error(fmt::format("{}: {} calls of the driver", what, calls));
  }
}

/// Runs `body` on both of two ranks, each a process, in a thread whose context is the GPU's.
void with_buffers(const std::function<void(DeviceRank&, const Buffers&)>& body) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not count";
  expect_all_well(
      run_devices(device_world_of(2, Ranks::processes), Gpus::one, {}, [&](DeviceRank& rank) {
        const cuda::Current current(rank.context());
        const cuda::Memory memory = cuda::allocate(8 * kCount * sizeof(float) * 100);
        auto* const in = reinterpret_cast<float*>(memory.get());
        body(rank, {in, in + 400 * kCount});
      }));
}

void* default_stream(std::uintptr_t number) {
  // The driver's own names. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(number);
}

TEST(OccupancyCalls, ACollectiveTakesFourCallsOfTheDriver) {
  with_buffers([](DeviceRank& rank, const Buffers& buffers) {
    const Buffers in_place{buffers.out, buffers.out};
    for (void* const stream :
         {rank.stream(), static_cast<void*>(nullptr), default_stream(cuda::kStreamLegacy),
          default_stream(cuda::kStreamPerThread)}) {
      for (const std::size_t count : {std::size_t{2}, kCount, 100 * kCount}) {
        for (const Kind kind : {Kind::all_reduce, Kind::reduce, Kind::all_gather, Kind::gather,
                                Kind::reduce_scatter, Kind::scatter, Kind::all_to_all}) {
          expect_at_most(kPlain, calls_of(rank, {call_of(kind, buffers, count, stream)}),
                         fmt::format("collective {} of {} floats", static_cast<int>(kind), count));
        }
        for (const Kind kind : {Kind::all_reduce, Kind::broadcast}) {
          expect_at_most(
              kPlain, calls_of(rank, {call_of(kind, in_place, count, stream)}),
              fmt::format("collective {} of {} floats in place", static_cast<int>(kind), count));
        }
      }
    }
  });
}

TEST(OccupancyCalls, AGroupTakesAsManyAsOneCall) {
  with_buffers([](DeviceRank& rank, const Buffers& buffers) {
    std::vector<DeviceCall> group;
    for (int i = 0; i < 3; ++i) {
      for (const Kind kind : {Kind::send, Kind::recv}) {
        DeviceCall call = call_of(kind, buffers, kCount, rank.stream());
        call.call.peer = 1 - rank.comm().rank();
        if (kind == Kind::recv) call.call.input = nullptr;
        group.push_back(call);
      }
      group.push_back(call_of(Kind::all_reduce, buffers, kCount, rank.stream()));
    }
    expect_at_most(kPlain, calls_of(rank, group), "a group of messages and collectives");
  });
}

// What is more than the plain path, one by one.
TEST(OccupancyCalls, WhatElseIsAskedIsAskedOnce) {
  with_buffers([](DeviceRank& rank, const Buffers& buffers) {
    // Buffers that nobody has looked at: each block of memory.
    DeviceCall call = call_of(Kind::all_reduce, buffers, kCount, rank.stream());
    call.checked = false;
    expect_at_most(kPlain + 1, calls_of(rank, {call}), "buffers of one allocation");
    call.call.input = floats(rank, kCount, 1.0F);
    expect_at_most(kPlain + 2, calls_of(rank, {call}), "buffers of two allocations");
    // A copy on the GPU.
    call = call_of(Kind::broadcast, buffers, kCount, rank.stream());
    expect_at_most(kPlain + 1, calls_of(rank, {call}), "a broadcast out of place");
    call = call_of(Kind::all_to_all, {buffers.out, buffers.out}, kCount, rank.stream());
    expect_at_most(kPlain + 1, calls_of(rank, {call}), "an exchange in place");
    // A call that reads where others write: what they reach.
    rank.share(buffers.in, 8 * kCount * sizeof(float) * 100);
    call = call_of(Kind::all_reduce, buffers, 100 * kCount, rank.stream());
    expect_at_most(kPlain + 1, calls_of(rank, {call}), "a direct call");
    // Another context: what failed for it, what is current, set and put back.
    call = call_of(Kind::all_reduce, buffers, kCount, rank.stream());
    int without = 0;
    std::thread([&] { without = calls_of(rank, {call}); }).join();
    expect_at_most(kPlain + 4, without, "a thread without a context");
  });
}

// What the backend of torch.distributed needs beside a call: two marks, and waits for them.
TEST(OccupancyCalls, MarksOfStreamsTakeAFewCalls) {
  with_buffers([](DeviceRank& rank, const Buffers& buffers) {
    for (void* const stream : {rank.stream(), static_cast<void*>(nullptr)}) {
      const int look = stream == nullptr ? 1 : 0;  // whose default stream it is
      int before = fake_cuda_calls();
      const auto expect_calls = [&](int most, const char* what) {
        expect_at_most(most, fake_cuda_calls() - before, what);
        before = fake_cuda_calls();
      };
      auto mark = std::make_unique<DeviceMark>(0, stream);
      expect_calls(4, "a mark");
      mark->hold(stream);
      expect_calls(1 + look, "what begins after a mark");
      static_cast<void>(mark->passed());
      expect_calls(3, "looking at a mark");
      device_copy(0, buffers.out, buffers.in, 4, stream);
      expect_calls(3 + look, "a copy");
      mark.reset();
      expect_calls(3, "the end of a mark");
      synchronize(rank, static_cast<cuda::StreamHandle>(stream));
    }
  });
}

}  // namespace
}  // namespace chorus::testing
