// FNV-1a, 64 bits (Fowler, Noll & Vo; draft-eastlake-fnv): for names of things and for noticing
// differences, not against those who want two things to look alike. Device code may use it, too.
#pragma once

#include <cstdint>
#include <string_view>

namespace chorus {

class Fnv1a {
 public:
  static constexpr std::uint64_t kBasis = 0xcbf29ce484222325;
  static constexpr std::uint64_t kPrime = 0x100000001b3;

  /// Of nothing; or goes on from a value().
  constexpr explicit Fnv1a(std::uint64_t value = kBasis) : value_(value) {}

  constexpr Fnv1a& byte(std::uint8_t byte) { return word(byte); }
  constexpr Fnv1a& bytes(std::string_view text) {
    for (const char c : text) byte(static_cast<std::uint8_t>(c));
    return *this;
  }
  /// A whole word in one step of the function, eight times as fast. Not what FNV-1a of its bytes
  /// is: its upper bits only reach upper bits of the value.
  constexpr Fnv1a& word(std::uint64_t word) {
    value_ = (value_ ^ word) * kPrime;
    return *this;
  }
  /// The same, with upper bits brought down.
  constexpr Fnv1a& stirred_word(std::uint64_t word) {
    this->word(word);
    value_ ^= value_ >> 29;
    return *this;
  }

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_;
};

}  // namespace chorus
