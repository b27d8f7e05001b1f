#include "runtime/device_order.hpp"

#include <algorithm>

namespace chorus {
namespace {

cuda::StreamHandle stream_of(const DeviceCall& call) {
  return static_cast<cuda::StreamHandle>(call.stream);
}

void wait(cuda::StreamHandle stream, const cuda::Event& event, unsigned flags = 0) {
  cuda::check(cuda::driver().stream_wait(stream, event.get(), flags), "ordering streams");
}

void record(const cuda::Event& event, cuda::StreamHandle stream) {
  cuda::check(cuda::driver().event_record(event.get(), stream), "marking a stream");
}

}  // namespace

DeviceOrder::DeviceOrder()
    : last_(cuda::make_event()), joined_(cuda::make_event()), captured_(cuda::make_event()) {}

// A handle does not tell one stream from another that was made after the first was destroyed, nor
// the per-thread default streams of two threads: the event is waited for in any case.
void DeviceOrder::begin(std::span<const DeviceCall> calls, cuda::StreamHandle stream) {
  int status = cuda::kCaptureNone;
  unsigned long long capture = 0;
  cuda::check(cuda::driver().capture_info(stream, &status, &capture, nullptr, nullptr, nullptr),
              "looking at a stream");
  capturing_ = status != cuda::kCaptureNone;
  if (!capturing_) {
    wait(stream, last_);
  } else if (capture == capture_) {
    wait(stream, captured_);  // the branches of a graph have no order else
  } else {
    wait(stream, last_, cuda::kEventExternal);
    capture_ = capture;
  }
  cuda::StreamHandle joined = stream;
  for (const DeviceCall& call : calls) {
    const cuda::StreamHandle other = stream_of(call);
    if (other == stream || other == joined) continue;
    joined = other;
    record(joined_, other);
    wait(stream, joined_);
  }
}

void DeviceOrder::end(std::span<const DeviceCall> calls, cuda::StreamHandle stream) {
  if (capturing_) {
    cuda::check(cuda::driver().event_record_with(last_.get(), stream, cuda::kEventExternal),
                "marking a stream");
    record(captured_, stream);
  } else {
    record(last_, stream);
  }
  const bool several = std::any_of(calls.begin(), calls.end(), [&](const DeviceCall& call) {
    return stream_of(call) != stream;
  });
  if (!several) return;
  record(joined_, stream);
  for (const DeviceCall& call : calls) {
    if (stream_of(call) != stream) wait(stream_of(call), joined_);
  }
}

void DeviceOrder::finish() const {
  cuda::check(cuda::driver().event_synchronize(last_.get()), "waiting for the GPU");
}

}  // namespace chorus
