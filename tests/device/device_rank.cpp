#include "device_rank.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::testing {
namespace {

constexpr std::size_t kAround = 64;  // run_case() puts guards of so many bytes around the output
constexpr std::size_t kAlignment = 256;

struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  [[nodiscard]] bool empty() const { return begin == end; }
  [[nodiscard]] bool meets(const Range& other) const {
    return !empty() && !other.empty() && begin < other.end && other.begin < end;
  }
};

Range range_of(const void* memory, std::size_t bytes, std::size_t around) {
  if (bytes == 0 || memory == nullptr) return {};
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  return {at - around, at + bytes + around};
}

std::size_t blocks_of(const Call& call, Rank rank, std::size_t n, bool input) {
  if (call.kind == Call::Kind::send) return input ? 1 : 0;
  if (call.kind == Call::Kind::recv) return input ? 0 : 1;
  if (call.kind == Call::Kind::barrier) return 0;
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind), .root = call.peer};
  const auto world = static_cast<int>(n);
  return static_cast<std::size_t>(input ? input_blocks(collective, world, rank)
                                        : output_blocks(collective, world, rank));
}

}  // namespace

std::size_t input_bytes(const Call& call, Rank rank, std::size_t n) {
  return blocks_of(call, rank, n, true) * call.count * size_of(call.type);
}
std::size_t output_bytes(const Call& call, Rank rank, std::size_t n) {
  return blocks_of(call, rank, n, false) * call.count * size_of(call.type);
}

DeviceRank::DeviceRank(Communicator& comm, int device, const DeviceTuning& tuning)
    : comm_(comm), context_(device) {
  const cuda::Current current(context_.get());
  stream_ = cuda::make_stream();
  device_ = std::make_unique<DeviceCommunicator>(comm, device, tuning);
}

DeviceRank::~DeviceRank() {
  const cuda::Current current(context_.get());
  device_.reset();
  static_cast<void>(cuda::driver().stream_synchronize(stream_.get()));
  mirror_.reset();
  memories_.clear();
  stream_.reset();
}

void DeviceRank::share(void* memory, std::size_t size_bytes) {
  if (!device_->share(memory, size_bytes)) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!device_->is_shared(memory)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("memory is not shared within a minute");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::byte* DeviceRank::memory(std::size_t size_bytes) {
  const cuda::Current current(context_.get());
  memories_.push_back(cuda::allocate(std::max<std::size_t>(1, size_bytes)));
  cuda::check(cuda::driver().set_bytes(memories_.back().get(), 0, size_bytes, stream_.get()),
              "clearing memory");
  return reinterpret_cast<std::byte*>(memories_.back().get());
}

void DeviceRank::run(const Call& call) {
  run(call, [this](const Call& on_device) {
    device_->enqueue({.call = on_device, .stream = stream_.get()});
  });
}

void DeviceRank::run(const Call& call, const std::function<void(const Call&)>& enqueue) {
  const auto n = static_cast<std::size_t>(comm_.world_size());
  Range out = range_of(call.output, output_bytes(call, comm_.rank(), n), kAround);
  Range in = range_of(call.input, input_bytes(call, comm_.rank(), n), 0);
  const bool together = in.meets(out);
  if (together) {
    out = {std::min(in.begin, out.begin), std::max(in.end, out.end)};
    if (call.kind == Call::Kind::reduce_scatter) out = {in.begin - kAround, in.end + kAround};
    in = {};
  }
  const auto room = [](const Range& range) {
    return (range.end - range.begin + 2 * kAlignment) / kAlignment * kAlignment;
  };
  {
    const cuda::Current current(context_.get());
    if (room(in) + room(out) > mirror_bytes_) {
      mirror_bytes_ = 2 * (room(in) + room(out));
      mirror_ = cuda::allocate(mirror_bytes_);
    }
    const auto place = [&](std::uint64_t from, const Range& range) {
      return from + range.begin % kAlignment;
    };
    const std::uint64_t at_out = place(mirror_.get(), out);
    const std::uint64_t at_in = place(mirror_.get() + room(out), in);
    const auto to_device = [&](std::uint64_t at, const Range& range) {
      if (range.empty()) return;
      cuda::check(cuda::driver().copy_to_device(at, reinterpret_cast<const void*>(range.begin),
                                                range.end - range.begin, stream_.get()),
                  "copying to the GPU");
    };
    to_device(at_out, out);
    to_device(at_in, in);
    Call on_device = call;
    const auto moved = [&](const void* memory) -> std::uint64_t {
      const auto at = reinterpret_cast<std::uintptr_t>(memory);
      if (!out.empty() && at >= out.begin && at < out.end) return at_out + (at - out.begin);
      if (!in.empty() && at >= in.begin && at < in.end) return at_in + (at - in.begin);
      return 0;
    };
    on_device.input = reinterpret_cast<const void*>(moved(call.input));
    on_device.output = reinterpret_cast<void*>(moved(call.output));
    enqueue(on_device);
    if (!out.empty()) {
      cuda::check(cuda::driver().copy_to_host(reinterpret_cast<void*>(out.begin), at_out,
                                              out.end - out.begin, stream_.get()),
                  "copying from the GPU");
    }
  }
  finish();
}

void DeviceRank::finish() {
  const cuda::Current current(context_.get());
  cuda::check(cuda::driver().stream_synchronize(stream_.get()), "waiting for the GPU");
  if (const std::string* error = device_->error()) throw CollectiveError(*error);
}

std::vector<Exchange> exchanges() {
  return {
      {"Directly", {}}, {"ThroughShm", {.reach = false}}, {"ThroughTcp", {.reach = false}, "tcp"}};
}

std::string name_of(const ::testing::TestParamInfo<Exchange>& info) { return info.param.name; }

Outcomes run_devices(const World& world, Gpus gpus, const DeviceTuning& tuning,
                     const std::function<void(DeviceRank&)>& body) {
  if (fake_cuda()) fake_cuda_peer_access(gpus != Gpus::two_apart);
  return run_world(world, [&](Communicator& comm) {
    DeviceRank rank(comm, gpus == Gpus::one ? 0 : comm.rank() % 2, tuning);
    body(rank);
  });
}

}  // namespace chorus::testing
