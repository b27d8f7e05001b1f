// The rule by which survivors of a loss agree, explored: every order in which three ranks go
// through two calls, with a death at every step and the news of it at every moment after.
#include "runtime/communicator/loss_agreement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace chorus {
namespace {

constexpr int kRanks = 3, kCalls = 2;

/// Where a rank is: between calls, in a call, in the barrier behind it.
enum class At : std::uint8_t { before, running, barrier };

struct Model {
  struct One {
    At at = At::before;
    int call = 0;          ///< calls it has returned from
    bool entered = false;  ///< the barrier: what others see
    bool dead = false, told = false;

    auto operator<=>(const One&) const = default;
  };
  std::array<One, kRanks> ranks;

  auto operator<=>(const Model&) const = default;
};

/// Which ranks a call waits for: all of them, or (a rooted one) rank 0 alone, or nobody.
enum class Needs : std::uint8_t { all, root, nobody };

class Exploration {
 public:
  Exploration(Needs needs, int victims) : needs_(needs), victims_(victims) { explore({}, 0); }

  int ends = 0, completed = 0, repeated = 0;

 private:
  [[nodiscard]] bool has_started(const Model& model, int rank, int call) const {
    const auto& one = model.ranks[static_cast<std::size_t>(rank)];
    return one.call > call || (one.call == call && one.at != At::before);
  }
  [[nodiscard]] bool may_execute(const Model& model, int rank) const {
    const int call = model.ranks[static_cast<std::size_t>(rank)].call;
    for (int other = 0; other < kRanks; ++other) {
      const bool waits = needs_ == Needs::all || (needs_ == Needs::root && other == 0);
      if (waits && !has_started(model, other, call)) return false;
    }
    return true;
  }
  [[nodiscard]] bool has_entered(const Model& model, int rank, int call) const {
    const auto& one = model.ranks[static_cast<std::size_t>(rank)];
    return one.call > call || (one.call == call && one.at == At::barrier);
  }

  void explore(const Model& model, int deaths) {
    if (!seen_.insert(model).second) return;
    bool all_told = true;
    for (std::size_t r = 0; r < kRanks; ++r) {
      const Model::One& one = model.ranks[r];
      if (one.dead) continue;
      all_told = all_told && one.told;
      if (one.told) continue;
      step(model, static_cast<int>(r), deaths);
      if (deaths < victims_) {
        Model next = model;
        next.ranks[r].dead = true;
        explore(next, deaths + 1);
      }
      if (deaths > 0 && one.at != At::before) {
        Model next = model;
        next.ranks[r].told = true;
        explore(next, deaths);
      }
    }
    if (all_told && deaths > 0) judge(model);
  }

  void step(const Model& model, int rank, int deaths) {
    Model next = model;
    Model::One& one = next.ranks[static_cast<std::size_t>(rank)];
    switch (one.at) {
      case At::before:
        if (one.call == kCalls) return;
        one.at = At::running;
        break;
      case At::running:
        if (!may_execute(model, rank)) return;
        one.at = At::barrier;
        break;
      case At::barrier:
        for (int other = 0; other < kRanks; ++other) {
          if (!has_entered(model, other, one.call)) return;
        }
        one.at = At::before;
        ++one.call;
        break;
    }
    explore(next, deaths);
  }

