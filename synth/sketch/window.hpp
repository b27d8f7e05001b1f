// Windows of a schedule, and what times them exactly.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "synth/effort.hpp"

namespace chorus::synth {

/// Some jobs of a schedule, to be timed exactly. Times in seconds.
struct TimingWindow {
  struct Use {
    int resource = 0;
    double seconds = 0;
    double message_s = 0;  ///< of these, saved by what travels together with the one before
  };
  struct Job {
    int edge = 0;
    int chunk = 0;  ///< the last, if it carries several
    int chunks = 1;
    double ready_s = 0;      ///< not to begin before
    double length_s = 0;     ///< from begin to end
    double tail_s = 0;       ///< from its end to the end of all that waits for it, at the least
    std::vector<Use> uses;   ///< of resources: busy from the begin on
    std::vector<int> after;  ///< jobs of the window that must have ended
    double begin_s = 0;      ///< as known
  };
  std::vector<Job> jobs;
  std::map<int, double> behind_s;  ///< by resource: work that follows the window
  double end_s = 0;    ///< as known: the latest end with its tail, or resource with its work behind
  double bound_s = 0;  ///< no order ends earlier
};

/// What a window's jobs do instead.
struct Retimed {
  std::vector<double> begin_s;  ///< by job
  /// By job: the one before it on its edge that it travels with, or -1. Together they begin when
  /// the first of them does, for which all must be there.
  std::vector<int> with;
};

/// A window's jobs with an earlier end than the known one; nothing if there is none or none was
/// found.
using WindowSolver = std::function<std::optional<Retimed>(const TimingWindow&, const Effort&)>;

/// At most so many chunks travel together.
inline constexpr int kMostTogether = 6;
/// Jobs that a window has at most.
inline constexpr int kMostWindowJobs = 80;

}  // namespace chorus::synth
