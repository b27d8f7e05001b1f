// The data of a checked measurement: exact in its type, different at every rank and position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "chorus/types.hpp"

namespace chorus::perf {

/// A rule that gives every rank's input, and therefore every result.
///
/// Values are small integers from a hash of (seed, rank, index), limited so that every partial
/// reduction over all ranks, in any order, is exactly representable in the type. So a result is
/// right or wrong, bit by bit, whatever the algorithm.
struct Pattern {
  DataType type = DataType::float32;
  /// The reduction that will be applied; `reduced` false: data is only moved.
  ReduceOp op = ReduceOp::sum;
  bool reduced = false;
  int world_size = 1;
  std::uint32_t seed = 0;
};

/// Empty if Pattern values exist for this reduction, else why not ("a sum over 64 ranks does not
/// fit float8_e5m2").
[[nodiscard]] std::string why_uncheckable(const Pattern& pattern);

/// Writes rank's elements [first, first + count) to buffer [count].
void fill(void* buffer, const Pattern& pattern, int rank, std::size_t first, std::size_t count);

/// Overwrites buffer with bytes that are no value of a Pattern (in one-byte types: seldom).
void poison(void* buffer, std::size_t bytes);

struct Mismatches {
  std::uint64_t wrong = 0;
  std::size_t first_wrong = 0;  ///< index into the buffer, if wrong > 0
};

/// Elements of buffer [count] that differ from rank's elements [first, first + count).
[[nodiscard]] Mismatches compare_to_rank(const void* buffer, const Pattern& pattern, int rank,
                                         std::size_t first, std::size_t count);

/// Elements of buffer [count] that differ from the reduction over all ranks of their elements
/// [first, first + count).
[[nodiscard]] Mismatches compare_to_reduction(const void* buffer, const Pattern& pattern,
                                              std::size_t first, std::size_t count);

}  // namespace chorus::perf
