#include "synth/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/contract.hpp"
#include "model/json.hpp"
#include "model/symmetry.hpp"
#include "synth/predict.hpp"
#include "synth/repeated.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kNearEnough = 1.005;  // of the limit: searching on is not worth it
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLittleLost = 1.1;
constexpr long kMostComposedChunks = 4096;
constexpr std::size_t kMostSimulated = 130'000;  // transfers; beyond, seconds each and more

/// Schedules that differ by no more are told apart by how many streams share a link; by no more
/// than the second, if one has not half as many.
constexpr double kAlike = 1.005;
constexpr double kAboutAlike = 1.02;

/// The most pairs of ranks whose transfers meet on one of the links and port groups that the
/// schedule keeps busy for longest. Streams that share one share it neither evenly nor without
/// loss, which no prediction knows: an all-gather with three streams into one slow host took 1.08
/// times as long as round a ring, predicted alike.
int most_streams(const Schedule& schedule, const Network& network) {
  std::map<int, int> chunks;  // by edge
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      if (const std::optional<int> edge = network.edge(transfer.src, transfer.dst)) ++chunks[*edge];
    }
  }
  struct Use {
    int streams = 0;
    double busy = 0;
  };
  std::vector<Use> uses(network.resources().size());
  double busiest = 0;
  for (const auto& [edge, count] : chunks) {
    for (const int resource : network.edges()[at(edge)].resources) {
      Use& use = uses[at(resource)];
      ++use.streams;
      use.busy += count * network.resources()[at(resource)].beta_s_per_byte;
      busiest = std::max(busiest, use.busy);
    }
  }
  int most = 0;
  for (const Use& use : uses) {
    if (use.busy >= busiest / 2) most = std::max(most, use.streams);
  }
  return most;
}

