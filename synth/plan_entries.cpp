#include "synth/plan_entries.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace chorus::synth {
namespace {

class Entries {
 public:
  Entries(const std::vector<std::uint64_t>& sizes, const EntryTimes& times)
      : sizes_(sizes), times_(times) {}

  /// The size between sizes[s] and sizes[s + 1] at which `b` becomes the faster one.
  [[nodiscard]] std::uint64_t crossing(const Schedule& a, const Schedule& b, std::size_t s) {
    const double low = size_of(s), high = size_of(s + 1);
    const double before = seconds_at(b, s) - seconds_at(a, s);
    const double after = seconds_at(a, s + 1) - seconds_at(b, s + 1);
    // Where one is the faster at both sizes it has both.
    const double share = after <= 0 ? 1 : before <= 0 ? 0 : before / (before + after);
    const double cross = low + share * (high - low);
    return std::clamp(static_cast<std::uint64_t>(cross), sizes_[s], sizes_[s + 1] - 1);
  }

  [[nodiscard]] PlanEntry entry(const Schedule& chosen, std::uint64_t from, std::uint64_t until) {
    const double low = static_cast<double>(from);
    const double high = static_cast<double>(std::min(until, std::max(2 * from, sizes_.back())));
    const double first = seconds_of(chosen, low);
    const double second = seconds_of(chosen, high);
    return {.min_bytes = from,
            .max_bytes = until,
            .schedule = chosen,
            .min_bytes_time_s = first,
            .per_byte_time_s = high > low ? std::max(0.0, (second - first) / (high - low)) : 0};
  }

 private:
  [[nodiscard]] double size_of(std::size_t s) const { return static_cast<double>(sizes_[s]); }

  [[nodiscard]] double seconds_at(const Schedule& chosen, std::size_t s) {
    const double known_s = times_.known(chosen, s);
    if (std::isfinite(known_s)) return known_s;
    const auto [seconds, is_new] = elsewhere_s_.try_emplace({&chosen, s}, 0);
    if (is_new) seconds->second = times_.estimate(chosen, size_of(s));
    return seconds->second;
  }

  [[nodiscard]] double seconds_of(const Schedule& chosen, double size) {
    const auto above = std::ranges::upper_bound(
        sizes_, size, {}, [](std::uint64_t one) { return static_cast<double>(one); });
    const auto s = static_cast<std::size_t>(above - sizes_.begin());
    if (s == 0) return times_.estimate(chosen, size);
    const double low_s = seconds_at(chosen, s - 1);
    if (size == size_of(s - 1)) return low_s;
    if (s == sizes_.size()) return times_.estimate(chosen, size);
    const double share = (size - size_of(s - 1)) / (size_of(s) - size_of(s - 1));
    return low_s + share * (seconds_at(chosen, s) - low_s);
  }

  const std::vector<std::uint64_t>& sizes_;
  const EntryTimes& times_;
  std::map<std::pair<const Schedule*, std::size_t>, double> elsewhere_s_;
};

}  // namespace

std::vector<PlanEntry> plan_entries(const std::vector<std::uint64_t>& sizes,
                                    const std::vector<const Schedule*>& winners,
                                    const EntryTimes& times) {
  Entries entries(sizes, times);
  std::vector<PlanEntry> result;
  std::uint64_t from = 0;
  for (std::size_t s = 0; s < winners.size(); ++s) {
    const bool last = s + 1 == winners.size();
    if (!last && winners[s + 1] == winners[s]) continue;
    const std::uint64_t until = last ? std::numeric_limits<std::uint64_t>::max()
                                     : entries.crossing(*winners[s], *winners[s + 1], s);
    result.push_back(entries.entry(*winners[s], from, until));
    from = until + 1;
  }
  return result;
}

}  // namespace chorus::synth
