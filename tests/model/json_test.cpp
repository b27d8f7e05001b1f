#include "model/json/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"
#include "samples.hpp"
#include "schedules.hpp"
#include "tests/base/documented.hpp"

namespace chorus {
namespace {

using test::random_schedule;
using test::ring_all_reduce;
using test::sample_plan;
using test::sample_topology;
using testing::HasSubstr;

TEST(Json, TopologyComesBackEqual) {
  const Topology topology = sample_topology();
  ASSERT_EQ(malformed(topology), std::nullopt);
  EXPECT_EQ(topology_from_json(to_json(topology), "f"), topology);
  EXPECT_EQ(topology_from_json(to_json(Topology{}), "f"), Topology{});
}

TEST(Json, SchedulesComeBackEqual) {
  for (int kind = 0; kind < 9; ++kind) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      const Schedule schedule =
          random_schedule(static_cast<CollectiveKind>(kind), 1 + static_cast<int>(seed % 6), seed);
      EXPECT_EQ(schedule_from_json(to_json(schedule), "f"), schedule);
    }
  }
}

TEST(Json, PlanComesBackEqual) {
  const Plan plan = sample_plan();
  EXPECT_EQ(plan_from_json(to_json(plan), "f"), plan);
}

TEST(Json, FiguresComeBackToTheLastBit) {
  Topology topology = sample_topology();
  for (const double figure : {0.1, 1.0 / 3, 1e-300, 5e-324, 3600.0, 0.0, 1234.5}) {
    topology.links[0].alpha_s = figure;
    EXPECT_EQ(topology_from_json(to_json(topology), "f").links[0].alpha_s, figure);
  }
}

TEST(Json, NamesMayBeAnyText) {
  Topology topology = sample_topology();
  topology.nodes[0].name = "höst \"0\"\n\\ \t{}";
  topology.name = std::string("nul \0 inside", 12);
  EXPECT_EQ(topology_from_json(to_json(topology), "f"), topology);
  topology.nodes[0].name = "\xff";
  EXPECT_THROW((void)to_json(topology), InputError);
}

TEST(Json, AStepIsALine) {
  EXPECT_EQ(to_json(ring_all_reduce(2)),
            R"({
  "format": "chorus-schedule",
  "version": 1,
  "name": "ring",
  "collective": "all_reduce",
  "world_size": 2,
  "num_chunks": 2,
  "steps": [
    [[1, 0, 0, "reduce"], [0, 1, 1, "reduce"]],
    [[0, 1, 0, "copy"], [1, 0, 1, "copy"]]
  ]
}
)");
}

TEST(Json, ALinkIsALine) {
  const std::string text = to_json(sample_topology());
  EXPECT_THAT(text,
              HasSubstr("\n    {\"src\": \"host0/gpu0\", \"dst\": \"host0/gpu1\", \"alpha_s\": "
                        "7e-07, \"beta_s_per_byte\": 2e-11, \"type\": \"nvlink\", "
                        "\"provenance\": \"table\"},\n"));
  EXPECT_THAT(text, HasSubstr("\"ranks\": [\"host0/gpu0\", \"host0/gpu1\"]"));
}

TEST(Json, ProgramsAreWrittenAnInstructionPerLine) {
  const auto programs = lower(ring_all_reduce(2));
  const std::string text = to_json(programs);
  EXPECT_THAT(text, HasSubstr("\"format\": \"chorus-programs\""));
  EXPECT_THAT(text, HasSubstr("\n          {\"chunks\": [0, 1], \"sources\": [[\"input\", 0], "
                              "[\"incoming\", 0]], \"destination\": [\"output\", 0], "
                              "\"completes\": true, \"step\": 0}"));
  EXPECT_EQ(text, to_json(lower(ring_all_reduce(2))));
}

TEST(Json, UnsoundValuesAreNotSaved) {
  Schedule schedule = ring_all_reduce(2);
  schedule.steps[0][0].dst = 9;
  EXPECT_THROW((void)to_json(schedule), InputError);
  Topology topology = sample_topology();
  topology.links[0].alpha_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW((void)to_json(topology), InputError);
}

// The page shows what is really written, byte for byte.
TEST(Json, DocumentedExamplesAreWhatIsWritten) {
  const auto blocks = test::documented_examples(CHORUS_SOURCE_DIR);
  ASSERT_EQ(blocks.size(), 6U) << "the last two are topology_nvml_test's";
  const std::string page = "formats.md";
  EXPECT_EQ(to_json(topology_from_json(blocks[0], page)), blocks[0]);
  EXPECT_EQ(to_json(schedule_from_json(blocks[1], page)), blocks[1]);
  const Plan plan = plan_from_json(blocks[2], page);
  EXPECT_EQ(to_json(plan), blocks[2]);
  for (const PlanEntry& entry : plan.entries) EXPECT_EQ(first_fault(entry.schedule), std::nullopt);
  EXPECT_EQ(to_json(lower(plan.entries[1].schedule)), blocks[3]);
}

