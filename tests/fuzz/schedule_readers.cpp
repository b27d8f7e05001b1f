// Readers of schedules, plans and sketches.
#include <algorithm>
#include <cstdint>

#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "formats/msccl_xml.hpp"
#include "formats/sccl_json.hpp"
#include "formats/sketch_json.hpp"
#include "model/json/json.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "tests/fuzz/all_readers.hpp"
#include "tests/fuzz/samples.hpp"
#include "tests/model/samples.hpp"
#include "tests/model/schedules.hpp"

namespace chorus::fuzz {
namespace {

constexpr int kMostRanks = 64;  // that are replayed
constexpr int kMostChunks = 1 << 12;
constexpr std::size_t kMostTransfers = 1 << 14;
constexpr int kSlots = 4;

bool is_small(const Schedule& schedule) {
  return schedule.world_size <= kMostRanks && schedule.num_chunks <= kMostChunks &&
         num_transfers(schedule) <= kMostTransfers;
}

/// What all other code relies on; and what `chorus verify` does with a schedule.
std::string judge(const Schedule& schedule) {
  if (const auto fault = malformed(schedule)) return "a malformed schedule: " + *fault;
  if (!is_small(schedule) || first_fault(schedule)) return "";
  const std::vector<Program> programs = lower(schedule);
  if (const auto fault = first_fault(programs, kSlots, false)) return "lowered: " + *fault;
  return "";
}

/// `input` as read() makes a value of it, judged by `judge`.
template <class Read, class Judge>
std::string judged(const std::string& input, const Read& read, const Judge& judge) {
  try {
    return judge(read(input, "fuzz"));
  } catch (const InputError& refused) {
    return std::string_view(refused.what()).starts_with("fuzz") ? "" : refused.what();
  } catch (const formats::ProgramFault& refused) {
    return std::string_view(refused.what()).starts_with("fuzz") ? "" : refused.what();
  }
}

std::string schedule_json(const std::string& input) {
  return judged(input, schedule_from_json, [](const Schedule& schedule) -> std::string {
    if (schedule_from_json(to_json(schedule), "fuzz") != schedule) return "another one comes back";
    return judge(schedule);
  });
}

std::string plan_json(const std::string& input) {
  return judged(input, plan_from_json, [](const Plan& plan) -> std::string {
    if (plan_from_json(to_json(plan), "fuzz") != plan) return "another plan comes back";
    if (!plan.topology.nodes.empty() && malformed(plan.topology)) return "an unsound topology";
    for (const PlanEntry& entry : plan.entries) {
      if (std::string fault = judge(entry.schedule); !fault.empty()) return fault;
    }
    return "";
  });
}

/// Foreign programs are proved while they are read.
std::string judge_proved(const Schedule& schedule) {
  if (const auto fault = first_fault(schedule)) return "a wrong schedule: " + *fault;
  return judge(schedule);
}

std::string msccl_xml(const std::string& input) {
  return judged(input, formats::schedule_from_msccl_xml, judge_proved);
}

std::string sccl_json(const std::string& input) {
  return judged(input, formats::schedule_from_sccl_json, judge_proved);
}

std::string sketch_json(const std::string& input) {
  return judged(input, formats::sketch_from_json, [](const Sketch& sketch) -> std::string {
    Sketch kept = sketch;
    kept.ignored.clear();
    if (formats::sketch_from_json(formats::to_json(kept), "fuzz") != kept) {
      return "another sketch comes back";
    }
    return "";
  });
}

Schedule classic(std::string_view name, CollectiveKind kind, int ranks) {
  return algorithm(name).make({.kind = kind, .world_size = ranks, .levels = {}});
}

std::vector<std::string> schedule_samples() {
  std::vector<std::string> all;
  for (const CollectiveKind kind : test::kAllKinds) {
    all.push_back(to_json(test::random_schedule(kind, 4, 1)));
  }
  all.push_back(to_json(test::ring_all_reduce(4)));
  return all;
}

std::vector<std::string> plan_samples() {
  Plan bare = test::sample_plan();
  bare.topology = {};
  return {to_json(test::sample_plan()), to_json(bare)};
}

std::vector<std::string> msccl_samples() {
  std::vector<std::string> all = {
      formats::to_msccl_xml(classic("ring", CollectiveKind::all_reduce, 4)),
      formats::to_msccl_xml(classic("one_shot", CollectiveKind::all_to_all, 3)),
      formats::to_msccl_xml(classic("ring", CollectiveKind::all_gather, 3), {.channels = 2})};
  const std::vector<std::string> recorded = files("topology", "msccl-xml", ".xml");
  std::copy_if(recorded.begin(), recorded.end(), std::back_inserter(all),
               [](const std::string& text) { return text.find("<algo") < text.size(); });
  return all;
}

std::vector<std::string> sccl_samples() {
  return {formats::to_sccl_json(classic("ring", CollectiveKind::all_reduce, 3)),
          formats::to_sccl_json(classic("one_shot", CollectiveKind::all_to_all, 3)),
          formats::to_sccl_json(classic("ring", CollectiveKind::reduce_scatter, 4))};
}

std::vector<std::string> sketch_samples() {
  Sketch sketch;
  sketch.name = "odd to even";
  sketch.hosts = 2;
  sketch.allowed = {{0, 1}, {1, 0}};
  sketch.switches = {{{0, 1, 2}, SwitchUse::most}, {{3}, SwitchUse::fewest}};
  sketch.between = HostLinks::listed;
  sketch.senders = {{1, {0, 2}}};
  sketch.sends_for = {{1, {0, 1, 2}}};
  sketch.relays = {0, 1};
  sketch.symmetry = {{2, 16}, {16, 32}};
  sketch.size_bytes = 1 << 20;
  constexpr const char* kOfTaccl = R"({"nnodes": 2,
    "intranode_sketch": {"strategy": "switch", "switches": [[0, 1, 2, 3]],
                         "switch_hyperedge_strategy": ["uc-min"]},
    "internode_sketch": {"strategy": "relay", "internode_conn": {"1": [0], "3": [2]},
                         "gpus_to_sender_rev_map": {"1": [0, 1], "3": [2, 3]}},
    "symmetry_offsets": [[2, 4], [4, 8]], "hyperparameters": {"input_chunkup": 2}})";
  return {formats::to_json(sketch), kOfTaccl};
}

}  // namespace

std::vector<Reader> schedule_readers() {
  return {{"schedule_json", Grammar::json, schedule_json, schedule_samples},
          {"plan_json", Grammar::json, plan_json, plan_samples},
          {"schedule_msccl_xml", Grammar::xml, msccl_xml, msccl_samples},
          {"schedule_sccl_json", Grammar::json, sccl_json, sccl_samples},
          {"sketch_json", Grammar::json, sketch_json, sketch_samples}};
}

}  // namespace chorus::fuzz
