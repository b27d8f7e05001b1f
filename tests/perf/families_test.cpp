#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "perf/families/instances.hpp"
#include "perf/families/report.hpp"
#include "perf/report/statistics.hpp"
#include "synth/plan.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Families, DrawTheSameWiringsForTheSameSeed) {
  for (const Family& family : families()) {
    std::set<std::string> names;
    for (int index = 0; index < 8; ++index) {
      const std::string name = family_instance(family.name, 7, index, 48);
      EXPECT_EQ(name, family_instance(family.name, 7, index, 48));
      const Topology topology = topology_from_name(name);
      EXPECT_GE(topology.world_size(), 4) << name;
      EXPECT_LE(topology.world_size(), 48) << name;
      EXPECT_GT(lower_bound(topology, {CollectiveKind::all_gather, 0}).seconds_per_byte, 0) << name;
      names.insert(name);
    }
    EXPECT_GE(names.size(), 3U) << family.name;
  }
}

TEST(Families, AreRefusedWithTheOnesThatExist) {
  EXPECT_THROW((void)family_instance("tori", 1, 0, 7), InputError);
  try {
    (void)family_instance("toruses", 1, 0, 64);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("toruses"), HasSubstr("tori, meshes")));
  }
}

// The promise of the synthesizer, on a small member of every family. The worst are boxes whose GPUs
// share PCIe: streams of several trees meet at full links.
TEST(Families, PlansComeNearTheirLimits) {
  using enum CollectiveKind;
  std::vector<double> shares;
  for (const Family& family : families()) {
    // All-to-alls of hosts on several networks behind unequal trunks would have to be divided among
    // more ways than they are.
    const double least = family.name == "lans" ? 0.75 : 0.84;
    const std::string name = family_instance(family.name, 20, 0, 16);
    const Topology topology = topology_from_name(name);
    synth::PlanOptions options;
    options.kinds = {all_gather, reduce_scatter, all_to_all, all_reduce};
    options.sizes = {1 << 30};
    std::map<CollectiveKind, Bound> limits;
    for (const CollectiveKind kind : options.kinds) {
      limits.emplace(kind, lower_bound(topology, {kind, 0}));
    }
    options.limit = [&](Collective collective, double size) {
      return limits.at(collective.kind).seconds(size);
    };
    const synth::Planned planned =
        synth::make_plan(topology, options, synth::built_in_strategies(), synth::Budget{});
    for (const synth::Choice& choice : planned.choices) {
      const double share = options.limit({choice.kind, 0}, 1 << 30) / choice.seconds;
      EXPECT_GT(share, least) << name << ", " << static_cast<int>(choice.kind) << ": "
                              << choice.schedule.name;
      EXPECT_LT(share, 1 + 1e-9) << name;
      shares.push_back(share);
    }
  }
  EXPECT_GT(median(shares), 0.99);
  EXPECT_GT(percentile(shares, 0.05), 0.9);
}

FamilyReport sample() {
  FamilyReport report;
  report.command = "chorus-perf-synthesis families";
  report.rows = {{"tori",
                  "torus:4x4",
                  16,
                  1.5,
                  0.25,
                  "",
                  {{"all_gather", 1 << 30, 0.99, "trees", "trees", 1.1},
                   {"all_reduce", 1 << 30, 0.95, "trees", "trees", 1.01}}},
                 {"boxes",
                  "2*dgx1",
                  16,
                  4,
                  0.5,
                  "",
                  {{"all_gather", 1 << 30, 0.8, "sketched", "sketched", 0}}},
                 {"boxes", "9*dgx1", 72, 600, 1, "took more than 600 CPU seconds", {}}};
  return report;
}

TEST(FamilyReports, ReadWhatTheyWrote) {
  const std::string text = to_json(sample());
  EXPECT_TRUE(is_family_report(text));
  EXPECT_FALSE(is_family_report("{}"));
  EXPECT_FALSE(is_family_report("nonsense"));
  EXPECT_EQ(family_report_from_json(text, "here"), sample());
  EXPECT_THROW((void)family_report_from_json("{}", "here"), InputError);
  EXPECT_THROW((void)family_report_from_json(R"({"format":"chorus-perf-families"})", "here"),
               InputError);
}

TEST(FamilyReports, ShowQuantilesWinnersAndFailures) {
  const std::string text = family_tables(sample(), Style::text);
  EXPECT_THAT(text, HasSubstr("89.5 80.0 80.0"));  // all_gather of both wirings
  EXPECT_THAT(text, HasSubstr("took more than 600 CPU seconds"));
  EXPECT_THAT(text, HasSubstr("sketched"));
}

TEST(FamilyReports, CompareTheWiringsThatAreInBoth) {
  FamilyReport later = sample();
  later.rows[1].results[0].share = 0.96;
  later.rows[0].results[0].share = 0.991;
  double mean = 0;
  const std::string text = family_difference(sample(), later, Style::text, &mean);
  EXPECT_LT(mean, 0.95);
  EXPECT_THAT(text, HasSubstr("2*dgx1"));
  EXPECT_THAT(text, Not(HasSubstr("torus:4x4")));  // a tenth of a percent
  later.rows.clear();
  EXPECT_THROW((void)family_difference(sample(), later, Style::text, &mean), InputError);
}

}  // namespace
}  // namespace chorus::perf
