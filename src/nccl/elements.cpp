#include "nccl/elements.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "base/check.hpp"

namespace chorus::nccl {
namespace {

template <class T>
T at(const void* memory, std::size_t index = 0) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(memory) + index * sizeof(T), sizeof(T));
  return value;
}

/// Signed numbers wrap as their unsigned bits do.
template <class Unsigned>
void multiply_bits(void* out, const void* in, std::size_t count, const void* factor) {
  const auto times = at<Unsigned>(factor);
  for (std::size_t i = 0; i < count; ++i) {
    const auto product = static_cast<Unsigned>(at<Unsigned>(in, i) * times);
    std::memcpy(static_cast<std::byte*>(out) + i * sizeof(Unsigned), &product, sizeof product);
  }
}

}  // namespace

std::optional<DataType> type_of(ncclDataType_t type) {
  constexpr std::array<DataType, ncclNumTypes> kTypes = {
      DataType::int8,    DataType::uint8,    DataType::int32,       DataType::uint32,
      DataType::int64,   DataType::uint64,   DataType::float16,     DataType::float32,
      DataType::float64, DataType::bfloat16, DataType::float8_e4m3, DataType::float8_e5m2};
  const auto index = static_cast<unsigned>(type);
  return index < kTypes.size() ? std::optional(kTypes[index]) : std::nullopt;
}

double to_double(const void* memory, DataType type) {
  switch (type) {
    case DataType::int8:
      return at<std::int8_t>(memory);
    case DataType::uint8:
      return at<std::uint8_t>(memory);
    case DataType::int16:
      return at<std::int16_t>(memory);
    case DataType::uint16:
      return at<std::uint16_t>(memory);
    case DataType::int32:
      return at<std::int32_t>(memory);
    case DataType::uint32:
      return at<std::uint32_t>(memory);
    case DataType::int64:
      return static_cast<double>(at<std::int64_t>(memory));
    case DataType::uint64:
      return static_cast<double>(at<std::uint64_t>(memory));
    case DataType::float16:
      return static_cast<float>(at<Float16>(memory));
    case DataType::bfloat16:
      return static_cast<float>(at<BFloat16>(memory));
    case DataType::float32:
      return at<float>(memory);
    case DataType::float64:
      return at<double>(memory);
    case DataType::float8_e4m3:
      return static_cast<float>(at<Float8E4M3>(memory));
    case DataType::float8_e5m2:
      return static_cast<float>(at<Float8E5M2>(memory));
  }
  return 0;
}

void multiply(void* out, const void* in, std::size_t count, DataType type, const void* factor) {
  switch (size_of(type)) {
    case 1:
      return multiply_bits<std::uint8_t>(out, in, count, factor);
    case 2:
      // Shorts are multiplied as ints, whose overflow is undefined; there is no such type in NCCL.
      break;
    case 4:
      return multiply_bits<std::uint32_t>(out, in, count, factor);
    case 8:
      return multiply_bits<std::uint64_t>(out, in, count, factor);
    default:
      break;
  }
  CHORUS_CHECK(false, "an integer of NCCL has 1, 4 or 8 bytes");
}

}  // namespace chorus::nccl
