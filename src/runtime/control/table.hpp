// What an exchange gave, and how it comes to the ranks of a host without a copy for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "runtime/control/wire.hpp"

namespace chorus {

/// A blob of each member of an exchange, in their order. A value: copies refer to the same bytes,
/// which stay where they came, in memory that the ranks of a host share or in this rank's own.
class Table {
 public:
  Table() = default;
  /// Of one member.
  explicit Table(std::span<const std::byte> blob);
  /// `body` (write()) lives as long as `owner`. Throws wire::Malformed.
  Table(std::shared_ptr<const void> owner, std::span<const std::byte> body);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  /// As long as a table of these bytes is there.
  [[nodiscard]] std::span<const std::byte> operator[](std::size_t member) const&;
  std::span<const std::byte> operator[](std::size_t member) const&& = delete;

  class Iterator {
   public:
    Iterator(const Table& table, std::size_t at) : table_(&table), at_(at) {}
    std::span<const std::byte> operator*() const { return (*table_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const Table* table_;
    std::size_t at_;
  };
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size_}; }

  /// How many blobs, where each ends, and the blobs: whichever is wanted is found without reading
  /// those before it.
  static void write(wire::Writer& to, std::span<const std::span<const std::byte>> blobs);

 private:
  std::shared_ptr<const void> owner_;
  std::size_t size_ = 0;
  std::span<const std::byte> ends_, blobs_;
};

/// A frame in memory without a name, which processes of this machine open through /proc. Nobody can
/// change it any more.
class SharedFrame {
 public:
  /// Frames of at least so many bytes are worth it.
  static constexpr std::size_t kWorthBytes = 16 * 1024;

  /// Null where the system gives no memory or no descriptor.
  static std::shared_ptr<const SharedFrame> make(const wire::Frame& frame);

  /// Where it is, as a frame; the receiver answers by `number`.
  [[nodiscard]] wire::Frame reference(std::uint64_t number) const;
  /// What a body of such a reference refers to.
  struct Opened {
    std::uint64_t number = 0;
    std::shared_ptr<const void> owner;  ///< null: it cannot be opened
    wire::Type type{};
    std::span<const std::byte> body = {};
    std::string why_not = {};
  };
  /// Throws wire::Malformed if what is there is no frame.
  static Opened open(wire::Reader reference);

 private:
  SharedFrame(Fd memory, std::uint64_t inode, std::size_t size_bytes)
      : memory_(std::move(memory)), inode_(inode), size_bytes_(size_bytes) {}

  Fd memory_;
  std::uint64_t inode_;
  std::size_t size_bytes_;
};

}  // namespace chorus
