#include "runtime/gpu/order.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace chorus {
namespace {

using cuda::CurrentOnDemand;

cuda::StreamHandle stream_of(const DeviceCall& call) {
  return static_cast<cuda::StreamHandle>(call.stream);
}

void wait(CurrentOnDemand& context, cuda::StreamHandle stream, const cuda::Event& event,
          unsigned flags = 0) {
  cuda::check(
      context.attempt([&] { return cuda::driver().stream_wait(stream, event.get(), flags); }),
      "ordering streams");
}

void record(CurrentOnDemand& context, const cuda::Event& event, cuda::StreamHandle stream) {
  cuda::check(context.attempt([&] { return cuda::driver().event_record(event.get(), stream); }),
              "marking a stream");
}

/// A number of this thread's, which no other one has had.
std::uint64_t number_of_this_thread() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = ++threads;
  return number;
}

/// Which of the default streams this is, a number; 0: none of them.
std::uint64_t default_stream(cuda::StreamHandle stream) {
  if (!cuda::is_default(stream)) return 0;
  constexpr std::uint64_t kLegacy = 1;
  const bool per_thread = reinterpret_cast<std::uintptr_t>(stream) == cuda::kStreamPerThread;
  return per_thread ? kLegacy + number_of_this_thread() : kLegacy;
}

}  // namespace

DeviceOrder::DeviceOrder()
    : last_(cuda::make_event()), joined_(cuda::make_event()), captured_(cuda::make_event()) {}

// A handle does not tell one stream from another that was made after the first was destroyed, nor
// the per-thread default streams of two threads: the event is waited for in any case but one. The
// default streams are never destroyed, so a launch follows the one before it in the same. Unless a
// graph, which may be launched at any time, holds launches of this communicator, too.
void DeviceOrder::begin(std::span<const DeviceCall> calls, cuda::StreamHandle stream,
                        CurrentOnDemand& context) {
  const bool any_default = std::any_of(calls.begin(), calls.end(), [](const DeviceCall& call) {
    return cuda::is_default(stream_of(call));
  });
  if (any_default) context.ensure();
  int status = cuda::kCaptureNone;
  unsigned long long capture = 0;
  cuda::check(context.attempt([&] {
    return cuda::driver().capture_info(stream, &status, &capture, nullptr, nullptr, nullptr);
  }),
              "looking at a stream");
  capturing_ = status != cuda::kCaptureNone;
  const std::uint64_t before = std::exchange(default_stream_, 0);  // until this one is launched
  if (capturing_) context.ensure();  // what fails would spoil the capture
  if (!capturing_) {
    const bool follows = before != 0 && before == default_stream(stream) && capture_ == 0;
    if (!follows) wait(context, stream, last_);
  } else if (capture == capture_) {
    wait(context, stream, captured_);  // the branches of a graph have no order else
  } else {
    wait(context, stream, last_, cuda::kEventExternal);
    capture_ = capture;
  }
  cuda::StreamHandle joined = stream;
  for (const DeviceCall& call : calls) {
    const cuda::StreamHandle other = stream_of(call);
    if (other == stream || other == joined) continue;
    joined = other;
    record(context, joined_, other);
    wait(context, stream, joined_);
  }
}

void DeviceOrder::end(std::span<const DeviceCall> calls, cuda::StreamHandle stream,
                      CurrentOnDemand& context) {
  if (capturing_) {
    cuda::check(cuda::driver().event_record_with(last_.get(), stream, cuda::kEventExternal),
                "marking a stream");
    record(context, captured_, stream);
  } else {
    record(context, last_, stream);
    default_stream_ = default_stream(stream);
  }
  const bool several = std::any_of(calls.begin(), calls.end(), [&](const DeviceCall& call) {
    return stream_of(call) != stream;
  });
  if (!several) return;
  record(context, joined_, stream);
  for (const DeviceCall& call : calls) {
    if (stream_of(call) != stream) wait(context, stream_of(call), joined_);
  }
}

void DeviceOrder::finish() const {
  cuda::check(cuda::driver().event_synchronize(last_.get()), "waiting for the GPU");
}

}  // namespace chorus
