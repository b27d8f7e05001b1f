// The host in a GPU's place.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "ops/gpu.hpp"
#include "ops/products.hpp"

namespace trainer {
namespace {

/// Moments by the host's clock, of the computation's thread and those of lanes.
class Moments {
 public:
  std::uint32_t keep(std::size_t most) {
    const std::lock_guard lock(mutex_);
    at_.assign(most, {});
    next_ = 0;
    begin_ = Clock::now();
    return ++round_;
  }
  /// The place of a moment to come.
  Stamp reserve() {
    const std::lock_guard lock(mutex_);
    return next_ < at_.size() ? Stamp{round_, next_++} : Stamp{};
  }
  void pass(Stamp stamp) {
    const std::lock_guard lock(mutex_);
    if (stamp.round != 0 && stamp.round == round_) at_[stamp.index] = Clock::now();
  }
  double seconds(Stamp stamp) {
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(at_.at(stamp.index) - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  std::vector<Clock::time_point> at_;
  std::uint32_t next_ = 0, round_ = 0;
  Clock::time_point begin_;
};

/// A stream's order on a thread of its own: what travels does so while the host computes.
class EmulatedLane final : public Lane {
 public:
  explicit EmulatedLane(Moments& moments) : moments_(moments), thread_([this] { serve(); }) {}
  ~EmulatedLane() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Started start(std::function<void(void*)> enqueue) override {
    const Stamp begin = moments_.reserve();
    const Stamp end = moments_.reserve();
    const std::lock_guard lock(mutex_);
    work_.push_back([this, begin, end, run = std::move(enqueue)](void* stream) {
      moments_.pass(begin);
      run(stream);
      moments_.pass(end);
    });
    changed_.notify_all();
    return {++started_, begin, end};
  }
  void join(std::uint64_t number) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number || error_; });
    if (error_) std::rethrow_exception(error_);
  }
  void finish() noexcept override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == started_ || error_; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void(void*)> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        next(nullptr);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      ++done_;
      if (error && !error_) error_ = error;
      // As on a stream: nothing comes after what failed.
      if (error_) work_.clear();
      changed_.notify_all();
    }
  }

  Moments& moments_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(void*)>> work_;
  std::uint64_t started_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

Op of(bool transposed) { return transposed ? Op::transposed : Op::as_is; }

class EmulatedGpu final : public Gpu {
 public:
  [[nodiscard]] std::string name() const override { return "no GPU: the host emulates it"; }
  [[nodiscard]] bool emulated() const override { return true; }
  [[nodiscard]] void* allocate(std::size_t size_bytes) override {
    const std::size_t whole = (size_bytes + 255) / 256 * 256;
    void* const memory = std::aligned_alloc(256, std::max<std::size_t>(whole, 256));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, whole);
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void copy(void* to, const void* from, std::size_t size_bytes) override {
    if (size_bytes > 0) std::memmove(to, from, size_bytes);
  }
  void zero(void* memory, std::size_t size_bytes) override {
    if (size_bytes > 0) std::memset(memory, 0, size_bytes);
  }
  void launch(const Kernel<float>& kernel, std::size_t count) override { run(kernel, count); }
  void launch(const Kernel<double>& kernel, std::size_t count) override { run(kernel, count); }
  void finish() override {}
  [[nodiscard]] std::unique_ptr<Lane> make_lane() override {
    return std::make_unique<EmulatedLane>(moments_);
  }
  std::uint32_t keep_time(std::size_t most) override { return moments_.keep(most); }
  [[nodiscard]] Stamp stamp() override {
    const Stamp now = moments_.reserve();
    moments_.pass(now);
    return now;
  }
  [[nodiscard]] double seconds(Stamp stamp) override { return moments_.seconds(stamp); }

  void gemm(const Gemm& g) override {
    if (g.doubles) {
      multiply<double, double>(g);
    } else if (g.bfloat16) {
      multiply<Bfloat16, float>(g);
    } else {
      multiply<float, float>(g);
    }
  }

 private:
  template <class Factor, class Sum>
  void multiply(const Gemm& g) {
    for (int i = 0; i < g.batch; ++i) {
      products_.multiply(of(g.a_transposed), of(g.b_transposed), g.m, g.n, g.k,
                         static_cast<Sum>(g.alpha),
                         static_cast<const Factor*>(g.A) + i * g.a_stride, g.lda,
                         static_cast<const Factor*>(g.B) + i * g.b_stride, g.ldb,
                         static_cast<Sum>(g.beta), static_cast<Sum*>(g.C) + i * g.c_stride, g.ldc);
    }
  }
  template <class R>
  static void run(const Kernel<R>& kernel, std::size_t count) {
    std::visit(
        [&]<class K>(const K& body) {
          kernel::Alone alone;
          for (std::size_t i = 0; i < count; ++i) {
            if constexpr (kernel::kByTeam<K>) {
              body(alone, i);
            } else {
              body(i);
            }
          }
        },
        kernel);
  }

  Products products_;
  Moments moments_;
};

}  // namespace

std::unique_ptr<Gpu> emulate_gpu() { return std::make_unique<EmulatedGpu>(); }

}  // namespace trainer
