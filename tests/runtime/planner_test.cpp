// Claim: whatever becomes of the plan, all ranks begin with it at the same call, or none does; and
// no call waits for a rank that is still making it.
#include "runtime/selection/planner.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "runtime/control/control_harness.hpp"
#include "runtime/engine/call_gate.hpp"

namespace chorus::testing_control {
namespace {

using State = Planner::State;

constexpr int kRanks = 3;

/// Threads as ranks, each with a planner.
class PlannerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    coordinator_ = std::make_unique<Coordinator>(kRanks, "", 0, Secret::random());
    controls_ = join_all(coordinator_->id(), kRanks);
    planners_.resize(kRanks);
    for (auto& control : controls_) control->open_group("world", all_ranks(kRanks));
  }
  void TearDown() override {
    run_ranks(kRanks, [&](Rank rank) { planners_[index(rank)].reset(); });
    for (auto& control : controls_) {
      if (!control) continue;
      EXPECT_FALSE(control->reason_to_leave()) << *control->reason_to_leave();
      control->close_group("world");
    }
    leave_all(controls_);
  }

  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  void plan(Rank rank, Planner::Make make) {
    planners_[index(rank)] = std::make_unique<Planner>(
        controls_[index(rank)],
        GroupPlace{.key = "world/plan0", .members = all_ranks(kRanks), .rank = rank},
        std::move(make));
  }
  Planner& planner(Rank rank) { return *planners_[index(rank)]; }

  /// Makes calls up to `last`; the first with the plan, or `last` + 1.
  std::uint64_t call_until(Rank rank, std::uint64_t last) {
    for (std::uint64_t call = 1; call <= last; ++call) {
      if (planner(rank).due(call, [] {})) return call;
    }
    return last + 1;
  }

  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::shared_ptr<Control>> controls_;
  std::vector<std::unique_ptr<Planner>> planners_;
  std::latch ahead_{1};

  /// What the same planner gives back, and no other.
  static Planned marked() {
    return {.selector = nullptr,
            .survey = std::shared_ptr<Survey>(std::make_shared<int>(), nullptr)};
  }
};

TEST_F(PlannerTest, AllRanksBeginWithTheSameCallThoughOneIsFarAhead) {
  std::vector<std::uint64_t> first(kRanks);
  std::atomic<int> with_plan = 0;
  const auto thrown = run_ranks(kRanks, [&](Rank rank) {
    // Rank 0 has made its calls before the others are ready; then all call until all have it.
    std::latch* const wait = &ahead_;
    plan(rank, [rank, wait](const std::stop_token&) {
      if (rank != 0) wait->wait();
      return rank == 2 ? marked() : Planned{};
    });
    std::uint64_t call = 1;
    for (; rank == 0 && call <= 1000; ++call) EXPECT_FALSE(planner(rank).due(call, [] {}));
    if (rank == 0) ahead_.count_down();
    while (!planner(rank).due(call, [] {})) ++call;
    first[index(rank)] = call;
    EXPECT_EQ(planner(rank).state(), State::agreed);
    EXPECT_EQ(planner(rank).take().survey.use_count() > 0, rank == 2);
    ++with_plan;
  });
  for (const std::string& what : thrown) EXPECT_EQ(what, "");
  EXPECT_EQ(with_plan, kRanks);
  EXPECT_GT(first[0], 1000U);
  EXPECT_EQ(first[1], first[0]);
  EXPECT_EQ(first[2], first[0]);
}

TEST_F(PlannerTest, WhereOneRankCannotPlanNobodyDoes) {
  run_ranks(kRanks, [&](Rank rank) {
    plan(rank, [rank](const std::stop_token&) -> Planned {
      if (rank == 1) throw SynthesisError("of this rank alone");
      return {};
    });
    EXPECT_EQ(planner(rank).await([] {}), State::nothing);
    EXPECT_EQ(call_until(rank, 100), 101U);
  });
}

