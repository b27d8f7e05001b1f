#include "perf/start_line.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"

namespace chorus::perf {

StartLine::StartLine(const std::string& path, int rank, int world_size)
    : StartLine(path, rank, world_size, true, {}) {}

StartLine::StartLine(const std::string& path, int rank, int parties, bool pair, Agree agree)
    : page_(nullptr),
      rank_(rank),
      parties_(parties),
      pair_(pair),
      spins_(static_cast<int>(std::thread::hardware_concurrency()) >= parties ? 1000 : 20),
      agree_(std::move(agree)) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) throw Error(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  void* page = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) throw Error(fmt::format("cannot map {}: {}", path, std::strerror(errno)));
  page_ = static_cast<Page*>(page);
}

StartLine::~StartLine() { ::munmap(page_, sizeof(Page)); }

void StartLine::create(const std::string& path) {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  const Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::ftruncate(file.get(), sizeof(Page)) != 0) {
    throw Error(fmt::format("cannot create {}: {}", path, std::strerror(errno)));
  }
}

void StartLine::wait(Gate& gate, int parties) const {
  // The generation is read before arriving: the last to arrive moves it on, and resets the count
  // first, so that nobody can arrive for the next round and be lost.
  const std::uint32_t generation = gate.generation.load(std::memory_order_acquire);
  if (gate.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      static_cast<std::uint32_t>(parties)) {
    gate.arrived.store(0, std::memory_order_relaxed);
    gate.generation.store(generation + 1, std::memory_order_release);
    return;
  }
  // Long enough for ranks that leave a barrier together; not longer, since a library's own threads
  // may need this core to let the last rank come.
  int spins = 0;
  while (gate.generation.load(std::memory_order_acquire) == generation) {
    if (++spins > spins_) ::sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

std::uint64_t StartLine::agree_all(std::uint64_t mine) {
  if (agree_) return agree_(mine, false);
  if (rank_ == 0) page_->number.store(mine, std::memory_order_relaxed);
  wait_all();
  const std::uint64_t agreed = page_->number.load(std::memory_order_relaxed);
  wait_all();  // nobody writes the next number before all have read this one
  return agreed;
}

std::uint64_t StartLine::agree_pair(std::uint64_t mine) {
  if (agree_) return agree_(mine, true);
  if (rank_ == 0) page_->number.store(mine, std::memory_order_relaxed);
  wait_pair();
  const std::uint64_t agreed = page_->number.load(std::memory_order_relaxed);
  wait_pair();
  return agreed;
}

}  // namespace chorus::perf
