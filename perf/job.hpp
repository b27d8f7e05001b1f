// What the driver asks of the workers and what they answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/benchmark.hpp"

namespace chorus::perf {

/// One block: one benchmark at one size, checked, warmed up and timed. The same on every rank.
struct Job {
  Kind kind = Kind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::uint64_t count = 1;  ///< elements of one block or message; 0 for barrier
  bool in_place = false;
  bool dirty = false;    ///< rewrite the input before every iteration
  int offset_bytes = 0;  ///< of the buffers, behind a page
  int warmup = 5;        ///< iterations at least; a tenth of the budget at most
  int min_iterations = 5;
  int max_iterations = 1000;
  std::int64_t budget_us = 300'000;  ///< for the timed iterations together
  int window = 64;                   ///< messages per iteration of a bandwidth measurement
  std::uint32_t seed = 1;

  bool operator==(const Job&) const = default;
};

/// What one rank saw.
struct Sample {
  /// One iteration each, ns; empty on ranks that time nothing (point to point: all but rank 0).
  /// An iteration is a ping and its pong for latency, a window for the bandwidths.
  std::vector<std::int64_t> times_ns;
  std::uint64_t wrong = 0;  ///< elements, in the checks before and after
  std::string first_wrong;  ///< where, for people
  std::string refused;      ///< why the library does not offer this; nothing was run
  std::string note;         ///< Backend::note()

  bool operator==(const Sample&) const = default;
};

/// A worker that is ready to take jobs.
struct Hello {
  int rank = 0;
  int world_size = 0;
  std::string version;
  std::string host = {};  ///< host_key()
  int pid = 0;

  bool operator==(const Hello&) const = default;
};

/// What a worker of a job across hosts needs for its StartLine, once it is known who is where.
struct Welcome {
  std::string line;   ///< path of the page of this host
  int parties = 1;    ///< ranks on this host
  bool pair = false;  ///< ranks 0 and 1 are both on this host

  bool operator==(const Welcome&) const = default;
};

}  // namespace chorus::perf