/// A proved schedule and its predicted times at the sizes of the plan.
struct Pooled {
  Schedule schedule;
  std::string strategy;
  std::optional<std::size_t> made_for;  ///< the index of a size; large ones are timed there alone
  std::vector<Prediction> at_sizes;
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
          const std::vector<Strategy>& strategies, const Effort& effort)
      : options_(options),
        strategies_(strategies),
        effort_(effort),
        forward_(topology),
        symmetric_(symmetric(topology)) {
    if (forward_.repeated() == nullptr) require_connected(topology, forward_.network());
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
    for (const CollectiveKind kind : kinds_) {
      if (kind != all_reduce) fill(kind);
    }
    if (kinds_.contains(all_reduce)) fill(all_reduce);
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
  /// A quarter of the time that is left, at most: few calls need a part worth mentioning, and those
  /// must not be cut short by the many.
  [[nodiscard]] Effort slice() const {
    Effort part = effort_;
    if (effort_.deadline != Effort::Clock::time_point::max()) {
      const Effort::Clock::time_point now = Effort::Clock::now();
      part.deadline = now + (effort_.deadline - now) / 4;
    }
    return part;
  }

  void fill(CollectiveKind kind) {
    if (kind == all_reduce) compose();
    const bool mirror_known =
        symmetric_ && spreading(kind) != kind && pools_.contains(spreading(kind));
    if (mirror_known) {
      const Pool& spread = pools_[spreading(kind)];
      for (std::size_t i = 0; i < spread.size(); ++i) {
        add(mirrored(spread[i].schedule), spread[i].strategy, spread[i].made_for);
      }
    }
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      for (const Strategy& strategy : strategies_) {
        if (calls_left_ > 0) --calls_left_;
        if (s > 0 && !strategy.every_size) continue;
        if (forward_.repeated() != nullptr && !strategy.folds) continue;
        if (mirror_known && !strategy.combines) continue;
        if (good_enough(kind, s)) continue;
        if (effort_.spent()) {
          complete_ = false;
          if (options_.may_leave_out || best(kind, s) != nullptr) continue;
        }
        ask(strategy, kind, s);
      }
    }
  }

  static Task task_on(const Wiring& wiring, CollectiveKind kind, double size) {
    return {wiring.topology(), wiring.network(), {kind, 0}, size, wiring.repeated()};
  }

  void ask(const Strategy& strategy, CollectiveKind kind, std::size_t size_index) {
    const auto size = static_cast<double>(options_.sizes[size_index]);
    const std::optional<std::size_t> made_for =
        strategy.every_size ? std::optional(size_index) : std::nullopt;
    if (options_.progress) {
      options_.progress(static_cast<int>(calls_ - calls_left_ - 1), static_cast<int>(calls_));
    }
    const Effort part = slice();
    part.say(fmt::format("{} of {:.0f} bytes: {}", name_of(kind), size, strategy.name));
    const bool mirror = spreading(kind) != kind;
    if (strategy.combines) {
      const Task task = task_on(forward_, kind, size);
      for (Schedule& schedule : strategy.make(task, part)) {
        if (is_enough(kind, size_index)) return;
        add(std::move(schedule), strategy.name, made_for);
      }
    } else if (kind != all_reduce) {
      const Task task = task_on(mirror && backward_ ? *backward_ : forward_, spreading(kind), size);
      for (Schedule& schedule : strategy.make(task, part)) {
        if (is_enough(kind, size_index)) return;
        add(mirror ? mirrored(schedule) : std::move(schedule), strategy.name, made_for);
      }
    }
  }

  /// Proving and timing take long too, with many ranks: seconds for each classic schedule of 256.
  [[nodiscard]] bool is_enough(CollectiveKind kind, std::size_t size_index) {
    if (!effort_.spent() || best(kind, size_index) == nullptr) return false;
    complete_ = false;
    return true;
  }

  void add(Schedule schedule, const std::string& strategy,
           std::optional<std::size_t> made_for = std::nullopt) {
    Pool& pool = pools_[schedule.collective.kind];
    for (const Pooled& known : pool) {
      if (known.schedule == schedule) return;
    }
    if (options_.accepts && !options_.accepts(schedule)) return;
    // Of the many that a folded wiring allows only those that win are worth a proof.
    if (forward_.repeated() != nullptr && !wins(schedule)) return;
    if (const auto fault = first_fault(schedule)) {
      CHORUS_CHECK(false, fmt::format("{} makes a wrong {}: {}", strategy,
                                      name_of(schedule.collective.kind), *fault)
                              .c_str());
    }
    const Collective collective = schedule.collective;
    Pooled entry{std::move(schedule), strategy, made_for, {}};
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      const auto size = static_cast<double>(options_.sizes[s]);
      const Prediction time = predict_if_best(entry, pool, s, size);
      const bool best = std::all_of(pool.begin(), pool.end(), [&](const Pooled& other) {
        return time.seconds < other.at_sizes[s].seconds;
      });
      if (best && options_.better) {
        options_.better(collective, options_.sizes[s], entry.schedule, time.seconds);
      }
      entry.at_sizes.push_back(time);
    }
    pool.push_back(std::move(entry));
  }

  [[nodiscard]] bool wins(const Schedule& schedule) const {
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      const auto size = static_cast<double>(options_.sizes[s]);
      const Pooled* known = best(schedule.collective.kind, s);
      if (known == nullptr) return true;
      if (predict(schedule, size).seconds < known->at_sizes[s].seconds) return true;
    }
    return false;
  }

  /// Both halves with their chunks cut so that they are equal.
  void compose(const Pooled& first, const Pooled& second) {
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
    add(std::move(whole), first.strategy == second.strategy
                              ? first.strategy
                              : first.strategy + " + " + second.strategy);
  }

  /// Infinite seconds for a large schedule that cannot become the best: predicting it takes long.
  [[nodiscard]] Prediction predict_if_best(const Pooled& entry, const Pool& pool,
                                           std::size_t size_index, double size) const {
    const Schedule& schedule = entry.schedule;
    if (num_transfers(schedule) > kMostSimulated && forward_.repeated() == nullptr) {
      if (entry.made_for && *entry.made_for != size_index) return {kNever, Method::replayed};
      double best = kNever;
      for (const Pooled& other : pool) best = std::min(best, other.at_sizes[size_index].seconds);
      const auto least = least_seconds(schedule, forward_.network(), size);
      if (least && *least >= best) return {kNever, Method::replayed};
    }
    return predict(schedule, size);
  }

  [[nodiscard]] Prediction predict(const Schedule& schedule, double size) const {
    Prediction time = forward_.predict(schedule, size);
    time.seconds += options_.step_s * static_cast<double>(schedule.steps.size());
    return time;
  }

  [[nodiscard]] const Pooled* best(CollectiveKind kind, std::size_t size_index,
                                   int num_chunks = 0) const {
    const Pooled* best = nullptr;
    const auto pool = pools_.find(kind);
    if (pool == pools_.end()) return nullptr;
    for (const Pooled& entry : pool->second) {
      if (num_chunks != 0 && entry.schedule.num_chunks != num_chunks) continue;
      if (entry.at_sizes[size_index].seconds == kNever) continue;
      if (best == nullptr ||
          entry.at_sizes[size_index].seconds < best->at_sizes[size_index].seconds) {
        best = &entry;
      }
    }
    return best;
  }

  /// Of the schedules that are predicted as fast as `best`, one with the fewest streams on a link.
  [[nodiscard]] const Pooled* fewest_streams(const Pooled* best, std::size_t size_index) const {
    if (best == nullptr || forward_.repeated() != nullptr) return best;
    const auto streams = [&](const Pooled& entry) {
      return most_streams(
          entry.schedule.symmetry.empty() ? entry.schedule : expanded(entry.schedule),
          forward_.network());
    };
    const double least_s = best->at_sizes[size_index].seconds;
    const int of_best = streams(*best);
    int fewest = of_best;
    for (const Pooled& entry : pools_.at(best->schedule.collective.kind)) {
      const double seconds = entry.at_sizes[size_index].seconds;
      if (&entry == best || seconds > kAboutAlike * least_s) continue;
      const int own = streams(entry);
      if (own >= fewest || (2 * own > of_best && seconds > kAlike * least_s)) continue;
      best = &entry;
      fewest = own;
    }
    return best;
  }

  [[nodiscard]] bool good_enough(CollectiveKind kind, std::size_t size_index) const {
    if (!options_.limit) return false;
    const Pooled* found = best(kind, size_index);
    const auto size = static_cast<double>(options_.sizes[size_index]);
    return found != nullptr &&
           found->at_sizes[size_index].seconds <= kNearEnough * options_.limit({kind, 0}, size);
  }

  /// all_reduce from the best halves of equal chunks, by size.
  void compose() {
    for (const auto& [combining, spread] :
         {std::pair{reduce_scatter, all_gather}, std::pair{reduce, broadcast}}) {
      std::set<int> counts;
      for (const Pooled& entry : pools_[spread]) counts.insert(entry.schedule.num_chunks);
      for (const int count : counts) {
        for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
          const Pooled* first = best(combining, s, count);
          const Pooled* second = best(spread, s, count);
          if (first != nullptr && second != nullptr) compose(*first, *second);
        }
      }
      for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
        const Pooled* first = best(combining, s);
        const Pooled* second = best(spread, s);
        if (first != nullptr && second != nullptr) compose(*first, *second);
      }
    }
  }

  void choose(CollectiveKind kind, Planned& result) {
    std::vector<const Pooled*> winners;
    for (std::size_t s = 0; s < options_.sizes.size(); ++s) {
      winners.push_back(fewest_streams(best(kind, s), s));
      if (winners.back() != nullptr) continue;
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
                                static_cast<int>(pools_[kind].size()), winner->strategy});
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

  /// The size between sizes[s] and sizes[s + 1] at which `b` becomes the faster one.
  [[nodiscard]] std::uint64_t crossing(const Pooled& a, const Pooled& b, std::size_t s) const {
    const auto low = static_cast<double>(options_.sizes[s]);
    const auto high = static_cast<double>(options_.sizes[s + 1]);
    const double before = b.at_sizes[s].seconds - a.at_sizes[s].seconds;         // ≥ 0
    const double after = a.at_sizes[s + 1].seconds - b.at_sizes[s + 1].seconds;  // ≥ 0
    const double share = before + after > 0 ? before / (before + after) : 0;
    const double cross = low + share * (high - low);
    return std::clamp(static_cast<std::uint64_t>(cross), options_.sizes[s],
                      options_.sizes[s + 1] - 1);
  }

  [[nodiscard]] PlanEntry entry(const Pooled& chosen, std::uint64_t from, std::uint64_t until) {
    const double low = static_cast<double>(from);
    const double high =
        static_cast<double>(std::min(until, std::max(2 * from, options_.sizes.back())));
    const double first = predict(chosen.schedule, low).seconds;
    const double second = predict(chosen.schedule, high).seconds;
    return {.min_bytes = from,
            .max_bytes = until,
            .schedule = chosen.schedule,
            .min_bytes_time_s = first,
            .per_byte_time_s = high > low ? std::max(0.0, (second - first) / (high - low)) : 0};
  }

  const PlanOptions& options_;
  const std::vector<Strategy>& strategies_;
  const Effort& effort_;
  Wiring forward_;
  bool symmetric_;
  std::optional<Wiring> backward_;
  std::set<CollectiveKind> kinds_;
  std::map<CollectiveKind, Pool> pools_;
  std::size_t calls_ = 0, calls_left_ = 0;
  bool complete_ = true;
};

