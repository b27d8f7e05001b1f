// Figures of the exact synthesizer, beside those of msccl-tools on the same instances.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/schedule/contract.hpp"
#include "perf/synthesis/rows.hpp"
#include "synth/exact/exact.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

using synth::exact::Answer;
using synth::exact::Frontier;
using synth::exact::Instance;
using synth::exact::Point;
using synth::exact::Proof;
using synth::exact::Result;
using synth::exact::Synthesizer;

struct Published {
  CollectiveKind kind;
  std::string_view peer_name;
  std::vector<Instance> instances;
};

/// Tables 4 and 5 of "Synthesizing optimal collective algorithms" (PPoPP 2021).
std::vector<Published> published() {
  const std::vector<Instance> gathers = {{1, 2, 2}, {2, 2, 3}, {2, 3, 3}, {3, 4, 4},
                                         {4, 5, 5}, {5, 6, 6}, {6, 7, 7}, {3, 3, 4},
                                         {4, 3, 5}, {5, 3, 6}, {6, 3, 7}};
  const std::vector<Instance> broadcasts = {
      {2, 2, 2}, {6, 3, 3}, {12, 4, 4}, {18, 5, 5}, {6, 3, 5}};
  using Kind = CollectiveKind;
  return {
      {Kind::all_gather, "Allgather", gathers},
      {Kind::reduce_scatter, "ReduceScatter", gathers},
      {Kind::gather, "Gather", gathers},
      {Kind::scatter, "Scatter", gathers},
      {Kind::broadcast, "Broadcast", broadcasts},
      {Kind::reduce, "Reduce", broadcasts},
      {Kind::all_to_all, "Alltoall", {{8, 2, 3}, {8, 3, 3}, {24, 2, 8}, {24, 8, 8}}},
      {Kind::all_reduce,
       "Allreduce",
       {{8, 4, 4},
        {16, 4, 6},
        {16, 6, 6},
        {24, 8, 8},
        {32, 10, 10},
        {40, 12, 12},
        {48, 14, 14},
        {48, 6, 14}}},
  };
}

std::string words_of(const Instance& instance) {
  return fmt::format("({},{},{})", instance.chunks, instance.steps, instance.rounds);
}

/// It counts the chunks of a pair for all_to_all, and makes an all_reduce of its halves: what it
/// takes for both is what it takes.
std::optional<SynthesisPeer::Answer> ask_peer(SynthesisPeer& peer, const Published& row,
                                              const Instance& instance) {
  constexpr int kRanks = 8;
  const auto solve = [&](std::string_view collective, const Instance& asked) {
    return peer.run(fmt::format("solve instance DGX1 {} -s {} -r {} -c {} --no-save", collective,
                                asked.steps, asked.rounds, asked.chunks));
  };
  if (row.kind == CollectiveKind::all_to_all) {
    return solve(row.peer_name, {instance.chunks / kRanks, instance.steps, instance.rounds});
  }
  if (row.kind != CollectiveKind::all_reduce) return solve(row.peer_name, instance);
  const Instance half{instance.chunks / kRanks, instance.steps / 2, instance.rounds / 2};
  const auto combine = solve("ReduceScatter", half);
  const auto spread = solve("Allgather", half);
  if (!combine || !spread) return std::nullopt;
  return SynthesisPeer::Answer{combine->seconds + spread->seconds,
                               combine->timed_out || spread->timed_out};
}

/// Synthesizes from the topology's name to the checked schedule.
SynthesisRow measured(std::string_view topology, CollectiveKind kind, const Instance& instance) {
  SynthesisRow row;
  row.name = fmt::format("{} {} {}", topology, name_of(kind), words_of(instance));
  const double begin = cpu_seconds();
  Synthesizer synthesizer(topology_from_name(topology), {kind, 0});
  const Result result = synthesizer.solve(instance, {});
  row.seconds = cpu_seconds() - begin;
  row.found = result.answer == Answer::found && !first_fault(result.schedule);
  row.note = fmt::format("symmetry of order {}", result.symmetry);
  return row;
}

