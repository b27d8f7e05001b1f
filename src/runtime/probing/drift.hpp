// Does the network still behave as it was probed?
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>

#include "chorus/schedule.hpp"

namespace chorus {

/// Compares what collectives of many bytes take with what was predicted for them.
///
/// A call also waits for ranks that come late, and a machine may be busy: so of every kWindow calls
/// only the one that took least for its prediction counts, and only several windows in a row
/// condemn: two, and twice as many each time that it has been found to have changed.
/// Predictions are not exact either, and not alike for all calls, so windows are compared with the
/// first one of calls of the same kind and about as many bytes; that one itself is held against its
/// prediction where the network was not probed just now.
class Drift {
 public:
  static constexpr int kWindow = 4;
  /// Slower, or faster, than it was by so much: another network.
  static constexpr double kTolerance = 1.5;
  /// The same for predictions, and for collectives other than all-reduce: a rank has done its part
  /// of those when the kernel has taken what it sends, and how much that takes ahead of the wire is
  /// not always the same. It makes no call slower, so only that they are counts against
  /// predictions.
  static constexpr double kLooseTolerance = 2.5;

  /// Calls that are compared with one another.
  struct Shape {
    CollectiveKind kind = CollectiveKind::all_reduce;
    int log2_bytes = 0;  ///< std::bit_width of the bytes

    friend auto operator<=>(const Shape&, const Shape&) = default;
  };

  /// `fresh`: it was probed just now, and not by an earlier job. `changes`: as often it has been
  /// found to have changed before.
  explicit Drift(bool fresh, int changes = 0)
      : fresh_(fresh), windows_(2 << std::min(changes, kMostDoublings)) {}

  /// One call, times in seconds. By how much it takes longer than it did (predicted) when the
  /// network is found to have changed (below 1: shorter): once.
  [[nodiscard]] std::optional<double> note(Shape shape, double predicted_s, double measured_s);

 private:
  static constexpr int kMostDoublings = 8;

  struct Windows {
    int calls = 0;  ///< of this window
    double least = std::numeric_limits<double>::infinity();
    double usual = 0;  ///< of the first window; 0 before
    int strikes = 0;
  };

  bool fresh_;
  int windows_;  ///< that condemn
  std::map<Shape, Windows> by_shape_;
  bool told_ = false;
};

}  // namespace chorus
