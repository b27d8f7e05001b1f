#include "runtime/selection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/contract.hpp"
#include "model/symmetry.hpp"
#include "runtime/direct_cost.hpp"
#include "runtime/direct_execution.hpp"
#include "runtime/proved.hpp"

namespace chorus {
namespace {

constexpr std::size_t kMostLowered = 1 << 16;  // transfers, of symmetric schedules
constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::string why_not(const Algorithm& algorithm, const AlgorithmInput& input,
                    const Options& options) {
  if (const auto reason = algorithm.why_not(input)) return *reason;
  if (options.deterministic && is_combining(input.kind) && input.kind != CollectiveKind::barrier &&
      !algorithm.rank_order) {
    return "does not fold in the order of ranks (CHORUS_DETERMINISTIC)";
  }
  return {};
}

// The schedules that are cheapest for some size, each with its range: costs are lines over size.
std::vector<PlanEntry> lower_envelope(const std::vector<Candidate>& candidates,
                                      std::vector<Schedule> schedules) {
  std::vector<PlanEntry> entries;
  double from = 0;
  std::size_t current = 0;
  const auto usable = [&](std::size_t i) { return candidates[i].why_not.empty(); };
  const auto cheaper_at_start = [&](std::size_t a, std::size_t b) {
    const Cost& x = candidates[a].cost;
    const Cost& y = candidates[b].cost;
    return x.alpha_s != y.alpha_s ? x.alpha_s < y.alpha_s : x.beta_s_per_byte < y.beta_s_per_byte;
  };
  current = candidates.size();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (usable(i) && (current == candidates.size() || cheaper_at_start(i, current))) current = i;
  }
  if (current == candidates.size()) return entries;
  while (true) {
    // Where does a line of smaller slope cross this one first?
    const Cost& cost = candidates[current].cost;
    std::size_t next = candidates.size();
    double until = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (!usable(i) || candidates[i].cost.beta_s_per_byte >= cost.beta_s_per_byte) continue;
      const double cross =
          std::max(from, (candidates[i].cost.alpha_s - cost.alpha_s) /
                             (cost.beta_s_per_byte - candidates[i].cost.beta_s_per_byte));
      const bool steeper_next =
          next < candidates.size() && cross == until &&
          candidates[i].cost.beta_s_per_byte < candidates[next].cost.beta_s_per_byte;
      if (cross < until || steeper_next) {
        until = cross;
        next = i;
      }
    }
    const auto min_bytes = static_cast<std::uint64_t>(from);
    const bool last = next == candidates.size() || until >= 1e18;
    const auto max_bytes = last ? kNoLimit : static_cast<std::uint64_t>(until);
    if (max_bytes >= min_bytes) {
      entries.push_back({.min_bytes = min_bytes,
                         .max_bytes = max_bytes,
                         .schedule = std::move(schedules[current]),
                         .min_bytes_time_s = cost.seconds(static_cast<double>(min_bytes)),
                         .per_byte_time_s = cost.beta_s_per_byte});
    }
    if (last) return entries;
    from = static_cast<double>(max_bytes) + 1;
    current = next;
  }
}

}  // namespace

Considered consider(CollectiveKind kind, const Topology& topology, const Routes& routes,
                    const std::vector<int>& levels, const Options& options, int shared_cores) {
  Considered considered;
  std::vector<Schedule> schedules;
  const AlgorithmInput input{.kind = kind, .world_size = topology.world_size(), .levels = levels};
  bool named_one_can = false;
  if (!options.algorithm.empty()) {
    named_one_can = why_not(algorithm(options.algorithm), input, options).empty();
  }
  for (const Algorithm& algorithm : algorithms()) {
    Candidate candidate{.name = std::string(algorithm.name),
                        .why_not = why_not(algorithm, input, options)};
    Schedule schedule;
    if (candidate.why_not.empty() && named_one_can && algorithm.name != options.algorithm) {
      candidate.why_not = fmt::format("CHORUS_ALGORITHM={}", options.algorithm);
    }
    if (candidate.why_not.empty()) {
      schedule = algorithm.make(input);
      candidate.steps = static_cast<int>(schedule.steps.size());
      try {
        const auto forms = shared_cores > 0 ? direct(schedule) : std::nullopt;
        if (shared_cores > 0 && !forms && topology.world_size() <= kMostFlat &&
            algorithm.name != options.algorithm) {
          candidate.why_not = "relays, but all ranks reach each other's memory";
        }
        candidate.cost =
            forms ? direct_cost(*forms, shared_cores) : cost(schedule, topology, routes);
      } catch (const TopologyError& error) {
        candidate.why_not = error.what();
      }
    }
    considered.candidates.push_back(std::move(candidate));
    schedules.push_back(std::move(schedule));
  }
  considered.entries = lower_envelope(considered.candidates, std::move(schedules));
  return considered;
}

