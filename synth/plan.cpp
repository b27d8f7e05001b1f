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
#include "synth/plan_entries.hpp"
#include "synth/pool.hpp"
#include "synth/shares.hpp"
#include "synth/strain.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kNearEnough = 1.005, kNearEnoughOfMany = 1.02;  // look no further
constexpr std::size_t kFewTransfers = 20'000;  // a simulation of so many takes no time
constexpr int kManyRanks = 128;                // to time an exchange of so many takes long
constexpr double kKeptForSize = 0.1;           // of a collective's budget, for each smaller size
constexpr double kMostComposing = 0.2;         // of that of all_reduce
constexpr double kMostOfShare = 0.9;  // of a collective's budget, that one question may take

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
        budget_(budget.at_most(options.effort * work_for(topology.world_size()))),
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
    std::set<CollectiveKind> cut_short;
    std::set<CollectiveKind> easy;
    for (const CollectiveKind kind : order) {
      const bool mirrored =
          symmetric_ && spreading(kind) != kind && kinds_.contains(spreading(kind));
      if (mirrored || straight_is_enough(kind)) easy.insert(kind);
    }
    Shares shares(budget_, kinds_, easy);
    for (const CollectiveKind kind : order) {
      cut_short_ = false;
      share_ = shares.of(kind);
      fill(kind);
      if (cut_short_) cut_short.insert(kind);
    }
    for (const CollectiveKind kind : options_.kinds) choose(kind, cut_short.contains(kind), result);
    std::stable_sort(result.plan.entries.begin(), result.plan.entries.end(),
                     [](const PlanEntry& a, const PlanEntry& b) {
                       return std::tuple(a.schedule.collective.kind, a.min_bytes) <
                              std::tuple(b.schedule.collective.kind, b.min_bytes);
                     });
    result.complete = cut_short.empty();
    result.interrupted = !result.complete && budget_.interrupted();
    return result;
  }

 private:
  /// For one question: few take a part worth mentioning, and those are worth it.
  [[nodiscard]] Budget slice() const { return of_size_.part(kMostOfShare); }

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
    // Every size has a schedule of the first strategy, and then the largest, whose questions take
    // longest, what can be had.
    std::reverse(sizes.begin(), sizes.end());
    std::vector<const Strategy*> all;
    for (const Strategy& strategy : strategies_) all.push_back(&strategy);
    if (forward_.topology().world_size() > kManyRanks && !straight_is_enough(kind)) {
      std::stable_partition(all.begin(), all.end(), [](const Strategy* one) { return one->leads; });
    }
    const auto rest = all.begin() + (all.empty() ? 0 : 1);
    for (const std::span strategies : {std::span(all.begin(), rest), std::span(rest, all.end())}) {
      for (const std::size_t s : sizes) {  // down to 0
        of_size_ = share_.part(1 - kKeptForSize * static_cast<double>(std::min<std::size_t>(s, 5)));
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
    if (of_size_.spent()) {
      cut_short_ = true;
      if (options_.may_leave_out || best(kind, size_index) != nullptr) return;
    }
    ask(strategy, kind, size_index);
  }

  /// True if nothing beats sending everything straight to its destination by more than is worth
  /// searching for.
  [[nodiscard]] bool straight_is_enough(CollectiveKind kind) const {
    if (kind != all_to_all || forward_.folds(kind) || !options_.limit) return false;
    const double size = size_of(options_.sizes.size() - 1);
    return forward_.straight_seconds(size) <= near_enough(kind) * options_.limit({kind, 0}, size);
  }

  /// Where the budget was too small for some sizes, what was made for others serves them too: of
  /// what takes long to time, the best.
  void compete(CollectiveKind kind) {
    std::set<const Pooled*> best_ones;
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) best_ones.insert(best(kind, s));
    for (Pooled& entry : pools_[kind]) {
      if (num_transfers(entry.schedule) > kFewTransfers && !best_ones.contains(&entry)) continue;
      for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
        Prediction& time = entry.at_sizes[s];
        if (time.seconds != kNever || entry.lost[s] != 0) continue;
        const Pooled* known = best(kind, s);
        const double best_s = known == nullptr ? kNever : known->at_sizes[s].seconds;
        if (!cannot_win(entry.schedule, best_s, size_of(s))) {
          time = predict(entry.schedule, size_of(s), kMayGain * best_s);
        }
        entry.lost[s] = time.seconds == kNever;
      }
    }
  }

  void ask(const Strategy& strategy, CollectiveKind kind, std::size_t size_index) {
    if (options_.progress) {
      options_.progress(static_cast<int>(calls_ - calls_left_ - 1), static_cast<int>(calls_));
    }
    if (strategy.every_size) {
      std::vector<Schedule> made = made_by(strategy, kind, size_index);
      for (std::size_t i = 0; i < made.size(); ++i) {
        // The search for the first is paid for, even if it took all there was; but who asked to
        // stop waits.
        if ((i > 0 || of_size_.interrupted()) && is_enough(kind, size_index)) return;
        add(std::move(made[i]), strategy.name, size_index, strategy.timed);
      }
      return;
    }
    const auto [known, is_new] = sizeless_.try_emplace(&strategy);
    if (is_new) known->second = made_by(strategy, kind, size_index);
    // Of large ones that which keeps the busiest link busy for the shortest time goes first: the
    // others need not be timed, then, nor need those that come after one at the limit.
    std::vector<std::pair<double, const Schedule*>> in_order;
    for (const Schedule& schedule : known->second) {
      const bool large = num_transfers(schedule) > kFewTransfers;
      in_order.emplace_back(large ? forward_.least_seconds(schedule, size_of(size_index)) : 0,
                            &schedule);
    }
    std::ranges::stable_sort(in_order, {}, [](const auto& one) { return one.first; });
    for (const auto& [least_s, one] : in_order) {
      const Schedule& schedule = *one;
      if (is_enough(kind, size_index)) return;
      if (least_s > 0 && good_enough(kind, size_index)) return;
      add(schedule, strategy.name, size_index, strategy.timed);
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
    part.step_s = options_.step_s;
    if (strategy.every_size) {  // otherwise what it makes competes at other sizes, too
      const Pooled* known = best(kind, size_index);
      if (known != nullptr && !mirrored_later(kind)) {
        // All_reduces made whole combine and spread at once already: a pipeline gains them little.
        const double gain = kind == all_reduce ? kAboutAlike : kMayGain;
        part.useless_s = gain * known->at_sizes[size_index].seconds;
      }
      if (options_.limit) part.limit_s = options_.limit({kind, 0}, size);
    }
    part.say(fmt::format("{} of {:.0f} bytes: {}", name_of(kind), size, strategy.name));
    if (kind == all_reduce && !strategy.combines) return {};
    const bool mirror = !strategy.combines && spreading(kind) != kind;
    const CollectiveKind made = mirror ? spreading(kind) : kind;
    const PreparedTopology& wiring = mirror && backward_ ? *backward_ : forward_;
    std::vector<Schedule> schedules =
        strategy.make({wiring.topology(), wiring.network(made), {made, 0}, size}, part);
    cut_short_ = cut_short_ || part.spent();
    if (mirror) std::ranges::transform(schedules, schedules.begin(), mirrored);
    return schedules;
  }

  /// Proving and timing take long too, with many ranks: seconds for each classic schedule of 256.
  [[nodiscard]] bool is_enough(CollectiveKind kind, std::size_t size_index) {
    if (!of_size_.spent() || best(kind, size_index) == nullptr) return false;
    cut_short_ = true;
    return true;
  }

  /// A schedule that competes at one size (and at those for which it is added again). `timed`: as
  /// its strategy says.
  void add(Schedule schedule, const std::string& strategy, std::size_t size_index,
           bool timed = false) {
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
      const bool finished = timed && loses_as_pipeline(schedule, options_.step_s);
      pool.push_back({std::move(schedule), strategy,
                      std::vector<Prediction>(options_.sizes.size(), {kNever, Method::replayed}),
                      std::vector<char>(options_.sizes.size(), 0), finished});
      entry = std::prev(pool.end());
    }
    if (entry->at_sizes[size_index].seconds != kNever) return;
    const double size = size_of(size_index);
    if (time.seconds == kNever) time = predict_if_best(entry->schedule, best_s, size);
    entry->at_sizes[size_index] = time;
    entry->lost[size_index] = time.seconds == kNever;
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
    const double most_s = most_lost() * winner.at_sizes[size_index].seconds;
    Prediction here{kNever, Method::replayed};
    if (!loses_as_pipeline(as_made, options_.step_s)) here = predict(schedule, size, most_s);
    if (here.seconds > most_s) {
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
      if (s == size_index) {
        time = here;
        continue;
      }
      time.seconds = kNever;  // no more of what it was
      const Pooled* other = best(winner.schedule.collective.kind, s);
      time = predict(winner.schedule, size_of(s),
                     other == nullptr ? kNever : kMayGain * other->at_sizes[s].seconds);
      winner.lost[s] = time.seconds == kNever;
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

  /// What is a little slower may be faster as a pipeline.
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

  /// Small ones even if `part` is spent: they take no time, and which halves serve best is not
  /// known before.
  void compose(const Pooled& first, const Pooled& second, std::size_t size_index,
               const Budget& part) {
    std::optional<Schedule> whole = all_reduce_of_unequal(first.schedule, second.schedule);
    if (!whole) return;
    const bool small = num_transfers(*whole) <= kFewTransfers;
    if (!small && part.spent() && best(all_reduce, size_index) != nullptr) {
      cut_short_ = true;
      return;
    }
    const std::string strategy = first.strategy == second.strategy
                                     ? first.strategy
                                     : first.strategy + " + " + second.strategy;
    // Halves one after the other gain up to a third as a pipeline.
    if (small) add(pipelined(*whole), strategy, size_index);
    add(*std::move(whole), strategy, size_index);
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
    time.seconds += of_steps_s(schedule);
    return time;
  }

  [[nodiscard]] double of_steps_s(const Schedule& schedule) const {
    return options_.step_s * static_cast<double>(schedule.steps.size());
  }

  [[nodiscard]] const Pooled* best(CollectiveKind kind, std::size_t size_index) const {
    return best(kind, size_index, [](const Pooled&) { return true; });
  }
  template <class Wanted>
  [[nodiscard]] const Pooled* best(CollectiveKind kind, std::size_t size_index,
                                   Wanted wanted) const {
    const auto pool = pools_.find(kind);
    return pool == pools_.end() ? nullptr : best_of(pool->second, size_index, wanted);
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

  /// Times the limit. To route what many ranks exchange takes long.
  [[nodiscard]] double near_enough(CollectiveKind kind) const {
    const bool many = forward_.topology().world_size() > kManyRanks;
    return kind == all_to_all && many ? kNearEnoughOfMany : kNearEnough;
  }

  [[nodiscard]] bool good_enough(CollectiveKind kind, std::size_t size_index) const {
    if (!options_.limit) return false;
    const Pooled* found = best(kind, size_index);
    const double size = size_of(size_index);
    return found != nullptr && found->at_sizes[size_index].seconds <=
                                   near_enough(kind) * options_.limit({kind, 0}, size);
  }

  /// all_reduce from halves: at small sizes first, which take no time.
  void compose() {
    const Budget composing = share_.part(kMostComposing);
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      const std::size_t left = options_.sizes.size() - s;
      compose(s, composing.part(1 / static_cast<double>(left)));
    }
  }

  /// From the best halves: of all, of one strategy, of equal chunks.
  void compose(std::size_t size_index, const Budget& part) {
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
        const Pooled* first = best(combining, size_index, wanted);
        const Pooled* second = best(spread, size_index, wanted);
        if (first != nullptr && second != nullptr) compose(*first, *second, size_index, part);
      };
      of_best([](const Pooled&) { return true; });
      for (const std::string& strategy : strategies) {
        of_best([&](const Pooled& entry) { return entry.strategy == strategy; });
      }
      for (const int count : counts) {
        of_best([&](const Pooled& entry) { return entry.schedule.num_chunks == count; });
      }
    }
  }

  void choose(CollectiveKind kind, bool was_cut_short, Planned& result) {
    if (was_cut_short) compete(kind);
    // What wins at one size may be better at another in the form that it has then.
    for (std::size_t s = options_.sizes.size(); s-- > 0;) (void)winner(kind, s);
    if (was_cut_short) compete(kind);
    std::vector<const Pooled*> winners(options_.sizes.size(), nullptr);
    for (std::size_t s = 0; s < winners.size(); ++s) {
      winners[s] = winner(kind, s);
      if (winners[s] != nullptr) continue;
      if (options_.may_leave_out && was_cut_short) return;
      throw SynthesisError(
          fmt::format("no strategy makes {} for the {} ranks of '{}'{}", name_of(kind),
                      forward_.topology().world_size(), forward_.topology().name,
                      was_cut_short ? " with so small a budget; give it more" : ""));
    }
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      const Pooled* winner = winners[s];
      result.choices.push_back({kind, options_.sizes[s], winner->schedule,
                                winner->at_sizes[s].seconds, winner->at_sizes[s].method,
                                static_cast<int>(pools_[kind].size()), winner->strategy,
                                next_best_s(pools_[kind], *winner, s)});
    }
    std::vector<const Schedule*> schedules;
    for (const Pooled* winner : winners) schedules.push_back(&winner->schedule);
    const auto known = [&](const Schedule& schedule, std::size_t s) {
      const auto which = std::ranges::find(schedules, &schedule);
      return winners[static_cast<std::size_t>(which - schedules.begin())]->at_sizes[s].seconds;
    };
    const auto estimated = [&](const Schedule& schedule, double size) {
      return forward_.estimate(schedule, size) + of_steps_s(schedule);
    };
    for (PlanEntry& entry : plan_entries(options_.sizes, schedules, {known, estimated})) {
      result.plan.entries.push_back(std::move(entry));
    }
  }

  const PlanOptions& options_;
  const std::vector<Strategy>& strategies_;
  const Budget budget_;
  Budget share_;            // of the collective in hand
  Budget of_size_;          // of it and one size
  bool cut_short_ = false;  // the search for it
  PreparedTopology forward_;
  bool symmetric_;
  std::optional<PreparedTopology> backward_;
  std::set<CollectiveKind> kinds_;
  std::map<CollectiveKind, Pool> pools_;
  /// What the strategies made for the collective in hand whose schedules depend on no size.
  std::map<const Strategy*, std::vector<Schedule>> sizeless_;
  std::size_t calls_ = 0, calls_left_ = 0;
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
