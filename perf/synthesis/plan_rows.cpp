// Figures of whole plans: how near their schedules are to the limits, and how long they take.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/error.hpp"
#include "cli/synth/synth_report.hpp"
#include "model/schedule/contract.hpp"
#include "perf/report/statistics.hpp"
#include "perf/synthesis/rows.hpp"
#include "synth/plan.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

using enum CollectiveKind;

constexpr std::uint64_t kSmall = 1 << 10;
constexpr std::uint64_t kLarge = 1 << 30;
constexpr double kSmallTarget = 1.15;  // times the limit
constexpr double kLargeTarget = 1.10;

const std::vector<CollectiveKind>& four() {
  static const std::vector<CollectiveKind> kinds = {all_reduce, all_gather, reduce_scatter,
                                                    all_to_all};
  return kinds;
}

/// The plan for a topology, and the CPU seconds it took.
struct Made {
  synth::Planned planned;
  double cpu_s = 0;
};

Made make(const Topology& topology, const synth::PlanOptions& wanted, const Limits& limits,
          double most_seconds) {
  synth::PlanOptions options = wanted;
  options.limit = [&](Collective collective, double size) {
    return limits.seconds(collective.kind, size);
  };
  synth::Budget budget;
  budget.deadline =
      synth::Budget::Clock::now() + std::chrono::duration_cast<synth::Budget::Clock::duration>(
                                        std::chrono::duration<double>(most_seconds));
  const double before = cpu_seconds();
  Made made{synth::make_plan(topology, options, all_strategies(), budget), 0};
  made.cpu_s = cpu_seconds() - before;
  return made;
}

/// The most memory that this process has held so far.
double resident_gib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

std::string gain(std::string_view over, double other_s, double seconds) {
  return other_s > 0 ? fmt::format(", {:.1f}x {}", other_s / seconds, over) : "";
}

/// One row for the plan's time and one for each of its schedules.
void add_plan(const SynthesisContext& context, std::string_view name,
              const std::vector<CollectiveKind>& kinds, double most_seconds, double large_target) {
  context.say(name);
  const Topology topology = topology_from_name(name);
  const Limits limits(topology, kinds);
  synth::PlanOptions options;
  options.kinds = kinds;
  options.sizes = {kSmall, 1 << 20, kLarge};
  Made made;
  try {
    made = make(topology, options, limits, 4 * most_seconds);
  } catch (const SynthesisError& error) {
    context.add({.name = fmt::format("{} whole plan", name),
                 .seconds = 4 * most_seconds,
                 .target = fmt::format("at most {:.0f} s", most_seconds),
                 .found = false,
                 .note = error.what()});
    return;
  }
  context.add(
      {.name = fmt::format("{} whole plan", name),
       .seconds = made.cpu_s,
       .target = fmt::format("at most {:.0f} s", most_seconds),
       .met = made.cpu_s <= most_seconds && !made.planned.interrupted,
       .note = fmt::format("{}at most {:.1f} GiB resident",
                           made.planned.interrupted ? "stopped early; " : "", resident_gib())});
  const SynthReport report(topology, made.planned.plan, kinds, options.sizes, limits);
  for (const SynthRow& row : report.rows()) {
    // At small sizes latency and bytes add up; neither alone is near.
    const Bound& bound = limits.bound(row.kind);
    const auto bytes = static_cast<double>(row.size_bytes);
    const double added_s =
        std::max(bound.latency_s + bound.seconds_per_byte * bytes, bound.seconds(bytes));
    const double ratio = row.seconds / (row.size_bytes == kSmall ? added_s : row.limit_s);
    const double target = row.size_bytes == kSmall   ? kSmallTarget
                          : row.size_bytes == kLarge ? large_target
                                                     : 0;
    context.add(
        {.name = fmt::format("{} {} {}", name, name_of(row.kind), size_text(row.size_bytes)),
         .target = target > 0 ? fmt::format("at most {:.2f} of the limit", target) : "",
         .met = target == 0 || ratio <= target,
         .note = fmt::format("{:.3f} of the limit: '{}', {:.2f} us{}{}", ratio, row.schedule,
                             row.seconds * 1e6, gain("ring", row.ring_s, row.seconds),
                             gain("tree", row.tree_s, row.seconds))});
  }
}

