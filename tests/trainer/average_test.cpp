// Decentralized and local training: the mixing is doubly stochastic and contracts as its spectrum
// says, bytes are the formulas', and training comes near to that of replicas that stay equal.
#include <gtest/gtest.h>

#include <cmath>

#include "chorus/error.hpp"
#include "chorus/neighbor.hpp"
#include "model/random.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

namespace neighbor = chorus::neighbor;
using neighbor::Graph;

constexpr Graph kGraphs[] = {Graph::ring, Graph::grid, Graph::exponential, Graph::full};

std::vector<std::vector<double>> matrix_of(Graph graph, int n) {
  std::vector<std::vector<double>> w(static_cast<std::size_t>(n),
                                     std::vector<double>(static_cast<std::size_t>(n)));
  for (int r = 0; r < n; ++r) {
    for (const auto& [rank, weight] : neighbor::mixing_row(graph, n, r)) {
      w[static_cast<std::size_t>(r)][static_cast<std::size_t>(rank)] = weight;
    }
  }
  return w;
}

TEST(Mixing, IsSymmetricAndDoublyStochastic) {
  for (const Graph graph : kGraphs) {
    for (int n = 1; n <= 17; ++n) {
      const auto w = matrix_of(graph, n);
      for (std::size_t i = 0; i < w.size(); ++i) {
        double row = 0, column = 0;
        for (std::size_t j = 0; j < w.size(); ++j) {
          EXPECT_EQ(w[i][j], w[j][i]);
          row += w[i][j];
          column += w[j][i];
        }
        EXPECT_NEAR(row, 1, 1e-12) << static_cast<int>(graph) << " of " << n;
        EXPECT_NEAR(column, 1, 1e-12);
      }
    }
  }
}

TEST(Mixing, HasTheDegreesOfItsGraph) {
  EXPECT_EQ(neighbor::mixing_row(Graph::ring, 8, 3).size(), 3U);
  EXPECT_EQ(neighbor::mixing_row(Graph::grid, 9, 4).size(), 5U);
  EXPECT_EQ(neighbor::mixing_row(Graph::exponential, 16, 0).size(), 8U);  // ± 1, 2, 4; 8 is both
  EXPECT_EQ(neighbor::mixing_row(Graph::full, 7, 2).size(), 7U);
}

// Consensus: after k rounds what sets the ranks apart has shrunk to ρᵏ at most, ρ the largest
// magnitude among W's other eigenvalues; on a ring of n that is (1 + 2 cos(2π/n)) / 3.
TEST(Mixing, ContractsAsItsSpectrumSays) {
  constexpr int kRanks = 8;
  constexpr std::size_t kCount = 50;
  const double rho = (1 + 2 * std::cos(2 * M_PI / kRanks)) / 3;
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(kCount));
  on_ranks(kRanks, [&](chorus::Communicator& ranks) {
    const auto r = static_cast<std::size_t>(ranks.rank());
    for (std::size_t i = 0; i < kCount; ++i) {
      values[r][i] = static_cast<float>(random_normal(3, r, i));
    }
    const auto apart = [&] {
      std::vector<float> mean = values[r];
      ranks.all_reduce<float>(mean, chorus::ReduceOp::avg);
      double sum = 0;
      for (std::size_t i = 0; i < kCount; ++i) sum += std::pow(values[r][i] - mean[i], 2);
      ranks.all_reduce<double>(std::span(&sum, 1));
      return std::pair(std::sqrt(sum), mean);
    };
    const auto [before, mean] = apart();
    const auto row = neighbor::mixing_row(Graph::ring, kRanks, ranks.rank());
    std::vector<float> theirs(kCount * (row.size() - 1));
    for (int k = 0; k < 10; ++k) neighbor::mix(ranks, row, values[r], theirs);
    const auto [after, still] = apart();
    EXPECT_LE(after, std::pow(rho, 10) * before * 1.001);
    EXPECT_GT(after, 0);
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_NEAR(still[i], mean[i], 1e-5);
  });
}

