// NCCL's element types, and scalars of them.
#pragma once

#include <cstddef>
#include <optional>

#include "chorus/nccl.h"
#include "chorus/types.hpp"

namespace chorus::nccl {

/// Nothing for values that are no type.
[[nodiscard]] std::optional<DataType> type_of(ncclDataType_t type);

[[nodiscard]] constexpr bool is_float(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64 || type == DataType::float8_e4m3 ||
         type == DataType::float8_e5m2;
}

/// The element at `at`, any alignment.
[[nodiscard]] double to_double(const void* at, DataType type);

/// out[i] = in[i] · factor, wrapping; integers alone. `factor`: one element; any alignment; `in`
/// may equal `out`.
void multiply(void* out, const void* in, std::size_t count, DataType type, const void* factor);

}  // namespace chorus::nccl
