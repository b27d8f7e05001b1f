// Calls of threads that have another context than the communicator's or none, on the streams that
// are a context's or a thread's own, and beside captures of others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device_floats.hpp"
#include "device_rank.hpp"
#include "runtime/gpu/stream.hpp"

namespace chorus::testing {
namespace {

// Ranks that are threads have a GPU each, for they would share one's default streams: the kernel of
// one would wait for that of the other, which is behind it.

using Kind = Call::Kind;

cuda::StreamHandle handle(std::uintptr_t number) {
  // The driver's own names. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<cuda::StreamHandle>(number);
}
const cuda::StreamHandle kLegacy = handle(cuda::kStreamLegacy);
const cuda::StreamHandle kPerThread = handle(cuda::kStreamPerThread);

/// Runs `body` in a thread of its own. Its exceptions are the caller's.
void in_a_thread(const std::function<void()>& body) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

cuda::Context current() {
  cuda::Context context = nullptr;
  cuda::check(cuda::driver().context_current(&context), "asking");
  return context;
}

/// The thread's context while a call is made.
enum class Context { own, none, other };

/// Runs `body` in a thread with such a context, which it shall leave as it was.
void in_context(DeviceRank& rank, Context context, const std::function<void()>& body) {
  in_a_thread([&] {
    const int mine = rank.device().device();
    const cuda::PrimaryContext other(context == Context::other ? 1 - mine : mine);
    if (context != Context::none) {
      cuda::check(cuda::driver().context_push(other.get()), "push");
    }
    const cuda::Context before = current();
    body();
    EXPECT_EQ(current(), before);
    if (context == Context::none) return;
    cuda::Context popped = nullptr;
    cuda::check(cuda::driver().context_pop(&popped), "pop");
    EXPECT_EQ(current(), nullptr) << "a call left a context behind";
  });
}

/// A call in `stream` of a thread with such a context, and the wait for it.
void call_in(DeviceRank& rank, float* data, cuda::StreamHandle stream, Context context) {
  in_context(rank, context, [&] {
    rank.device().enqueue(sum(data, data, 100, stream));
    synchronize(rank, stream);
  });
}

TEST(DeviceContexts, CallsRunWhateverContextTheirThreadHas) {
  expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    float expected = 1.0F;
    for (const cuda::StreamHandle stream : {static_cast<cuda::StreamHandle>(rank.stream()),
                                            cuda::StreamHandle{}, kLegacy, kPerThread}) {
      for (const Context context : {Context::own, Context::none, Context::other}) {
        call_in(rank, data, stream, context);
        call_in(rank, data, stream, context);
        expected *= 4;
        expect_all(rank, data, 100, expected);
      }
    }
  }));
}

// What is held by a mark is not done before what the mark is behind, in whichever context either is
// asked for.
TEST(DeviceContexts, MarksOrderStreamsWhateverContextTheirThreadHas) {
  expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    float* const copy = floats(rank, 100, 0.0F);
    const int device = rank.device().device();
    float expected = 1.0F;
    for (const Context context : {Context::own, Context::none, Context::other}) {
      for (const cuda::StreamHandle stream : {cuda::StreamHandle{}, kLegacy, kPerThread}) {
        while_held(rank, [&] {
          rank.device().enqueue(sum(data, data, 100, rank.stream()));
          in_context(rank, context, [&] {
            const DeviceMark begin(device, rank.stream());
            begin.hold(stream);
            device_copy(device, copy, data, 400, stream);
            DeviceMark end(device, stream);
            EXPECT_FALSE(fake_cuda() && begin.passed());  // a true GPU is not held
            EXPECT_FALSE(fake_cuda() && end.wait_for(std::chrono::milliseconds(20)));
            end.hold(rank.stream());
          });
        });
        rank.finish();
        expected *= 2;
        expect_all(rank, copy, 100, expected);
      }
    }
  }));
}

// The same handle in two threads, and then in a third that may be given the first one's number.
TEST(DeviceContexts, StreamsOfThreadsAreOrderedBehindEachOther) {
  expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    while_held(rank, [&] {
      for (int i = 0; i < 3; ++i) {
        in_a_thread([&] {
          const cuda::Current own(rank.context());
          rank.device().enqueue(sum(data, data, 100, kPerThread));
          rank.device().enqueue(sum(data, data, 100, kPerThread));
        });
      }
      rank.device().enqueue(sum(data, data, 100, kPerThread));
    });
    rank.device().finish();
    expect_all(rank, data, 100, 128.0F);
  }));
}