std::string explain(const Considered& considered, CollectiveKind kind, double size_bytes) {
  const auto chosen = std::find_if(
      considered.entries.begin(), considered.entries.end(),
      [&](const PlanEntry& entry) { return size_bytes <= static_cast<double>(entry.max_bytes); });
  std::string text;
  if (chosen == considered.entries.end()) {
    text = fmt::format("{}: no schedule serves this\n", name_of(kind));
  } else {
    const double seconds =
        chosen->min_bytes_time_s +
        (size_bytes - static_cast<double>(chosen->min_bytes)) * chosen->per_byte_time_s;
    const std::string range =
        chosen->max_bytes == kNoLimit
            ? fmt::format("from {} bytes on", chosen->min_bytes)
            : fmt::format("for {} to {} bytes", chosen->min_bytes, chosen->max_bytes);
    text = fmt::format("{} of {:.0f} bytes runs {}: {:.2f} us predicted (best {})\n", name_of(kind),
                       size_bytes, chosen->schedule.name, seconds * 1e6, range);
  }
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : considered.candidates) order.push_back(&candidate);
  std::stable_sort(order.begin(), order.end(), [&](const Candidate* a, const Candidate* b) {
    if (a->why_not.empty() != b->why_not.empty()) return a->why_not.empty();
    return a->cost.seconds(size_bytes) < b->cost.seconds(size_bytes);
  });
  for (const Candidate* candidate : order) {
    if (candidate->why_not.empty()) {
      text += fmt::format(
          "  {:<27} {:>12.2f} us   {:>4} steps  {:>10.2f} us + bytes / {:.3f} GB/s\n",
          candidate->name, candidate->cost.seconds(size_bytes) * 1e6, candidate->steps,
          candidate->cost.alpha_s * 1e6,
          candidate->cost.beta_s_per_byte > 0 ? 1e-9 / candidate->cost.beta_s_per_byte
                                              : std::numeric_limits<double>::infinity());
    } else {
      text += fmt::format("  {:<27} {:>15}   {}\n", candidate->name, "-", candidate->why_not);
    }
  }
  return text;
}

Selector::Selector(Topology topology, std::vector<int> levels, const Options& options, Plan plan,
                   Rank rank, int guaranteed_slots, int shared_cores)
    : topology_(std::move(topology)),
      routes_(topology_),
      levels_(std::move(levels)),
      options_(options),
      plan_(std::move(plan)),
      rank_(rank),
      guaranteed_slots_(guaranteed_slots),
      shared_cores_(shared_cores) {}

Selector::PerKind& Selector::prepare(CollectiveKind kind) {
  PerKind& per_kind = kinds_[static_cast<std::size_t>(kind)];
  if (per_kind.considered) return per_kind;
  Considered considered;
  for (const PlanEntry& entry : plan_.entries) {
    if (entry.schedule.collective.kind == kind) considered.entries.push_back(entry);
  }
  // What a plan leaves open, the classic schedules serve.
  if (considered.entries.empty() || considered.entries.front().min_bytes != 0 ||
      considered.entries.back().max_bytes != kNoLimit) {
    Considered classic = consider(kind, topology_, routes_, levels_, options_, shared_cores_);
    if (classic.entries.empty()) {
      throw SynthesisError(fmt::format("no schedule serves {} on {} ranks:\n{}", name_of(kind),
                                       topology_.world_size(), chorus::explain(classic, kind, 0)));
    }
    considered.candidates = std::move(classic.candidates);
    considered.entries.insert(considered.entries.end(),
                              std::make_move_iterator(classic.entries.begin()),
                              std::make_move_iterator(classic.entries.end()));
  }
  const std::size_t roots = is_rooted(kind) ? static_cast<std::size_t>(topology_.world_size()) : 1;
  per_kind.choices.assign(roots, std::vector<Choice>(considered.entries.size()));
  per_kind.considered = std::move(considered);
  return per_kind;
}

// Entries of a plan come first; the classic ones cover every size.
std::size_t Selector::entry_for(const PerKind& per_kind, std::uint64_t size_bytes) {
  const auto& entries = per_kind.considered->entries;
  std::size_t i = 0;
  while (size_bytes < entries[i].min_bytes || size_bytes > entries[i].max_bytes) ++i;
  return i;
}

double Selector::predicted_s(CollectiveKind kind, std::uint64_t size_bytes) {
  const PerKind& per_kind = prepare(kind);
  const PlanEntry& entry = per_kind.considered->entries[entry_for(per_kind, size_bytes)];
  return entry.min_bytes_time_s +
         static_cast<double>(size_bytes - entry.min_bytes) * entry.per_byte_time_s;
}

const Selector::Choice& Selector::choose(Collective collective, std::uint64_t size_bytes) {
  PerKind& per_kind = prepare(collective.kind);
  const std::size_t i = entry_for(per_kind, size_bytes);
  const auto& entries = per_kind.considered->entries;
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  Choice& choice = per_kind.choices[static_cast<std::size_t>(root)][i];
  if (!choice.routine) choice = make_choice(entries[i].schedule, root);
  return choice;
}

Selector::Choice Selector::make_choice(const Schedule& schedule, Rank root) const {
  const Schedule mine = root == 0 ? schedule : rotated(schedule, root);
  if (!mine.symmetry.empty() && num_transfers(mine) > kMostLowered) {
    require_correct(mine);
    // Too many to cut for all ranks: programs that ranks cut alone cannot wait in a circle.
    Program program = lower_alone(mine, rank_);
    const int longest = max_message_chunks(program);
    return {.routine = make_routine(std::move(program), longest, hash_of(mine)), .name = mine.name};
  }
  Proved proved = prove(mine, guaranteed_slots_, shared_cores_ > 0);
  std::vector<Program>& programs = proved.programs;
  int longest = 1;
  for (const Program& program : programs) longest = std::max(longest, max_message_chunks(program));
  std::shared_ptr<const DirectRoutine> shared;
  if (proved.direct) {
    shared = std::make_shared<const DirectRoutine>(make_direct_routine(*proved.direct, rank_));
  }
  return {.routine = make_routine(std::move(programs[static_cast<std::size_t>(rank_)]), longest,
                                  hash_of(mine), std::move(shared)),
          .name = mine.name};
}

std::string Selector::explain(CollectiveKind kind, std::uint64_t size_bytes) {
  return chorus::explain(*prepare(kind).considered, kind, static_cast<double>(size_bytes));
}

}  // namespace chorus
