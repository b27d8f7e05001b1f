#include "synth/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/ordering/pipelined.hpp"
#include "synth/ordering/predict.hpp"
#include "synth/ordering/timed.hpp"
#include "synth/strain.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kNearEnough = 1.005;  // of the limit: searching on is not worth it
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr long kMostComposedChunks = 4096;
constexpr double kMayGain = 1.1;  // times the best: a pipeline of it may still be better
constexpr std::size_t kFewTransfers = 20'000;  // a simulation of so many takes no time
constexpr int kManyRanks = 128;                // to time an exchange of so many takes long

/// Schedules that differ by no more are told apart by how many streams share a link, then by what
/// they keep busy; by no more than the second, if one has not half as many streams.
constexpr double kAlike = 1.005;
constexpr double kAboutAlike = 1.02;

/// What a pipeline may lose in a simulation against the schedule that it is made of. All-gathers
/// over the trees of two DGX-1 or a torus lose from a third to half of the rate.
constexpr double kPipelineLoses = 1.01;
/// The same where ranks compute and look for messages now and then: what follows the simulation to
/// the letter waits there for whatever is late. Over TCP it took 0.86 to 1.2 times as long as
/// pipelines that lose 3 to 22 % (nine collectives on five emulated clusters).
constexpr double kPipelineLosesInJobs = 1.25;

/// Sums of doubles depend on their order.
constexpr double kLessBusy = 1 - 1e-6;

/// A proved schedule and its predicted times at the sizes it was made for; at others it does not
/// compete (never), unless time was too short: what is chosen for a size does not depend on which
/// other sizes are asked for.
struct Pooled {
  Schedule schedule;
  std::string strategy;
  std::vector<Prediction> at_sizes;
  bool finished = false;  ///< in the form that the plan has
  bool lost = false;      ///< so clearly at some size that it has no time there
};
using Pool = std::vector<Pooled>;

/// The collective that copies and whose mirror image `kind` is; `kind` itself if it copies.
CollectiveKind spreading(CollectiveKind kind) {
  if (kind == reduce_scatter) return all_gather;
  if (kind == reduce) return broadcast;
  return kind;
}

class Planner {
 public:
  Planner(const Topology& topology, const PlanOptions& options,
          const std::vector<Strategy>& strategies, const Budget& budget)
      : options_(options),
        strategies_(strategies),
        budget_(budget),
        forward_(topology),
        symmetric_(symmetric(topology)) {
    // A wiring that repeats itself is folded along ways from every rank to every other.
    if (!forward_.folds(all_gather)) require_connected(topology, forward_.network(all_gather));
    if (!symmetric_) backward_.emplace(reversed(topology));
    // What all_reduce is composed of is made as well.
    for (const CollectiveKind kind : options.kinds) {
      if (kind == all_reduce) kinds_.insert({reduce_scatter, all_gather});
      kinds_.insert(kind);
    }
    calls_ = calls_left_ = kinds_.size() * options.sizes.size() * strategies.size();
  }

  Planned run() {
    Planned result;
    result.plan.topology_fingerprint = fingerprint(forward_.topology());
    result.plan.topology = forward_.topology();
    result.plan.world_size = forward_.topology().world_size();
    std::vector<CollectiveKind> order(kinds_.begin(), kinds_.end());
    std::stable_partition(order.begin(), order.end(),
                          [](CollectiveKind kind) { return kind != all_reduce; });
    std::vector<CollectiveKind> short_of_time;
    // all_reduce, the last, is called most and has most to choose from.
    int shares = static_cast<int>(order.size()) + (kinds_.contains(all_reduce) ? 1 : 0);
    for (const CollectiveKind kind : order) {
      begin_share(shares--);
      fill(kind);
      if (cut_short_) short_of_time.push_back(kind);
    }
    for (const CollectiveKind kind : short_of_time) compete(kind);
    for (const CollectiveKind kind : options_.kinds) choose(kind, result);
    std::stable_sort(result.plan.entries.begin(), result.plan.entries.end(),
                     [](const PlanEntry& a, const PlanEntry& b) {
                       return std::tuple(a.schedule.collective.kind, a.min_bytes) <
                              std::tuple(b.schedule.collective.kind, b.min_bytes);
                     });
    result.complete = complete_;
    return result;
  }

 private:
  /// One of so many collectives gets as much of the time that is left.
  void begin_share(int shares) {
    share_ = budget_.part_of(shares);
    cut_short_ = false;
  }

