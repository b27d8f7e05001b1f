// One arena per rank: every tensor lives in it, nothing is allocated while training.
#pragma once

#include <sys/mman.h>

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

/// Address space taken once and handed out from its start. A run is laid out twice by the same
/// code: first by an arena without memory, which only counts, then by one of exactly that size.
/// Pages that are never touched cost nothing.
class Arena {
 public:
  /// Counts only: take() returns null.
  Arena() = default;

  explicit Arena(std::size_t size_bytes) : size_bytes_(size_bytes) {
    if (size_bytes == 0) return;
    void* memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw chorus::InputError("the layout needs " + std::to_string(size_bytes >> 20) +
                               " MiB per rank, which the system does not give: shard more (--zero, "
                               "--tp, --pp) or recompute (--recompute full)");
    }
    memory_ = static_cast<std::byte*>(memory);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (memory_ != nullptr) munmap(memory_, size_bytes_);
  }

  /// [count] zeroed elements, aligned to 64 bytes.
  template <class T>
  T* take(std::size_t count, Use use) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    const std::size_t at = used_bytes_;
    used_bytes_ += bytes;
    by_use_[static_cast<std::size_t>(use)] += bytes;
    if (memory_ == nullptr) return nullptr;
    if (used_bytes_ > size_bytes_) {
      throw chorus::Error("the arena of " + std::to_string(size_bytes_) +
                          " bytes is too small: the two layouts of a run differ");
    }
    return reinterpret_cast<T*>(memory_ + at);
  }

  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::size_t used_bytes(Use use) const {
    return by_use_[static_cast<std::size_t>(use)];
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::array<std::size_t, 5> by_use_ = {};
};

}  // namespace trainer
