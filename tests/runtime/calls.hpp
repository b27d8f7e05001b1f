// Calls of tests, and what becomes of those that are refused.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"
#include "chorus/error.hpp"

namespace chorus::testing {

/// What `call` throws a Failure with.
template <class Failure>
std::string thrown_by(auto call) {
  try {
    call();
  } catch (const Failure& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// What `call` is refused with.
std::string refusal(auto call) { return thrown_by<InputError>(call); }

/// `comm` still computes what it should.
inline void expect_it_goes_on(Communicator& comm) {
  std::vector<int> ones(1000, 1);
  comm.all_reduce<int>(ones);
  EXPECT_EQ(std::accumulate(ones.begin(), ones.end(), 0), 1000 * comm.world_size());
}

/// Of `data`, in place.
inline Call sum_of(std::vector<int>& data) {
  return {.kind = Call::Kind::all_reduce,
          .input = data.data(),
          .output = data.data(),
          .count = data.size(),
          .type = DataType::int32};
}

}  // namespace chorus::testing
