// What registers hold, as the types that instructions name.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "module.hpp"

namespace ptx {

template <class T>
T from_bits(std::uint64_t bits) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<double>(bits);
  } else {
    return static_cast<T>(bits);
  }
}
template <class T>
std::uint64_t to_bits(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(value);
  } else {
    return static_cast<std::make_unsigned_t<T>>(value);
  }
}

/// Calls f(T{}) for the C++ type of `type`.
template <class F>
void with_type(Type type, F&& f) {
  switch (type) {
    case Type::b16:
    case Type::u16:
      return f(std::uint16_t{});
    case Type::s16:
      return f(std::int16_t{});
    case Type::b32:
    case Type::u32:
      return f(std::uint32_t{});
    case Type::s32:
      return f(std::int32_t{});
    case Type::b64:
    case Type::u64:
      return f(std::uint64_t{});
    case Type::s64:
      return f(std::int64_t{});
    case Type::f32:
      return f(float{});
    case Type::f64:
      return f(double{});
    case Type::b8:
    case Type::u8:
      return f(std::uint8_t{});
    case Type::s8:
      return f(std::int8_t{});
    default:
      throw std::runtime_error("PTX: arithmetic on a type that this does not know");
  }
}

template <class T>
constexpr bool kInteger = std::is_integral_v<T>;

}  // namespace ptx
