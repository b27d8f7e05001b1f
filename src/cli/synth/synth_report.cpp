#include "cli/synth/synth_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/counted.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/selection/strategies.hpp"
#ifdef CHORUS_HAVE_Z3
#include "synth/exact/strategies.hpp"
#endif

namespace chorus {
namespace {

constexpr std::array<std::string_view, 3> kMethodNames{"simulated", "replayed", "cost"};
constexpr std::array<std::string_view, 3> kMethodNotes{"", "  (replayed)", "  (by cost)"};

constexpr int kManyRanks = 256;   // a ring of so many takes n² transfers
constexpr int kMostRanks = 2048;  // whose n² routes and transfers are listed for a comparison

/// Predicted times of the first of these classic schedules that serves a collective.
class Classic {
 public:
  Classic(std::initializer_list<std::string_view> names, CollectiveKind kind,
          const synth::PreparedTopology& wiring, const Routes* routes)
      : wiring_(wiring) {
    const int n = wiring.topology().world_size();
    if (n > kMostRanks) return;
    const AlgorithmInput input{.kind = kind, .world_size = n, .levels = {}};
    for (const std::string_view name : names) {
      const Algorithm& chosen = algorithm(name);
      if (chosen.why_not(input)) continue;
      Schedule schedule = chosen.make(input);
      if (routes != nullptr) {
        cost_ = cost(schedule, wiring.topology(), *routes);
      } else {
        schedule_ = std::move(schedule);
      }
      return;
    }
  }

  /// 0 if there is none.
  [[nodiscard]] double seconds(double size_bytes) const {
    if (schedule_) return wiring_.predict(*schedule_, size_bytes).seconds;
    return cost_ ? cost_->seconds(size_bytes) : 0;
  }