TEST(DeviceContexts, StreamsOfAThreadAndOfTheContextAreOrderedBehindOthers) {
  expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    while_held(rank, [&] {
      for (const cuda::StreamHandle stream :
           {cuda::StreamHandle{}, static_cast<cuda::StreamHandle>(rank.stream()), kLegacy,
            cuda::StreamHandle{}, kPerThread, static_cast<cuda::StreamHandle>(rank.stream()),
            kPerThread}) {
        {  // the same handles mean others where another context is current
          const cuda::PrimaryContext other(1 - rank.device().device());
          const cuda::Current current(other.get());
          rank.device().enqueue(sum(data, data, 100, stream));
        }
        rank.device().enqueue(sum(data, data, 100, stream));
      }
    });
    rank.device().finish();
    expect_all(rank, data, 100, 16384.0F);
  }));
}

// A default stream is the same as before, and yet what was launched last may be a graph.
TEST(DeviceContexts, CallsInADefaultStreamFollowTheGraphsBetweenThem) {
  for (const cuda::StreamHandle stream : {kLegacy, kPerThread}) {
    expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [stream](DeviceRank& rank) {
      const cuda::Api& api = cuda::driver();
      const cuda::Current own(rank.context());
      const cuda::Stream other = cuda::make_stream();
      float* const a = floats(rank, 100, 1.0F);
      float* const b = floats(rank, 100, 1.0F);
      const cuda::GraphExec graph =
          captured(other.get(), [&] { rank.device().enqueue(sum(b, b, 100, other.get())); });
      while_held(rank, [&] {
        for (int round = 0; round < 3; ++round) {
          rank.device().enqueue(sum(a, a, 100, stream));
          cuda::check(api.graph_launch(graph, other.get()), "launch");
        }
        rank.device().enqueue(sum(a, a, 100, stream));
      });
      rank.device().finish();
      expect_all(rank, a, 100, 16.0F);
      expect_all(rank, b, 100, 8.0F);
      api.graph_exec_destroy(graph);
    }));
  }
}

// A launch that the driver refuses, since it is made from another GPU's context, ends a capture.
TEST(DeviceContexts, CapturesFromAnotherContextAreNotSpoilt) {
  expect_all_well(run_devices(device_world_of(2), Gpus::two, {}, [](DeviceRank& rank) {
    float* const data = floats(rank, 100, 1.0F);
    const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
    cuda::GraphExec graph = nullptr;
    {
      const cuda::PrimaryContext other(1 - rank.device().device());
      const cuda::Current current(other.get());
      graph = captured(stream, [&] {
        for (int i = 0; i < 2; ++i) rank.device().enqueue(sum(data, data, 100, stream));
      });
    }
    const cuda::Current own(rank.context());
    cuda::check(cuda::driver().graph_launch(graph, stream), "launch");
    rank.finish();
    expect_all(rank, data, 100, 4.0F);
    cuda::driver().graph_exec_destroy(graph);
  }));
}

// Programs are uploaded and memory grows in the first call of a shape: neither spoils a capture of
// the most careful kind, whoever makes it.
TEST(DeviceContexts, FirstCallsLeaveCapturesAlone) {
  expect_all_well(run_devices(device_world_of(2), Gpus::one, {}, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 600'000;  // copied, in place: more than what is reserved
    const cuda::Api& api = cuda::driver();
    float* const a = floats(rank, 2 * kCount, static_cast<float>(rank.comm().rank()));
    float* const b = floats(rank, 2 * kCount, static_cast<float>(rank.comm().rank()));
    DeviceCall exchange = sum(a, a, kCount, rank.stream());
    exchange.call.kind = Kind::all_to_all;
    // Captured itself, by a thread that has no context.
    cuda::Graph graph = nullptr;
    const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
    in_a_thread([&] {
      cuda::check(api.capture_begin(stream, cuda::kCaptureModeGlobal), "capture");
      rank.device().enqueue(exchange);
      cuda::check(api.capture_end(stream, &graph), "capture");
    });
    {
      const cuda::Current own(rank.context());
      cuda::GraphExec exec = nullptr;
      cuda::check(api.graph_instantiate(&exec, graph, 0), "instantiate");
      cuda::check(api.graph_launch(exec, stream), "launch");
      rank.finish();
      api.graph_exec_destroy(exec);
      api.graph_destroy(graph);
    }
    expect_all(rank, a, kCount, 0.0F);
    expect_all(rank, a + kCount, kCount, 1.0F);
    // Beside a capture of another stream.
    const cuda::Current own(rank.context());
    const cuda::Stream other = cuda::make_stream();
    int strict = cuda::kCaptureModeGlobal;
    api.exchange_capture_mode(&strict);
    cuda::check(api.capture_begin(other.get(), cuda::kCaptureModeGlobal), "capture");
    exchange = sum(b, b, 2 * kCount, stream);
    exchange.call.kind = Kind::reduce;
    rank.device().enqueue(exchange);
    const cuda::Result ended = api.capture_end(other.get(), &graph);
    api.exchange_capture_mode(&strict);
    cuda::check(ended, "ending a capture that nothing was put into");
    api.graph_destroy(graph);
    rank.finish();
    if (rank.comm().rank() == 0) expect_all(rank, b, 2 * kCount, 1.0F);
  }));
}

}  // namespace
}  // namespace chorus::testing
