#include "runtime/selection/selection.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/blob.hpp"
#include "base/counted.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/executors/direct_cost.hpp"

namespace chorus {
namespace {

/// A connection takes memory, and perhaps files, at both ends. Of more ranks than that nobody is
/// connected with all others, though their data would go the shorter way.
constexpr int kMostPartners = 128;

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

AlgorithmInput input_for(CollectiveKind kind, int world_size, const std::vector<int>& levels) {
  return {.kind = kind,
          .world_size = world_size,
          .levels = levels,
          .compact = world_size >= kCompactRanks};
}

std::string reason_against(const Algorithm& algorithm, const AlgorithmInput& input,
                           const Options& options) {
  if (const auto reason = algorithm.why_not(input)) return *reason;
  if (options.deterministic && is_combining(input.kind) && input.kind != CollectiveKind::barrier &&
      !algorithm.rank_order) {
    return "does not fold in the order of ranks (CHORUS_DETERMINISTIC)";
  }
  return {};
}

/// `forms`: that run it without messages, or null.
Price price_of(const Schedule& schedule, const std::vector<DirectProgram>* forms,
               const Topology& topology, const Routes& routes, const SharedMachine* shared) {
  if (forms != nullptr) return direct_price(*forms, *shared);
  const Cost messages = cost(schedule, topology, routes);
  return shared != nullptr ? message_price(schedule, messages.alpha_s, *shared) : Price(messages);
}

/// Where all ranks are as near to each other, a relay copies no less than what goes straight: it
/// has to take less time for no bytes at all. `straight`: by candidate.
void drop_relays(std::vector<Candidate>& candidates, const std::vector<bool>& straight,
                 std::string_view asked_for) {
  double least_s = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (straight[i] && candidates[i].why_not.empty()) {
      least_s = std::min(least_s, candidates[i].price.seconds(0));
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    if (straight[i] || !candidate.why_not.empty() || candidate.name == asked_for) continue;
    if (candidate.price.seconds(0) < least_s) continue;
    candidate.why_not = "relays, but all ranks reach each other's memory";
  }
}

/// Sizes from `from` on, up to the next range's, of which one candidate is the cheapest.
struct Range {
  double from = 0;
  std::size_t candidate = 0;
};

/// Of sizes between two, where all prices are lines: appends who is cheapest from where on.
void add_cheapest(const std::vector<Candidate>& candidates, double from, double until,
                  std::vector<Range>& ranges) {
  std::vector<std::pair<std::size_t, Cost>> lines;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].why_not.empty()) lines.emplace_back(i, candidates[i].price.line_at(from));
  }
  const auto cheaper_at_start = [&](const auto& a, const auto& b) {
    const double x = a.second.seconds(from);
    const double y = b.second.seconds(from);
    return x != y ? x < y : a.second.beta_s_per_byte < b.second.beta_s_per_byte;
  };
  auto current = std::ranges::min_element(lines, cheaper_at_start);
  while (true) {
    if (ranges.empty() || ranges.back().candidate != current->first) {
      ranges.push_back({.from = from, .candidate = current->first});
    }
    // Where does a line of smaller slope cross this one first?
    const Cost& line = current->second;
    auto next = lines.end();
    double first_cross = until;
    for (auto other = lines.begin(); other != lines.end(); ++other) {
      if (other->second.beta_s_per_byte >= line.beta_s_per_byte) continue;
      const double cross =
          std::max(from, (other->second.alpha_s - line.alpha_s) /
                             (line.beta_s_per_byte - other->second.beta_s_per_byte));
      const bool steeper_next = next != lines.end() && cross == first_cross &&
                                other->second.beta_s_per_byte < next->second.beta_s_per_byte;
      if (cross < first_cross || steeper_next) {
        first_cross = cross;
        next = other;
      }
    }
    if (next == lines.end()) return;
    from = std::max(from, first_cross);
    current = next;
  }
}

