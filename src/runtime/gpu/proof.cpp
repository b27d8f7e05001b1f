#include "runtime/gpu/proof.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/driver/pattern.hpp"

namespace chorus {
namespace {

constexpr std::uint64_t kMostBytes = 256 * 1024;

std::uint64_t seed_of(Rank writer, Rank reader) {
  return (static_cast<std::uint64_t>(writer) + 1) << 32 | static_cast<std::uint64_t>(reader);
}

}  // namespace

DeviceProof::DeviceProof(const device::Shape& shape, Rank self, cuda::Address arena,
                         double timeout_s)
    : shape_(shape),
      self_(self),
      arena_(arena),
      timeout_s_(timeout_s),
      stream_(cuda::make_stream()),
      words_(std::min(kMostBytes, device::Box::size(shape) / 2) / sizeof(std::uint64_t)) {}

DeviceProof::~DeviceProof() {
  if (stuck_) (void)stream_.release();
}

std::string DeviceProof::write(Rank peer, cuda::Address peer_arena) {
  if (stuck_) return fmt::format("{}an earlier copy does not end", kOffered);
  const cuda::Api& api = cuda::driver();
  const std::uint64_t bytes = words_.size() * sizeof(std::uint64_t);
  // Nobody sends to itself: that box is free, half for what goes, half for what comes back.
  const cuda::Address going =
      arena_ + device::Arena::box(shape_, static_cast<std::uint32_t>(self_));
  const cuda::Address back = going + bytes;
  const cuda::Address there =
      peer_arena + device::Arena::box(shape_, static_cast<std::uint32_t>(self_));
  cuda::fill_pattern(words_, seed_of(self_, peer));
  cuda::check(api.copy_to_device(going, words_.data(), bytes, stream_.get()), "copying to the GPU");
  cuda::check(api.copy(there, going, bytes, stream_.get()), "writing to another GPU");
  cuda::check(api.copy(back, there, bytes, stream_.get()), "reading from another GPU");
  std::string wrong = compare(back, seed_of(self_, peer), "wrote and read back");
  if (!stuck_) clear(going, 2 * bytes);
  return wrong;
}

std::string DeviceProof::look(Rank peer) {
  if (stuck_) return fmt::format("{}an earlier copy does not end", kOffered);
  const cuda::Address here = arena_ + device::Arena::box(shape_, static_cast<std::uint32_t>(peer));
  std::string wrong = compare(here, seed_of(peer, self_), "were written");
  if (!stuck_) clear(here, words_.size() * sizeof(std::uint64_t));
  return wrong;
}

std::string DeviceProof::compare(cuda::Address at, std::uint64_t seed, const char* doing) {
  const std::uint64_t bytes = words_.size() * sizeof(std::uint64_t);
  // Copying to this memory would wait for ever.
  if (!cuda::finishes_within(cuda::driver(), stream_.get(), timeout_s_)) {
    stuck_ = true;
    return fmt::format("{}a copy does not end", kOffered);
  }
  cuda::check(cuda::driver().copy_to_host(words_.data(), at, bytes, stream_.get()),
              "copying from the GPU");
  cuda::check(cuda::driver().stream_synchronize(stream_.get()), "copying from the GPU");
  const auto damaged = cuda::first_damaged(words_, seed);
  if (!damaged) return {};
  return fmt::format(
      "{}of {} bytes that {} the first damaged one is number {}: look at IOMMU and ACS", kOffered,
      bytes, doing, *damaged);
}

void DeviceProof::clear(cuda::Address at, std::uint64_t bytes) {
  cuda::check(cuda::driver().set_bytes(at, 0, bytes, stream_.get()), "clearing GPU memory");
  cuda::check(cuda::driver().stream_synchronize(stream_.get()), "clearing GPU memory");
}

}  // namespace chorus
