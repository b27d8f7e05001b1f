// What the cuda backend needs of a GPU: memory, products of matrices, the kernels of kernels.hpp,
// and lanes for communication. There are two: a true one (cuda_gpu.cu, a module of its own), and
// the host in its place (emulated_gpu.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/arena.hpp"
#include "ops/kernels.hpp"

namespace trainer {

/// C [m, n] = alpha · op(A) · op(B) + beta · C, row-major, `batch` times, from one to the next
/// a_stride, b_stride, c_stride elements. C is of float (double where the host emulates); A and B
/// are alike, or both Bfloat16.
struct Gemm {
  bool a_transposed = false, b_transposed = false;
  int m = 0, n = 0, k = 0;
  const void* A = nullptr;
  int lda = 0;
  const void* B = nullptr;
  int ldb = 0;
  void* C = nullptr;
  int ldc = 0;
  double alpha = 1, beta = 0;
  int batch = 1;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool bfloat16 = false;
  bool doubles = false;
};

/// A moment on the device, whose time is known once it has passed (Gpu::keep_time).
struct Stamp {
  std::uint32_t round = 0;  ///< of keep_time(); 0: none was kept
  std::uint32_t index = 0;
};

/// Work in order of its own, beside the computation.
class Lane {
 public:
  struct Started {
    std::uint64_t number = 0;  ///< for join()
    Stamp begin, end;
  };
  virtual ~Lane() = default;
  /// Runs, after all that has been started on it and all computation so far, what `enqueue` puts
  /// into the stream it is given (null where the host emulates: it then runs at once).
  virtual Started start(std::function<void(void* stream)> enqueue) = 0;
  /// Computation from now on comes after that work.
  virtual void join(std::uint64_t number) = 0;
  /// Returns when all of it has run. Errors were told by join().
  virtual void finish() noexcept = 0;
};

/// One rank's share of a GPU. Work runs in the order of calls; only finish(), copies to the host
/// and a Lane's errors wait for it.
class Gpu : public DeviceMemory {
 public:
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual bool emulated() const = 0;
  /// Between any two places; memory of the host is read before, and written when, this returns.
  virtual void copy(void* to, const void* from, std::size_t size_bytes) = 0;
  virtual void zero(void* memory, std::size_t size_bytes) = 0;
  virtual void gemm(const Gemm& how) = 0;
  /// The kernel at 0, 1, … count − 1.
  virtual void launch(const Kernel<float>& kernel, std::size_t count) = 0;
  virtual void launch(const Kernel<double>& kernel, std::size_t count) = 0;
  virtual void finish() = 0;
  [[nodiscard]] virtual std::unique_ptr<Lane> make_lane() = 0;

  /// From now on the next `most` moments are kept: of stamp(), and where the work of lanes begins
  /// and ends. 0: none any more. Those of the round before are forgotten. Returns the round, from 1
  /// on.
  virtual std::uint32_t keep_time(std::size_t most) = 0;
  /// When all computation so far is done, and what it waits for.
  [[nodiscard]] virtual Stamp stamp() = 0;
  /// Seconds from keep_time() to `stamp`, which is of the last round; waits until it has passed.
  [[nodiscard]] virtual double seconds(Stamp stamp) = 0;
};

/// The host in a GPU's place: kernels run block by block, products are those of the cpu backend,
/// and what travels is memory of the host. Shows what the cuda backend computes and in which order
/// it communicates; of speed, nothing.
[[nodiscard]] std::unique_ptr<Gpu> emulate_gpu();

/// A GPU for `rank` of the ranks of this machine, which take turns where they outnumber GPUs.
/// Throws chorus::InputError saying why there is none and what to do: this build has no CUDA
/// module, or there is no driver or device.
[[nodiscard]] std::unique_ptr<Gpu> open_gpu(int rank);

/// Multiplications and additions per second of its matrix product of 4096 (emulated: 256) rows, ×2:
/// the best of several tries.
[[nodiscard]] double measured_gemm_peak(Gpu& gpu, bool bfloat16);

}  // namespace trainer