/// What identifies a link among its likes, whichever way it is turned.
auto identity(const Topology::Link& link, bool turned) {
  return std::tuple(turned ? link.dst : link.src, turned ? link.src : link.dst, link.alpha_s,
                    link.beta_s_per_byte);
}

}  // namespace

Topology reversed(const Topology& topology) {
  Topology result = topology;
  for (Topology::Link& link : result.links) std::swap(link.src, link.dst);
  return result;
}

bool symmetric(const Topology& topology) {
  const auto sorted = [&](bool turned) {
    std::vector<decltype(identity(topology.links[0], turned))> all;
    for (const Topology::Link& link : topology.links) all.push_back(identity(link, turned));
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto groups = [&](bool turned) {
    std::vector<
        std::tuple<double, double, std::vector<decltype(identity(topology.links[0], false))>>>
        all;
    for (const Topology::PortGroup& group : topology.port_groups) {
      auto& [beta, message, links] = all.emplace_back();
      beta = group.beta_s_per_byte;
      message = group.message_s;
      for (const int link : group.links)
        links.push_back(identity(topology.links[at(link)], turned));
      std::sort(links.begin(), links.end());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  return sorted(false) == sorted(true) && groups(false) == groups(true);
}

Wiring::Wiring(const Topology& topology)
    : topology_(topology),
      repeated_(topology.world_size() > kMostListed ? RepeatedNetwork::of(topology) : std::nullopt),
      network_(repeated_ ? Network(topology.world_size(), {}, {}) : Network(topology)) {
  if (!repeated_) routes_.emplace(topology_);
}

Prediction Wiring::predict(const Schedule& schedule, double size_bytes) const {
  if (repeated_) {
    const bool quick = num_transfers(schedule) / at(repeated_->cells().count()) <= kMostSimulated;
    const auto seconds = quick ? repeated_->simulated_seconds(schedule, size_bytes)
                               : replayed_seconds(schedule, *repeated_, size_bytes);
    if (!seconds) {
      throw InputError(
          fmt::format("'{}' on {} ranks has not the symmetry of '{}': schedules of so many ranks "
                      "are timed by it",
                      schedule.name, schedule.world_size, topology_.name));
    }
    return {*seconds, quick ? Method::simulated : Method::replayed};
  }
  if (num_transfers(schedule) <= kMostSimulated) {
    return {simulate(schedule, topology_, *routes_, size_bytes).seconds, Method::simulated};
  }
  if (!schedule.symmetry.empty()) return predict(expanded(schedule), size_bytes);
  // With a barrier after every step; where that loses little, or where nothing could overlap.
  const double stepwise = cost(schedule, topology_, *routes_).seconds(size_bytes);
  const std::optional<double> least = least_seconds(schedule, network_, size_bytes);
  if (!least || schedule.steps.size() == 1 || stepwise <= kLittleLost * *least) {
    return {stepwise, Method::cost};
  }
  return {*replayed_seconds(schedule, network_, size_bytes), Method::replayed};
}

Planned make_plan(const Topology& topology, const PlanOptions& options,
                  const std::vector<Strategy>& strategies, const Effort& effort) {
  CHORUS_CHECK(!options.sizes.empty() &&
                   std::is_sorted(options.sizes.begin(), options.sizes.end(), std::less_equal<>()),
               "sizes of a plan ascend");
  return Planner(topology, options, strategies, effort).run();
}

}  // namespace chorus::synth
