#include "model/price/critical_path.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace chorus {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

using LaneKey = std::tuple<Rank, Rank, Action>;

class Walk {
 public:
  Walk(const Simulation& simulation, const Routes& routes)
      : timeline_(simulation.timeline), routes_(routes), before_(timeline_.size(), kNone) {
    std::map<LaneKey, std::vector<std::size_t>> lanes;
    for (std::size_t i = 0; i < timeline_.size(); ++i) {
      const Transfer& transfer = timeline_[i].transfer;
      arrivals_[place(transfer.dst, transfer.chunk)].push_back(i);
      lanes[{transfer.src, transfer.dst, transfer.action}].push_back(i);
    }
    // Within a lane bytes flow one transfer after the other, so their ends are in its order.
    for (auto& [lane, members] : lanes) {
      std::stable_sort(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
        return timeline_[a].end_s < timeline_[b].end_s;
      });
      for (std::size_t i = 1; i < members.size(); ++i) before_[members[i]] = members[i - 1];
    }
  }

  std::vector<std::size_t> path() const {
    std::vector<std::size_t> chain;
    for (std::optional<std::size_t> next = last(); next; next = cause(*next)) {
      chain.push_back(*next);
    }
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

 private:
  static std::int64_t place(Rank rank, ChunkId chunk) {
    return (static_cast<std::int64_t>(rank) << 32) | static_cast<std::uint32_t>(chunk);
  }

  [[nodiscard]] std::optional<std::size_t> last() const {
    if (timeline_.empty()) return std::nullopt;
    const auto latest = std::max_element(
        timeline_.begin(), timeline_.end(),
        [](const TimelineEntry& a, const TimelineEntry& b) { return a.end_s < b.end_s; });
    return static_cast<std::size_t>(latest - timeline_.begin());
  }

  /// What ended last of all that `index` waited for. Steps and lanes only go back, so the walk
  /// ends.
  [[nodiscard]] std::optional<std::size_t> cause(std::size_t index) const {
    const TimelineEntry& entry = timeline_[index];
    const Transfer& transfer = entry.transfer;
    std::size_t arrived = kNone;
    if (const auto found = arrivals_.find(place(transfer.src, transfer.chunk));
        found != arrivals_.end()) {
      for (const std::size_t i : found->second) {
        if (timeline_[i].step >= entry.step) continue;
        if (arrived == kNone || timeline_[i].end_s > timeline_[arrived].end_s) arrived = i;
      }
    }
    // A predecessor holds up the bytes, an arrival the message: its latency comes on top.
    const std::size_t before = before_[index];
    if (before != kNone && timeline_[before].step <= entry.step) {
      const double free_s = timeline_[before].end_s;
      const double ready_s = (arrived == kNone ? 0 : timeline_[arrived].end_s) +
                             routes_.alpha_s(transfer.src, transfer.dst);
      if (free_s > ready_s) return before;
    }
    if (arrived == kNone) return std::nullopt;
    return arrived;
  }

  const std::vector<TimelineEntry>& timeline_;
  const Routes& routes_;
  std::unordered_map<std::int64_t, std::vector<std::size_t>> arrivals_;  // by rank and chunk
  std::vector<std::size_t> before_;                                      // in the lane
};

}  // namespace

std::vector<CriticalTransfer> critical_path(const Simulation& simulation, const Routes& routes) {
  std::vector<CriticalTransfer> path;
  double covered_s = 0;
  for (const std::size_t index : Walk(simulation, routes).path()) {
    const TimelineEntry& entry = simulation.timeline[index];
    const double begin_s = std::clamp(entry.begin_s, std::min(covered_s, entry.end_s), entry.end_s);
    const double flow_s = entry.begin_s + routes.alpha_s(entry.transfer.src, entry.transfer.dst);
    path.push_back({index, begin_s, std::clamp(flow_s, begin_s, entry.end_s), entry.end_s});
    covered_s = entry.end_s;
  }
  return path;
}

}  // namespace chorus
