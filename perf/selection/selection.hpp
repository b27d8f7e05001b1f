// Predicted and measured times of every schedule that could run, beside the one that would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "perf/report/machine.hpp"
#include "runtime/communicator/impl.hpp"

namespace chorus::perf {

/// One schedule at one size.
struct Contender {
  std::string name;
  double predicted_s = 0;
  double measured_s = 0;  ///< median over iterations of the slowest rank
};

/// One point of the grid.
struct Point {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::uint64_t size_bytes = 0;
  std::string chosen;
  std::vector<Contender> contenders;  ///< the chosen one first

  /// How much longer the chosen one takes than the fastest: 0.1 is 10 %.
  [[nodiscard]] double regret() const;
  [[nodiscard]] const Contender& fastest() const;
};

struct Grid {
  std::vector<CollectiveKind> kinds;
  std::vector<std::uint64_t> sizes;
  double seconds_per_contender = 0.02;
  /// Schedules predicted to take longer than this many times the chosen one are not tried.
  double hopeless = 8;
};

/// Collective. Every result of every contender is compared with that of the first, so that nothing
/// wrong is fast. Throws Error where one differs.
///
/// `progress` is called before each contender is measured: how many points of how many are behind.
[[nodiscard]] std::vector<Point> measure(
    Communicator::Impl& communicator, const Grid& grid,
    const std::function<void(int done, int total, std::string_view what)>& progress);

/// Share of points whose regret is above `tolerated`.
[[nodiscard]] double share_of_errors(const std::vector<Point>& points, double tolerated);

[[nodiscard]] std::string text(const std::vector<Point>& points, bool explain);

/// Where and how points were measured.
struct Circumstances {
  std::string commit;
  std::string command;
  std::string date;
  Machine machine;
  int ranks = 0;
  int hosts = 0;
};
/// Format: docs/probing.md.
[[nodiscard]] std::string json(const std::vector<Point>& points, const Circumstances& where);

}  // namespace chorus::perf
