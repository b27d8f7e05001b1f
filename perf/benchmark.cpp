#include "perf/benchmark.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"

namespace chorus::perf {
namespace {

constexpr std::array kBenchmarks = {
    //         kind                  name           blocks reduces rooted p2p   bus
    Benchmark{Kind::all_reduce, "all_reduce", false, true, false, false, 2},
    Benchmark{Kind::all_gather, "all_gather", true, false, false, false, 1},
    Benchmark{Kind::reduce_scatter, "reduce_scatter", true, true, false, false, 1},
    Benchmark{Kind::all_to_all, "all_to_all", true, false, false, false, 1},
    Benchmark{Kind::broadcast, "broadcast", false, false, true, false, 0},
    Benchmark{Kind::reduce, "reduce", false, true, true, false, 0},
    Benchmark{Kind::gather, "gather", true, false, true, false, 1},
    Benchmark{Kind::scatter, "scatter", true, false, true, false, 1},
    Benchmark{Kind::barrier, "barrier", false, false, false, false, 0},
    Benchmark{Kind::latency, "latency", false, false, false, true, 0},
    Benchmark{Kind::bandwidth, "bandwidth", false, false, false, true, 0},
    Benchmark{Kind::bibandwidth, "bibandwidth", false, false, false, true, 0},
};

}  // namespace

std::span<const Benchmark> benchmarks() { return kBenchmarks; }

const Benchmark& benchmark(Kind kind) {
  const auto index = static_cast<std::size_t>(kind);
  CHORUS_CHECK(index < kBenchmarks.size() && kBenchmarks[index].kind == kind,
               "the table is in the order of the enumeration");
  return kBenchmarks[index];
}

std::optional<Kind> kind_named(std::string_view name) {
  for (const Benchmark& entry : kBenchmarks) {
    if (entry.name == name) return entry.kind;
  }
  return std::nullopt;
}

std::optional<DataType> type_named(std::string_view name) {
  for (int i = 0; i < kNumDataTypes; ++i) {
    if (name_of(static_cast<DataType>(i)) == name) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

std::optional<ReduceOp> op_named(std::string_view name) {
  for (int i = 0; i < kNumReduceOps; ++i) {
    if (name_of(static_cast<ReduceOp>(i)) == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

double bus_factor(Kind kind, int world_size) {
  const int numerator = benchmark(kind).bus_numerator;
  return numerator == 0 ? 1.0 : numerator * (world_size - 1.0) / world_size;
}

std::size_t block_count(Kind kind, std::uint64_t bytes, DataType type, int world_size) {
  if (kind == Kind::barrier) return 0;
  const std::uint64_t blocks =
      benchmark(kind).counts_all_blocks ? static_cast<std::uint64_t>(world_size) : 1;
  return std::max<std::size_t>(1, bytes / (blocks * size_of(type)));
}

std::uint64_t size_bytes(Kind kind, std::size_t count, DataType type, int world_size) {
  const std::uint64_t blocks =
      benchmark(kind).counts_all_blocks ? static_cast<std::uint64_t>(world_size) : 1;
  return count * size_of(type) * blocks;
}

int window_messages(std::uint64_t message_bytes) {
  constexpr std::uint64_t kMostBytes = 64ULL << 20;
  return static_cast<int>(
      std::clamp<std::uint64_t>(kMostBytes / std::max<std::uint64_t>(1, message_bytes), 2, 64));
}

}  // namespace chorus::perf
