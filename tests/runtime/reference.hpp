// Inputs whose every partial result is exact in every type, and what each collective must make of
// them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus::testing {

using Bytes = std::vector<std::byte>;

/// A call's buffers on one rank, with guards around the output that must stay untouched.
struct Case {
  Call::Kind kind = Call::Kind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  Rank root = 0;
  bool in_place = false;
  std::size_t misalignment = 0;  ///< bytes by which buffers are off their natural alignment

  [[nodiscard]] std::string name() const;
};

/// Runs `test` on this rank and compares every byte that the collective promises. Throws
/// std::runtime_error naming the case, rank and element if anything differs.
void run_case(Communicator& comm, const Case& test);
/// The same on rank `me` of `n`, by whatever `run` runs calls with.
void run_case(Rank me, std::size_t n, const Case& test,
              const std::function<void(const Call&)>& run);

}  // namespace chorus::testing