std::string_view words_of(Proof proof) {
  if (proof == Proof::bound) return "by bound";
  return proof == Proof::unsatisfiable ? "by refutation" : "not proved";
}

}  // namespace

void measure_dgx1(const SynthesisContext& context) {
  double ours = 0;
  double theirs = 0;
  bool some_timed_out = false;
  for (const Published& published_row : published()) {
    for (const Instance& instance : published_row.instances) {
      const std::string name =
          fmt::format("dgx1 {} {}", name_of(published_row.kind), words_of(instance));
      context.say(name);
      SynthesisRow row = measured("dgx1", published_row.kind, instance);
      const bool long_for_others =
          instance == Instance{24, 8, 8} && published_row.kind == CollectiveKind::all_to_all;
      row.target = long_for_others ? "at most 1 s" : "at most 3 s";
      row.met = row.found && row.seconds <= (long_for_others ? 1 : 3);
      ours += row.seconds;
      if (context.peer.present()) {
        context.say(name + ", by msccl-tools");
        const auto answer = ask_peer(context.peer, published_row, instance);
        row.peer_seconds = answer->seconds;
        row.peer_timed_out = answer->timed_out;
        theirs += answer->seconds;
        some_timed_out |= answer->timed_out;
      }
      context.add(row);
    }
  }
  SynthesisRow sum;
  sum.name = "dgx1, all of these";
  sum.seconds = ours;
  if (context.peer.present()) {
    constexpr double kRatio = 20;
    sum.peer_seconds = theirs;
    sum.peer_timed_out = some_timed_out;
    sum.target = fmt::format("at most 1/{} of theirs", kRatio);
    sum.met = ours * kRatio <= theirs;
  }
  context.add(sum);
}

void measure_frontier(const SynthesisContext& context) {
  context.say("frontier of dgx1 all_gather");
  const double begin = cpu_seconds();
  Synthesizer synthesizer(topology_from_name("dgx1"), {CollectiveKind::all_gather, 0});
  const Frontier frontier = synthesizer.pareto({});
  SynthesisRow row;
  row.name = "dgx1 all_gather, frontier";
  row.seconds = cpu_seconds() - begin;
  row.found = !frontier.points.empty();
  row.target = "complete, with proofs, at most 5 s";
  for (const Point& point : frontier.points) {
    row.found = row.found && !first_fault(point.schedule);
    row.note += fmt::format("{}{}: steps {}, rounds {}", row.note.empty() ? "" : "; ",
                            words_of(point.instance), words_of(point.steps_optimal),
                            words_of(point.rounds_optimal));
  }
  row.met = row.found && frontier.complete && row.seconds <= 5;
  context.add(row);
}

void measure_64_ranks(const SynthesisContext& context) {
  const auto rows = std::to_array<std::pair<std::string_view, Instance>>({
      {"ring:64", {2, 32, 63}},
      {"torus:8x8", {4, 8, 63}},
      {"torus:4x4x4", {6, 6, 63}},
      {"hypercube:6", {6, 6, 63}},
  });
  for (const auto& [name, instance] : rows) {
    context.say(name);
    SynthesisRow row = measured(name, CollectiveKind::all_gather, instance);
    // Optimal both ways: a step less, or a round less, a bound rules out.
    Synthesizer synthesizer(topology_from_name(name), {CollectiveKind::all_gather, 0});
    const Instance shorter{instance.chunks, instance.steps - 1, instance.rounds};
    const Instance narrower{instance.chunks, instance.steps, instance.rounds - 1};
    const bool optimal = synthesizer.solve(shorter, {}).proof == Proof::bound &&
                         synthesizer.solve(narrower, {}).proof == Proof::bound;
    row.target = "optimal in steps and bytes, at most 5 s";
    row.met = row.found && optimal && row.seconds <= 5;
    context.add(row);
  }
}

}  // namespace chorus::perf
