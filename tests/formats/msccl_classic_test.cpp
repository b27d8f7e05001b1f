// Every classic schedule goes out as MSCCL XML and comes back, with and without the steps that
// Chorus notes in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "cases.hpp"
#include "chorus/error.hpp"
#include "formats/msccl_xml.hpp"
#include "schedules.hpp"
#include "strip.hpp"

namespace chorus::formats {
namespace {

using Row = std::tuple<Rank, Rank, ChunkId, Action>;

/// All transfers, whatever their steps.
std::vector<Row> transfers(const Schedule& schedule) {
  std::vector<Row> result;
  for (const Step& step : schedule.steps) {
    for (const auto& [src, dst, chunk, action] : step) {
      result.emplace_back(src, dst, chunk, action);
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

class MscclClassic : public testing::TestWithParam<int> {};

TEST_P(MscclClassic, WritingAndReadingIsTheIdentityOnTheNormalForm) {
  int schedules = 0;
  for_each_schedule(
      GetParam(), all_hierarchies(GetParam()),
      [&](const Schedule& schedule, const std::string& name) {
        if (schedule.collective.kind == CollectiveKind::barrier) return;
        SCOPED_TRACE(name);
        const std::string xml = to_msccl_xml(schedule);
        const Schedule back = schedule_from_msccl_xml(xml, "f.xml");
        ASSERT_EQ(back, normal_form(schedule));
        ASSERT_EQ(to_msccl_xml(back), to_msccl_xml(normal_form(schedule)));
        ASSERT_EQ(schedule_from_msccl_xml(to_msccl_xml(schedule, {.channels = 3}), "f.xml"), back);
        ++schedules;
      });
  EXPECT_GT(schedules, 20);
}

// What another writer would have written: the order of the programs alone tells the steps.
TEST_P(MscclClassic, StepsAreFoundAgainFromTheProgramsAlone) {
  for_each_schedule(GetParam(), all_hierarchies(GetParam()),
                    [&](const Schedule& schedule, const std::string& name) {
                      if (schedule.collective.kind == CollectiveKind::barrier) return;
                      SCOPED_TRACE(name);
                      const Schedule bare =
                          schedule_from_msccl_xml(without_levels(to_msccl_xml(schedule)), "f.xml");
                      ASSERT_EQ(transfers(bare), transfers(normal_form(schedule)));
                      ASSERT_EQ(first_fault(bare), std::nullopt);
                      ASSERT_EQ(schedule_from_msccl_xml(to_msccl_xml(bare), "f.xml"), bare);
                    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, MscclClassic, testing::Range(2, 10));

// Random trees, orders and step counts, as no person would write them.
TEST(MscclExport, RandomSchedulesComeBack) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    for (const CollectiveKind kind : test::kAllKinds) {
      if (kind == CollectiveKind::barrier) continue;
      const Schedule schedule = test::random_schedule(kind, 2 + static_cast<int>(seed % 6), seed);
      SCOPED_TRACE(fmt::format("{} seed {}", schedule_name(schedule), seed));
      const std::string xml = to_msccl_xml(schedule);
      const Schedule back = schedule_from_msccl_xml(xml, "f.xml");
      ASSERT_EQ(back, normal_form(schedule));
      const Schedule bare = schedule_from_msccl_xml(without_levels(xml), "f.xml");
      ASSERT_EQ(transfers(bare), transfers(back));
    }
  }
}

TEST(MscclExport, RootsOtherThanZeroAreFoundAgain) {
  for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::reduce,
                                    CollectiveKind::gather, CollectiveKind::scatter}) {
    for (const Algorithm& algorithm : algorithms()) {
      const AlgorithmInput input{.kind = kind, .world_size = 5, .levels = {}};
      if (algorithm.why_not(input)) continue;
      const Schedule schedule = normal_form(rotated(algorithm.make(input), 3));
      ASSERT_EQ(schedule.collective.root, 3);
      EXPECT_EQ(schedule_from_msccl_xml(to_msccl_xml(schedule), "f.xml"), schedule)
          << schedule_name(schedule);
    }
  }
}

TEST(MscclExport, RefusesWhatTheFormatCannotSay) {
  const Schedule barrier{.name = "b",
                         .collective = {CollectiveKind::barrier},
                         .world_size = 2,
                         .num_chunks = 1,
                         .steps = {{{0, 1, 0, Action::reduce}, {1, 0, 0, Action::reduce}}}};
  EXPECT_THROW((void)to_msccl_xml(barrier), InputError);
  Schedule wrong = barrier;
  wrong.collective.kind = CollectiveKind::all_reduce;
  wrong.steps[0].pop_back();
  EXPECT_THROW((void)to_msccl_xml(wrong), InputError);
}

}  // namespace
}  // namespace chorus::formats
