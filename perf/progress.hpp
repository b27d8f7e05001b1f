// Where a run is: a bar on a terminal, now and then a line in a log.
#pragma once

#include <chrono>
#include <cstdio>

#include "perf/campaign.hpp"

namespace chorus::perf {

class Progress {
 public:
  explicit Progress(std::FILE* to);
  /// Leaves the terminal's line clean.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const Step& step);

 private:
  using Clock = std::chrono::steady_clock;
  std::FILE* to_;
  bool terminal_;
  Clock::time_point start_, last_;
};

}  // namespace chorus::perf
