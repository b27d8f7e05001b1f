// What can be measured: one table, read by the driver and by the workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "chorus/types.hpp"

namespace chorus::perf {

/// The nine collectives and the three point-to-point measurements.
enum class Kind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
  latency,
  bandwidth,
  bibandwidth,
};

/// One line of the table: how sizes are counted and how time becomes bandwidth.
struct Benchmark {
  Kind kind;
  std::string_view name;
  /// A size counts all world_size blocks; otherwise the one buffer.
  bool counts_all_blocks;
  bool reduces;
  bool rooted;
  /// Only ranks 0 and 1 take part.
  bool point_to_point;
  /// Bytes over the busiest link per byte of size, so that busbw compares with the hardware at any
  /// world size (nccl-tests, doc/PERFORMANCE.md): factor = numerator·(n−1)/n, or 1 if 0.
  int bus_numerator;
};

/// All benchmarks, in the order in which they run and are shown.
[[nodiscard]] std::span<const Benchmark> benchmarks();
[[nodiscard]] const Benchmark& benchmark(Kind kind);
[[nodiscard]] std::optional<Kind> kind_named(std::string_view name);
[[nodiscard]] std::optional<DataType> type_named(std::string_view name);
[[nodiscard]] std::optional<ReduceOp> op_named(std::string_view name);

[[nodiscard]] double bus_factor(Kind kind, int world_size);

/// Elements of one block for a wanted size in bytes: whole elements, at least one. 0 for barrier.
[[nodiscard]] std::size_t block_count(Kind kind, std::uint64_t bytes, DataType type,
                                      int world_size);
/// The size in bytes that a block of `count` elements amounts to; the inverse of block_count().
[[nodiscard]] std::uint64_t size_bytes(Kind kind, std::size_t count, DataType type, int world_size);
/// Messages in flight in one iteration of a bandwidth measurement: 64, fewer where the window
/// would exceed 64 MiB, at least 2. Each has a buffer of its own.
[[nodiscard]] int window_messages(std::uint64_t message_bytes);

}  // namespace chorus::perf