Config drifting(Average average, int global_every, int dp = 4) {
  Config config = small();
  config.layout.dp = dp;
  config.training.average = average;
  config.training.global_every = global_every;
  return config;
}

TEST(Averages, SendTheFormulasBytes) {
  for (const Average average : {Average::ring, Average::grid, Average::exponential}) {
    expect_predicted(drifting(average, 0, 6));
  }
  expect_predicted(drifting(Average::local, 1));
  // Of eight steps only the last sends anything: an eighth of the bytes.
  const Config every = drifting(Average::local, 1);
  const Config eighth = drifting(Average::local, 8);
  EXPECT_NEAR(static_cast<double>(predicted_volume(every, 0, 4)[0]) / 8,
              static_cast<double>(predicted_volume(eighth, 0, 4)[0]), 8);
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, eighth);
    for (int i = 0; i < 7; ++i) trainer.step();
    EXPECT_EQ(trainer.log().sent_bytes(Axis::data), 0U);
    trainer.step();
    EXPECT_EQ(trainer.log().sent_bytes(Axis::data), predicted_volume(every, world.rank(), 4)[0]);
  });
}

/// Σ over tensors of what sets the values of rank 0 and the last rank apart.
double drift(const Config& config, int steps) {
  const int n = config.layout.dp;
  std::vector<Tensors> values(static_cast<std::size_t>(n));
  on_ranks(n, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    for (int i = 0; i < steps; ++i) trainer.step();
    collect(trainer, false, values[static_cast<std::size_t>(world.rank())]);
  });
  double sum = 0;
  for (const auto& [name, mine] : values.front()) {
    const auto& theirs = values.back().at(name);
    for (std::size_t i = 0; i < mine.size(); ++i) sum += std::abs(mine[i] - theirs[i]);
  }
  return sum;
}

TEST(Averages, ReplicasDriftApartAndComeTogetherWhereAllAverage) {
  const double alone = drift(drifting(Average::local, 100), 8);
  const double ring = drift(drifting(Average::ring, 0), 8);
  EXPECT_GT(ring, 0);
  EXPECT_LT(ring, alone / 1.5);
  EXPECT_EQ(drift(drifting(Average::ring, 4), 8), 0);  // Gossip-PGA after a global average
  EXPECT_EQ(drift(drifting(Average::local, 8), 8), 0);
}

double final_loss(const Config& config) {
  const Outcome run = train(config, config.training.steps);
  double mean = 0;
  for (std::size_t i = run.losses.size() - 10; i < run.losses.size(); ++i) mean += run.losses[i];
  return mean / 10;
}

TEST(Averages, TrainAlmostAsWellAsEqualReplicas) {
  Config config = drifting(Average::gradients, 0);
  config.training.batch = 4;
  config.training.steps = 350;
  const double dense = final_loss(config);
  struct Way {
    Average average;
    int global_every;
  };
  for (const Way way : {Way{Average::ring, 0}, Way{Average::exponential, 0}, Way{Average::ring, 8},
                        Way{Average::local, 4}}) {
    config.training.average = way.average;
    config.training.global_every = way.global_every;
    const double loss = final_loss(config);
    std::printf("average %d, all every %d: %.4f, dense %.4f\n", static_cast<int>(way.average),
                way.global_every, loss, dense);
    EXPECT_NEAR(loss, dense, 0.05 * dense);
  }
}

TEST(Averages, AreRefusedWhereReplicasMustStayEqual) {
  Config config = drifting(Average::ring, 0);
  config.layout.zero = 1;
  EXPECT_THROW(check(config, 4), chorus::InputError);
  config = drifting(Average::local, 0);
  EXPECT_THROW(check(config, 4), chorus::InputError);
  config = drifting(Average::gradients, 5);
  EXPECT_THROW(check(config, 4), chorus::InputError);
  config = drifting(Average::grid, 0);
  config.training.compression = Compression::qsgd;
  EXPECT_THROW(check(config, 4), chorus::InputError);
}

}  // namespace
}  // namespace trainer::testing
