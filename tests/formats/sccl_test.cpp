// SCCL's algorithms and topologies come in and go out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases.hpp"
#include "chorus/error.hpp"
#include "formats/format.hpp"
#include "formats/msccl_xml.hpp"
#include "formats/sccl_json.hpp"
#include "tests/base/fuzz.hpp"

namespace chorus::formats {
namespace {

using testing::HasSubstr;

std::string complaint(const std::string& text) {
  try {
    (void)schedule_from_sccl_json(text, "f.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// As msccl-tools' encoder lays it out: two ranks swap one chunk each.
constexpr const char* kAllgather =
    R"json({"msccl_type": "algorithm", "name": "swap", "instance": {"msccl_type": "instance", "steps": 1,
"extra_rounds": 0, "chunks": 1, "pipeline": null, "extra_memory": null, "allow_exchange": false},
"input_map": {"0": [0], "1": [1]}, "output_map": {"0": [0, 1], "1": [0, 1]},
"steps": [{"msccl_type": "step", "rounds": 1, "sends": [[0, 0, 1], [1, 1, 0]]}],
"collective": {"msccl_type": "collective", "name": "Allgather(n=2)", "nodes": 2, "chunks": [
{"msccl_type": "chunk", "pre": [0], "post": [0, 1], "addr": 0},
{"msccl_type": "chunk", "pre": [1], "post": [0, 1], "addr": 1}],
"triggers": {}, "runtime_name": "allgather"},
"topology": {"msccl_type": "topology", "name": "pair", "switches": [], "links": [[0, 1], [1, 0]]}})json";

// Reduced at rank 0 and sent back: the second send replaces what rank 1 held.
constexpr const char* kAllreduce =
    R"({"msccl_type": "algorithm", "name": "there_and_back",
"steps": [{"rounds": 1, "sends": [[0, 1, 0]]}, {"rounds": 1, "sends": [[0, 0, 1]]}],
"collective": {"nodes": 2, "chunks": [
{"pre": [0], "post": [0, 1], "addr": 0}, {"pre": [1], "post": [0, 1], "addr": 0}]}})";

TEST(Sccl, AlgorithmsAreReadAsWritten) {
  const Schedule gather = schedule_from_sccl_json(kAllgather, "f.json");
  EXPECT_EQ(gather.collective.kind, CollectiveKind::all_gather);
  EXPECT_EQ(gather.name, "swap");
  EXPECT_EQ(gather.steps, (std::vector<Step>{{{0, 1, 0, Action::copy}, {1, 0, 1, Action::copy}}}));
  const Schedule reduce = schedule_from_sccl_json(kAllreduce, "f.json");
  EXPECT_EQ(reduce.collective.kind, CollectiveKind::all_reduce);
  EXPECT_EQ(reduce.steps,
            (std::vector<Step>{{{1, 0, 0, Action::reduce}}, {{0, 1, 0, Action::copy}}}));
  EXPECT_EQ(format_of(kAllgather), Format::sccl);
}

// In SCCL's Alltoall, chunk c goes from rank c % n to rank c / n.
TEST(Sccl, AlltoallIsOrderedByDestinationThere) {
  const Schedule schedule =
      algorithm("one_shot")
          .make({.kind = CollectiveKind::all_to_all, .world_size = 3, .levels = {}});
  const std::string text = to_sccl_json(schedule);
  EXPECT_THAT(text, HasSubstr(R"({"msccl_type": "chunk", "pre": [1], "post": [0], "addr": 1})"));
  EXPECT_THAT(text, HasSubstr("[1, 1, 0]"));
}

TEST(Sccl, EveryClassicScheduleComesBack) {
  int schedules = 0;
  for (int n = 2; n <= 9; ++n) {
    for_each_schedule(n, all_hierarchies(n),
                      [&](const Schedule& schedule, const std::string& name) {
                        if (schedule.collective.kind == CollectiveKind::barrier) return;
                        SCOPED_TRACE(name);
                        ASSERT_EQ(schedule_from_sccl_json(to_sccl_json(schedule), "f.json"),
                                  normal_form(schedule));
                        ++schedules;
                      });
  }
  EXPECT_GT(schedules, 200);
}

