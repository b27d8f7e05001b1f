// The part of DLPack that is read here, as its specification lays it out (version 0 and, behind the
// same capsule name, 1): https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace chorus_python::dlpack {

enum class Device : std::int32_t { cpu = 1, cuda_host = 3, rocm_host = 11 };
enum class Code : std::uint8_t {
  integer = 0,
  unsigned_integer = 1,
  floating = 2,
  bfloat = 4,
  complex_floating = 5,
  boolean = 6,
  float8_e4m3fn = 10,
  float8_e5m2 = 12,
};

/// DLTensor.
struct Tensor {
  void* data;
  Device device;
  std::int32_t device_id;
  std::int32_t dimensions;
  Code code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // null: in one piece, the last dimension closest together
  std::uint64_t byte_offset;
};

}  // namespace chorus_python::dlpack
