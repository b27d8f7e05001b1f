// The measuring loop: the same code for every library.
#pragma once

#include "perf/job.hpp"
#include "perf/start_line.hpp"
#include "perf/worker/backend.hpp"

namespace chorus::perf {

/// Runs one block. Called by every rank with the same job.
///
///   fill inputs, poison outputs, run once, check every element       the check before
///   refill, warm up, poison outputs
///   each iteration: library's barrier, start line, t0, operation, t1
///   check every element of what the last timed iteration left        the check after
///
/// Nobody waits at the start line, or for the driver, without the library's barrier (between two
/// ranks: a token each way) before it: libraries make progress only inside their own calls, and a
/// peer may need this rank's progress to finish.
/// Where an operation in place destroys its own input (reductions, all_to_all), the check after
/// refills and runs once more, unless `dirty` refills before every iteration anyway.
[[nodiscard]] Sample measure(Backend& backend, StartLine& line, const Job& job);

}  // namespace chorus::perf
