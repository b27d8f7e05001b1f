// What one rank of an Allocation does for rank 0.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "perf/process.hpp"
#include "perf/report/machine.hpp"

namespace chorus::perf {

/// Starts, watches and ends the workers of one rank, and for the first rank of a host makes pages
/// and looks at the load.
class AllocationPart {
 public:
  AllocationPart(int rank, int world_size, int local_rank, int local_world_size);

  /// Does what a request of rank 0 says, and answers: JSON both. Failures are answers, too.
  [[nodiscard]] std::string perform(const std::string& request);
  /// Keeps what workers print from filling their pipes.
  void drain();

 private:
  std::string start(const std::string& request);

  int rank_;
  int world_size_;
  int local_rank_;
  int local_world_size_;
  Scratch scratch_;
  std::map<int, Child> workers_;
  LoadMeter meter_;
};

}  // namespace chorus::perf
