// Memory that adapters reach and the processor does not: a GPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace chorus {

/// A piece of it, exported as a dma-buf. Its owner keeps it, as it is, until no link has it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  [[nodiscard]] virtual int descriptor() const = 0;         ///< of the dma-buf, of all of it
  [[nodiscard]] virtual std::uint64_t address() const = 0;  ///< of its first byte, for its owner
  [[nodiscard]] virtual std::size_t size() const = 0;       ///< bytes

  // Slow ways in and out, for what adapters cannot carry. They return when it is done; they throw
  // DeviceError.
  virtual void read(std::uint64_t from, std::span<std::byte> to) = 0;
  virtual void write(std::uint64_t to, std::span<const std::byte> from) = 0;

  [[nodiscard]] bool holds(std::uint64_t at, std::size_t bytes) const {
    return at >= address() && at - address() <= size() && bytes <= size() - (at - address());
  }
};

/// A link whose adapters may read from and write into such memory. Both are to be called before the
/// link is first used; both throw LinkError with the reason if an adapter does not reach the
/// memory, and then all is as before.
class ReachesOutside {
 public:
  virtual ~ReachesOutside() = default;

  /// try_put() takes as `src` also addresses in [at, at + bytes) of `memory`, whatever the size of
  /// the put. They are read by the adapters alone; when none is left, through DeviceMemory::read.
  virtual void send_from(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                         std::size_t bytes) = 0;
  /// The first `bytes` of the region are [at, at + bytes) of `memory`: the peer's puts land there,
  /// and may not reach beyond. What region() gives is then no more than room of the link's own.
  /// Whoever reads the memory makes sure that it sees what adapters have written.
  virtual void land_in(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                       std::size_t bytes) = 0;
};

}  // namespace chorus