 private:
  const synth::PreparedTopology& wiring_;
  std::optional<Schedule> schedule_;
  std::optional<Cost> cost_;
};

/// Which crossing limits a small size more than latency and bandwidth do, if one does.
std::string crossing_text(const Bound& bound, double size_bytes) {
  const double simple_s = std::max(bound.latency_s, bound.seconds_per_byte * size_bytes);
  const Bound::Crossing* most = nullptr;
  for (const Bound::Crossing& crossing : bound.crossings) {
    if (most == nullptr || crossing.seconds(size_bytes) > most->seconds(size_bytes)) {
      most = &crossing;
    }
  }
  if (most == nullptr || most->seconds(size_bytes) <= simple_s * 1.001) return "";
  if (most->far_ranks == 0) {
    return fmt::format(
        "; {:.0f} bytes: {:.2f} us, by the latency of a hop before all that must move", size_bytes,
        most->seconds(size_bytes) * 1e6);
  }
  return fmt::format(
      "; {:.0f} bytes: {:.2f} us, by the crossing from {} ranks to {}: what is combined before it "
      "or "
      "handed on behind it waits for those hops, the rest crosses one by one",
      size_bytes, most->seconds(size_bytes) * 1e6, most->far_ranks, most->near_ranks);
}

std::string gain(double other_s, double seconds) {
  return other_s > 0 && seconds > 0 ? fmt::format("{:.2f}x", other_s / seconds) : "-";
}

}  // namespace

std::string switches_text(const Bound& bound) {
  constexpr double kLess = 0.99;  // what is worth a word
  if (bound.switches_reducing <= 0 || bound.switches_reducing > kLess * bound.seconds_per_byte) {
    return "";
  }
  return fmt::format("; in switches that reduce and multicast (NVLS, SHARP): bytes / {:.4g} GB/s",
                     1e-9 / bound.switches_reducing);
}

std::string share_of_limit(double limit_s, double seconds) {
  // Links that take no time at all: there is nothing to share.
  return seconds > 0 ? fmt::format("{:.1f} %", 100 * limit_s / seconds) : "-";
}

std::vector<synth::Strategy> all_strategies() {
  std::vector<synth::Strategy> all = {classic_strategy()};
  for (synth::Strategy& strategy : synth::built_in_strategies()) all.push_back(std::move(strategy));
  all.push_back(synth::sketched_strategy());
#ifdef CHORUS_HAVE_Z3
  for (synth::Strategy& strategy : synth::exact::strategies()) all.push_back(std::move(strategy));
#endif
  return all;
}

std::vector<std::string> names_of(const std::vector<synth::Strategy>& strategies) {
  std::vector<std::string> names;
  for (const synth::Strategy& strategy : strategies) {
    if (std::find(names.begin(), names.end(), strategy.name) == names.end()) {
      names.push_back(strategy.name);
    }
  }
  return names;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::string_view kUnits = "KMGT";
  std::string unit;
  for (std::size_t i = 0; i < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0; ++i) {
    bytes /= 1024;
    unit = kUnits[i];
  }
  return fmt::format("{}{}", bytes, unit);
}

Limits::Limits(const Topology& topology, const std::vector<CollectiveKind>& kinds) {
  for (const CollectiveKind kind : kinds) bounds_.emplace(kind, lower_bound(topology, {kind, 0}));
  for (const CollectiveKind half : {CollectiveKind::reduce_scatter, CollectiveKind::all_gather}) {
    if (bounds_.contains(CollectiveKind::all_reduce) && !bounds_.contains(half)) {
      bounds_.emplace(half, lower_bound(topology, {half, 0}));
    }
  }
}

double Limits::seconds(CollectiveKind kind, double size_bytes) const {
  return bounds_.at(kind).seconds(size_bytes);
}

SynthReport::SynthReport(const Topology& topology, const Plan& plan,
                         const std::vector<CollectiveKind>& kinds,
                         const std::vector<std::uint64_t>& sizes, const Limits& limits)
    : name_(topology.name), world_size_(topology.world_size()) {
  const synth::PreparedTopology wiring(topology);
  std::optional<Routes> routes;
  for (const CollectiveKind kind : kinds) {
    const Bound& bound = limits.bound(kind);
    // What is folded is not timed without its symmetry.
    const bool by_cost = world_size_ > kManyRanks || wiring.folds(kind);
    if (by_cost && !routes && world_size_ <= kMostRanks) routes.emplace(topology);
    const Routes* listed = by_cost && routes ? &*routes : nullptr;
    const Classic ring({"ring", "chain"}, kind, wiring, listed);
    const Classic tree({"double_binary_tree", "binomial_tree", "bruck"}, kind, wiring, listed);
    notes_.push_back(fmt::format("{}: {:.2f} us or bytes / {:.4g} GB/s, by {}{}", name_of(kind),
                                 bound.latency_s * 1e6, bound.algbw_gb_s(), bound.method,
                                 bound.cut.empty() ? "" : ": " + bound.cut));
    notes_.back() += switches_text(bound);
    if (!sizes.empty()) notes_.back() += crossing_text(bound, static_cast<double>(sizes.front()));
    for (const std::uint64_t size : sizes) {
      const auto entry =
          std::find_if(plan.entries.begin(), plan.entries.end(), [&](const PlanEntry& e) {
            return e.schedule.collective.kind == kind && e.min_bytes <= size && size <= e.max_bytes;
          });
      if (entry == plan.entries.end()) continue;
      const auto bytes = static_cast<double>(size);
      const synth::Prediction time = wiring.predict(entry->schedule, bytes);
      rows_.push_back({.kind = kind,
                       .size_bytes = size,
                       .schedule = entry->schedule.name,
                       .steps = entry->schedule.steps.size(),
                       .chunks = entry->schedule.num_chunks,
                       .seconds = time.seconds,
                       .method = time.method,
                       .limit_s = limits.seconds(kind, bytes),
                       .ring_s = ring.seconds(bytes),
                       .tree_s = tree.seconds(bytes)});
    }
  }
}

std::string SynthReport::text() const {
  std::size_t width = 8;
  for (const SynthRow& row : rows_) width = std::max(width, row.schedule.size());
  std::string text = fmt::format("{}, {}: simulated times\n", name_, counted(world_size_, "rank"));
  text += fmt::format("{:<15}{:>7}  {:<{}} {:>6} {:>7} {:>12} {:>12} {:>9} {:>9} {:>9}\n",
                      "collective", "bytes", "schedule", width, "steps", "chunks", "us", "limit us",
                      "of limit", "vs ring", "vs tree");
  for (const SynthRow& row : rows_) {
    text += fmt::format("{:<15}{:>7}  {:<{}} {:>6} {:>7} {:>12.2f} {:>12.2f} {:>9} {:>9} {:>9}{}\n",
                        name_of(row.kind), size_text(row.size_bytes), row.schedule, width,
                        row.steps, row.chunks, row.seconds * 1e6, row.limit_s * 1e6,
                        share_of_limit(row.limit_s, row.seconds), gain(row.ring_s, row.seconds),
                        gain(row.tree_s, row.seconds),
                        kMethodNotes[static_cast<std::size_t>(row.method)]);
  }
  text += "limits, of messages through switches that neither reduce nor multicast:\n";
  for (const std::string& note : notes_) text += "  " + note + "\n";
  return text;
}

std::string SynthReport::json() const {
  nlohmann::ordered_json json;
  json["format"] = "chorus-synth";
  json["version"] = 1;
  json["topology"] = name_;
  json["ranks"] = world_size_;
  for (const SynthRow& row : rows_) {
    json["rows"].push_back({{"collective", name_of(row.kind)},
                            {"bytes", row.size_bytes},
                            {"schedule", row.schedule},
                            {"steps", row.steps},
                            {"chunks", row.chunks},
                            {"seconds", row.seconds},
                            {"method", kMethodNames[static_cast<std::size_t>(row.method)]},
                            {"limit_s", row.limit_s},
                            {"ring_s", row.ring_s},
                            {"tree_s", row.tree_s}});
  }
  return json.dump(1) + "\n";
}

}  // namespace chorus
