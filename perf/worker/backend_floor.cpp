// What the machine allows: a 2-rank all-reduce of floats with nothing around it. Both ranks'
// buffers lie in memory that both have mapped; each adds one half and stores it into both outputs
// (docs/benchmarks.md, "The floor"). It is no library: there are no checks, types or failures.
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "base/files/fd.hpp"
#include "perf/worker/backend.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace chorus::perf {
namespace {

constexpr std::size_t kHeap = std::size_t{1} << 30;  // per rank; untouched pages cost nothing
constexpr std::size_t kStreamed = std::size_t{8} << 20;

/// A flag of each rank, on lines of their own.
struct Flags {
  struct alignas(128) Flag {
    std::atomic<std::uint64_t> value;
  } of[2];
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::size_t add_vectors(const float* a, const float* b, float* x,
                                                        float* y, std::size_t n, bool streams) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 32 == 0 &&
                       reinterpret_cast<std::uintptr_t>(y) % 32 == 0;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 first = _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
    const __m256 second = _mm256_add_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8));
    if (streams && aligned) {
      _mm256_stream_ps(x + i, first);
      _mm256_stream_ps(x + i + 8, second);
      _mm256_stream_ps(y + i, first);
      _mm256_stream_ps(y + i + 8, second);
    } else {
      _mm256_storeu_ps(x + i, first);
      _mm256_storeu_ps(x + i + 8, second);
      _mm256_storeu_ps(y + i, first);
      _mm256_storeu_ps(y + i + 8, second);
    }
  }
  if (streams) _mm_sfence();
  return i;
}
#else
std::size_t add_vectors(const float*, const float*, float*, float*, std::size_t, bool) { return 0; }
#endif

class Floor final : public Backend {
 public:
  explicit Floor(const std::string& directory)
      : rank_(environment_number("CHORUS_PERF_RANK")),
        file_(::open((directory + "/heap").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (!file_ || ::ftruncate(file_.get(), static_cast<off_t>(2 * kHeap + 4096)) != 0) {
      throw std::runtime_error("no memory for the floor");
    }
    void* at =
        ::mmap(nullptr, 2 * kHeap + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (at == MAP_FAILED) throw std::runtime_error("no memory for the floor");
    base_ = static_cast<std::byte*>(at);
    flags_ = reinterpret_cast<Flags*>(base_ + 2 * kHeap);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return 2; }
  [[nodiscard]] std::string version() const override { return "shared-direct"; }
  [[nodiscard]] std::string refuse(const Operation& o) const override {
    const bool known =
        o.kind == Kind::all_reduce && o.type == DataType::float32 && o.op == ReduceOp::sum;
    return known ? "" : "the floor is known for all_reduce of float32 sums alone";
  }

  [[nodiscard]] std::function<void()> prepare(const Operation& o) override {
    if (o.kind == Kind::barrier) return [this] { meet(); };
    return [this, o] {
      const auto* in = static_cast<const float*>(o.input);
      auto* out = static_cast<float*>(o.output);
      const std::size_t middle = o.count / 2;
      const std::size_t begin = rank_ == 0 ? 0 : middle;
      const std::size_t end = rank_ == 0 ? middle : o.count;
      meet();
      add(in + begin, theirs(in) + begin, out + begin, theirs(out) + begin, end - begin,
          o.count * sizeof(float) >= kStreamed);
      meet();
    };
  }

  void exchange(std::span<const Message>, std::span<const Message>) override {}

  [[nodiscard]] std::byte* allocate(std::size_t bytes) override {
    const std::size_t size = (bytes + 4095) / 4096 * 4096 + 4096;
    if (used_ + size > kHeap) throw std::runtime_error("the floor's memory is too small for this");
    std::byte* memory = base_ + static_cast<std::size_t>(rank_) * kHeap + used_;
    used_ += size;
    ++given_;
    return memory;
  }
  void deallocate(std::byte* /*memory*/) override {
    if (--given_ == 0) used_ = 0;
  }

 private:
  template <class T>
  T* theirs(T* mine) const {
    return rank_ == 0 ? mine + kHeap / sizeof(T) : mine - kHeap / sizeof(T);
  }
  void meet() {
    flags_->of[rank_].value.store(++met_, std::memory_order_release);
    while (flags_->of[1 - rank_].value.load(std::memory_order_acquire) < met_) continue;
  }
  static void add(const float* a, const float* b, float* x, float* y, std::size_t n, bool streams) {
    for (std::size_t i = add_vectors(a, b, x, y, n, streams); i < n; ++i) x[i] = y[i] = a[i] + b[i];
  }

  int rank_;
  Fd file_;
  std::byte* base_ = nullptr;
  Flags* flags_ = nullptr;
  std::uint64_t met_ = 0;
  std::size_t used_ = 0;
  int given_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments) {
  return std::make_unique<Floor>(arguments.directory);
}

}  // namespace chorus::perf
