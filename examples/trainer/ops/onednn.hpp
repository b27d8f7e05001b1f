// oneDNN, where CMake found it.
#pragma once

#include <string>

#include "ops/products.hpp"

namespace trainer::onednn {

/// Whether it was built in, computes on the calling thread when asked to, and the processor has
/// AVX-512, or instructions for products of bfloat16 (AVX-512 or AMX).
[[nodiscard]] bool multiplies(Precision precision);
/// Its version and the instructions that it uses.
[[nodiscard]] std::string name();

/// As Products::multiply, where it multiplies() these.
void multiply(Op a, Op b, int m, int n, int k, float alpha, const float* A, int lda, const float* B,
              int ldb, float beta, float* C, int ldc);
void multiply(Op a, Op b, int m, int n, int k, float alpha, const Bfloat16* A, int lda,
              const Bfloat16* B, int ldb, float beta, float* C, int ldc);

}  // namespace trainer::onednn
