// Where long work is: a bar on a terminal, now and then a line in a log.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

namespace chorus {

class Progress {
 public:
  enum class Eta { from_pace, none };

  /// `name` begins the lines of a log ("chorus-perf").
  Progress(std::FILE* to, std::string name, Eta eta = Eta::from_pace);
  /// Leaves the terminal's line clean.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Cheap: draws ten times a second at most. On a log: a line per 10 s of work, and the last one
  /// where there was any before.
  void show(int done, int total, std::string_view what);

 private:
  using Clock = std::chrono::steady_clock;
  std::FILE* to_;
  std::string name_;
  Eta eta_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace chorus
