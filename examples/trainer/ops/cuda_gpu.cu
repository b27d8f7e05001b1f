// The true GPU: a module of its own, built by nvcc where there are the toolkit and cuBLASLt, and opened
// at run time, so that `train` itself needs neither. Only compiled so far, never run on a GPU.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ops/gpu.hpp"

namespace trainer {
namespace {

[[noreturn]] void fail(const std::string& doing, const char* cause) {
  throw std::runtime_error("cuda backend: " + doing + ": " + cause);
}
void check(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) fail(doing, cudaGetErrorString(status));
}
void check(cublasStatus_t status, const std::string& doing) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(doing, cublasLtGetStatusString(status));
}

constexpr int kThreads = 256;
constexpr std::size_t kWorkspaceBytes = 64U << 20U;
/// Work of a lane that may be under way at once: as many as there are calls in flight (comm.hpp).
constexpr std::size_t kEvents = 1024;

/// The threads of one block.
struct Block {
  double* shared;  ///< [32]

  __device__ static std::size_t rank() { return threadIdx.x; }
  __device__ static std::size_t size() { return kThreads; }
  template <class T>
  __device__ T sum(T x) const {
    return over_all(x, T(0), [](T a, T b) { return a + b; });
  }
  template <class T>
  __device__ T largest(T x) const {
    return over_all(x, T(-INFINITY), [](T a, T b) { return a > b ? a : b; });
  }

 private:
  template <class T, class Fold>
  __device__ T over_all(T x, T none, Fold fold) const {
    auto* const warps = reinterpret_cast<T*>(shared);
    for (int step = 16; step > 0; step /= 2) x = fold(x, __shfl_xor_sync(0xffffffffU, x, step));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    T all = none;
    for (int warp = 0; warp < kThreads / 32; ++warp) all = fold(all, warps[warp]);
    __syncthreads();  // before the next one writes
    return all;
  }
};

template <class K>
__global__ void __launch_bounds__(kThreads) elements(const K body, const std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    body(i);
  }
}
template <class K>
__global__ void __launch_bounds__(kThreads) rows(const K body, const std::size_t count) {
  __shared__ double shared[32];
  Block block{shared};
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) body(block, i);
}

/// Events that know their time, made when they are first needed.
class Moments {
 public:
  ~Moments() {
    for (const cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  std::uint32_t keep(std::size_t most, cudaStream_t computation) {
    while (events_.size() < most + 1) {
      cudaEvent_t e = nullptr;
      check(cudaEventCreate(&e), "making an event");
      events_.push_back(e);
    }
    most_ = static_cast<std::uint32_t>(most);
    next_ = 0;
    check(cudaEventRecord(events_[0], computation), "recording an event");
    return ++round_;
  }
  Stamp record(cudaStream_t stream) {
    if (next_ == most_) return {};
    check(cudaEventRecord(events_[++next_], stream), "recording an event");
    return {round_, next_};
  }
  double seconds(Stamp stamp) const {
    float ms = 0;
    check(cudaEventSynchronize(events_.at(stamp.index)), "waiting for an event");
    check(cudaEventElapsedTime(&ms, events_.at(0), events_.at(stamp.index)), "asking for a time");
    return 1e-3 * ms;
  }

 private:
  std::vector<cudaEvent_t> events_;  ///< the first is of the round's begin
  std::uint32_t most_ = 0, next_ = 0, round_ = 0;
};

/// A stream, and one event per piece of work.
class CudaLane final : public Lane {
 public:
  CudaLane(int device, cudaStream_t computation, Moments& moments)
      : device_(device), computation_(computation), moments_(moments) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check(cudaEventCreateWithFlags(&so_far_, cudaEventDisableTiming), "making an event");
    for (cudaEvent_t& e : done_) {
      check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "making an event");
    }
  }
  ~CudaLane() override {
    finish();
    for (const cudaEvent_t e : done_) cudaEventDestroy(e);
    cudaEventDestroy(so_far_);
    cudaStreamDestroy(stream_);
  }
  Started start(std::function<void(void*)> enqueue) override {
    check(cudaSetDevice(device_), "taking the device");
    check(cudaEventRecord(so_far_, computation_), "recording an event");
    check(cudaStreamWaitEvent(stream_, so_far_, 0), "waiting for an event");
    const Stamp begin = moments_.record(stream_);
    enqueue(stream_);
    const Stamp end = moments_.record(stream_);
    ++started_;
    check(cudaEventRecord(done_[started_ % kEvents], stream_), "recording an event");
    return {started_, begin, end};
  }
  void join(std::uint64_t number) override {
    check(cudaSetDevice(device_), "taking the device");
    // An event that was used again since is of later work on the same stream: as good.
    check(cudaStreamWaitEvent(computation_, done_[number % kEvents], 0), "waiting for an event");
  }
  void finish() noexcept override { cudaStreamSynchronize(stream_); }

