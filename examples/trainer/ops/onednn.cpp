// oneDNN's products as functions, which take any shape and allocate nothing that lasts: its
// primitives are made per shape, and rows of experts have another one in every step.
#include "ops/onednn.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include "chorus/error.hpp"

// In the library since 1.0 and in none of its headers; CMake looks for it. A and B are bfloat16.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char transa, char transb, dnnl_dim_t m, dnnl_dim_t n,
                                               dnnl_dim_t k, float alpha, const void* A,
                                               dnnl_dim_t lda, const void* B, dnnl_dim_t ldb,
                                               float beta, float* C, dnnl_dim_t ldc);

namespace trainer::onednn {
namespace {

/// One thread per rank, as told to the OpenMP that oneDNN brought along. The number is each
/// thread's own, and halves of a micro-batch have a thread each: so before every product.
class Alone {
 public:
  Alone()
      : set_threads_(reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) {
    const unsigned runtime = dnnl_version()->cpu_runtime;
    holds_ = runtime == DNNL_RUNTIME_SEQ || (runtime == DNNL_RUNTIME_OMP && set_threads_);
  }
  [[nodiscard]] bool holds() const { return holds_; }
  void keep() const {
    if (set_threads_ != nullptr) set_threads_(1);
  }

 private:
  void (*set_threads_)(int);
  bool holds_ = false;
};

const Alone& alone() {
  static const Alone one;
  return one;
}

bool has(dnnl_cpu_isa_t wanted) { return (dnnl_get_effective_cpu_isa() & wanted) == wanted; }

void check(dnnl_status_t status, int m, int n, int k) {
  if (status == dnnl_success) return;
  throw chorus::Error(
      fmt::format("oneDNN failed to multiply [{}, {}] by [{}, {}]: its status is {}", m, k, k, n,
                  static_cast<int>(status)));
}

char of(Op op) { return op == Op::transposed ? 'T' : 'N'; }

}  // namespace

bool multiplies(Precision precision) {
  // avx512_core_bf16 is within what processors with AMX have.
  return alone().holds() && has(precision == Precision::full ? dnnl_cpu_isa_avx512_core
                                                             : dnnl_cpu_isa_avx512_core_bf16);
}

std::string name() {
  const dnnl_version_t* version = dnnl_version();
  const char* isa = has(dnnl_cpu_isa_avx512_core_amx)    ? "avx512_core_amx"
                    : has(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_core_bf16"
                                                         : "avx512_core";
  return fmt::format("oneDNN {}.{}.{} ({})", version->major, version->minor, version->patch, isa);
}

void multiply(Op a, Op b, int m, int n, int k, float alpha, const float* A, int lda, const float* B,
              int ldb, float beta, float* C, int ldc) {
  alone().keep();
  check(dnnl_sgemm(of(a), of(b), m, n, k, alpha, A, lda, B, ldb, beta, C, ldc), m, n, k);
}

void multiply(Op a, Op b, int m, int n, int k, float alpha, const Bfloat16* A, int lda,
              const Bfloat16* B, int ldb, float beta, float* C, int ldc) {
  alone().keep();
  check(dnnl_gemm_bf16bf16f32(of(a), of(b), m, n, k, alpha, A, lda, B, ldb, beta, C, ldc), m, n, k);
}

}  // namespace trainer::onednn
