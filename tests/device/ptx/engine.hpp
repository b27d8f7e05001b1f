// The machine that all launches of a process share, so that kernels that wait for each other run
// interleaved.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "machine.hpp"

namespace ptx {

class Engine {
 public:
  Engine(const std::string& file, Settings settings);
  /// Says what was executed.
  ~Engine();

  /// Runs a launch; returns when it has ended. Called by any number of threads; one of them at a
  /// time executes for all.
  void run(const std::string& kernel, const void* parameters, std::size_t bytes,
           std::uint32_t blocks, std::uint32_t threads, std::uint32_t device);
  /// Clocks::forget(), by any thread.
  void forget(std::uint64_t address, std::uint64_t bytes);

 private:
  Module module_;
  std::uint64_t seed_;
  Machine machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool turning_ = false;
  std::uint32_t idle_ = 0;  ///< times in a row that all warps only slept or waited
  std::atomic<int> arriving_{0};
  std::uint64_t launches_ = 0;
};

}  // namespace ptx