TEST(Fingerprint, SeesWhatMattersAndNothingElse) {
  const Topology topology = sample_topology();
  const std::string print = fingerprint(topology);
  EXPECT_EQ(print.size(), 16U);
  Topology same = topology;
  same.name = "another label";
  same.nodes[1].detail = "seen today";
  same.links[0].provenance = Provenance::measured;
  EXPECT_EQ(fingerprint(same), print);

  const auto differs = [&](auto change) {
    Topology other = topology;
    change(other);
    return fingerprint(other) != print;
  };
  EXPECT_TRUE(differs([](Topology& t) { t.nodes[1].name = "x"; }));
  EXPECT_TRUE(differs([](Topology& t) { t.nodes[1].parent = -1; }));
  EXPECT_TRUE(differs([](Topology& t) { t.nodes[1].kind = NodeKind::nic; }));
  EXPECT_TRUE(differs([](Topology& t) { t.links[0].alpha_s *= 2; }));
  EXPECT_TRUE(differs([](Topology& t) { t.links[0].beta_s_per_byte *= 2; }));
  EXPECT_TRUE(differs([](Topology& t) { t.links[0].type = "x"; }));
  EXPECT_TRUE(differs([](Topology& t) { std::swap(t.links[0].src, t.links[0].dst); }));
  EXPECT_TRUE(differs([](Topology& t) { t.port_groups[0].links.pop_back(); }));
  EXPECT_TRUE(differs([](Topology& t) { std::swap(t.rank_nodes[0], t.rank_nodes[1]); }));
}

TEST(Fingerprint, EveryFieldOfAPlanCounts) {
  const Plan plan = sample_plan();
  const auto differs = [&](auto change) {
    Plan other = plan;
    change(other);
    return fingerprint(other) != fingerprint(plan);
  };
  EXPECT_EQ(fingerprint(plan), fingerprint(sample_plan()));
  EXPECT_TRUE(differs([](Plan& p) { p.topology_fingerprint[0] = 'f'; }));
  EXPECT_TRUE(differs([](Plan& p) { p.entries[0].max_bytes--; }));
  EXPECT_TRUE(differs([](Plan& p) { p.entries[0].per_byte_time_s *= 2; }));
  EXPECT_TRUE(differs([](Plan& p) { p.entries[0].schedule.name += "x"; }));
  EXPECT_TRUE(differs([](Plan& p) { p.entries[0].schedule.steps[0].pop_back(); }));
  EXPECT_TRUE(differs([](Plan& p) { p.entries.pop_back(); }));
}

TEST(MalformedTopology, NamesTheContradiction) {
  struct Case {
    const char* expected;
    void (*spoil)(Topology&);
  };
  const Case cases[] = {
      {"node 1 has no name", [](Topology& t) { t.nodes[1].name = ""; }},
      {"two nodes are named 'host0'", [](Topology& t) { t.nodes[1].name = "host0"; }},
      {"of unknown kind 77", [](Topology& t) { t.nodes[1].kind = NodeKind{77}; }},
      {"has parent 99, but there are 5 nodes", [](Topology& t) { t.nodes[1].parent = 99; }},
      {"has parent -2", [](Topology& t) { t.nodes[1].parent = -2; }},
      {"contains itself through its parents", [](Topology& t) { t.nodes[0].parent = 1; }},
      {"link 0: node 9 is not in [0, 5)", [](Topology& t) { t.links[0].src = 9; }},
      {"link 0: it leads from 'host0/gpu0' to itself", [](Topology& t) { t.links[0].dst = 1; }},
      {"link 0: alpha_s is -1", [](Topology& t) { t.links[0].alpha_s = -1; }},
      {"link 0: beta_s_per_byte is inf",
       [](Topology& t) { t.links[0].beta_s_per_byte = INFINITY; }},
      {"port group 'host0/bus': link 0 is in it twice",
       [](Topology& t) {
         t.port_groups[0].links = {0, 0};
       }},
      {"port group 'host0/bus': link 4 is not in [0, 2)",
       [](Topology& t) { t.port_groups[0].links = {4}; }},
      {"rank 1 sits on node 7, but there are 5 nodes", [](Topology& t) { t.rank_nodes[1] = 7; }},
  };
  for (const Case& c : cases) {
    Topology topology = sample_topology();
    c.spoil(topology);
    EXPECT_THAT(malformed(topology).value_or("sound"), HasSubstr(c.expected));
  }
}

}  // namespace
}  // namespace chorus
