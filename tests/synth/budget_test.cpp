// What is left of a budget, and how collectives share it.
#include "synth/budget.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "synth/shares.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

TEST(Budget, IsSpentByWork) {
  const Budget budget = Budget{}.at_most(1000);
  EXPECT_FALSE(budget.spent());
  EXPECT_DOUBLE_EQ(budget.left(), 1);
  count_work(1, 250);
  EXPECT_DOUBLE_EQ(budget.left(), 0.75);
  const Budget part = budget.part(0.5);
  count_work(374, 1);
  EXPECT_FALSE(part.spent());
  count_work(1, 1);
  EXPECT_TRUE(part.spent());
  EXPECT_FALSE(part.interrupted()) << "it ends there in every run";
  EXPECT_FALSE(budget.spent());
  count_work(1, 10'000);
  EXPECT_TRUE(budget.spent());
  EXPECT_DOUBLE_EQ(budget.left(), 0);
  EXPECT_TRUE(budget.part(1).spent());
}

TEST(Budget, HasNoEndUnlessItIsGivenOne) {
  count_work(1, 1'000'000);
  EXPECT_FALSE(Budget{}.part(1e-6).spent());
  EXPECT_DOUBLE_EQ(Budget{}.left(), 1);
  const Budget endless = Budget{}.at_most(std::numeric_limits<double>::infinity());
  count_work(1, 1'000'000);
  EXPECT_FALSE(endless.spent());
}

TEST(Budget, IsSpentByTheClock) {
  Budget budget = Budget{}.at_most(1e12);
  budget.deadline = budget.begun;
  EXPECT_TRUE(budget.spent());
  EXPECT_TRUE(budget.interrupted());
  EXPECT_DOUBLE_EQ(budget.left(), 0);
}

/// What the collectives get that want all they can have.
std::map<CollectiveKind, double> taken_by_all(std::set<CollectiveKind> easy) {
  const std::set<CollectiveKind> kinds = {all_gather, reduce_scatter, all_to_all, all_reduce};
  const Budget whole = Budget{}.at_most(1'000'000);
  Shares shares(whole, kinds, std::move(easy));
  std::map<CollectiveKind, double> taken;
  for (const CollectiveKind kind : {all_gather, reduce_scatter, all_to_all, all_reduce}) {
    const Budget share = shares.of(kind);
    taken[kind] = 1e-6 * static_cast<double>(share.last_work - work_done);
    work_done = share.last_work;
  }
  return taken;
}

TEST(Shares, LeaveEnoughForThoseAfterThem) {
  std::map<CollectiveKind, double> taken = taken_by_all({});
  EXPECT_NEAR(taken[all_gather], 0.53, 1e-3) << "all but what is kept for the others";
  EXPECT_NEAR(taken[reduce_scatter], 0.2, 1e-3);
  EXPECT_NEAR(taken[all_to_all], 0.05, 1e-3);
  EXPECT_NEAR(taken[all_reduce], 0.22, 1e-3);
  taken = taken_by_all({reduce_scatter});
  EXPECT_NEAR(taken[all_gather], 0.71, 1e-3) << "a mirror image is there already";
  taken = taken_by_all({reduce_scatter, all_to_all});
  EXPECT_NEAR(taken[all_gather], 0.74, 1e-3) << "what goes straight is as good as anything";
}

TEST(Shares, WhatOneDoesNotUseTheNextOnesMay) {
  const Budget whole = Budget{}.at_most(1'000'000);
  Shares shares(whole, {all_gather, all_reduce}, {});
  (void)shares.of(all_gather);
  const Budget last = shares.of(all_reduce);
  EXPECT_EQ(last.last_work, whole.last_work);
}

}  // namespace
}  // namespace chorus::synth
