#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace ptx {
namespace {

std::string content(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

Engine::Engine(const std::string& file, Settings settings)
    : module_(content(file)), seed_(settings.seed), machine_(module_, std::move(settings)) {}

Engine::~Engine() {
  std::printf("PTX: %llu launches, %llu million instructions of threads, seed %llu\n",
              static_cast<unsigned long long>(launches_),
              static_cast<unsigned long long>(machine_.executed() / 1'000'000),
              static_cast<unsigned long long>(seed_));
}

void Engine::forget(std::uint64_t address, std::uint64_t bytes) {
  ++arriving_;
  const std::lock_guard lock(mutex_);
  --arriving_;
  machine_.clocks().forget(address, bytes);
}

void Engine::run(const std::string& kernel, const void* parameters, std::size_t bytes,
                 std::uint32_t blocks, std::uint32_t threads, std::uint32_t device) {
  constexpr int kTurns = 2000;  // before another thread can begin a launch
  constexpr std::uint32_t kMostIdle = 4;
  ++arriving_;
  std::unique_lock lock(mutex_);
  --arriving_;
  ++launches_;
  Launch& launch = machine_.begin(kernel, parameters, bytes, blocks, threads, device);
  while (!launch.ended()) {
    if (turning_) {
      changed_.wait(lock);
      continue;
    }
    turning_ = true;
    bool all_asleep = true;
    for (int i = 0; i < kTurns && !launch.ended() && arriving_ == 0; ++i) {
      if (!machine_.turn()) {
        machine_.found("deadlock: threads wait at barriers that others do not come to");
        return;
      }
      all_asleep = all_asleep && machine_.asleep();
    }
    turning_ = false;
    idle_ = all_asleep ? std::min(idle_ + 1, kMostIdle) : 0;
    const std::uint32_t idle = idle_;
    changed_.notify_all();
    lock.unlock();
    if (idle > 0) ::usleep(50U << idle);  // for a launch, the host or another process
    while (arriving_ > 0) std::this_thread::yield();
    lock.lock();
  }
  machine_.end(launch);
}

}  // namespace ptx