TEST(Sccl, WrongAlgorithmsAreNamed) {
  const std::string gather = kAllgather;
  const std::string reduce = kAllreduce;
  EXPECT_THAT(complaint(replaced(gather, "[0, 0, 1], ", "")),
              HasSubstr("f.json: rank 1 never receives chunk 0"));
  EXPECT_THAT(complaint(replaced(gather, "[0, 0, 1]", "[0, 1, 0]")),
              HasSubstr("f.json: step 0: rank 1 sends chunk 0 to rank 0 but does not hold it"));
  EXPECT_THAT(
      complaint(replaced(gather, "[0, 0, 1]", "[7, 0, 1]")),
      HasSubstr("f.json: /steps/0/sends/0/0: is not an address of the collective's chunks"));
  EXPECT_THAT(complaint(replaced(gather, "[0, 0, 1]", "[0, 0, 2]")),
              HasSubstr("f.json: /steps/0/sends/0/2: 2 is not in [0, 1]"));
  EXPECT_THAT(complaint(replaced(gather, "[0, 0, 1]", "[0, 1, 1]")),
              HasSubstr("leads from a rank to itself"));
  EXPECT_THAT(complaint(replaced(gather, "[0, 0, 1]", "[0, 0]")),
              HasSubstr("f.json: /steps/0/sends/0: is not [address, source, destination]"));
  EXPECT_THAT(complaint(replaced(gather, "\"pipeline\": null", "\"pipeline\": 2")),
              HasSubstr("f.json: /instance/pipeline: overlaps runs"));
  EXPECT_THAT(complaint(replaced(gather, "\"triggers\": {}", "\"triggers\": {\"0\": {\"1\": 1}}")),
              HasSubstr("f.json: /collective/triggers"));
  EXPECT_THAT(complaint(replaced(gather, "\"algorithm\"", "\"instance\"")),
              HasSubstr("no algorithm of SCCL"));
  EXPECT_THAT(
      complaint(replaced(gather, "\"post\": [0, 1], \"addr\": 1", "\"post\": [0], \"addr\": 1")),
      HasSubstr("bring some addresses to all ranks and some to one"));
  EXPECT_THAT(complaint(replaced(gather, "\"pre\": [0]", "\"pre\": [0, 1]")),
              HasSubstr("names several ranks"));
  EXPECT_THAT(complaint(replaced(reduce, "[[0, 0, 1]]", "[]")),
              HasSubstr("f.json: rank 1 ends without the contribution of rank 0 to chunk 0"));
  EXPECT_THAT(complaint(gather.substr(0, 40)), HasSubstr("f.json: line 1, column"));
}

// Three ranks: 0 and 1 both take 2's share, then 1 gives 0 its sum: rank 2's share would count
// twice.
TEST(Sccl, ASumThatWouldCountAShareTwiceIsNamed) {
  const std::string text =
      R"({"msccl_type": "algorithm", "steps": [{"sends": [[0, 2, 0], [0, 2, 1]]},
{"sends": [[0, 1, 0]]}], "collective": {"nodes": 3, "chunks": [
{"pre": [0], "post": [0], "addr": 0}, {"pre": [1], "post": [0], "addr": 0},
{"pre": [2], "post": [0], "addr": 0}]}})";
  EXPECT_THAT(complaint(text),
              HasSubstr("f.json: /steps/1: send 0 of a step, of address 0 from rank 1 to rank 0: "
                        "both hold a contribution"));
}

TEST(Sccl, TopologiesGoBothWays) {
  const std::string text =
      R"({"msccl_type": "topology", "name": "three", "links": [[0, 2, 1], [2, 0, 0], [1, 0, 0]],
"switches": [[[1, 2], [0], 2, "in0"]]})";
  ASSERT_TRUE(is_sccl_topology(text));
  ASSERT_FALSE(is_sccl_topology(kAllgather));
  const Topology topology = topology_from_sccl_json(text, "f.json", {.gb_s = 10, .alpha_s = 1e-6});
  ASSERT_EQ(topology.world_size(), 3);
  ASSERT_EQ(topology.links.size(), 4U);
  EXPECT_EQ(topology.links[0].src, 1);  // links[dst][src]
  EXPECT_EQ(topology.links[0].dst, 0);
  EXPECT_DOUBLE_EQ(topology.links[0].beta_s_per_byte, 1 / 20e9);
  ASSERT_EQ(topology.port_groups.size(), 1U);
  EXPECT_EQ(topology.port_groups[0].links, (std::vector<int>{0, 1}));
  const std::string back = topology_to_sccl_json(topology, {.gb_s = 10});
  EXPECT_EQ(topology_from_sccl_json(back, "g.json", {.gb_s = 10, .alpha_s = 1e-6}), topology);
  EXPECT_THROW((void)topology_from_sccl_json(replaced(text, "[2, 0, 0]", "[2, 0]"), "f.json"),
               InputError);
  Topology shared = topology;
  shared.rank_nodes[1] = 0;
  EXPECT_THROW((void)topology_to_sccl_json(shared), InputError);
  Topology switched = topology;
  switched.rank_nodes.pop_back();
  EXPECT_THROW((void)topology_to_sccl_json(switched), InputError);
}

constexpr std::string_view kWords[] = {"-1",  "0",  "1",    "2",  "3",  "1048576", "2147483648",
                                       "1e9", "\"", "\xff", "{}", "[]", "reduce",  "copy"};

TEST(ScclFuzz, AMutatedFileGivesAScheduleOrASentence) {
  const auto end = test::fuzz_end();
  std::mt19937 random(20240301);
  const std::string written = to_sccl_json(algorithm("ring").make(
      {.kind = CollectiveKind::reduce_scatter, .world_size = 3, .levels = {}}));
  const std::string samples[] = {kAllgather, kAllreduce, written};
  long rounds = 0;
  long schedules = 0;
  while (rounds <= 100 || std::chrono::steady_clock::now() < end) {
    const std::string text = test::mutated(samples[rounds++ % std::size(samples)], kWords,
                                           samples[random() % std::size(samples)], random);
    try {
      const Schedule schedule = schedule_from_sccl_json(text, "f.json");
      ++schedules;
      ASSERT_EQ(first_fault(schedule), std::nullopt) << text;
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), testing::StartsWith("f.json: ")) << text;
    }
  }
  EXPECT_GT(schedules, 0) << "some changes are harmless";
}

}  // namespace
}  // namespace chorus::formats