// The schedules that are cheapest for some size, each with its range.
std::vector<PlanEntry> lower_envelope(const std::vector<Candidate>& candidates,
                                      const std::vector<Schedule>& schedules) {
  constexpr double kLargest = 1e18;
  std::vector<double> sizes;
  for (const Candidate& candidate : candidates) {
    if (!candidate.why_not.empty()) continue;
    for (const Price::Point& point : candidate.price.points()) sizes.push_back(point.bytes);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    add_cheapest(candidates, sizes[i], i + 1 < sizes.size() ? sizes[i + 1] : kLargest, ranges);
  }
  std::vector<PlanEntry> entries;
  std::uint64_t min_bytes = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const bool last = i + 1 == ranges.size();
    const auto max_bytes = last ? kNoLimit : static_cast<std::uint64_t>(ranges[i + 1].from);
    if (max_bytes < min_bytes) continue;
    const Price& price = candidates[ranges[i].candidate].price;
    const auto low = static_cast<double>(min_bytes);
    const double high = last ? kLargest : std::max(low + 1, static_cast<double>(max_bytes));
    const bool again =
        !entries.empty() && entries.back().schedule.name == schedules[ranges[i].candidate].name;
    if (again) {  // what lay between held no size
      entries.back().max_bytes = max_bytes;
    } else {
      entries.push_back(
          {.min_bytes = min_bytes,
           .max_bytes = max_bytes,
           .schedule = schedules[ranges[i].candidate],
           .min_bytes_time_s = price.seconds(low),
           .per_byte_time_s = (price.seconds(high) - price.seconds(low)) / (high - low)});
    }
    if (last) break;
    min_bytes = max_bytes + 1;
  }
  return entries;
}

}  // namespace

Considered consider(CollectiveKind kind, const Topology& topology, const Routes& routes,
                    const std::vector<int>& levels, const Options& options,
                    const Pricing& pricing) {
  const SharedMachine* const shared = pricing.shared;
  Considered considered;
  std::vector<Schedule> schedules;
  std::vector<bool> straight;
  const AlgorithmInput input = input_for(kind, topology.world_size(), levels);
  bool named_one_can = false;
  if (!options.algorithm.empty()) {
    named_one_can = reason_against(algorithm(options.algorithm), input, options).empty();
  }
  for (const Algorithm& algorithm : algorithms()) {
    Candidate candidate{.name = std::string(algorithm.name),
                        .why_not = reason_against(algorithm, input, options)};
    Schedule schedule;
    bool is_direct = false;
    if (candidate.why_not.empty() && named_one_can && algorithm.name != options.algorithm) {
      candidate.why_not = fmt::format("CHORUS_ALGORITHM={}", options.algorithm);
    }
    if (candidate.why_not.empty()) {
      schedule = algorithm.make(input);
      candidate.steps = static_cast<int>(schedule.steps.size());
      try {
        const bool may_be_direct = shared != nullptr && (!input.compact || algorithm.all_pairs);
        const auto forms = may_be_direct ? direct(schedule) : std::nullopt;
        is_direct = forms.has_value();
        const bool asked_for = options.deterministic || algorithm.name == options.algorithm;
        const bool few_others_serve = is_rooted(kind) || kind == CollectiveKind::all_to_all;
        if (input.compact && algorithm.all_pairs && !forms && !asked_for &&
            (!few_others_serve || input.world_size > kMostPartners)) {
          candidate.why_not =
              fmt::format("connects every rank with {} others", input.world_size - 1);
        }
        if (candidate.why_not.empty()) {
          candidate.price = price_of(schedule, forms ? &*forms : nullptr, topology, routes, shared);
          if (pricing.amend) pricing.amend(schedule, candidate);
        }
      } catch (const TopologyError& error) {
        candidate.why_not = error.what();
      }
    }
    considered.candidates.push_back(std::move(candidate));
    schedules.push_back(std::move(schedule));
    straight.push_back(is_direct);
  }
  if (shared != nullptr && levels_inside(shared->places).size() < 2) {
    drop_relays(considered.candidates, straight, options.algorithm);
  }
  considered.entries = lower_envelope(considered.candidates, schedules);
  return considered;
}

