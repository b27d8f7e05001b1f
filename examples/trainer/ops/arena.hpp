// One arena per rank: every tensor lives in it, nothing is allocated while training.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "chorus/error.hpp"

namespace trainer {

/// What memory is used for; the rows of the memory report.
enum class Use : std::uint8_t { parameters, gradients, optimizer, activations, scratch };
inline constexpr std::array<const char*, 5> kUseNames = {"parameters", "gradients", "optimizer",
                                                         "activations", "scratch"};

/// The same elements for the host and for the device, which may be one place.
template <class T>
struct Both {
  T* host = nullptr;
  T* device = nullptr;

  [[nodiscard]] Both from(std::size_t at) const { return {host + at, device + at}; }
};

/// Where memory comes from that the host does not reach.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Zeroed, aligned to 256 bytes.
  [[nodiscard]] virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
};

/// Address space taken once and handed out from its start. A run is laid out twice by the same
/// code: first by an arena without memory, which only counts, then by one of exactly that size.
/// Pages that are never touched cost nothing.
class Arena {
 public:
  /// Counts only: take() returns null. `apart`: for a device that is not the host.
  explicit Arena(bool apart = false) : apart_(apart) {}

  /// Of the sizes that `counted` found; what the device uses comes from `device` where it is apart.
  explicit Arena(const Arena& counted, DeviceMemory* device)
      : apart_(counted.apart_), device_(device) {
    main_.size_bytes = counted.main_.used_bytes;
    host_.size_bytes = counted.host_.used_bytes;
    if (apart_ && device_ == nullptr) throw chorus::Error("an arena without its device");
    main_.memory = apart_ ? static_cast<std::byte*>(device_->allocate(main_.size_bytes))
                          : map(main_.size_bytes);
    host_.memory = map(host_.size_bytes);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (apart_ && main_.memory != nullptr) device_->release(main_.memory);
    if (!apart_ && main_.memory != nullptr) munmap(main_.memory, main_.size_bytes);
    if (host_.memory != nullptr) munmap(host_.memory, host_.size_bytes);
  }

  /// [count] zeroed elements for the device, aligned to 64 bytes.
  template <class T>
  T* take(std::size_t count, Use use) {
    by_use_[static_cast<std::size_t>(use)] += rounded(count * sizeof(T));
    return static_cast<T*>(main_.take(rounded(count * sizeof(T))));
  }
  /// The same for the host.
  template <class T>
  T* take_host(std::size_t count, Use use) {
    if (!apart_) return take<T>(count, use);
    return static_cast<T*>(host_.take(rounded(count * sizeof(T))));
  }
  template <class T>
  Both<T> take_both(std::size_t count, Use use) {
    T* const device = take<T>(count, use);
    return {apart_ ? take_host<T>(count, use) : device, device};
  }

  /// On the device.
  [[nodiscard]] std::size_t used_bytes() const { return main_.used_bytes; }
  [[nodiscard]] std::size_t used_bytes(Use use) const {
    return by_use_[static_cast<std::size_t>(use)];
  }

 private:
  struct Pool {
    std::byte* memory = nullptr;
    std::size_t size_bytes = 0;
    std::size_t used_bytes = 0;

    void* take(std::size_t bytes) {
      const std::size_t at = used_bytes;
      used_bytes += bytes;
      if (memory == nullptr) return nullptr;
      if (used_bytes > size_bytes) {
        throw chorus::Error("the arena of " + std::to_string(size_bytes) +
                            " bytes is too small: the two layouts of a run differ");
      }
      return memory + at;
    }
  };
  static std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  static std::byte* map(std::size_t size_bytes) {
    if (size_bytes == 0) return nullptr;
    // The system would promise more than it has, and end the process when it is used.
    const auto machine = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* memory = MAP_FAILED;
    if (size_bytes <= machine) {
      memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (memory == MAP_FAILED) {
      throw chorus::InputError("the layout needs " + std::to_string(size_bytes >> 20) +
                               " MiB per rank, which the system with its " +
                               std::to_string(machine >> 20) +
                               " MiB does not give: shard more (--zero, --tp, --pp) or recompute "
                               "(--recompute full)");
    }
    return static_cast<std::byte*>(memory);
  }

  bool apart_ = false;
  DeviceMemory* device_ = nullptr;
  Pool main_, host_;
  std::array<std::size_t, 5> by_use_ = {};
};

}  // namespace trainer
