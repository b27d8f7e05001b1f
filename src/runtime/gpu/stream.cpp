#include "runtime/gpu/stream.hpp"

#include <thread>

#include "chorus/error.hpp"
#include "device/driver/driver.hpp"

namespace chorus {
namespace {

// How often a wait with a limit looks: no more than what the wait itself may be late by.
constexpr auto kLook = std::chrono::microseconds(100);

cuda::StreamHandle handle_of(void* stream) { return static_cast<cuda::StreamHandle>(stream); }

/// What `call` on a stream returns, in the context where that is necessary.
template <class Call>
cuda::Result on_stream(cuda::Context context, cuda::StreamHandle stream, const Call& call) {
  cuda::CurrentOnDemand current(context);
  if (cuda::is_default(stream)) current.ensure();
  return current.attempt(call);
}

}  // namespace

struct DeviceMark::Impl {
  Impl(int device, void* stream) : context(device) {
    cuda::CurrentOnDemand current(context.get());
    current.ensure();  // the event is the current context's
    event = cuda::make_event();
    cuda::check(cuda::driver().event_record(event.get(), handle_of(stream)), "marking a stream");
  }
  ~Impl() {
    try {
      cuda::CurrentOnDemand current(context.get());
      current.ensure();
      event.reset();
    } catch (const Error&) {  // the context went with its process' end
      (void)event.release();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  cuda::PrimaryContext context;
  cuda::Event event;
};

DeviceMark::DeviceMark(int device, void* stream) : impl_(std::make_unique<Impl>(device, stream)) {}
DeviceMark::DeviceMark(DeviceMark&&) noexcept = default;
DeviceMark& DeviceMark::operator=(DeviceMark&&) noexcept = default;
DeviceMark::~DeviceMark() = default;

void DeviceMark::hold(void* stream) const {
  const auto wait = [&] {
    return cuda::driver().stream_wait(handle_of(stream), impl_->event.get(), 0);
  };
  cuda::check(on_stream(impl_->context.get(), handle_of(stream), wait), "ordering streams");
}

bool DeviceMark::passed() const {
  const cuda::Relaxed relaxed;
  cuda::CurrentOnDemand current(impl_->context.get());
  // Not having passed is no failure to look in another context for.
  bool passed = true;
  const cuda::Result result = current.attempt([&] {
    const cuda::Result found = cuda::driver().event_query(impl_->event.get());
    passed = found != cuda::kNotReady;
    return passed ? found : cuda::kSuccess;
  });
  cuda::check(result, "looking at a stream");
  return passed;
}

void DeviceMark::wait() const {
  const cuda::Current current(impl_->context.get());
  cuda::check(cuda::driver().event_synchronize(impl_->event.get()), "waiting for a stream");
}

bool DeviceMark::wait_for(std::chrono::milliseconds limit) const {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!passed()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

void device_copy(int device, void* to, const void* from, std::size_t size_bytes, void* stream) {
  if (size_bytes == 0 || to == from) return;
  const cuda::PrimaryContext context(device);
  const auto copy = [&] {
    return cuda::driver().copy(cuda::address_of(to), cuda::address_of(from), size_bytes,
                               handle_of(stream));
  };
  cuda::check(on_stream(context.get(), handle_of(stream), copy), "copying on the GPU");
}

}  // namespace chorus
