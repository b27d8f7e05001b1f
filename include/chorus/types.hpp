// Element types and reductions.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "chorus/export.hpp"

namespace chorus {

/// Element types of the collectives. Values and names are part of the file formats.
enum class DataType : std::uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  float8_e4m3,  ///< OCP 8-bit float, 4 exponent bits, no infinity
  float8_e5m2,  ///< OCP 8-bit float, 5 exponent bits
};
inline constexpr int kNumDataTypes = 14;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
    case DataType::float8_e4m3:
    case DataType::float8_e5m2:
      return 1;
    case DataType::int16:
    case DataType::uint16:
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::int32:
    case DataType::uint32:
    case DataType::float32:
      return 4;
    case DataType::int64:
    case DataType::uint64:
    case DataType::float64:
      return 8;
  }
  return 0;
}

/// Elementwise combination of contributions. `avg` is the sum divided by the world size (integers
/// round towards zero). Integer sums and products wrap. Types narrower than float32 are combined
/// in float32 and rounded to nearest even once per fold. min and max return NaN if either is NaN.
/// band, bor and bxor combine the bits of integers (MPI's names), in host memory.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, band, bor, bxor };
inline constexpr int kNumReduceOps = 8;

[[nodiscard]] constexpr bool is_integer(DataType type) { return type <= DataType::uint64; }
[[nodiscard]] constexpr bool is_bitwise(ReduceOp op) { return op >= ReduceOp::band; }
/// Every operation takes every type, but for the bitwise ones, which take integers.
[[nodiscard]] constexpr bool applies(ReduceOp op, DataType type) {
  return !is_bitwise(op) || is_integer(type);
}

/// A reduction: an operation and, for sums, a factor that multiplies this rank's contribution
/// before it is added (NCCL's PreMulSum). `Reduction{ReduceOp::sum, 0.5}` is a scaled sum.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double scale = 1.0;

  constexpr Reduction() = default;
  constexpr Reduction(ReduceOp operation, double factor = 1.0) : op(operation), scale(factor) {}

  bool operator==(const Reduction&) const = default;
};

/// "float32", "sum": the names used in messages, files and on the command line.
[[nodiscard]] CHORUS_API std::string_view name_of(DataType type);
[[nodiscard]] CHORUS_API std::string_view name_of(ReduceOp op);

/// Storage-only narrow floats: the bits, and conversions through float (round to nearest even).
struct CHORUS_API Float16 {
  std::uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
  bool operator==(const Float16&) const = default;
};
struct CHORUS_API BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
  bool operator==(const BFloat16&) const = default;
};
/// Values beyond ±448 become ±448 (saturation), NaN stays NaN.
struct CHORUS_API Float8E4M3 {
  std::uint8_t bits = 0;
  Float8E4M3() = default;
  explicit Float8E4M3(float value);
  explicit operator float() const;
  bool operator==(const Float8E4M3&) const = default;
};
/// Values beyond ±57344 become ±57344 (saturation); infinities and NaN stay.
struct CHORUS_API Float8E5M2 {
  std::uint8_t bits = 0;
  Float8E5M2() = default;
  explicit Float8E5M2(float value);
  explicit operator float() const;
  bool operator==(const Float8E5M2&) const = default;
};

namespace detail {
template <class T>
struct DataTypeOf;
template <>
struct DataTypeOf<std::int8_t> {
  static constexpr auto value = DataType::int8;
};
template <>
struct DataTypeOf<std::uint8_t> {
  static constexpr auto value = DataType::uint8;
};
template <>
struct DataTypeOf<std::int16_t> {
  static constexpr auto value = DataType::int16;
};
template <>
struct DataTypeOf<std::uint16_t> {
  static constexpr auto value = DataType::uint16;
};
template <>
struct DataTypeOf<std::int32_t> {
  static constexpr auto value = DataType::int32;
};
template <>
struct DataTypeOf<std::uint32_t> {
  static constexpr auto value = DataType::uint32;
};
template <>
struct DataTypeOf<std::int64_t> {
  static constexpr auto value = DataType::int64;
};
template <>
struct DataTypeOf<std::uint64_t> {
  static constexpr auto value = DataType::uint64;
};
template <>
struct DataTypeOf<Float16> {
  static constexpr auto value = DataType::float16;
};
template <>
struct DataTypeOf<BFloat16> {
  static constexpr auto value = DataType::bfloat16;
};
template <>
struct DataTypeOf<float> {
  static constexpr auto value = DataType::float32;
};
template <>
struct DataTypeOf<double> {
  static constexpr auto value = DataType::float64;
};
template <>
struct DataTypeOf<Float8E4M3> {
  static constexpr auto value = DataType::float8_e4m3;
};
template <>
struct DataTypeOf<Float8E5M2> {
  static constexpr auto value = DataType::float8_e5m2;
};
}  // namespace detail

/// A C++ type that a collective can carry.
template <class T>
concept Element = requires {
  detail::DataTypeOf<T>::value;
};

template <Element T>
inline constexpr DataType kDataType = detail::DataTypeOf<T>::value;

}  // namespace chorus