double predicted_s(const Considered& considered, const PlanEntry& entry, double size_bytes) {
  for (const Candidate& candidate : considered.candidates) {
    if (candidate.why_not.empty() && candidate.name == entry.schedule.name) {
      return candidate.price.seconds(size_bytes);
    }
  }
  return entry.min_bytes_time_s +
         (size_bytes - static_cast<double>(entry.min_bytes)) * entry.per_byte_time_s;
}

std::string explain(const Considered& considered, CollectiveKind kind, double size_bytes) {
  const auto chosen = std::find_if(considered.entries.begin(), considered.entries.end(),
                                   [&](const PlanEntry& entry) {
                                     return size_bytes >= static_cast<double>(entry.min_bytes) &&
                                            size_bytes <= static_cast<double>(entry.max_bytes);
                                   });
  std::string text;
  if (chosen == considered.entries.end()) {
    text = fmt::format("{}: no schedule serves this\n", name_of(kind));
  } else {
    const double seconds = predicted_s(considered, *chosen, size_bytes);
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
    return a->price.seconds(size_bytes) < b->price.seconds(size_bytes);
  });
  for (const Candidate* candidate : order) {
    if (candidate->why_not.empty()) {
      // As it is at this size: of the next byte where there is none.
      const double alpha_s = candidate->price.seconds(0);
      const double bytes = std::max(size_bytes, 1.0);
      const double rest_s = candidate->price.seconds(bytes) - alpha_s;
      text +=
          fmt::format("  {:<27} {:>12.2f} us   {:>4} steps  {:>10.2f} us + bytes / {:.3f} GB/s\n",
                      candidate->name, candidate->price.seconds(size_bytes) * 1e6, candidate->steps,
                      alpha_s * 1e6,
                      rest_s > 0 ? bytes / rest_s * 1e-9 : std::numeric_limits<double>::infinity());
    } else {
      text += fmt::format("  {:<27} {:>15}   {}\n", candidate->name, "-", candidate->why_not);
    }
  }
  return text;
}

Selection::Selection(Topology topology, std::vector<int> levels, const Options& options, Plan plan,
                     Pricing pricing)
    : topology_(std::move(topology)),
      levels_(std::move(levels)),
      options_(options),
      plan_(std::move(plan)),
      pricing_(std::move(pricing)) {}

Selection::PerKind& Selection::prepare(CollectiveKind kind) {
  PerKind& per_kind = kinds_[static_cast<std::size_t>(kind)];
  if (per_kind.considered) return per_kind;
  Considered considered;
  for (const PlanEntry& entry : plan_.entries) {
    if (entry.schedule.collective.kind == kind) considered.entries.push_back(entry);
  }
  per_kind.of_plan = considered.entries.size();
  // What a plan leaves open, the classic schedules serve.
  if (considered.entries.empty() || considered.entries.front().min_bytes != 0 ||
      considered.entries.back().max_bytes != kNoLimit) {
    Considered classic = decided(kind);
    if (classic.entries.empty()) {
      throw SynthesisError(fmt::format("no schedule serves {} on {}:\n{}", name_of(kind),
                                       counted(topology_.world_size(), "rank"),
                                       chorus::explain(classic, kind, 0)));
    }
    considered.candidates = std::move(classic.candidates);
    considered.entries.insert(considered.entries.end(),
                              std::make_move_iterator(classic.entries.begin()),
                              std::make_move_iterator(classic.entries.end()));
  }
  per_kind.considered = std::move(considered);
  if (pricing_.tells && log_enabled(LogLevel::info)) tell(kind, per_kind);
  return per_kind;
}

// The classic schedules of one kind: as rank 0 has decided for a large group, or by their prices.
Considered Selection::decided(CollectiveKind kind) {
  const auto& decisions = decisions_[static_cast<std::size_t>(kind)];
  if (decisions.empty()) {
    if (!routes_) routes_.emplace(topology_);
    return consider(kind, topology_, *routes_, levels_, options_, pricing_);
  }
  Considered considered;
  const AlgorithmInput input = input_for(kind, topology_.world_size(), levels_);
  for (const Decision& decision : decisions) {
    PlanEntry entry = decision.entry;
    entry.schedule = algorithm(decision.algorithm).make(input);
    considered.entries.push_back(std::move(entry));
  }
  return considered;
}

