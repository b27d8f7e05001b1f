// How a rank that sleeps is woken by those that share memory with it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace chorus {

/// Writes a byte into `pipe` if its owner has announced, by `sleeping`, that it sleeps or is about
/// to. What the owner looks at must have been stored before: sequentially consistent, or with a
/// fence of that kind in between. Its own announcement and the look that follows are so too, and in
/// the one total order of such operations at least one of the two sees the other.
inline void wake_if_sleeping(std::atomic<std::uint32_t>& sleeping, int pipe) {
  if (sleeping.load(std::memory_order_seq_cst) == 0) [[likely]]
    return;
  // One of all putters wakes. A full pipe is a pipe that wakes; other errors are a peer that has
  // gone, which is not noticed here.
  if (sleeping.exchange(0, std::memory_order_seq_cst) == 0) return;
  [[maybe_unused]] const ssize_t written = ::write(pipe, "", 1);
}

}  // namespace chorus
