// Whether ordinary buffers go through slots or are copied by the kernel, tuned while calls run.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/executors/direct_cost.hpp"

namespace chorus {

/// For calls alike: begins with what was predicted of this host and follows what calls take. The
/// cores of a virtual machine move, other programs take the cache, and whether a buffer that is
/// sent again is still in its reader's cache nobody can predict.
///
/// Now and then, and when calls begin to take longer or shorter than they did, a few go the other
/// way. Two such trials in sequence that find it faster make it the way. Trials that find it slower
/// follow each other so that they take about a hundredth of the time.
///
/// One rank tunes for all, one that reads what others have: it is the one that waits for the
/// copies. The others follow() it: a trial tells nothing if each rank tries at another time.
class CopyTuner {
 public:
  /// Whether calls for which this is predicted are worth a trial: neither way is out of the
  /// question.
  [[nodiscard]] static bool is_open(const CopyTimes& predicted);

  explicit CopyTuner(const CopyTimes& predicted);

  /// As far as is known by now.
  [[nodiscard]] bool chosen() const { return by_kernel_; }
  /// Of the next call: as chosen, or in a trial the other way.
  [[nodiscard]] bool by_kernel() const { return by_kernel_ != (phase_ == Phase::trial); }
  /// Whether done() is to be told how long it takes. Others may hear of it a call or two later.
  [[nodiscard]] bool measures() const { return measures_; }
  /// The call has ended, in so many seconds; 0 where they were not asked for, or tell nothing.
  void done(double seconds);

  /// Where another rank tunes: what it does.
  void follow(bool by_kernel) { by_kernel_ = by_kernel; }

  /// Calls of each way that a trial compares.
  static constexpr int kCounted = 4;

 private:
  using Times = std::array<double, kCounted>;
  enum class Phase : std::uint8_t {
    steady,    ///< every so many calls one is measured
    baseline,  ///< these are measured, to be compared with
    trial,     ///< the other way; the first do not count
  };
  void enter(Phase phase);
  void count(Times& times, double seconds);
  void look(double seconds);
  void judge();
  void give_up();
  void rest();
  [[nodiscard]] static double typical(const Times& times);
  void set_interval();

  bool by_kernel_;
  Phase phase_ = Phase::steady;
  bool measures_ = false;
  int in_phase_ = 0;         ///< calls
  int counted_ = 0;          ///< of them, those whose time is known
  double ratio_;             ///< of the other way's time to this one's, as far as is known
  double usual_s_;           ///< of this way: as predicted, then as the last trial found it
  int unusual_ = 0;          ///< looks in sequence that found another time than usual
  bool was_faster_ = false;  ///< in the last trial the other way was
  Times baseline_ = {};
  Times trial_ = {};
  std::uint64_t interval_ = 0;  ///< calls between the last trial and the next
  std::uint64_t since_trial_ = 0;
};

}  // namespace chorus
