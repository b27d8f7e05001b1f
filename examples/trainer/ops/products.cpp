#include "ops/products.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>

#include "ops/onednn.hpp"

namespace trainer {
namespace {

CBLAS_TRANSPOSE of(Op op) { return op == Op::transposed ? CblasTrans : CblasNoTrans; }

/// Debian's OpenBLAS takes these on Intel's processors alone: on an AMD EPYC (Zen 5) its kernels of
/// AVX2 reach 113 GFLOP/s where oneDNN's reach 230.
bool openblas_has_avx512() {
  const std::string_view core = openblas_get_corename();
  return core == "SkylakeX" || core == "Cooperlake" || core == "Sapphirerapids" ||
         core == "SapphireRapids";
}

bool by_onednn(Precision precision) {
  static const bool full = onednn::multiplies(Precision::full) && !openblas_has_avx512();
  static const bool bfloat16 = onednn::multiplies(Precision::bfloat16);
  return precision == Precision::full ? full : bfloat16;
}

/// x [rows, cols] without gaps between rows.
const float* expanded(std::vector<float>& into, const Bfloat16* x, int rows, int cols, int ld) {
  const auto width = static_cast<std::size_t>(cols);
  const std::size_t count = static_cast<std::size_t>(rows) * width;
  if (into.size() < count) into.resize(count);
  for (int i = 0; i < rows; ++i) {
    const Bfloat16* from = x + std::size_t(i) * ld;
    float* to = into.data() + std::size_t(i) * width;
    for (std::size_t j = 0; j < width; ++j) to[j] = kernel::expanded(from[j]);
  }
  return into.data();
}

template <class T>
double peak() {
  constexpr int kSide = 512;
  constexpr std::size_t kCount = std::size_t(kSide) * kSide;
  T value;
  kernel::store(value, 0.5F);
  const std::vector<T> a(kCount, value), b(kCount, value);
  std::vector<float> c(kCount, 0.0F);
  Products products;
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [](auto t) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
  };
  // Many tries: on a busy machine a single one may be interrupted.
  for (int tries = 0; tries < 24 || since(begin) < 0.1; ++tries) {
    const auto start = std::chrono::steady_clock::now();
    products.multiply(Op::as_is, Op::transposed, kSide, kSide, kSide, 1.0F, a.data(), kSide,
                      b.data(), kSide, 0.0F, c.data(), kSide);
    best = std::max(best, 2.0 * kSide * kSide * kSide / since(start));
  }
  return best;
}

}  // namespace

Products::Products() { openblas_set_num_threads(1); }

void Products::multiply(Op a, Op b, int m, int n, int k, float alpha, const float* A, int lda,
                        const float* B, int ldb, float beta, float* C, int ldc) {
  if (by_onednn(Precision::full) && k > 0) {
    onednn::multiply(a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
  } else {
    cblas_sgemm(CblasRowMajor, of(a), of(b), m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
  }
}

void Products::multiply(Op a, Op b, int m, int n, int k, double alpha, const double* A, int lda,
                        const double* B, int ldb, double beta, double* C, int ldc) {
  cblas_dgemm(CblasRowMajor, of(a), of(b), m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}

void Products::multiply(Op a, Op b, int m, int n, int k, float alpha, const Bfloat16* A, int lda,
                        const Bfloat16* B, int ldb, float beta, float* C, int ldc) {
  if (by_onednn(Precision::bfloat16) && k > 0) {
    onednn::multiply(a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
    return;
  }
  const bool ta = a == Op::transposed;
  const bool tb = b == Op::transposed;
  const float* left = expanded(left_, A, ta ? k : m, ta ? m : k, lda);
  const float* right = expanded(right_, B, tb ? n : k, tb ? k : n, ldb);
  multiply(a, b, m, n, k, alpha, left, ta ? m : k, right, tb ? k : n, beta, C, ldc);
}

std::string products_by(Precision precision) {
  if (by_onednn(precision)) return onednn::name();
  if (precision == Precision::bfloat16) {
    return "emulation in float32 by " + products_by(Precision::full);
  }
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
  const std::string_view config = openblas_get_config();
  return fmt::format("{} ({})", config.substr(0, config.find(' ', config.find(' ') + 1)),
                     openblas_get_corename());
}

double measured_gemm_peak(Precision precision) {
  return precision == Precision::full ? peak<float>() : peak<Bfloat16>();
}

}  // namespace trainer