  void judge(const Model& model) {
    std::vector<CallState> states;
    for (const Model::One& one : model.ranks) {
      if (one.dead) continue;
      states.push_back({.begun = static_cast<std::uint64_t>(one.call) + 1,
                        .phase = one.at == At::barrier ? CallPhase::executed : CallPhase::running,
                        .signature = "call"});
    }
    ++ends;
    std::size_t i = 0;
    std::array<std::optional<LossOutcome>, kCalls + 1> of_call;
    for (const Model::One& one : model.ranks) {
      if (one.dead) continue;
      const Agreed agreed = agree_on(states, i++);
      const LossOutcome outcome = agreed.outcome;
      ASSERT_NE(outcome, LossOutcome::fail) << "all made the same calls";
      if (agreed.next) {
        auto& next = of_call[static_cast<std::size_t>(one.call) + 1];
        ASSERT_EQ(next.value_or(*agreed.next), *agreed.next) << "the result of one call is mixed";
        next = *agreed.next;
      }
      if (outcome == LossOutcome::complete) {
        ++completed;
        ASSERT_EQ(one.at, At::barrier) << "a rank returns a result that it does not have";
      } else {
        ++repeated;
      }
      auto& common = of_call[static_cast<std::size_t>(one.call)];
      ASSERT_EQ(common.value_or(outcome), outcome) << "the result of one call is mixed";
      common = outcome;
    }
    // What a survivor has returned from is nowhere made again.
    for (const Model::One& one : model.ranks) {
      if (one.dead) continue;
      for (int call = 0; call < one.call; ++call) {
        ASSERT_NE(of_call[static_cast<std::size_t>(call)], LossOutcome::again)
            << "a call that some rank returned from is made again without the lost";
      }
    }
    // After it all are in one call at most, or come to it.
    int first = kCalls, last = 0;
    std::size_t at = 0;
    for (const Model::One& one : model.ranks) {
      if (one.dead) continue;
      const bool is_over = agree_on(states, at++).outcome == LossOutcome::complete;
      const int next = one.call + (is_over ? 1 : 0);
      first = std::min(first, next);
      last = std::max(last, next);
    }
    ASSERT_EQ(first, last) << "survivors go on with different calls";
  }

  Needs needs_;
  int victims_;
  std::set<Model> seen_;
};

TEST(LossAgreement, IsTheSameOnAllSurvivorsWheneverARankDies) {
  for (const Needs needs : {Needs::all, Needs::root, Needs::nobody}) {
    for (const int victims : {1, 2}) {
      const Exploration all(needs, victims);
      EXPECT_GT(all.ends, 50);
      EXPECT_GT(all.completed, 0);
      EXPECT_GT(all.repeated, 0);
    }
  }
}

TEST(LossAgreement, LetsTheLossBeMetByOneCallOnAllSurvivors) {
  const std::vector<CallState> states{{4, CallPhase::executed, "a"}, {5, CallPhase::running, "b"}};
  EXPECT_EQ(agree_on(states, 0),
            (Agreed{.outcome = LossOutcome::complete, .next = LossOutcome::again}));
  EXPECT_EQ(agree_on(states, 1), (Agreed{.outcome = LossOutcome::again}));
}

CallState in(std::uint64_t begun, CallPhase phase, const std::string& what = "call") {
  return {.begun = begun, .phase = phase, .signature = what};
}

TEST(LossAgreement, FailsACallThatASurvivorMayNotComeTo) {
  const std::vector<CallState> states{in(5, CallPhase::running), in(4, CallPhase::outside)};
  EXPECT_EQ(agree_on(states, 0).outcome, LossOutcome::fail);
  EXPECT_EQ(agree_on(states, 1).outcome, LossOutcome::fail);
}

TEST(LossAgreement, CompletesACallThatOneReturnedFromBeforeItFailedElsewhere) {
  const std::vector<CallState> states{in(4, CallPhase::executed), in(4, CallPhase::outside)};
  EXPECT_EQ(agree_on(states, 0).outcome, LossOutcome::complete);
}

TEST(LossAgreement, FailsCallsThatDoNotMatch) {
  const std::vector<CallState> states{in(4, CallPhase::running, "all_reduce"),
                                      in(4, CallPhase::running, "barrier")};
  EXPECT_EQ(agree_on(states, 0).outcome, LossOutcome::fail);
  EXPECT_EQ(agree_on(states, 1).outcome, LossOutcome::fail);
}

TEST(LossAgreement, NeverReturnsAResultThatIsNotThere) {
  const std::vector<CallState> states{in(4, CallPhase::running), in(5, CallPhase::running)};
  EXPECT_EQ(agree_on(states, 0).outcome, LossOutcome::fail);
}

}  // namespace
}  // namespace chorus
