#include "runtime/executors/direct_cost.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

using Sample = HostRates::Sample;

// What the protocol does for a call, whatever its size, in lines that one core takes from another.
constexpr double kLinesOfHandOff = 2;  ///< an offer, and that it was taken
constexpr double kLinesAtOnce = 5;     ///< of several ranks' offers, which a core looks at together

/// seconds(), or seconds_together(), per way, of what ranks move.
class LoadTimes {
 public:
  /// `unit_bytes`: of what loads are given in.
  LoadTimes(const SharedMachine& machine, double unit_bytes)
      : rates_(machine.rates),
        span_(span_of(machine.places)),
        unit_bytes_(unit_bytes),
        slot_bytes_(machine.slot_bytes) {}

  /// Between the ranks farthest apart. `together`: while others copy, too.
  [[nodiscard]] double of(double Sample::*way, double units, bool together) const {
    return of(way, units, span_, together);
  }
  [[nodiscard]] double of(double Sample::*way, const std::array<double, kNumDistances>& units,
                          bool together) const {
    double sum = 0;
    for (std::size_t d = 0; d < kNumDistances; ++d) {
      sum += of(way, units[d], static_cast<Distance>(d), together);
    }
    return sum;
  }

  /// Tile by tile, each call of the kernel but the first is as much work of its own again.
  [[nodiscard]] double by_kernel(const std::array<double, kNumDistances>& units, bool folds,
                                 bool together) const {
    double sum = of(&Sample::kernel_s, units, together);
    for (std::size_t d = 0; folds && d < kNumDistances; ++d) {
      const double calls = units[d] * unit_bytes_ / slot_bytes_;
      if (calls > 1) sum += (calls - 1) * kernel_call_s(static_cast<Distance>(d));
    }
    return sum;
  }

 private:
  // What a call takes for no bytes: the line through the two least samples.
  [[nodiscard]] double kernel_call_s(Distance distance) const {
    const std::vector<Sample>& samples = pair_at(rates_, distance).samples;
    const double slope = (samples[1].kernel_s - samples[0].kernel_s) /
                         static_cast<double>(samples[1].bytes - samples[0].bytes);
    return std::max(0.0, samples[0].kernel_s - slope * static_cast<double>(samples[0].bytes));
  }

  // Nothing for no bytes, which the kernel is not asked for.
  [[nodiscard]] double of(double Sample::*way, double units, Distance distance,
                          bool together) const {
    if (units <= 0) return 0;
    return (together ? seconds_together : seconds)(rates_, way, units * unit_bytes_, distance);
  }

  const HostRates& rates_;
  const Distance span_;
  const double unit_bytes_;
  const double slot_bytes_;
};

/// Between the ranks farthest apart.
double line_seconds(const SharedMachine& machine) {
  return pair_at(machine.rates, span_of(machine.places)).line_s;
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
CopyTimes times_of_all(const SharedMachine& machine, std::size_t num_ranks, double most_bytes,
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
          .kernel_s = kernel_most + line_seconds(machine)};
}

Distance distance_between(std::span<const CpuPlace> places, Rank a, Rank b) {
  if (places.empty()) return Distance::packages;
  return distance(places[static_cast<std::size_t>(a)], places[static_cast<std::size_t>(b)]);
}

double sum_of(const std::array<double, kNumDistances>& units) {
  return std::accumulate(units.begin(), units.end(), 0.0);
}

double most_read(std::span<const RankLoad> loads) {
  double most = 0;
  for (const RankLoad& load : loads) {
    most = std::max({most, load.staged, sum_of(load.fetched)});
  }
  return most;
}

}  // namespace