std::vector<std::byte> Selection::decide() {
  BlobWriter blob;
  for (int k = 0; k < kNumCollectiveKinds; ++k) {
    const Considered classic = decided(static_cast<CollectiveKind>(k));
    blob.u32(static_cast<std::uint32_t>(classic.entries.size()));
    for (const PlanEntry& entry : classic.entries) {
      blob.text(entry.schedule.name);
      blob.u64(entry.min_bytes);
      blob.u64(entry.max_bytes);
      blob.u64(std::bit_cast<std::uint64_t>(entry.min_bytes_time_s));
      blob.u64(std::bit_cast<std::uint64_t>(entry.per_byte_time_s));
    }
  }
  routes_.reset();  // n² of them
#ifdef __GLIBC__
  ::malloc_trim(0);  // the schedules that were priced leave many small holes, else kept for ever
#endif
  const auto view = blob.view();
  return {view.begin(), view.end()};
}

void Selection::follow(std::span<const std::byte> decisions) {
  BlobReader blob(decisions);
  for (int k = 0; k < kNumCollectiveKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    const AlgorithmInput input = input_for(kind, topology_.world_size(), levels_);
    const std::uint32_t count = blob.u32();
    std::uint64_t from = 0;
    for (std::uint32_t i = 0; i < count && blob.ok(); ++i) {
      Decision decision{.algorithm = blob.text(), .entry = {}};
      decision.entry.min_bytes = blob.u64();
      decision.entry.max_bytes = blob.u64();
      decision.entry.min_bytes_time_s = std::bit_cast<double>(blob.u64());
      decision.entry.per_byte_time_s = std::bit_cast<double>(blob.u64());
      const bool last = i + 1 == count;
      if (!blob.ok() || decision.entry.min_bytes != from ||
          decision.entry.max_bytes < decision.entry.min_bytes ||
          last != (decision.entry.max_bytes == kNoLimit) ||
          algorithm(decision.algorithm).why_not(input)) {
        throw BootstrapError("rank 0 sent a malformed choice of schedules");
      }
      from = decision.entry.max_bytes + 1;
      decisions_[static_cast<std::size_t>(k)].push_back(std::move(decision));
    }
  }
  if (!blob.ok()) throw BootstrapError("rank 0 sent a malformed choice of schedules");
}

void Selection::tell(CollectiveKind kind, const PerKind& per_kind) const {
  std::string list;
  std::size_t i = 0;
  for (const PlanEntry& entry : per_kind.considered->entries) {
    list += fmt::format("{}{} from {} bytes{}", list.empty() ? "" : ", ", entry.schedule.name,
                        entry.min_bytes, i++ < per_kind.of_plan ? " (plan)" : "");
  }
  log(LogLevel::info, fmt::format("[rank 0/{}]", topology_.world_size()),
      fmt::format("{} on '{}': {}", name_of(kind), topology_.name, list));
}

// Entries of a plan come first; the classic ones cover every size.
std::size_t Selection::entry_for(CollectiveKind kind, std::uint64_t size_bytes) {
  const auto& entries = prepare(kind).considered->entries;
  std::size_t i = 0;
  while (size_bytes < entries[i].min_bytes || size_bytes > entries[i].max_bytes) ++i;
  return i;
}

double Selection::predicted_s(CollectiveKind kind, std::uint64_t size_bytes) {
  return predicted_s(kind, entry_for(kind, size_bytes), static_cast<double>(size_bytes));
}

double Selection::latency_share(CollectiveKind kind, std::uint64_t size_bytes) {
  const std::size_t entry = entry_for(kind, size_bytes);
  const double all_s = predicted_s(kind, entry, static_cast<double>(size_bytes));
  const double empty_s = predicted_s(kind, entry, 0);
  if (empty_s <= 0) return 0;
  return all_s > empty_s ? empty_s / all_s : 1;
}

