// Shows that what one GPU writes into another's memory arrives there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "device/driver/driver.hpp"
#include "device/layout.hpp"

namespace chorus {

/// A round trip of data between arenas, before any kernel trusts them: under an IOMMU, or with ACS
/// redirecting, some machines lose or change what GPUs write to each other and report nothing.
///
/// Every rank writes to all peers that it reaches; when all have, every rank looks at what came.
/// The boxes of the arenas are used for it, which nothing else uses yet, and are cleared again.
class DeviceProof {
 public:
  /// What its sentences begin with.
  static constexpr std::string_view kOffered = "peer access is offered, but ";

  /// The device's context is current. `arena` is this rank's own.
  DeviceProof(const device::Shape& shape, Rank self, cuda::Address arena, double timeout_s);
  /// Gives up the stream if a copy on it has not ended.
  ~DeviceProof();
  DeviceProof(const DeviceProof&) = delete;
  DeviceProof& operator=(const DeviceProof&) = delete;

  /// Writes into the peer's arena and reads that back. What is wrong; empty: nothing.
  [[nodiscard]] std::string write(Rank peer, cuda::Address peer_arena);
  /// After all ranks have written: looks at what the peer wrote, if it did. The same result.
  [[nodiscard]] std::string look(Rank peer);
  /// A copy does not end: what it may touch must not be freed.
  [[nodiscard]] bool stuck() const { return stuck_; }

 private:
  std::string compare(cuda::Address at, std::uint64_t seed, const char* doing);
  void clear(cuda::Address at, std::uint64_t bytes);

  device::Shape shape_;
  Rank self_;
  cuda::Address arena_;
  double timeout_s_;
  cuda::Stream stream_;
  std::vector<std::uint64_t> words_;
  bool stuck_ = false;
};

}  // namespace chorus