TEST_F(PlannerTest, NoCallWaitsForARankThatIsStillPlanning) {
  std::latch called(kRanks - 1);
  run_ranks(kRanks, [&](Rank rank) {
    plan(rank, [&, rank](const std::stop_token&) {
      if (rank == 2) called.wait();
      return Planned{};
    });
    if (rank != 2) {
      EXPECT_EQ(call_until(rank, 10'000), 10'001U);
      called.count_down();
    }
    EXPECT_EQ(planner(rank).await([] {}), State::agreed);
  });
  EXPECT_EQ(planner(0).from_call(), planner(1).from_call());
  EXPECT_EQ(planner(0).from_call(), planner(2).from_call());
  EXPECT_GT(planner(0).from_call(), 10'000U);
}

TEST_F(PlannerTest, ARankThatEndsMeanwhileEndsItForAll) {
  std::latch planning(kRanks);
  run_ranks(kRanks, [&](Rank rank) {
    plan(rank, [&, rank](const std::stop_token& stop) {
      planning.count_down();
      // Rank 1 is still at it when it is told to stop.
      std::atomic<bool> stopped = false;
      const std::stop_callback on_stop(stop, [&] {
        stopped = true;
        stopped.notify_all();
      });
      if (rank == 1) stopped.wait(false);
      return Planned{};
    });
    planning.wait();
    if (rank == 1) planners_[1].reset();
    if (rank != 1) {
      EXPECT_EQ(planner(rank).await([] {}), State::nothing);
    }
  });
}

TEST_F(PlannerTest, ADeathMeanwhileIsNoPlanAndNoHang) {
  std::latch planning(kRanks);
  const std::vector<std::string> thrown = run_ranks(kRanks, [&](Rank rank) {
    if (rank == 2) {
      planning.count_down();
      planning.wait();
      controls_[2]->close_group("world");
      controls_[2].reset();  // its goodbye
      return;
    }
    plan(rank, [](const std::stop_token&) { return Planned{}; });
    planning.count_down();
    EXPECT_EQ(planner(rank).await([] {}), State::nothing);
  });
  for (const std::string& what : thrown) EXPECT_EQ(what, "");
}

TEST(CallGate, HoldsCallsThatBeginWhileItIsClosed) {
  CallGate gate;
  gate.pass();
  EXPECT_EQ(gate.held_s(), 0);
  ASSERT_TRUE(gate.close({}));
  std::atomic<bool> passed = false;
  std::thread caller([&] {
    gate.pass();
    passed = true;
  });
  while (gate.calls() < 2) std::this_thread::yield();
  EXPECT_FALSE(passed);
  gate.open();
  caller.join();
  EXPECT_GT(gate.held_s(), 0);
  EXPECT_EQ(gate.calls(), 2U);
}

TEST(CallGate, StaysOpenWhereCallsGoOnMovingBytes) {
  using Clock = std::chrono::steady_clock;
  CallGate gate;
  std::atomic<int> moves = 0;
  std::atomic<bool> was_kept = false;  // from its core, for as long as a call at rest
  std::jthread call([&](const std::stop_token& stop) {
    for (auto last = Clock::now(); !stop.stop_requested(); std::this_thread::yield()) {
      gate.moved();
      const auto now = Clock::now();
      if (now - last > std::chrono::milliseconds(2)) was_kept = true;
      last = now;
      ++moves;
    }
  });
  const auto await_move = [&] {
    for (const int before = moves; moves == before;) std::this_thread::yield();
  };
  bool rests = true;
  do {
    await_move();
    gate.open();
    was_kept = false;
    rests = gate.close({});
    await_move();
  } while (rests && was_kept);
  EXPECT_FALSE(rests);
  gate.pass();
  EXPECT_EQ(gate.held_s(), 0);
}

TEST(CallGate, IsNotClosedForWhoIsToStop) {
  CallGate gate;
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(gate.close(stop.get_token()));
  gate.pass();
  EXPECT_EQ(gate.held_s(), 0);
}

}  // namespace
}  // namespace chorus::testing_control
