// Pipeline orders do everything once, in an order that all ranks can follow, and stand still as
// long as their papers say; partitions are the best there are.
#include "schedule.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "chorus/error.hpp"

namespace trainer::testing {
namespace {

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int pp : {1, 2, 3, 4, 8}) {
    for (const int m : {1, 2, 8, 24}) {
      for (const Pipeline p : {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::zero_bubble}) {
        all.push_back({.pp = pp, .micro_batches = m, .pipeline = p});
      }
      for (const int v : {1, 2, 3}) {
        if (m % pp != 0) continue;
        all.push_back(
            {.pp = pp, .micro_batches = m, .virtual_stages = v, .pipeline = Pipeline::interleaved});
      }
    }
  }
  return all;
}

Timeline run(const Layout& layout, PassTimes times) {
  return simulated(pipeline_order(layout), layout,
                   std::vector<PassTimes>(static_cast<std::size_t>(layout.chunks()), times));
}

TEST(Orders, DoEveryPassOnceAndNeverWaitForEver) {
  for (const Layout& layout : layouts()) {
    const bool split = layout.pipeline == Pipeline::zero_bubble;
    for (const Order& order : pipeline_order(layout)) {
      std::map<std::tuple<Pass, int, int>, int> count;
      for (const Work& w : order) ++count[{w.pass, w.chunk, w.micro_batch}];
      EXPECT_EQ(count.size(), static_cast<std::size_t>((split ? 3 : 2) * layout.micro_batches *
                                                       layout.virtual_stages));
      for (const auto& [work, times] : count) EXPECT_EQ(times, 1);
    }
    EXPECT_NO_THROW(run(layout, {}));
  }
}

TEST(Orders, PassMicroBatchesBackwardInOrder) {
  for (const Layout& layout : layouts()) {
    for (const Order& order : pipeline_order(layout)) {
      std::map<std::pair<Pass, int>, int> next;
      for (const Work& w : order) EXPECT_EQ(w.micro_batch, (next[{w.pass, w.chunk}]++));
    }
  }
}

TEST(Orders, StandStillAsLongAsTheirPapersSay) {
  for (const int pp : {2, 4, 8}) {
    for (const int m : {8, 16}) {
      const double idle = pp - 1;
      const Layout gpipe{.pp = pp, .micro_batches = m, .pipeline = Pipeline::gpipe};
      EXPECT_NEAR(run(gpipe, {1, 2, 0}).bubble_share, idle / (m + idle), 1e-12);
      const Layout plain{.pp = pp, .micro_batches = m};
      EXPECT_NEAR(run(plain, {1, 2, 0}).bubble_share, idle / (m + idle), 1e-12);
      const Layout two{
          .pp = pp, .micro_batches = m, .virtual_stages = 2, .pipeline = Pipeline::interleaved};
      EXPECT_NEAR(run(two, {1, 2, 0}).bubble_share, idle / (2 * m + idle), 1e-12);
      // ZB-H1: (p − 1)(F + B − W) in place of (p − 1)(F + B + W).
      const Layout zero{.pp = pp, .micro_batches = m, .pipeline = Pipeline::zero_bubble};
      EXPECT_NEAR(run(zero, {1, 1, 1}).bubble_share, idle / (3 * m + idle), 1e-12)
          << pp << " ranks, " << m << " micro-batches";
    }
  }
}

TEST(Orders, KeepNoMoreActivationsThanTheyMust) {
  for (const int pp : {2, 4, 8}) {
    const Layout gpipe{.pp = pp, .micro_batches = 16, .pipeline = Pipeline::gpipe};
    const Layout plain{.pp = pp, .micro_batches = 16};
    const Layout zero{.pp = pp, .micro_batches = 16, .pipeline = Pipeline::zero_bubble};
    for (int r = 0; r < pp; ++r) {
      const auto i = static_cast<std::size_t>(r);
      EXPECT_EQ(most_alive(pipeline_order(gpipe)[i], 0), 16);
      EXPECT_EQ(most_alive(pipeline_order(plain)[i], 0), pp - r);
      EXPECT_LE(most_alive(pipeline_order(zero)[i], 0), pp);
    }
  }
}

TEST(Orders, ThatWaitForEachOtherAreNoticed) {
  const Layout layout{.pp = 2, .micro_batches = 2};
  std::vector<Order> orders = pipeline_order(layout);
  std::swap(orders[1][0], orders[1][1]);
  EXPECT_THROW((void)simulated(orders, layout, {{}, {}}), chorus::Error);
}

double slowest(const std::vector<int>& sizes, const std::vector<double>& layers, double first,
               double last) {
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    double cost = (c == 0 ? first : 0) + (c + 1 == sizes.size() ? last : 0);
    for (int i = 0; i < sizes[c]; ++i) cost += layers[at++];
    worst = std::max(worst, cost);
  }
  return worst;
}

/// The best over all partitions, one by one.
double best_of_all(const std::vector<double>& layers, double first, double last, int chunks,
                   std::vector<int>& sizes, int left) {
  if (static_cast<int>(sizes.size()) == chunks - 1) {
    sizes.push_back(left);
    const double cost = slowest(sizes, layers, first, last);
    sizes.pop_back();
    return cost;
  }
  double best = 1e300;
  for (int take = 1; take <= left - (chunks - 1 - static_cast<int>(sizes.size())); ++take) {
    sizes.push_back(take);
    best = std::min(best, best_of_all(layers, first, last, chunks, sizes, left - take));
    sizes.pop_back();
  }
  return best;
}

TEST(Partitions, AreAsGoodAsTheBestOfAll) {
  std::uint64_t x = 12345;
  for (int n = 1; n <= 12; ++n) {
    for (int chunks = 1; chunks <= std::min(n, 5); ++chunks) {
      std::vector<double> layers;
      for (int i = 0; i < n; ++i) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        layers.push_back(1.0 + static_cast<double>(x >> 60));
      }
      const double last = static_cast<double>(n);
      const std::vector<int> sizes = balanced_partition(layers, 0.5, last, chunks);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), 0), n);
      std::vector<int> none;
      EXPECT_DOUBLE_EQ(slowest(sizes, layers, 0.5, last),
                       best_of_all(layers, 0.5, last, chunks, none, n));
    }
  }
}

TEST(Partitions, BeatEqualCountsWhereTheOutputIsHeavy) {
  const Model model{.vocab = 50304, .layers = 12, .width = 768, .heads = 12};
  const std::vector<int> sizes = partition_of(model, {.pp = 4});
  EXPECT_LT(sizes.back(), 3);
}

}  // namespace
}  // namespace trainer::testing
