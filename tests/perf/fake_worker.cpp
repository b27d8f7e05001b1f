// A worker whose library goes wrong on command, by CHORUS_PERF_FAKE:
//   (unset)    all_reduce of float32 sums that is right
//   wrong      one element of rank 1's result is off by one
//   forget     leaves the last element of the output unwritten
//   hang       rank 1 never returns from its fifth operation
//   crash      rank 1 kills itself in its fifth operation
//   deaf       rank 1 never says that it is ready
//   imposter   every process claims to be rank 0
// Ranks meet in a file that they map.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "base/files/fd.hpp"
#include "perf/worker/backend.hpp"

namespace chorus::perf {
namespace {

constexpr std::size_t kMostRanks = 16;
constexpr std::size_t kMostElements = 1 << 16;

struct Shared {
  std::atomic<std::uint32_t> arrived;
  float inputs[kMostRanks][kMostElements];
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(const std::string& directory)
      : fault_(std::getenv("CHORUS_PERF_FAKE") == nullptr ? "" : std::getenv("CHORUS_PERF_FAKE")),
        rank_(std::atoi(std::getenv("CHORUS_PERF_RANK"))),
        world_size_(std::atoi(std::getenv("CHORUS_PERF_WORLD_SIZE"))) {
    const Fd file(::open((directory + "/fake").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file || ::ftruncate(file.get(), sizeof(Shared)) != 0) throw std::runtime_error("no file");
    void* memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory");
    shared_ = static_cast<Shared*>(memory);
    if (fault_ == "deaf" && rank_ == 1) sleep_forever();
  }

  [[nodiscard]] int rank() const override { return fault_ == "imposter" ? 0 : rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::string version() const override { return "Fake 1"; }
  [[nodiscard]] std::string refuse(const Operation& o) const override {
    if (o.kind == Kind::barrier) return {};
    const bool offered = o.kind == Kind::all_reduce && o.type == DataType::float32 &&
                         o.op == ReduceOp::sum && o.count <= kMostElements;
    return offered ? "" : "the fake only sums floats";
  }
  [[nodiscard]] std::function<void()> prepare(const Operation& o) override {
    if (o.kind == Kind::barrier) return [this] { barrier(); };
    return [this, o] { all_reduce(o); };
  }
  void exchange(std::span<const Message>, std::span<const Message>) override {
    throw std::runtime_error("the fake has no messages");
  }

 private:
  [[noreturn]] static void sleep_forever() {
    for (;;) ::pause();
  }

  /// Counts upwards for ever: the n-th barrier is passed when n·world_size have arrived.
  void barrier() {
    shared_->arrived.fetch_add(1);
    const std::uint32_t goal = ++passed_ * static_cast<std::uint32_t>(world_size_);
    while (shared_->arrived.load() < goal) ::sched_yield();
  }

  void all_reduce(const Operation& o) {
    if (++operations_ == 5 && rank_ == 1) {
      if (fault_ == "hang") sleep_forever();
      if (fault_ == "crash") ::raise(SIGKILL);
    }
    std::memcpy(shared_->inputs[rank_], o.input, o.count * sizeof(float));
    barrier();
    auto* const out = static_cast<float*>(o.output);
    const std::size_t written = fault_ == "forget" ? o.count - 1 : o.count;
    for (std::size_t i = 0; i < written; ++i) {
      float sum = 0;
      for (int r = 0; r < world_size_; ++r) sum += shared_->inputs[r][i];
      out[i] = sum;
    }
    if (fault_ == "wrong" && rank_ == 1) out[o.count / 2] += 1;
    barrier();
  }

  std::string fault_;
  int rank_;
  int world_size_;
  Shared* shared_ = nullptr;
  std::uint32_t passed_ = 0;
  int operations_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments) {
  return std::make_unique<FakeBackend>(arguments.directory);
}

}  // namespace chorus::perf
