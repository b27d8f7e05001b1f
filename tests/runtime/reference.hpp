// Inputs whose every partial result is exact in every type, and what each collective must make of
// them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
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
  bool shared = false;           ///< buffers that the library allocated, which others reach

  [[nodiscard]] std::string name() const;
};

/// A case on one rank of `n`: its buffers, from before the call to after its end.
class Trial {
 public:
  Trial(Rank me, std::size_t n, const Case& test);

  [[nodiscard]] const Call& call() const { return call_; }
  /// Compares every byte that the collective promises, and those that it must leave alone. Throws
  /// std::runtime_error naming the case, rank and element if anything differs.
  void check() const;

 private:
  struct Release {
    bool shared;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Release>;
  [[nodiscard]] Memory allocate(std::size_t bytes) const;

  Rank me_;
  std::size_t n_;
  Case test_;
  Bytes input_, expected_;
  std::size_t out_bytes_;  ///< of out_, with its guards
  Memory in_, out_;
  std::byte* result_ = nullptr;
  Call call_;
};

/// Runs `test` on this rank and compares every byte that the collective promises. Throws
/// std::runtime_error naming the case, rank and element if anything differs.
void run_case(Communicator& comm, const Case& test);
/// The same on rank `me` of `n`, by whatever `run` runs calls with.
void run_case(Rank me, std::size_t n, const Case& test,
              const std::function<void(const Call&)>& run);

}  // namespace chorus::testing
