// What torch's element types and reductions are to Chorus.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/version.h>

#include <cstddef>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "chorus/types.hpp"

namespace chorus_torch {

/// A tensor's elements as Chorus counts them: complex numbers are two of their parts.
struct Elements {
  chorus::DataType type;
  std::size_t each = 1;   ///< Chorus elements per element of the tensor
  bool reducible = true;  ///< false: only moved
};

/// Any type of torch can be moved; those that Chorus does not know go as bits of their size.
inline Elements elements_of(at::ScalarType type) {
  using chorus::DataType;
  switch (type) {
    case at::kBool:
    case at::kByte:
      return {DataType::uint8};
    case at::kChar:
      return {DataType::int8};
    case at::kShort:
      return {DataType::int16};
    case at::kInt:
      return {DataType::int32};
    case at::kLong:
      return {DataType::int64};
    case at::kHalf:
      return {DataType::float16};
    case at::kBFloat16:
      return {DataType::bfloat16};
    case at::kFloat:
      return {DataType::float32};
    case at::kDouble:
      return {DataType::float64};
    case at::kComplexFloat:
      return {DataType::float32, 2};
    case at::kComplexDouble:
      return {DataType::float64, 2};
#if TORCH_VERSION_MAJOR >= 2
    case at::kUInt16:
      return {DataType::uint16};
    case at::kUInt32:
      return {DataType::uint32};
    case at::kUInt64:
      return {DataType::uint64};
    case at::kFloat8_e4m3fn:
      return {DataType::float8_e4m3};
    case at::kFloat8_e5m2:
      return {DataType::float8_e5m2};
#endif
    default:
      return {DataType::uint8, c10::elementSize(type), false};
  }
}

/// "Float[4]", for messages.
inline std::string shape(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + "[" + std::to_string(tensor.numel()) +
         "]";
}

/// A bitwise reduction; of bool it is the logical one.
inline chorus::Reduction bits(chorus::ReduceOp op, at::ScalarType type, std::string& why) {
  if (c10::isComplexType(type) || !chorus::applies(op, elements_of(type).type)) {
    why = "BAND, BOR and BXOR combine the bits of integers and bool, not of " +
          std::string(c10::toString(type));
  }
  return op;
}

/// The reduction, or in `why` the reason that there is none. Sums of bool are logical or.
inline chorus::Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type,
                                      std::string& why) {
  using chorus::ReduceOp;
  const bool is_complex = c10::isComplexType(type);
  if (!elements_of(type).reducible) {
    why = std::string("elements of type ") + c10::toString(type) + " cannot be reduced";
    return {};
  }
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return type == at::kBool ? ReduceOp::max : ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      if (type == at::kBool) why = "AVG of bool has no meaning";
      return ReduceOp::avg;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) {
        why = "PREMUL_SUM came without its factor";
        return {};
      }
      if (type == at::kBool) why = "PREMUL_SUM of bool has no meaning";
#if TORCH_VERSION_MAJOR >= 2
      if (factor->tensor_factor.defined()) {
        return {ReduceOp::sum, factor->tensor_factor.item<double>()};
      }
#else
      if (!factor->tensor_factors.empty()) {
        return {ReduceOp::sum, factor->tensor_factors.front().item<double>()};
      }
#endif
      return {ReduceOp::sum, factor->double_factor};
    }
    case c10d::ReduceOp::PRODUCT:
      if (is_complex) why = "PRODUCT of complex numbers is not supported";
      return ReduceOp::prod;
    case c10d::ReduceOp::MIN:
      if (is_complex) why = "complex numbers have no order: MIN is not supported";
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      if (is_complex) why = "complex numbers have no order: MAX is not supported";
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return bits(ReduceOp::band, type, why);
    case c10d::ReduceOp::BOR:
      return bits(ReduceOp::bor, type, why);
    case c10d::ReduceOp::BXOR:
      return bits(ReduceOp::bxor, type, why);
    default:
      why = "there is no reduction " +
            std::to_string(static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(op)));
      return {};
  }
}

}  // namespace chorus_torch
