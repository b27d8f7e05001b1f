// A shared secret and proofs of knowing it. Keeps strangers out; it is no encryption.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace chorus {

/// 128 bits.
struct Secret {
  std::array<std::uint8_t, 16> bytes{};

  bool operator==(const Secret&) const = default;

  /// From the kernel's random numbers. Throws BootstrapError if there are none.
  static Secret random();
  /// 32 hex digits. Throws InputError for anything else.
  static Secret parse(std::string_view hex);
  [[nodiscard]] std::string text() const;
  /// The secret of something that belongs to this one, by name ("comm 3").
  [[nodiscard]] Secret derive(std::string_view purpose) const;
};

/// SipHash-2-4 with 128-bit output of `message` under `secret` (Aumasson & Bernstein, 2012).
using Proof = std::array<std::uint8_t, 16>;
[[nodiscard]] Proof prove(const Secret& secret, std::span<const std::byte> message);
/// Compares without leaking the position of the first difference.
[[nodiscard]] bool same(const Proof& a, const Proof& b);

}  // namespace chorus
