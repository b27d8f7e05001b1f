// How long the scheduler lets a thread run at a time, where it asks.
#pragma once

namespace chorus {

/// Asks for slices of `slice_us` for the calling thread, once per thread: it then runs soon and
/// briefly where strangers compete for its core, at an unchanged share of it. Only shortens; does
/// nothing for 0, for real-time threads, and where the kernel (before Linux 6.12) takes no such
/// wish (https://docs.kernel.org/scheduler/sched-eevdf.html). Threads that this one starts inherit
/// it.
void request_slice(int slice_us);

/// The calling thread's slices, µs; 0 where it has none of its own: real time, an older kernel.
[[nodiscard]] int own_slice_us();

}  // namespace chorus
