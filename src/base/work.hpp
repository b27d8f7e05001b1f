// Work that is counted: what stops after so much of it stops at the same place on every machine,
// however busy that is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chorus {

/// Of this thread, since it began; only differences mean something. The inner loops that take most
/// of the time count what they go through, each by about how many nanoseconds it takes, so that
/// the sum is about the processor's time.
inline thread_local std::uint64_t work_done = 0;

/// `times` something that takes about `each` nanoseconds.
inline void count_work(std::size_t times, std::uint64_t each) { work_done += times * each; }

}  // namespace chorus
