// The cuda backend of Ops.
#pragma once

#include <memory>

#include "ops/gpu.hpp"
#include "ops/ops.hpp"

namespace trainer {

/// Products of matrices by cuBLASLt, everything else by the kernels of kernels.hpp. Attention takes
/// tiles of queries against all keys up to them, as batched products with the softmax between, so
/// that its memory is linear in T. Under bfloat16 both factors of a product are rounded by a
/// kernel; sums are of float32. Scratch memory grows to what the first step needs. `gpu` null: only
/// to be asked what it would take. R double is for checks, where the host emulates the GPU.
template <class R>
[[nodiscard]] std::unique_ptr<Ops<R>> make_cuda_ops(Gpu* gpu, Precision precision);

}  // namespace trainer