  /// A quarter of the share that is left, at most: few calls need a part worth mentioning, and
  /// those must not be cut short by the many.
  [[nodiscard]] Budget slice() const { return share_.part_of(4); }

  void fill(CollectiveKind kind) {
    if (kind == all_reduce) compose();
    const bool mirror_known =
        symmetric_ && spreading(kind) != kind && pools_.contains(spreading(kind));
    if (mirror_known) {
      const Pool& spread = pools_[spreading(kind)];
      for (const Pooled& entry : spread) {
        const Schedule mirror = mirrored(entry.schedule);
        for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
          if (entry.at_sizes[s].seconds != kNever) add(mirror, entry.strategy, s);
        }
      }
    }
    sizeless_.clear();
    std::vector<std::size_t> sizes(options_.sizes.size());
    std::iota(sizes.begin(), sizes.end(), 0);
    // Where time is limited every size has a schedule of the first strategy, and then the largest,
    // whose calls take longest, what can be had.
    const bool limited = budget_.deadline != Budget::Clock::time_point::max();
    if (limited) std::reverse(sizes.begin(), sizes.end());
    std::vector<const Strategy*> all;
    for (const Strategy& strategy : strategies_) all.push_back(&strategy);
    const std::ptrdiff_t num_early = limited && !all.empty() ? 1 : 0;
    const auto rest = all.begin() + num_early;
    if (forward_.topology().world_size() > kManyRanks) {
      std::stable_partition(rest, all.end(), [](const Strategy* one) { return one->leads; });
    }
    for (const std::span strategies : {std::span(all.begin(), rest), std::span(rest, all.end())}) {
      for (const std::size_t s : sizes) {
        for (const Strategy* one : strategies) ask_in_time(*one, kind, s, mirror_known);
      }
    }
  }

  void ask_in_time(const Strategy& strategy, CollectiveKind kind, std::size_t size_index,
                   bool mirror_known) {
    if (calls_left_ > 0) --calls_left_;
    if (forward_.folds(kind) && !strategy.folds) return;
    if (mirror_known && !strategy.combines) return;
    if (good_enough(kind, size_index)) return;
    if (share_.spent()) {
      complete_ = false;
      cut_short_ = true;
      if (options_.may_leave_out || best(kind, size_index) != nullptr) return;
    }
    ask(strategy, kind, size_index);
  }

  /// Where time was too short for some sizes, what was made for others serves them too.
  void compete(CollectiveKind kind) {
    for (Pooled& entry : pools_[kind]) {
      for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
        Prediction& time = entry.at_sizes[s];
        if (time.seconds != kNever) continue;
        const auto size = static_cast<double>(options_.sizes[s]);
        const Pooled* known = best(kind, s);
        if (known != nullptr && cannot_win(entry.schedule, known->at_sizes[s].seconds, size)) {
          continue;
        }
        time = predict(entry.schedule, size);
      }
    }
  }

  static Task task_on(const PreparedTopology& wiring, CollectiveKind kind, double size) {
    return {wiring.topology(), wiring.network(kind), {kind, 0}, size};
  }

  void ask(const Strategy& strategy, CollectiveKind kind, std::size_t size_index) {
    if (options_.progress) {
      options_.progress(static_cast<int>(calls_ - calls_left_ - 1), static_cast<int>(calls_));
    }
    if (strategy.every_size) {
      for (Schedule& schedule : made_by(strategy, kind, size_index)) {
        if (is_enough(kind, size_index)) return;
        add(std::move(schedule), strategy.name, size_index);
      }
      return;
    }
    const auto [known, is_new] = sizeless_.try_emplace(&strategy);
    if (is_new) known->second = made_by(strategy, kind, size_index);
    for (const Schedule& schedule : known->second) {
      if (is_enough(kind, size_index)) return;
      add(schedule, strategy.name, size_index);
    }
  }

  /// Mirror images of what copies may be fast where it is slow itself.
  [[nodiscard]] bool mirrored_later(CollectiveKind kind) const {
    return symmetric_ && std::ranges::any_of(kinds_, [&](CollectiveKind other) {
             return other != kind && spreading(other) == kind;
           });
  }

  std::vector<Schedule> made_by(const Strategy& strategy, CollectiveKind kind,
                                std::size_t size_index) {
    const double size = size_of(size_index);
    Budget part = slice();
    if (strategy.every_size) {  // otherwise what it makes competes at other sizes, too
      const Pooled* known = best(kind, size_index);
      if (known != nullptr && !mirrored_later(kind)) {
        part.useless_s = kMayGain * known->at_sizes[size_index].seconds;
      }
      if (options_.limit) part.limit_s = options_.limit({kind, 0}, size);
    }
    part.say(fmt::format("{} of {:.0f} bytes: {}", name_of(kind), size, strategy.name));
    if (kind == all_reduce && !strategy.combines) return {};
    const bool mirror = !strategy.combines && spreading(kind) != kind;
    const CollectiveKind made = mirror ? spreading(kind) : kind;
    std::vector<Schedule> schedules =
        strategy.make(task_on(mirror && backward_ ? *backward_ : forward_, made, size), part);
    cut_short_ = cut_short_ || part.spent();
    if (mirror) std::ranges::transform(schedules, schedules.begin(), mirrored);
    return schedules;
  }

  /// Proving and timing take long too, with many ranks: seconds for each classic schedule of 256.
  [[nodiscard]] bool is_enough(CollectiveKind kind, std::size_t size_index) {
    if (!share_.spent() || best(kind, size_index) == nullptr) return false;
    complete_ = false;
    return true;
  }

  /// A schedule that competes at one size (and at those for which it is added again).
  void add(Schedule schedule, const std::string& strategy, std::size_t size_index) {
    const Collective collective = schedule.collective;
    Pool& pool = pools_[collective.kind];
    auto entry =
        std::ranges::find_if(pool, [&](const Pooled& known) { return known.schedule == schedule; });
    const Pooled* before = best(collective.kind, size_index);
    const double best_s = before == nullptr ? kNever : before->at_sizes[size_index].seconds;
    Prediction time{kNever, Method::replayed};
    if (entry == pool.end()) {
      if (options_.accepts && !options_.accepts(schedule)) return;
      if (forward_.folds(collective.kind)) {
        // Of the many that a folded wiring allows only those that win are worth a proof.
        time = predict(schedule, size_of(size_index), best_s);
        if (time.seconds >= best_s) return;
      }
      require_correct(schedule, strategy);
      pool.push_back({std::move(schedule), strategy,
                      std::vector<Prediction>(options_.sizes.size(), {kNever, Method::replayed})});
      entry = std::prev(pool.end());
    }
    if (entry->at_sizes[size_index].seconds != kNever) return;
    const double size = size_of(size_index);
    if (time.seconds == kNever) time = predict_if_best(entry->schedule, best_s, size);
    entry->at_sizes[size_index] = time;
    entry->lost = entry->lost || time.seconds == kNever;
    if (time.seconds < best_s && options_.better) {
      options_.better(collective, options_.sizes[size_index], entry->schedule, time.seconds);
    }
  }

  static void require_correct(const Schedule& schedule, const std::string& strategy) {
    const auto fault = first_fault(schedule);
    if (!fault) return;
    CHORUS_CHECK(false, fmt::format("{} makes a wrong {}: {}", strategy,
                                    name_of(schedule.collective.kind), *fault)
                            .c_str());
  }

  [[nodiscard]] double size_of(std::size_t size_index) const {
    return static_cast<double>(options_.sizes[size_index]);
  }

  [[nodiscard]] double most_lost() const {
    return options_.step_s > 0 ? kPipelineLosesInJobs : kPipelineLoses;
  }

  /// Gives a winner the form that the plan has, which is another schedule, to be proved and timed
  /// again: that of a pipeline, or where that loses too much, of its simulation.
  void finish(Pooled& winner, std::size_t size_index) {
    winner.finished = true;
    const Schedule& as_made = winner.schedule;
    if (!as_made.symmetry.empty()) return;
    // So large an exchange is not in pieces, and to prove and time it anew takes long.
    if (as_made.collective.kind == all_to_all && num_transfers(as_made) > kMostSimulated) return;
    Schedule schedule = pipelined(as_made);
    if (schedule == winner.schedule) return;
    const double size = size_of(size_index);
    Prediction here = predict(schedule, size);
    if (here.seconds > most_lost() * winner.at_sizes[size_index].seconds) {
      const auto simulation = forward_.simulation(winner.schedule, size);
      schedule = simulation ? timed(winner.schedule, *simulation) : winner.schedule;
      if (schedule == winner.schedule) return;
      here = predict(schedule, size);
    }
    require_correct(schedule, winner.strategy);
    winner.schedule = std::move(schedule);
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      Prediction& time = winner.at_sizes[s];
      if (time.seconds == kNever) continue;
      time = s == size_index ? here : predict(winner.schedule, size_of(s));
    }
  }

  /// The best for a size by the times of what the plan has; null if there is none.
  [[nodiscard]] const Pooled* winner(CollectiveKind kind, std::size_t size_index) {
    for (;;) {
      const Pooled* const found = least_strained(best(kind, size_index), size_index);
      if (found == nullptr) return nullptr;
      Pooled* const next =
          found->finished ? unfinished_near(*found, size_index) : &pools_[kind][place_of(*found)];
      if (next == nullptr) return found;
      finish(*next, size_index);
    }
  }

  [[nodiscard]] std::size_t place_of(const Pooled& entry) const {
    return static_cast<std::size_t>(&entry - pools_.at(entry.schedule.collective.kind).data());
  }

  /// What is a little slower may be faster as a pipeline: halves one after the other by a tenth.
  [[nodiscard]] Pooled* unfinished_near(const Pooled& best, std::size_t size_index) {
    // Predictions of a job over TCP do not tell such apart: a reduce-scatter so chosen took 1.08
    // times as long.
    if (options_.step_s > 0) return nullptr;
    for (Pooled& entry : pools_.at(best.schedule.collective.kind)) {
      const double seconds = entry.at_sizes[size_index].seconds;
      if (entry.finished || seconds > kMayGain * best.at_sizes[size_index].seconds) continue;
      if (num_transfers(entry.schedule) <= kFewTransfers) return &entry;
    }
    return nullptr;
  }

  /// Both halves with their chunks cut so that they are equal.
  void compose(const Pooled& first, const Pooled& second, std::size_t size_index) {
    const long chunks = std::lcm(long{first.schedule.num_chunks}, long{second.schedule.num_chunks});
    const auto pieces_of = [&](const Pooled& half) {
      return static_cast<int>(chunks / half.schedule.num_chunks);
    };
    const std::size_t transfers =
        num_transfers(first.schedule) * static_cast<std::size_t>(pieces_of(first)) +
        num_transfers(second.schedule) * static_cast<std::size_t>(pieces_of(second));
    const bool equal = first.schedule.num_chunks == second.schedule.num_chunks;
    if (!equal && (chunks > kMostComposedChunks || transfers > kMostSimulated)) return;
    Schedule whole = all_reduce_of(split_chunks(first.schedule, pieces_of(first)),
                                   split_chunks(second.schedule, pieces_of(second)));
    if (first.schedule.name != second.schedule.name) {
      whole.name = first.schedule.name + " + " + second.schedule.name;
    }
    add(std::move(whole),
        first.strategy == second.strategy ? first.strategy
                                          : first.strategy + " + " + second.strategy,
        size_index);
  }

  /// By its busiest link alone, even if the best known loses as much as it may when it is finished.
  [[nodiscard]] bool cannot_win(const Schedule& schedule, double best_s, double size) const {
    return forward_.least_seconds(schedule, size) >= most_lost() * best_s;
  }

  /// Infinite seconds for a large schedule that cannot win: predicting it takes long.
  [[nodiscard]] Prediction predict_if_best(const Schedule& schedule, double best_s,
                                           double size) const {
    if (num_transfers(schedule) > kFewTransfers && cannot_win(schedule, best_s, size)) {
      return {kNever, Method::replayed};
    }
    return predict(schedule, size, kMayGain * best_s);
  }

  /// Infinite seconds, too, as soon as it is certain that they are more than `give_up_s`.
  [[nodiscard]] Prediction predict(const Schedule& schedule, double size,
                                   double give_up_s = kNever) const {
    Prediction time = forward_.predict(schedule, size, give_up_s);
    time.seconds += options_.step_s * static_cast<double>(schedule.steps.size());
    return time;
  }

  [[nodiscard]] const Pooled* best(CollectiveKind kind, std::size_t size_index) const {
    return best(kind, size_index, [](const Pooled&) { return true; });
  }
  template <class Wanted>
  [[nodiscard]] const Pooled* best(CollectiveKind kind, std::size_t size_index,
                                   Wanted wanted) const {
    const Pooled* best = nullptr;
    const auto pool = pools_.find(kind);
    if (pool == pools_.end()) return nullptr;
    for (const Pooled& entry : pool->second) {
      if (!wanted(entry)) continue;
      if (entry.at_sizes[size_index].seconds == kNever) continue;
      if (best == nullptr ||
          entry.at_sizes[size_index].seconds < best->at_sizes[size_index].seconds) {
        best = &entry;
      }
    }
    return best;
  }

  /// Of the schedules that are predicted as fast as `best`, one with the least strain.
  [[nodiscard]] const Pooled* least_strained(const Pooled* best, std::size_t size_index) const {
    if (best == nullptr) return best;
    const CollectiveKind kind = best->schedule.collective.kind;
    if (forward_.folds(kind)) return best;
    const Network& network = forward_.network(kind);
    const double least_s = best->at_sizes[size_index].seconds;
    Strain least = strain(best->schedule, network);
    const int of_best = least.streams;
    for (const Pooled& entry : pools_.at(best->schedule.collective.kind)) {
      const double seconds = entry.at_sizes[size_index].seconds;
      if (&entry == best || seconds > kAboutAlike * least_s) continue;
      const Strain own = strain(entry.schedule, network);
      const bool alike = seconds <= kAlike * least_s;
      const bool fewer_streams =
          own.streams < least.streams && (alike || 2 * own.streams <= of_best);
      const bool less_busy = alike && own.streams == least.streams &&
                             own.busy_s_per_byte < kLessBusy * least.busy_s_per_byte;
      if (!fewer_streams && !less_busy) continue;
      best = &entry;
      least = own;
    }
    return best;
  }

  /// Of the strategies that did not make `winner`; at least so much, if they lost early.
  [[nodiscard]] double next_best_s(const Pooled& winner, std::size_t size_index) const {
    double seconds = kNever;
    for (const Pooled& entry : pools_.at(winner.schedule.collective.kind)) {
      if (entry.strategy == winner.strategy) continue;
      const double known_s = entry.at_sizes[size_index].seconds;
      const double least_s = entry.lost ? kMayGain * winner.at_sizes[size_index].seconds : kNever;
      seconds = std::min({seconds, known_s, least_s});
    }
    return seconds == kNever ? 0 : seconds;
  }

  [[nodiscard]] bool good_enough(CollectiveKind kind, std::size_t size_index) const {
    if (!options_.limit) return false;
    const Pooled* found = best(kind, size_index);
    const double size = size_of(size_index);
    return found != nullptr &&
           found->at_sizes[size_index].seconds <= kNearEnough * options_.limit({kind, 0}, size);
  }

  /// all_reduce from the best halves: of equal chunks, of one strategy, of all.
  void compose() {
    for (const auto& halves :
         {std::pair{reduce_scatter, all_gather}, std::pair{reduce, broadcast}}) {
      const CollectiveKind combining = halves.first;
      const CollectiveKind spread = halves.second;
      if (forward_.folds(all_reduce) != forward_.folds(spread)) continue;
      std::set<int> counts;
      std::set<std::string> strategies;
      for (const Pooled& entry : pools_[spread]) {
        counts.insert(entry.schedule.num_chunks);
        strategies.insert(entry.strategy);
      }
      const auto of_best = [&](auto wanted) {
        for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
          const Pooled* first = best(combining, s, wanted);
          const Pooled* second = best(spread, s, wanted);
          if (first != nullptr && second != nullptr) compose(*first, *second, s);
        }
      };
      for (const int count : counts) {
        of_best([&](const Pooled& entry) { return entry.schedule.num_chunks == count; });
      }
      for (const std::string& strategy : strategies) {
        of_best([&](const Pooled& entry) { return entry.strategy == strategy; });
      }
      of_best([](const Pooled&) { return true; });
    }
  }

  void choose(CollectiveKind kind, Planned& result) {
    // What wins at one size may be better at another in the form that it has then.
    for (std::size_t s = options_.sizes.size(); s-- > 0;) (void)winner(kind, s);
    std::vector<const Pooled*> winners(options_.sizes.size(), nullptr);
    for (std::size_t s = 0; s < winners.size(); ++s) {
      winners[s] = winner(kind, s);
      if (winners[s] != nullptr) continue;
      if (options_.may_leave_out && !complete_) return;
      throw SynthesisError(fmt::format("no strategy makes {} for the {} ranks of '{}'{}",
                                       name_of(kind), forward_.topology().world_size(),
                                       forward_.topology().name,
                                       complete_ ? "" : " in the time given; give it more"));
    }
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      const Pooled* winner = winners[s];
      result.choices.push_back({kind, options_.sizes[s], winner->schedule,
                                winner->at_sizes[s].seconds, winner->at_sizes[s].method,
                                static_cast<int>(pools_[kind].size()), winner->strategy,
                                next_best_s(*winner, s)});
    }
    std::uint64_t from = 0;
    for (std::size_t s = 0; s < winners.size(); ++s) {
      const bool last = s + 1 == winners.size();
      if (!last && winners[s + 1] == winners[s]) continue;
      const std::uint64_t until = last ? std::numeric_limits<std::uint64_t>::max()
                                       : crossing(*winners[s], *winners[s + 1], s);
      result.plan.entries.push_back(entry(*winners[s], from, until));
      from = until + 1;
    }
  }

  /// At sizes[s], where it need not compete.
  [[nodiscard]] double seconds_at(const Pooled& chosen, std::size_t s) {
    if (chosen.at_sizes[s].seconds != kNever) return chosen.at_sizes[s].seconds;
    const auto [known, is_new] = elsewhere_s_.try_emplace({&chosen, s}, 0);
    if (is_new) known->second = predict(chosen.schedule, size_of(s)).seconds;
    return known->second;
  }
  /// Between two sizes of the plan on the line through the times at both.
  [[nodiscard]] double seconds_of(const Pooled& chosen, double size) {
    const auto above = std::ranges::upper_bound(
        options_.sizes, size, {}, [](std::uint64_t one) { return static_cast<double>(one); });
    const auto s = static_cast<std::size_t>(above - options_.sizes.begin());
    if (s == 0) return predict(chosen.schedule, size).seconds;
    const double low_s = seconds_at(chosen, s - 1);
    if (size == size_of(s - 1)) return low_s;
    if (s == options_.sizes.size()) return predict(chosen.schedule, size).seconds;
    const double share = (size - size_of(s - 1)) / (size_of(s) - size_of(s - 1));
    return low_s + share * (seconds_at(chosen, s) - low_s);
  }

  /// The size between sizes[s] and sizes[s + 1] at which `b` becomes the faster one.
  [[nodiscard]] std::uint64_t crossing(const Pooled& a, const Pooled& b, std::size_t s) {
    const double low = size_of(s), high = size_of(s + 1);
    const double before = seconds_at(b, s) - seconds_at(a, s);
    const double after = seconds_at(a, s + 1) - seconds_at(b, s + 1);
    // Where one is the faster at both sizes it has both.
    const double share = after <= 0 ? 1 : before <= 0 ? 0 : before / (before + after);
    const double cross = low + share * (high - low);
    return std::clamp(static_cast<std::uint64_t>(cross), options_.sizes[s],
                      options_.sizes[s + 1] - 1);
  }

  [[nodiscard]] PlanEntry entry(const Pooled& chosen, std::uint64_t from, std::uint64_t until) {
    const double low = static_cast<double>(from);
    const double high =
        static_cast<double>(std::min(until, std::max(2 * from, options_.sizes.back())));
    const double first = seconds_of(chosen, low);
    const double second = seconds_of(chosen, high);
    return {.min_bytes = from,
            .max_bytes = until,
            .schedule = chosen.schedule,
            .min_bytes_time_s = first,
            .per_byte_time_s = high > low ? std::max(0.0, (second - first) / (high - low)) : 0};
  }

  const PlanOptions& options_;
  const std::vector<Strategy>& strategies_;
  const Budget& budget_;
  Budget share_;            // of the collective in hand
  bool cut_short_ = false;  // some of its calls, by the time that they had
  PreparedTopology forward_;
  bool symmetric_;
  std::optional<PreparedTopology> backward_;
  std::set<CollectiveKind> kinds_;
  std::map<CollectiveKind, Pool> pools_;
  /// What the strategies made for the collective in hand whose schedules depend on no size.
  std::map<const Strategy*, std::vector<Schedule>> sizeless_;
  /// Of what is in the plan, at sizes at which it does not compete.
  std::map<std::pair<const Pooled*, std::size_t>, double> elsewhere_s_;
  std::size_t calls_ = 0, calls_left_ = 0;
  bool complete_ = true;
};

}  // namespace

Planned make_plan(const Topology& topology, const PlanOptions& options,
                  const std::vector<Strategy>& strategies, const Budget& budget) {
  CHORUS_CHECK(!options.sizes.empty() &&
                   std::is_sorted(options.sizes.begin(), options.sizes.end(), std::less_equal<>()),
               "sizes of a plan ascend");
  return Planner(topology, options, strategies, budget).run();
}

}  // namespace chorus::synth
