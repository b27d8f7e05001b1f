// What the processes of a trial share.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "trial.hpp"

namespace chorus::campaign {

/// Longer than anything that is promised takes.
constexpr int kHung_s = 30;
/// Calls whose contributors are compared.
constexpr int kCalls = 1 << 16;

inline std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename Done>
bool await(Done done, double most_s = kHung_s) {
  const std::int64_t until = now_us() + static_cast<std::int64_t>(most_s * 1e6);
  while (!done()) {
    if (now_us() > until) return false;
    ::usleep(200);
  }
  return true;
}

/// What a rank lets the trial know.
struct Diary {
  std::atomic<pid_t> pid;
  std::atomic<bool> in_phase, ended;
  std::atomic<std::int64_t> named_us, usable_us;
  std::atomic<int> calls;        ///< that have ended, of those that survivors finish
  std::uint8_t of_call[kCalls];  ///< whose inputs are in the result, as bits; 0: it threw
  char named[1'000], broken[1'000];

  void write(char (&where)[1'000], const std::string& text) {
    const std::size_t size = text.copy(where, sizeof where - 1);
    where[size] = '\0';
  }
};

/// An id that one process hands to others.
struct Handed {
  std::atomic<int> times;
  char text[256];

  void hand(const std::string& id) {
    text[id.copy(text, sizeof text - 1)] = '\0';
    ++times;
  }
};

struct Shared {
  Trial trial;
  Diary ranks[kMaxRanks];
  std::atomic<bool> enough;  ///< calls that nothing disturbs may end
  std::atomic<bool> over;    ///< nobody is left to whom a process could come
  Handed id, larger;
};

struct Unmap {
  void operator()(Shared* shared) const;
};
using SharedMemory = std::unique_ptr<Shared, Unmap>;

/// Zeros, of a file without a name: `descriptor`.
[[nodiscard]] SharedMemory make_shared_memory(int& descriptor);
[[nodiscard]] SharedMemory open_shared_memory(const std::string& path);

/// The life of a rank, or of the process that comes, until it has ended; the process ends then.
[[noreturn]] void live(Shared& shared, Rank rank);

}  // namespace chorus::campaign