std::vector<RankLoad> loads_of(std::span<const DirectProgram> programs,
                               std::span<const CpuPlace> places) {
  std::vector<RankLoad> loads(programs.size());
  std::set<std::pair<Rank, int>> staged;
  for (const DirectProgram& program : programs) {
    RankLoad& mine = loads[static_cast<std::size_t>(program.rank)];
    for (const Move& move : program.moves) {
      bool reads = false;
      for (const Place& place : move.sources) {
        if (place.rank == program.rank) continue;
        reads = true;
        mine.fetched[static_cast<std::size_t>(
            distance_between(places, program.rank, place.rank))] += move.count;
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

CopyTimes copy_times(const SharedMachine& machine, std::span<const RankLoad> loads,
                     double unit_bytes, bool folds) {
  const LoadTimes time(machine, unit_bytes);
  CopyTimes times =
      times_of_all(machine, loads.size(), most_read(loads) * unit_bytes, [&](std::size_t i) {
        return RankTimes{.stage_s = time.of(&Sample::stage_s, loads[i].staged, false),
                         .fetch_s = time.of(&Sample::fetch_s, loads[i].fetched, false),
                         .kernel_s = time.by_kernel(loads[i].fetched, folds, false)};
      });
  if (!machine.rates.kernel_copies()) times.kernel_s = std::numeric_limits<double>::infinity();
  return times;
}

MessageCopiesBySize message_copies(const SharedMachine& machine) {
  const Distance span = span_of(machine.places);
  MessageCopiesBySize copies{.of = {}, .overlap = machine.cores > 1};
  for (double bytes = 1; bytes <= machine.slot_bytes; bytes *= 2) {
    const auto of = [&](double Sample::*way) {
      const double copy_s = seconds(machine.rates, way, bytes, span);
      return copy_s > 0 ? copy_s : MessageCopies::kNever;  // nobody has measured it
    };
    copies.of.push_back({.stage_s = of(&Sample::stage_s),
                         .fetch_s = of(&Sample::fetch_s),
                         .stream_s = of(&Sample::stream_s),
                         .fetch_streamed_s = of(&Sample::fetch_streamed_s),
                         .kernel_s = machine.rates.kernel_copies()
                                         ? of(&Sample::kernel_s) + line_seconds(machine)
                                         : MessageCopies::kNever});
  }
  return copies;
}

namespace {

/// Which copies of a call run while other ranks copy, too.
struct Together {
  bool stage = false;
  bool fetch = false;
  bool kernel = false;
};
// A copy has the memory to itself where one rank alone stages, or one alone fetches, as in a reduce
// of two ranks; of several tiles, one is staged while another is fetched.
Together together_of(std::span<const RankLoad> loads, const SharedMachine& machine, bool one_tile) {
  if (machine.cores == 1) return {};
  const auto several = [&](auto moves) { return std::ranges::count_if(loads, moves) > 1; };
  const auto fetches = [](const RankLoad& load) { return sum_of(load.fetched) > 0; };
  const bool readers = several(fetches);
  const bool fetch =
      several([&](const RankLoad& load) { return fetches(load) || load.collected > 0; });
  const bool stage = several([](const RankLoad& load) { return load.staged + load.placed > 0; });
  return {.stage = stage || !one_tile, .fetch = fetch || !one_tile, .kernel = readers};
}

/// `alpha_s`, and the copies of `loads`, in chunks of `chunk` bytes of one byte in all, at every
/// size: lines between sizes so near to each other that the samples of any machine show.
Price price_of(double alpha_s, std::span<const RankLoad> loads, double chunk, bool folds,
               const SharedMachine& machine) {
  const auto at = [&](double size_bytes) {
    const LoadTimes time(machine, chunk * size_bytes);
    const double most_bytes = most_read(loads) * chunk * size_bytes;
    const Together together = together_of(loads, machine, most_bytes <= machine.slot_bytes);
    const CopyTimes copies = times_of_all(machine, loads.size(), most_bytes, [&](std::size_t i) {
      const RankLoad& load = loads[i];
      return RankTimes{.stage_s = time.of(&Sample::stage_s, load.staged, together.stage),
                       .fetch_s = time.of(&Sample::fetch_s, load.fetched, together.fetch),
                       .kernel_s = time.by_kernel(load.fetched, folds, together.kernel),
                       .rest_s = time.of(&Sample::stage_s, load.placed, together.stage) +
                                 time.of(&Sample::fetch_s, load.collected, together.fetch)};
    });
    return alpha_s + (machine.rates.kernel_copies() ? std::min(copies.kernel_s, copies.staged_s)
                                                    : copies.staged_s);
  };
  std::vector<Price::Point> points = {{.bytes = 0, .seconds = at(0)}};
  constexpr double kMostBytes = 1 << 30;
  for (double bytes = 1024; bytes <= kMostBytes; bytes *= 2) {
    points.push_back({.bytes = bytes, .seconds = at(bytes)});
  }
  return Price(std::move(points));
}

}  // namespace

Price direct_price(std::span<const DirectProgram> programs, const SharedMachine& machine) {
  const auto n = static_cast<int>(programs.size());
  const Schedule whole{.name = {},
                       .collective = programs[0].collective,
                       .world_size = n,
                       .num_chunks = programs[0].num_chunks,
                       .steps = {}};
  const HostRates& rates = machine.rates;
  const double line_s = line_seconds(machine);
  const bool oversubscribed = n > machine.cores;
  const std::vector<RankLoad> loads = loads_of(programs, machine.places);
  const bool collects =
      std::ranges::any_of(loads, [](const RankLoad& load) { return load.collected > 0; });
  const int hand_offs = collects ? 2 : 1;
  // On a shared core each rank has its turn to offer, and then one more to see what others offered.
  const double turns_s =
      oversubscribed ? rates.turn_s * (static_cast<double>(hand_offs * n) / machine.cores + 1) : 0;
  // A call is about as much work of its own as the least that the kernel does.
  const double alpha_s = rates.system_call_s +
                         std::max(hand_offs * kLinesOfHandOff * line_s, turns_s) +
                         line_s / kLinesAtOnce * std::max(0, n - 2);
  return price_of(alpha_s, loads, chunk_bytes(whole, 1.0), is_combining(whole.collective.kind),
                  machine);
}

Price message_price(const Schedule& schedule, double alpha_s, const SharedMachine& machine) {
  const Cells cells = cells_of(schedule);
  std::vector<RankLoad> loads(static_cast<std::size_t>(schedule.world_size));
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      for (int by = 0; by < cells.count(); ++by) {
        const Rank src = cells.moved(transfer.src, by);
        const Rank dst = cells.moved(transfer.dst, by);
        const Distance apart = distance_between(machine.places, src, dst);
        loads[static_cast<std::size_t>(src)].staged += 1;
        loads[static_cast<std::size_t>(dst)].fetched[static_cast<std::size_t>(apart)] += 1;
      }
    }
  }
  // What a rank has already of its output it copies there; the root of a broadcast has it in place.
  const Collective& collective = schedule.collective;
  if (!is_combining(collective.kind) && collective.kind != CollectiveKind::broadcast) {
    const int n = schedule.world_size;
    for (Rank rank = 0; rank < n; ++rank) {
      if (input_blocks(collective, n, rank) == 0 || output_blocks(collective, n, rank) == 0)
        continue;
      loads[static_cast<std::size_t>(rank)].placed +=
          static_cast<double>(schedule.num_chunks) / num_blocks(collective.kind, n);
    }
  }
  // Every step is as much work of its own as a call is.
  const auto steps = static_cast<double>(schedule.steps.size());
  // Messages of more than a slot come slot by slot, whatever is done with them.
  return price_of(alpha_s + steps * machine.rates.system_call_s, loads, chunk_bytes(schedule, 1.0),
                  true, machine);
}

}  // namespace chorus
