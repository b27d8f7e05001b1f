// Memory of the program that the adapters read in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transports/link/segments.hpp"
#include "transports/rdma/device.hpp"

namespace chorus {

/// Segments of chorus::allocate() as the adapters know them, registered when a large put first
/// comes out of them and until they are given back: wholly if they are large, which one buffer is
/// then, and otherwise by windows, because pages that are registered are no longer free.
///
/// Only such memory: no other is known to stay what it is. A segment has an id that is never used
/// again, and its pages change only with it; so a registration that is found by id is right, and
/// memory that lies at the same address later is another segment, or none.
class RdmaRegistrations {
 public:
  /// The registrations of memory that holds `bytes`, [devices]; empty if no segment does, or if an
  /// adapter refuses it. `rank`: for the log.
  [[nodiscard]] std::span<const RdmaMemory> find(
      std::span<const std::byte> bytes, std::span<const std::shared_ptr<RdmaDevice>> devices,
      int rank);
  /// Lets go of the memory of segments that are no more. Cheap while there are none.
  void refresh();
  /// Windows registered so far, each with all devices.
  [[nodiscard]] std::uint64_t made() const { return made_; }

 private:
  struct Window {
    bool tried = false;
    std::vector<RdmaMemory> memory;  // [devices]; empty: refused
  };
  struct Entry {
    Segment segment;
    std::size_t window_bytes = 0;
    std::vector<Window> windows;
  };

  void make(Window& window, std::span<std::byte> bytes,
            std::span<const std::shared_ptr<RdmaDevice>> devices, int rank);

  std::uint64_t generation_ = 0;
  std::vector<Entry> entries_;  // all segments of this process
  std::uint64_t made_ = 0;
};

}  // namespace chorus
