// Small binary messages between ranks: written in order, read back with every bound checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chorus {

/// Appends little-endian integers, strings and byte runs.
class BlobWriter {
 public:
  void u32(std::uint32_t value) { append(&value, sizeof value); }
  void u64(std::uint64_t value) { append(&value, sizeof value); }
  void bytes(std::span<const std::byte> data) {
    u32(static_cast<std::uint32_t>(data.size()));
    append(data.data(), data.size());
  }
  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }

  [[nodiscard]] std::span<const std::byte> view() const { return data_; }

 private:
  void append(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    data_.insert(data_.end(), begin, begin + size);
  }
  std::vector<std::byte> data_;
};

/// Reads what BlobWriter wrote. Past the end everything reads as nothing, and ok() turns false.
class BlobReader {
 public:
  explicit BlobReader(std::span<const std::byte> data) : rest_(data) {}

  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::span<const std::byte> bytes() { return take(u32()); }
  std::string text() {
    const auto data = bytes();
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  template <class T>
  T number() {
    const auto data = take(sizeof(T));
    T value = 0;
    if (data.size() == sizeof(T)) std::memcpy(&value, data.data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace chorus
