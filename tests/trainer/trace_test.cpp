// A timeline holds what the log counts, no wait is outside of a pass or an update, and what is
// written is JSON that Chrome reads. Overlap hides what the schedule without it exposes, at the
// same bits.
#include "report/trace.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "world.hpp"

namespace trainer::testing {
namespace {

using Lane = Span::Lane;

double length(const std::vector<Span>& spans, Lane lane) {
  double sum = 0;
  for (const Span& s : spans) sum += s.lane == lane ? s.end_s - s.begin_s : 0;
  return sum;
}

std::size_t count(const std::vector<Span>& spans, std::string_view name) {
  return static_cast<std::size_t>(
      std::ranges::count_if(spans, [&](const Span& s) { return s.name == name; }));
}

TEST(Trace, HoldsWhatTheLogCounts) {
  Config config = small(4);
  config.layout = {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 3};
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    trainer.step();
    trainer.groups().flights.wait_all();
    trainer.log().clear();
    world.barrier();
    trainer.groups().flights.trace.start(10'000);
    trainer.step();
    trainer.groups().flights.wait_all();
    const std::vector<Span>& spans = trainer.groups().flights.trace.spans();
    double flight = 0;
    std::uint64_t calls = 0;
    for (const auto& axis : trainer.log().table) {
      for (const Traffic& t : axis) {
        flight += t.in_flight_s;
        calls += t.calls;
      }
    }
    EXPECT_NEAR(length(spans, Lane::in_flight), flight, 1e-6);
    EXPECT_NEAR(length(spans, Lane::exposed), trainer.log().exposed_s(), 1e-6);
    EXPECT_EQ(count(spans, "forward"), 3U);
    EXPECT_EQ(count(spans, "backward"), 3U);
    EXPECT_EQ(count(spans, "update"), 1U);
    EXPECT_EQ(static_cast<std::uint64_t>(std::ranges::count(spans, Lane::in_flight, &Span::lane)),
              calls);
    const double share = overlap_share(spans);
    EXPECT_GE(share, 0);
    EXPECT_LE(share, 1);

    const auto ranks = gather_spans(world, trainer.groups().flights.trace);
    ASSERT_EQ(ranks.size(), world.rank() == 0 ? 4U : 0U);
    if (ranks.empty()) return;
    EXPECT_EQ(ranks[0].size(), spans.size());
    const auto json = nlohmann::json::parse(chrome_trace(ranks));
    std::size_t bars = 0;
    for (const auto& event : json["traceEvents"]) bars += event["ph"] == "X" ? 1 : 0;
    std::size_t all = 0;
    for (const auto& of : ranks) all += of.size();
    EXPECT_EQ(bars, all);
    const std::string picture = trace_svg(ranks);
    for (int r = 0; r < 4; ++r) {
      EXPECT_NE(picture.find("rank " + std::to_string(r)), std::string::npos);
    }
  });
}

TEST(Trace, CountsWhatDoesNotFit) {
  Trace trace;
  const auto now = Trace::Clock::now();
  trace.add(Lane::compute, "before", "", now, now);
  trace.start(3);
  for (int i = 0; i < 5; ++i) trace.add(Lane::compute, "forward", "", now, Trace::Clock::now());
  EXPECT_EQ(trace.spans().size(), 3U);
  EXPECT_EQ(trace.left_out(), 2U);
  EXPECT_GE(trace.spans()[0].begin_s, 0);  // what began before is cut
}

TEST(Trace, SharesAreOfTheTimeThatAnythingIsInFlight) {
  const auto span = [](Lane lane, double begin, double end) {
    return Span{.lane = lane, .begin_s = begin, .end_s = end};
  };
  // In flight in [0, 4] and [6, 8], twice in [2, 4]; standing still in [3, 5] and [6, 7].
  EXPECT_DOUBLE_EQ(overlap_share({span(Lane::in_flight, 0, 4), span(Lane::in_flight, 2, 4),
                                  span(Lane::in_flight, 6, 8), span(Lane::exposed, 3, 5),
                                  span(Lane::exposed, 6, 7)}),
                   1 - 2.0 / 6);
  EXPECT_EQ(overlap_share({}), 0);
}

TEST(Overlap, CanBeTurnedBetweenStepsAtTheSameBits) {
  Config config = small(3);
  config.layout = {.dp = 2, .zero = 1, .micro_batches = 2};
  const Outcome reference = train(config, 6);
  Tensors values;
  std::mutex mutex;
  on_ranks(2, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    for (int i = 0; i < 6; ++i) {
      trainer.overlap(i % 2 == 0);
      const double before = trainer.log().exposed_s();
      trainer.step();
      // Without overlap every call between replicas is waited for where it is made.
      if (i % 2 == 1) {
        EXPECT_GT(trainer.log().exposed_s(), before);
      }
    }
    trainer.groups().flights.wait_all();
    const std::lock_guard lock(mutex);
    collect(trainer, false, values);
  });
  EXPECT_EQ(values, reference.values);
}

}  // namespace
}  // namespace trainer::testing
