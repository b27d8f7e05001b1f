// What goes ahead of each message between two ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "chorus/types.hpp"

namespace chorus_torch {

/// Tells its receiver which of the receives that wait it is for, and brings all of a short message
/// along. Its size is the same for all, so that it can be received before anything is known.
struct Envelope {
  static constexpr std::size_t kInside = 104;

  std::int64_t tag = 0;
  std::uint64_t count = 0;
  chorus::DataType type = chorus::DataType::uint8;
  std::array<std::byte, kInside> inside{};

  [[nodiscard]] std::size_t bytes() const { return count * chorus::size_of(type); }
  /// Otherwise the message follows.
  [[nodiscard]] bool is_whole() const { return bytes() <= kInside; }
  /// "message(count 3, float32)"
  [[nodiscard]] std::string described() const {
    return "message(count " + std::to_string(count) + ", " + std::string(chorus::name_of(type)) +
           ")";
  }
};
static_assert(sizeof(Envelope) == 128);

}  // namespace chorus_torch