 private:
  int device_;
  cudaStream_t computation_;
  Moments& moments_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t so_far_ = nullptr;
  std::array<cudaEvent_t, kEvents> done_{};
  std::uint64_t started_ = 0;
};

/// A product as cuBLASLt knows it: shapes, types and what its pointers can be divided by.
using Shape = std::tuple<bool, bool, int, int, int, int, int, int, int, std::int64_t, std::int64_t,
                         std::int64_t, bool, bool, std::array<std::uint32_t, 3>>;

std::uint32_t alignment_of(const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, at & (~at + 1)));
}

/// A descriptor's attribute.
template <class T>
void set(cublasLtMatmulDesc_t of, cublasLtMatmulDescAttributes_t what, const T& value) {
  check(cublasLtMatmulDescSetAttribute(of, what, &value, sizeof value), "describing a product");
}
template <class T>
void set(cublasLtMatrixLayout_t of, cublasLtMatrixLayoutAttribute_t what, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(of, what, &value, sizeof value), "describing a matrix");
}
template <class T>
void set(cublasLtMatmulPreference_t of, cublasLtMatmulPreferenceAttributes_t what, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(of, what, &value, sizeof value), "asking for a way");
}

/// What one shape of product runs by; found once.
struct Way {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, result = nullptr;
  cublasLtMatmulHeuristicResult_t found{};
};

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int device) : device_(device) {
    check(cudaSetDevice(device), "taking the device");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "asking the device");
    name_ = properties.name;
    blocks_ = static_cast<std::size_t>(properties.multiProcessorCount) * 16;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check(cublasLtCreate(&library_), "opening cuBLASLt");
    check(cudaMalloc(&workspace_, kWorkspaceBytes), "taking cuBLASLt's workspace");
  }
  ~CudaGpu() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    for (auto& [shape, way] : ways_) {
      cublasLtMatrixLayoutDestroy(way.left);
      cublasLtMatrixLayoutDestroy(way.right);
      cublasLtMatrixLayoutDestroy(way.result);
      cublasLtMatmulDescDestroy(way.product);
    }
    cudaFree(workspace_);
    cublasLtDestroy(library_);
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool emulated() const override { return false; }
  [[nodiscard]] void* allocate(std::size_t size_bytes) override {
    enter();
    void* memory = nullptr;
    const std::string doing = "taking " + std::to_string(size_bytes >> 20) + " MiB of the GPU";
    check(cudaMalloc(&memory, std::max<std::size_t>(size_bytes, 1)), doing.c_str());
    check(cudaMemsetAsync(memory, 0, size_bytes, stream_), "clearing memory");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void copy(void* to, const void* from, std::size_t size_bytes) override {
    if (size_bytes == 0) return;
    enter();
    check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, stream_), "copying");
    // Pageable memory of the host was read when that returned; it is written when this does.
    if (!of_device(to)) finish();
  }
  void zero(void* memory, std::size_t size_bytes) override {
    if (size_bytes == 0) return;
    enter();
    check(cudaMemsetAsync(memory, 0, size_bytes, stream_), "clearing memory");
  }
  void launch(const Kernel<float>& kernel, std::size_t count) override {
    enter();
    std::visit([&](const auto& body) { start(body, count); }, kernel);
    check(cudaGetLastError(), "starting a kernel");
  }
  void launch(const Kernel<double>&, std::size_t) override {
    fail("starting a kernel", "values are float32 on a GPU");
  }
  void finish() override { check(cudaStreamSynchronize(stream_), "waiting for the GPU"); }
  [[nodiscard]] std::unique_ptr<Lane> make_lane() override {
    enter();
    return std::make_unique<CudaLane>(device_, stream_, moments_);
  }
  std::uint32_t keep_time(std::size_t most) override {
    enter();
    return moments_.keep(most, stream_);
  }
  [[nodiscard]] Stamp stamp() override {
    enter();
    return moments_.record(stream_);
  }
  [[nodiscard]] double seconds(Stamp stamp) override { return moments_.seconds(stamp); }

  void gemm(const Gemm& g) override {
    enter();
    if (g.doubles) fail("a product", "values are float32 on a GPU");
    const std::array<std::uint32_t, 3> aligned = {alignment_of(g.A), alignment_of(g.B),
                                                  alignment_of(g.C)};
    const Shape shape{g.a_transposed, g.b_transposed, g.m,   g.n,        g.k,
                      g.lda,          g.ldb,          g.ldc, g.batch,    g.a_stride,
                      g.b_stride,     g.c_stride,     g.bfloat16, g.beta != 0, aligned};
    auto found = ways_.find(shape);
    if (found == ways_.end()) found = ways_.emplace(shape, way_for(g, aligned)).first;
    const Way& way = found->second;
    const auto alpha = static_cast<float>(g.alpha);
    const auto beta = static_cast<float>(g.beta);
    check(cublasLtMatmul(library_, way.product, &alpha, g.B, way.left, g.A, way.right, &beta, g.C,
                         way.result, g.C, way.result, &way.found.algo, workspace_, kWorkspaceBytes,
                         stream_),
          "a product");
  }

 private:
  void enter() const { check(cudaSetDevice(device_), "taking the device"); }

  static bool of_device(const void* memory) {
    cudaPointerAttributes what{};
    check(cudaPointerGetAttributes(&what, memory), "asking what memory is");
    return what.type == cudaMemoryTypeDevice;
  }

  template <class K>
  void start(const K& body, std::size_t count) const {
    if constexpr (kernel::kByTeam<K>) {
      const auto blocks = static_cast<unsigned>(std::min(count, blocks_));
      rows<K><<<blocks, kThreads, 0, stream_>>>(body, count);
    } else {
      const std::size_t needed = (count + kThreads - 1) / kThreads;
      elements<K><<<static_cast<unsigned>(std::min(needed, blocks_)), kThreads, 0, stream_>>>(
          body, count);
    }
  }

  /// cuBLASLt counts by columns: to it our matrices are their transposes, and Cᵀ = op(B)ᵀ · op(A)ᵀ.
  [[nodiscard]] Way way_for(const Gemm& g, const std::array<std::uint32_t, 3>& aligned) const {
    Way way;
    const cudaDataType_t in = g.bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
    check(cublasLtMatmulDescCreate(&way.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "describing a product");
    const cublasOperation_t left = g.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t right = g.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(way.product, CUBLASLT_MATMUL_DESC_TRANSA, left);
    set(way.product, CUBLASLT_MATMUL_DESC_TRANSB, right);
    way.left = matrix(in, g.b_transposed ? g.k : g.n, g.b_transposed ? g.n : g.k, g.ldb, g.batch,
                      g.b_stride);
    way.right = matrix(in, g.a_transposed ? g.m : g.k, g.a_transposed ? g.k : g.m, g.lda, g.batch,
                       g.a_stride);
    way.result = matrix(CUDA_R_32F, g.n, g.m, g.ldc, g.batch, g.c_stride);
    cublasLtMatmulPreference_t wish = nullptr;
    check(cublasLtMatmulPreferenceCreate(&wish), "asking for a way");
    const std::uint64_t workspace = kWorkspaceBytes;
    set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned[1]);
    set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned[0]);
    set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned[2]);
    set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned[2]);
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library_, way.product, way.left, way.right, way.result,
                                       way.result, wish, 1, &way.found, &count);
    cublasLtMatmulPreferenceDestroy(wish);
    const std::string doing = "finding a way to multiply " + std::to_string(g.m) + " x " +
                              std::to_string(g.k) + " by " + std::to_string(g.n) + " columns";
    check(status, doing);
    if (count == 0) fail(doing, "cuBLASLt has none");
    return way;
  }

  static cublasLtMatrixLayout_t matrix(cudaDataType_t type, int rows, int cols, int ld, int batch,
                                       std::int64_t stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(cols), ld),
          "describing a matrix");
    if (batch == 1) return layout;
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
    return layout;
  }

  int device_;
  std::string name_;
  std::size_t blocks_ = 0;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t library_ = nullptr;
  void* workspace_ = nullptr;
  Moments moments_;
  std::map<Shape, Way> ways_;
};

}  // namespace
}  // namespace trainer

/// A new Gpu, or null and why there is none; both live as long as the caller wants.
extern "C" __attribute__((visibility("default"))) trainer::Gpu* trainer_open_gpu(int rank,
                                                                                 const char** why) {
  static std::string cause;
  try {
    int count = 0;
    trainer::check(cudaGetDeviceCount(&count), "counting devices");
    if (count == 0) throw std::runtime_error("the driver knows no device");
    return new trainer::CudaGpu(rank % count);
  } catch (const std::exception& error) {
    cause = error.what();
    *why = cause.c_str();
    return nullptr;
  }
}