/// 8 to 32 ranks, a random tree and as many cables again, speeds from 1 to 10 GB/s.
Topology random_wiring(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const int n = 8 + pick(25);
  TopologyBuilder builder(fmt::format("random {}", seed));
  std::vector<int> nodes;
  std::vector<std::vector<char>> joined(static_cast<std::size_t>(n),
                                        std::vector<char>(static_cast<std::size_t>(n), 0));
  const auto join = [&](int a, int b) {
    if (a == b || joined[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] != 0) return;
    joined[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)] = 1;
    joined[static_cast<std::size_t>(b)][static_cast<std::size_t>(a)] = 1;
    builder.both_ways(nodes[static_cast<std::size_t>(a)], nodes[static_cast<std::size_t>(b)],
                      {1.0 + 9.0 * pick(1000) / 999.0, 1.0, "cable"});
  };
  for (int i = 0; i < n; ++i) {
    nodes.push_back(builder.node(fmt::format("gpu{}", i), NodeKind::gpu));
    builder.rank(nodes.back());
    if (i > 0) join(i, pick(i));
  }
  for (int i = 0; i < n; ++i) join(pick(n), pick(n));
  return builder.take();
}

}  // namespace

void measure_plans(const SynthesisContext& context) {
  for (const std::string_view name :
       {"2*ndv2", "2*dgx2", "2*dgx-a100", "4*dgx-h100", "2*mi250", "nvl72"}) {
    add_plan(context, name, four(), 120, kLargeTarget);
  }
}

void measure_cluster(const SynthesisContext& context) {
  add_plan(context, "128*dgx-h100,leaf=16,over=2", four(), 60, 1.15);
  add_plan(context, "2048*dgx-h100,leaf=16,over=2", {all_reduce, all_gather}, 300, 1.15);
}

void measure_random(const SynthesisContext& context) {
  constexpr unsigned kSeeds = 200;
  std::vector<std::vector<double>> ratios(four().size());
  std::vector<std::string> slowest(four().size());
  const double before = cpu_seconds();
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    if (seed % 20 == 0) context.say(fmt::format("wiring {} of {}", seed, kSeeds));
    const Topology topology = random_wiring(seed);
    const Limits limits(topology, four());
    synth::PlanOptions options;
    options.kinds = four();
    options.sizes = {kLarge};
    const Made made = make(topology, options, limits, 120);
    for (std::size_t i = 0; i < four().size(); ++i) {
      const synth::Choice& choice = made.planned.choices[i];
      const double ratio = choice.seconds / limits.seconds(four()[i], static_cast<double>(kLarge));
      if (ratios[i].empty() || ratio > *std::max_element(ratios[i].begin(), ratios[i].end())) {
        slowest[i] = fmt::format("wiring {}, {}", seed, choice.strategy);
      }
      ratios[i].push_back(ratio);
    }
  }
  const double each_s = (cpu_seconds() - before) / kSeeds;
  for (std::size_t i = 0; i < four().size(); ++i) {
    const double worst = *std::max_element(ratios[i].begin(), ratios[i].end());
    const double middle = median(ratios[i]);
    context.add(
        {.name = fmt::format("random wirings {}", name_of(four()[i])),
         .seconds = each_s,
         .target = "median 1.10, worst 1.35 of the limit",
         .met = middle <= 1.10 && worst <= 1.35,
         .note = fmt::format("median {:.3f}, worst {:.3f} ({}); all four in {:.2f} CPU s each",
                             middle, worst, slowest[i], each_s)});
  }
}

}  // namespace chorus::perf
