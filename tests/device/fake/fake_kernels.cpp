#include "fake_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/ptx/engine.hpp"
#include "device/twin.hpp"
#include "fake_cuda.hpp"
#include "fake_driver.hpp"

namespace device = chorus::device;

namespace fake {
namespace {

/// The shared memory of a device's multiprocessors that no block is using.
class SharedMemories {
 public:
  std::vector<device::BlockShared*> take(std::size_t number) {
    const std::lock_guard lock(mutex_);
    std::vector<device::BlockShared*> taken;
    while (taken.size() < number) {
      if (free_.empty()) {
        all_.push_back(std::make_unique<device::BlockShared>());
        std::memset(static_cast<void*>(all_.back().get()), 0xcd, sizeof(device::BlockShared));
        free_.push_back(all_.back().get());
      }
      taken.push_back(free_.back());
      free_.pop_back();
    }
    return taken;
  }
  void give_back(const std::vector<device::BlockShared*>& taken) {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), taken.rbegin(), taken.rend());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<device::BlockShared>> all_;
  std::vector<device::BlockShared*> free_;
};

void run_twin(const KernelLaunch& launch, std::uint32_t threads) {
  static std::array<SharedMemories, chorus::testing::kFakeDevices> memories;
  SharedMemories& memory = memories[static_cast<std::size_t>(launch.device)];
  const std::vector<device::BlockShared*> blocks = memory.take(launch.blocks);
  device::run_on_host(*launch.head, launch.calls, blocks, std::min(threads, launch.threads));
  memory.give_back(blocks);
}

/// Memory that the driver knows.
ptx::Range memory_around(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  if (const auto found = holder(address); found != allocations.end()) {
    return {found->first, found->first + found->second.size};
  }
  const auto found = registered.upper_bound(address);
  if (found == registered.begin()) return {};
  const auto& [begin, size] = *std::prev(found);
  return {begin, begin + size};
}

std::unique_ptr<ptx::Engine> engine_for(const std::string& file) {
  ptx::Settings settings;
  if (const char* const seed = std::getenv("FAKE_CUDA_SEED")) settings.seed = std::stoull(seed);
  settings.memory = memory_around;
  settings.found = [](const std::string& what) {
    fmt::print(stderr, "PTX: {}\n", what);
    std::abort();
  };
  return std::make_unique<ptx::Engine>(file, std::move(settings));
}

/// How kernels run in this process.
struct Way {
  std::uint32_t twin_threads = 1;
  std::unique_ptr<ptx::Engine> engine;
};

Way way_of_process() {
  const char* const setting = std::getenv("FAKE_CUDA_KERNELS");
  Way way;
  if (setting == nullptr) return way;
  constexpr std::string_view kThreads = "threads:";
  constexpr std::string_view kPtx = "ptx:";
  const std::string_view text = setting;
  if (text.starts_with(kPtx)) {
    way.engine = engine_for(std::string(text.substr(kPtx.size())));
    return way;
  }
  if (text.starts_with(kThreads)) {
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + kThreads.size(), end, way.twin_threads);
    if (error == std::errc() && at == end && way.twin_threads > 0) return way;
  }
  fmt::print(stderr, "FAKE_CUDA_KERNELS={}: threads:N or ptx:FILE is needed\n", text);
  std::exit(2);
}

/// The engine of this process, once a kernel has been launched.
std::atomic<ptx::Engine*> running = nullptr;

}  // namespace

void memory_is_new(std::uint64_t address, std::size_t size_bytes) {
  if (ptx::Engine* const engine = running) engine->forget(address, size_bytes);
}

void run_kernel(const KernelLaunch& launch) {
  static const Way way = way_of_process();
  running = way.engine.get();
  if (!way.engine) return run_twin(launch, way.twin_threads);
  way.engine->run(launch.kernel, launch.arguments, launch.argument_bytes, launch.blocks,
                  launch.threads, static_cast<std::uint32_t>(launch.device));
}

}  // namespace fake
