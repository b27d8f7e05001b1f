// Products of matrices on the host: OpenBLAS, and oneDNN where it is faster.
#pragma once

#include <string>
#include <vector>

#include "ops/bfloat16.hpp"

namespace trainer {

/// What matrix products multiply; everything else, sums included, is computed in R.
enum class Precision : std::uint8_t {
  full,
  /// Both factors rounded to bfloat16, to nearest and even; their products are exact in float32,
  /// where they are added.
  bfloat16,
};

enum class Op : std::uint8_t { as_is, transposed };

/// C [m, n] = alpha · op(A) · op(B) + beta · C, row-major; lda, ldb, ldc: elements from row to row.
/// On the calling thread alone, whatever the environment says of OpenMP's: ranks are the
/// parallelism. What multiplies depends on the processor and the libraries, never on speed
/// measured, so equal runs give equal bits. One object per rank.
class Products {
 public:
  Products();

  /// By oneDNN where the processor has AVX-512 and OpenBLAS has no kernels of AVX-512 for it
  /// (0.3.21 has none for AMD's), else by OpenBLAS.
  void multiply(Op a, Op b, int m, int n, int k, float alpha, const float* A, int lda,
                const float* B, int ldb, float beta, float* C, int ldc);
  void multiply(Op a, Op b, int m, int n, int k, double alpha, const double* A, int lda,
                const double* B, int ldb, double beta, double* C, int ldc);
  /// Sums are of float32. By oneDNN where the processor multiplies bfloat16, which takes subnormal
  /// numbers for 0, else emulated: in float32, at more than its time and memory.
  void multiply(Op a, Op b, int m, int n, int k, float alpha, const Bfloat16* A, int lda,
                const Bfloat16* B, int ldb, float beta, float* C, int ldc);

 private:
  std::vector<float> left_, right_;  ///< factors to emulate with
};

/// Which of them is taken here: "oneDNN 2.6.3 (avx512_core_bf16)", "OpenBLAS 0.3.21 (Haswell)".
[[nodiscard]] std::string products_by(Precision precision);

/// Multiplications and additions per second of this rank's matrix product, ×2: the best of at least
/// 24 tries in 0.1 s or more.
[[nodiscard]] double measured_gemm_peak(Precision precision = Precision::full);

}  // namespace trainer