double Selection::predicted_s(CollectiveKind kind, std::size_t chosen, double bytes) {
  const PerKind& per_kind = prepare(kind);
  const PlanEntry& entry = per_kind.considered->entries[chosen];
  if (chosen < per_kind.of_plan) {
    return entry.min_bytes_time_s +
           (bytes - static_cast<double>(entry.min_bytes)) * entry.per_byte_time_s;
  }
  return chorus::predicted_s(*per_kind.considered, entry, bytes);
}

const PlanEntry* Selection::planned(CollectiveKind kind, std::string_view name) const {
  for (const PlanEntry& entry : plan_.entries) {
    if (entry.schedule.collective.kind == kind && entry.schedule.name == name) return &entry;
  }
  return nullptr;
}

std::optional<std::string> Selection::why_not(CollectiveKind kind, std::string_view name) const {
  if (planned(kind, name) != nullptr) return std::nullopt;
  const AlgorithmInput input = input_for(kind, topology_.world_size(), levels_);
  try {
    const std::string reason = reason_against(algorithm(name), input, options_);
    if (reason.empty()) return std::nullopt;
    return fmt::format("{} cannot serve {} on {}: {}", name, name_of(kind),
                       counted(topology_.world_size(), "rank"), reason);
  } catch (const InputError& error) {
    return error.what();
  }
}

Schedule Selection::named(CollectiveKind kind, std::string_view name) const {
  if (const auto reason = why_not(kind, name)) throw InputError(*reason);
  if (const PlanEntry* const entry = planned(kind, name)) return entry->schedule;
  return algorithm(name).make(input_for(kind, topology_.world_size(), levels_));
}

std::string Selection::why(CollectiveKind kind, std::uint64_t size_bytes) {
  const PerKind& per_kind = prepare(kind);
  const std::size_t chosen = entry_for(kind, size_bytes);
  const PlanEntry& entry = per_kind.considered->entries[chosen];
  const std::string range =
      entry.max_bytes == kNoLimit
          ? fmt::format("from {} bytes on", entry.min_bytes)
          : fmt::format("for {} to {} bytes", entry.min_bytes, entry.max_bytes);
  if (chosen < per_kind.of_plan) return "the plan has it " + range;
  const std::string aside = plan_.entries.empty()
                                ? ""
                                : fmt::format(
                                      "the plan has {} for this size, so built-in schedules "
                                      "serve: ",
                                      per_kind.of_plan == 0 ? "no such collective" : "nothing");
  if (!options_.algorithm.empty() && entry.schedule.name == options_.algorithm) {
    return aside + "CHORUS_ALGORITHM names it";
  }
  const auto bytes = static_cast<double>(size_bytes);
  const Candidate* next = nullptr;
  for (const Candidate& candidate : per_kind.considered->candidates) {
    if (!candidate.why_not.empty() || candidate.name == entry.schedule.name) continue;
    if (next == nullptr || candidate.price.seconds(bytes) < next->price.seconds(bytes)) {
      next = &candidate;
    }
  }
  if (!decisions_[static_cast<std::size_t>(kind)].empty()) {
    return aside + "rank 0 chose it " + range;
  }
  if (next == nullptr) return aside + "the only one that serves";
  return aside + fmt::format("cheapest {}, then {} with {:.2f} us", range, next->name,
                             next->price.seconds(bytes) * 1e6);
}

std::string Selection::explain(CollectiveKind kind, std::uint64_t size_bytes) {
  const Considered* considered = &*prepare(kind).considered;
  Considered priced;
  if (!decisions_[static_cast<std::size_t>(kind)].empty()) {  // rank 0 alone knows the others
    priced = consider(kind, topology_, Routes(topology_), levels_, options_, pricing_);
    priced.entries = considered->entries;
    considered = &priced;
  }
  return chorus::explain(*considered, kind, static_cast<double>(size_bytes));
}

}  // namespace chorus
