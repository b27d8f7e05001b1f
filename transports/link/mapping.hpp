// Memory mapped into this process.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace chorus {

class Mapping {
 public:
  Mapping() = default;
  /// `bytes` of the file `fd` from `offset` on, shared with all who map it. Throws LinkError.
  Mapping(int fd, std::size_t offset, std::size_t bytes);
  /// Fresh memory of this process. Pages that nobody touches cost nothing. Throws LinkError.
  static Mapping anonymous(std::size_t bytes);
  Mapping(Mapping&& other) noexcept : span_(std::exchange(other.span_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(span_, other.span_);
    return *this;
  }
  ~Mapping();

  [[nodiscard]] std::span<std::byte> span() const { return span_; }

 private:
  std::span<std::byte> span_;  // page aligned
};

}  // namespace chorus
