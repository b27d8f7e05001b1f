// When every hop of a spread begins: greedily, then exactly, window by window. For synth/sketch
// only.
#pragma once

#include <string_view>
#include <vector>

#include "synth/effort.hpp"
#include "synth/network.hpp"
#include "synth/sketch/window.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {

/// Chunks that cross an edge together: what the edge takes per message is taken once, and nothing
/// begins before all are there.
struct Send {
  int edge = 0;
  std::vector<ChunkId> chunks;  // ascending
  std::vector<int> after;       // sends that bring them
  double begin_s = 0;
  double end_s = 0;
};

class Timing {
 public:
  /// List scheduling: of the hops that could begin, the one with the longest way still before it
  /// goes first. `network` outlives the timing.
  Timing(const Network& network, const Spread& spread, double chunk_bytes);

  /// Lets `exact` try every window of at most kMostWindowJobs sends, until none gets better. False
  /// if nothing has changed.
  bool improve(const WindowSolver& exact, const Effort& effort);

  /// When the last send ends, each link and port group serving one send at a time.
  [[nodiscard]] double seconds() const;
  /// In the order of begins; what waits at a link for nothing but the one before it goes with it.
  [[nodiscard]] Schedule schedule(std::string_view name) const;

 private:
  void replay();
  [[nodiscard]] double length_s(const Send& send) const;
  [[nodiscard]] double busy_s(int resource, const Send& send) const;
  [[nodiscard]] std::vector<double> tails() const;
  [[nodiscard]] TimingWindow window(std::size_t first, std::size_t last) const;
  bool take(std::size_t first, const std::vector<double>& begins, const std::vector<int>& with);
  [[nodiscard]] std::vector<Send> together() const;

  const Network& network_;
  Collective collective_;
  int num_chunks_;
  double bytes_;
  std::vector<Send> sends_;  // in the order of begins; `after` are indices of earlier ones
};

}  // namespace chorus::synth
