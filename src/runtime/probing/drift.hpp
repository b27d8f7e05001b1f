// Does the network still behave as it was probed?
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

namespace chorus {

/// Compares what collectives of many bytes take with what was predicted for them.
///
/// A call also waits for ranks that come late, and a machine may be busy: so of every kWindow calls
/// only the one that took least for its prediction counts, and only several windows in a row
/// condemn: two, and twice as many each time that it has been found to have changed.
/// Predictions are not exact either, so windows are compared with the first; that one itself is
/// held against its prediction where the network was not probed just now.
class Drift {
 public:
  static constexpr int kWindow = 4;
  /// Slower, or faster, than it was by so much: another network.
  static constexpr double kTolerance = 1.5;
  /// The same for predictions.
  static constexpr double kPredicted = 2.5;

  /// `fresh`: it was probed just now, and not by an earlier job. `changes`: as often it has been
  /// found to have changed before.
  explicit Drift(bool fresh, int changes = 0)
      : fresh_(fresh), windows_(2 << std::min(changes, kMostDoublings)) {}

  /// One call, times in seconds. By how much it takes longer than it did (predicted) when the
  /// network is found to have changed (below 1: shorter): once.
  [[nodiscard]] std::optional<double> note(double predicted_s, double measured_s);

 private:
  static constexpr int kMostDoublings = 8;

  bool fresh_;
  int windows_;    ///< that condemn
  int calls_ = 0;  ///< of this window
  double least_ = std::numeric_limits<double>::infinity();
  double usual_ = 0;  ///< of the first window; 0 before
  int strikes_ = 0;
  bool told_ = false;
};

}  // namespace chorus
