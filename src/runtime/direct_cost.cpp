#include "runtime/direct_cost.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "model/contract.hpp"

namespace chorus {
namespace {

using Sample = HostRates::Sample;

// What the protocol does for a call, whatever its size, in lines that one core takes from another.
constexpr double kLinesOfHandOff = 2;  ///< an offer, and that it was taken
constexpr double kLinesAtOnce = 5;     ///< of several ranks' offers, which a core looks at together

/// How long the ranks take for what they read of each other.
struct CopyTimes {
  double staged_s = 0;  ///< through slots
  double kernel_s = 0;  ///< by the kernel, if it allows it
};

/// `seconds` or seconds_together(), but nothing for no bytes, which the kernel is not asked for.
template <typename Seconds>
double time_of(Seconds seconds, const HostRates& rates, double Sample::*way, double bytes) {
  return bytes > 0 ? seconds(rates, way, bytes) : 0;
}

/// Of one rank.
struct RankTimes {
  double stage_s;
  double fetch_s;
  double kernel_s;
  double rest_s = 0;  ///< what it copies either way
};

/// `times_of(i)`: of rank i, below `num_ranks`. `most_bytes`: that any rank stages or fetches.
template <typename TimesOf>
CopyTimes copy_times(const SharedMachine& machine, std::size_t num_ranks, double most_bytes,
                     const TimesOf& times_of) {
  double stage_most = 0, end_most = 0, staged_most = 0, staged_all = 0;
  double kernel_most = 0, kernel_all = 0;
  for (std::size_t i = 0; i < num_ranks; ++i) {
    const RankTimes rank = times_of(i);
    const double staged_s = rank.stage_s + rank.fetch_s + rank.rest_s;
    stage_most = std::max(stage_most, rank.stage_s);
    end_most = std::max(end_most, rank.fetch_s + rank.rest_s);
    staged_most = std::max(staged_most, staged_s);
    staged_all += staged_s;
    kernel_most = std::max(kernel_most, rank.kernel_s + rank.rest_s);
    kernel_all += rank.kernel_s + rank.rest_s;
  }
  if (static_cast<int>(num_ranks) > machine.cores) {
    return {.staged_s = std::max(staged_all / machine.cores, staged_most),
            .kernel_s = std::max(kernel_all / machine.cores, kernel_most)};
  }
  // Tile by tile, one is staged while another is fetched; the first has to be staged before.
  const double first = most_bytes > machine.slot_bytes ? machine.slot_bytes / most_bytes : 1;
  return {.staged_s = std::max(staged_most, first * stage_most + end_most),
          // Who is read has to wait until the others are done.
          .kernel_s = kernel_most + machine.rates.pairs.back().line_s};
}

double most_read(std::span<const RankLoad> loads) {
  double most = 0;
  for (const RankLoad& load : loads) most = std::max({most, load.staged, load.fetched});
  return most;
}

}  // namespace

std::vector<RankLoad> loads_of(std::span<const DirectProgram> programs) {
  std::vector<RankLoad> loads(programs.size());
  std::set<std::pair<Rank, int>> staged;
  for (const DirectProgram& program : programs) {
    RankLoad& mine = loads[static_cast<std::size_t>(program.rank)];
    for (const Move& move : program.moves) {
      bool reads = false;
      for (const Place& place : move.sources) {
        if (place.rank == program.rank) continue;
        reads = true;
        mine.fetched += move.count;
        if (!staged.insert({place.rank, place.index}).second) continue;  // read by several
        loads[static_cast<std::size_t>(place.rank)].staged += move.count;
      }
      bool leaves = false;
      for (const Place& place : move.destinations) {
        if (place.rank == program.rank) continue;
        leaves = true;
        loads[static_cast<std::size_t>(place.rank)].collected += move.count;
      }
      // A broadcast has its data where it belongs.
      const bool in_place = program.collective.kind == CollectiveKind::broadcast && !leaves;
      if (leaves || (!reads && !in_place)) mine.placed += move.count;
    }
  }
  return loads;
}

bool kernel_copies_pay(const SharedMachine& machine, std::span<const RankLoad> loads,
                       double unit_bytes) {
  if (!machine.rates.kernel_copies()) return false;
  const auto time = [&](double Sample::*way, double units) {
    return time_of(seconds, machine.rates, way, units * unit_bytes);
  };
  const CopyTimes times =
      copy_times(machine, loads.size(), most_read(loads) * unit_bytes, [&](std::size_t i) {
        return RankTimes{.stage_s = time(&Sample::stage_s, loads[i].staged),
                         .fetch_s = time(&Sample::fetch_s, loads[i].fetched),
                         .kernel_s = time(&Sample::kernel_s, loads[i].fetched)};
      });
  return times.kernel_s < times.staged_s;
}

MessageSizes kernel_message_sizes(const SharedMachine& machine, int ranks) {
  const auto slot_bytes = static_cast<std::size_t>(machine.slot_bytes);
  const auto pays = [&](std::size_t bytes) {
    SharedMachine whole = machine;  // a message is not divided into tiles
    whole.slot_bytes = static_cast<double>(bytes);
    std::vector<RankLoad> loads(static_cast<std::size_t>(std::max(ranks, 2)));
    loads[0].staged = loads[1].fetched = whole.slot_bytes;
    return kernel_copies_pay(whole, loads);
  };
  MessageSizes sizes;
  for (std::size_t bytes = 1024; bytes <= slot_bytes; bytes *= 2) {
    if (!pays(bytes)) {
      sizes = {};
    } else if (sizes.at_least == 0) {
      sizes = {.at_least = bytes, .less_than = slot_bytes};
    }
  }
  // What is longer than a slot comes in slots, one of which is filled while another is emptied.
  const double in_turn_s = std::max(seconds(machine.rates, &Sample::stage_s, machine.slot_bytes),
                                    seconds(machine.rates, &Sample::fetch_s, machine.slot_bytes));
  if (sizes.at_least > 0 &&
      seconds(machine.rates, &Sample::kernel_s, machine.slot_bytes) < in_turn_s) {
    sizes.less_than = slot_bytes + 1;
  }
  return sizes;
}

Price direct_price(std::span<const DirectProgram> programs, const SharedMachine& machine) {
  const auto n = static_cast<int>(programs.size());
  const Schedule whole{.name = {},
                       .collective = programs[0].collective,
                       .world_size = n,
                       .num_chunks = programs[0].num_chunks,
                       .steps = {}};
  const HostRates& rates = machine.rates;
  const double line_s = rates.pairs.back().line_s;
  const auto seconds_in_use = machine.cores > 1 ? seconds_together : seconds;
  const bool crowded = n > machine.cores;
  const std::vector<RankLoad> loads = loads_of(programs);
  const double chunk = chunk_bytes(whole, 1.0);  // of one byte in all
  const bool collects =
      std::ranges::any_of(loads, [](const RankLoad& load) { return load.collected > 0; });
  const int hand_offs = collects ? 2 : 1;
  // On a shared core each rank has its turn to offer, and then one more to see what others offered.
  const double turns_s =
      crowded ? rates.turn_s * (static_cast<double>(hand_offs * n) / machine.cores + 1) : 0;
  // A call is about as much work of its own as the least that the kernel does.
  const double alpha_s = rates.system_call_s +
                         std::max(hand_offs * kLinesOfHandOff * line_s, turns_s) +
                         line_s / kLinesAtOnce * std::max(0, n - 2);
  const auto at = [&](double size_bytes) {
    const auto time = [&](double Sample::*way, double chunks) {
      return time_of(seconds_in_use, rates, way, chunks * chunk * size_bytes);
    };
    const CopyTimes copies = copy_times(
        machine, loads.size(), most_read(loads) * chunk * size_bytes, [&](std::size_t i) {
          const RankLoad& load = loads[i];
          return RankTimes{.stage_s = time(&Sample::stage_s, load.staged),
                           .fetch_s = time(&Sample::fetch_s, load.fetched),
                           .kernel_s = time(&Sample::kernel_s, load.fetched),
                           .rest_s = time(&Sample::stage_s, load.placed) +
                                     time(&Sample::fetch_s, load.collected)};
        });
    return alpha_s +
           (rates.kernel_copies() ? std::min(copies.kernel_s, copies.staged_s) : copies.staged_s);
  };
  // Lines between sizes so near to each other that the samples of any machine show.
  std::vector<Price::Point> points = {{.bytes = 0, .seconds = at(0)}};
  constexpr double kMostBytes = 1 << 30;
  for (double bytes = 1024; bytes <= kMostBytes; bytes *= 2) {
    points.push_back({.bytes = bytes, .seconds = at(bytes)});
  }
  return Price(std::move(points));
}

}  // namespace chorus
