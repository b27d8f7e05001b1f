#include "synth/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/index.hpp"
#include "synth/levels.hpp"

namespace chorus::synth {
namespace {

constexpr std::size_t kMostExchangeTransfers = 300'000;

/// Ranks that differ from `rank` in some digit of levels [first, last) and in no other, ascending.
std::vector<Rank> likes_of(const Levels& levels, Rank rank, int first, int last) {
  std::vector<Rank> all = {rank};
  for (int level = first; level < last; ++level) {
    std::vector<Rank> more;
    for (const Rank one : all) {
      for (int digit = 0; digit < levels.sizes()[at(level)]; ++digit) {
        more.push_back(levels.with_digit(one, level, digit));
      }
    }
    all = std::move(more);
  }
  std::sort(all.begin(), all.end());
  return all;
}

class Maker {
 public:
  Maker(const Network& network, const Levels& levels) : network_(network), levels_(levels) {}

  /// `ends`: the level behind the last of each stage, innermost first.
  std::optional<Schedule> swapped(const std::vector<int>& ends) const {
    Schedule schedule = empty("swap", 1);
    int first = 0;
    for (const int end : ends) {
      Step& step = schedule.steps.emplace_back();
      int likes = 1;
      for (Rank rank = 0; rank < network_.world_size(); ++rank) {
        const std::vector<Rank> others = likes_of(levels_, rank, first, end);
        likes = static_cast<int>(others.size());
        for (const Rank other : others) {
          if (other != rank && !send(rank, other, 0, Action::reduce, step)) return std::nullopt;
        }
      }
      schedule.name += fmt::format(" {}", likes);
      first = end;
    }
    return schedule;
  }

  /// Shares inside levels [0, inner), swapped across the others.
  std::optional<Schedule> in_shares(int inner) const {
    const std::vector<Rank> box = likes_of(levels_, 0, 0, inner);
    Schedule schedule =
        empty(fmt::format("swap shares of {}", box.size()), static_cast<int>(box.size()));
    schedule.steps.resize(3);
    for (Rank rank = 0; rank < network_.world_size(); ++rank) {
      const std::vector<Rank> inside = likes_of(levels_, rank, 0, inner);
      for (std::size_t share = 0; share < inside.size(); ++share) {
        const Rank owner = owner_of(inside, static_cast<int>(share), inner);
        const auto chunk = static_cast<ChunkId>(share);
        if (owner != rank) {
          if (!send(rank, owner, chunk, Action::reduce, schedule.steps[0])) return std::nullopt;
          if (!send(owner, rank, chunk, Action::copy, schedule.steps[2])) return std::nullopt;
          continue;
        }
        for (const Rank other : likes_of(levels_, rank, inner, levels_.count())) {
          if (other != rank && !send(rank, other, chunk, Action::reduce, schedule.steps[1])) {
            return std::nullopt;
          }
        }
      }
    }
    return schedule;
  }

 private:
  [[nodiscard]] Schedule empty(std::string name, int chunks) const {
    return {std::move(name), {CollectiveKind::all_reduce, 0}, network_.world_size(), chunks, {}};
  }

  /// The one of `inside` whose digits below `inner` make the number `share`: likes own one share.
  [[nodiscard]] Rank owner_of(const std::vector<Rank>& inside, int share, int inner) const {
    return *std::find_if(inside.begin(), inside.end(), [&](Rank rank) {
      int number = 0;
      for (int level = inner; level-- > 0;) {
        number = number * levels_.sizes()[at(level)] + levels_.digit(rank, level);
      }
      return number == share;
    });
  }

  bool send(Rank src, Rank dst, ChunkId chunk, Action action, Step& step) const {
    if (!network_.edge(src, dst)) return false;
    step.push_back({src, dst, chunk, action});
    return true;
  }

  const Network& network_;
  const Levels& levels_;
};

}  // namespace

std::vector<Schedule> exchanging(const Task& task, const Effort& effort) {
  if (task.collective.kind != CollectiveKind::all_reduce) return {};
  const auto n = at(task.network.world_size());
  if (n * n > kMostExchangeTransfers) return {};
  const Levels levels(task.network);
  const Maker maker(task.network, levels);
  std::vector<Schedule> schedules;
  const auto add = [&](std::optional<Schedule> schedule) {
    if (schedule) schedules.push_back(*std::move(schedule));
  };
  for (int cuts = 0; cuts < 1 << (levels.count() - 1) && !effort.spent(); ++cuts) {
    std::vector<int> ends;
    for (int level = 1; level < levels.count(); ++level) {
      if ((cuts >> (level - 1) & 1) != 0) ends.push_back(level);
    }
    ends.push_back(levels.count());
    add(maker.swapped(ends));
  }
  for (int inner = 1; inner < levels.count() && !effort.spent(); ++inner) {
    add(maker.in_shares(inner));
  }
  return schedules;
}

}  // namespace chorus::synth
