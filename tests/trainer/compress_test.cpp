// Compressors keep their papers' promises, and training with them comes to where dense training
// does.
#include "chorus/compress.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "chorus/error.hpp"
#include "model/random.hpp"
#include "report/compare.hpp"
#include "report/report.hpp"
#include "report/volume.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

namespace compress = chorus::compress;

std::vector<float> normal(std::size_t n, std::uint64_t stream) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(random_normal(7, stream, i));
  return x;
}

std::vector<float> compressed(const compress::Compressor& how, const std::vector<float>& x,
                              std::uint64_t seed = 1) {
  std::vector<std::byte> payload(how.bytes(x.size()));
  how.encode(x, seed, payload);
  std::vector<float> y(x.size());
  how.add(payload, 1.0F, y);
  return y;
}

double square_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return sum;
}

TEST(Qsgd, IsUnbiasedWithBoundedVariance) {
  constexpr int kDraws = 20000;
  for (const int levels : {1, 4, 127}) {
    const compress::Qsgd how(levels);
    const std::vector<float> x = normal(8, 1);
    const auto steps = static_cast<float>(levels);
    float largest = 0;
    for (const float v : x) largest = std::max(largest, std::abs(v));
    std::vector<double> mean(x.size()), spread(x.size());
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<float> y =
          compressed(how, x, random_bits(3, 5, static_cast<unsigned>(draw)));
      for (std::size_t i = 0; i < x.size(); ++i) {
        mean[i] += y[i] / double(kDraws);
        spread[i] += (y[i] - x[i]) * (y[i] - x[i]) / double(kDraws);
      }
    }
    const double step = largest / steps;
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(mean[i], x[i], 4 * step / 2 / std::sqrt(double(kDraws)) + 1e-6) << levels;
      EXPECT_LE(spread[i], step * step / 4 * 1.05 + 1e-12) << levels;
    }
  }
}

TEST(TopK, IsContractive) {
  for (const double share : {0.01, 0.1, 0.5, 1.0}) {
    const compress::TopK how(share);
    const std::vector<float> x = normal(1000, 2);
    const double whole = square_distance(x, std::vector<float>(1000));
    const double kept = static_cast<double>(how.kept(1000)) / 1000;
    EXPECT_LE(square_distance(compressed(how, x), x), (1 - kept) * whole + 1e-9);
  }
}

TEST(Threshold, SendsWhatReachesItAndNoMoreThanItsShare) {
  const std::vector<float> x = normal(1000, 2);
  for (const float threshold : {0.0F, 1.0F, 2.0F, 9.0F}) {
    const compress::Threshold how(threshold);
    EXPECT_TRUE(how.varies());
    std::vector<std::byte> payload(how.bytes(x.size()));
    how.encode(x, 1, payload);
    std::vector<float> expected = x;
    std::size_t sent = 0;
    for (float& v : expected) {
      sent += std::abs(v) >= threshold ? 1 : 0;
      v = std::abs(v) >= threshold ? v : 0.0F;
    }
    EXPECT_EQ(how.used(payload), 4 + 8 * sent) << threshold;
    std::vector<float> y(x.size());
    how.add(std::span(payload).first(how.used(payload)), 1.0F, y);  // the rest is not needed
    EXPECT_EQ(y, expected) << threshold;
  }
  EXPECT_EQ(compressed(compress::Threshold(0.0F, 0.05), x), compressed(compress::TopK(0.05), x));
}

TEST(Threshold, ReadsNoMorePairsThanAPayloadHolds) {
  std::vector<std::byte> payload(4 + 8 * 2);
  compress::detail::put(payload, 0, std::uint32_t{0xffffffff});
  compress::detail::put(payload, 4, std::uint32_t{3});
  compress::detail::put(payload, 8, 0.5F);
  compress::detail::put(payload, 12, std::uint32_t{4'000'000'000});  // a place that is none
  std::vector<float> y(5);
  compress::Threshold(1.0F).add(payload, 2.0F, y);
  EXPECT_EQ(y, (std::vector<float>{0, 0, 0, 1, 0}));
}

TEST(OneBit, IsContractiveAndKeepsBlockMeans) {
  const compress::OneBit how;
  const std::vector<float> x = normal(700, 3);
  const std::vector<float> y = compressed(how, x);
  EXPECT_LT(square_distance(y, x), square_distance(x, std::vector<float>(700)));
  double sums[2] = {0, 0};
  for (std::size_t i = 0; i < 512; ++i) {
    sums[0] += x[i];
    sums[1] += y[i];
  }
  EXPECT_NEAR(sums[0], sums[1], 1e-3);
}

// Every round keeps at most (1 − k/d) of what the one before left; and as top-k takes values whole,
// R rounds of k are one of R · k.
TEST(Neolithic, ContractsWithEveryRound) {
  const std::vector<float> x = normal(1000, 4);
  const double whole = square_distance(x, std::vector<float>(1000));
  for (const double share : {0.01, 0.1}) {
    for (const int rounds : {1, 2, 5}) {
      const compress::Neolithic how(std::make_unique<compress::TopK>(share), rounds);
      const std::vector<float> y = compressed(how, x);
      EXPECT_LE(square_distance(y, x), std::pow(1 - share, rounds) * whole);
      EXPECT_EQ(y, compressed(compress::TopK(share * rounds), x));
    }
  }
  double left = whole;
  for (int rounds = 1; rounds <= 4; ++rounds) {
    const compress::Neolithic how(std::make_unique<compress::OneBit>(), rounds);
    const double now = square_distance(compressed(how, x), x);
    EXPECT_LT(now, left);
    left = now;
  }
}

TEST(Neolithic, IsUnbiasedWithLessVarianceEveryRound) {
  constexpr int kDraws = 20000;
  const std::vector<float> x = normal(8, 1);
  double before = 1e9;
  for (const int rounds : {1, 2, 3}) {
    const compress::Neolithic how(std::make_unique<compress::Qsgd>(4), rounds);
    std::vector<double> mean(x.size());
    double spread = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<float> y =
          compressed(how, x, random_bits(3, 6, static_cast<unsigned>(draw)));
      for (std::size_t i = 0; i < x.size(); ++i) mean[i] += y[i] / double(kDraws);
      spread += square_distance(y, x) / double(kDraws);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(mean[i], x[i], 4 * std::sqrt(spread / kDraws) + 1e-6) << rounds;
    }
    // Every round's steps are a quarter of the largest of what the one before left.
    EXPECT_LT(spread, before / 4) << rounds;
    before = spread;
  }
}

TEST(Compressors, SendTheBytesTheySay) {
  EXPECT_EQ(compress::Neolithic(std::make_unique<compress::TopK>(0.01), 3).bytes(1000), 240U);
  EXPECT_EQ(compress::Qsgd().bytes(1024), 1024U + 2 * 4);
  EXPECT_EQ(compress::OneBit().bytes(1024), 1024U / 8 + 2 * 2 * 4);
  EXPECT_EQ(compress::TopK(0.01).bytes(1000), 10U * 8);
  EXPECT_EQ(compress::TopK(0.01).bytes(3), 8U);
}

TEST(ErrorFeedback, KeepsExactlyWhatWasLost) {
  const std::unique_ptr<compress::Compressor> all[] = {
      std::make_unique<compress::Qsgd>(4), std::make_unique<compress::OneBit>(),
      std::make_unique<compress::TopK>(0.1), std::make_unique<compress::Threshold>(1.5F, 0.1),
      std::make_unique<compress::Neolithic>(std::make_unique<compress::OneBit>(), 1)};
  for (const auto& how : all) {
    std::vector<float> error = normal(600, 5);
    std::vector<float> values = normal(600, 6);
    std::vector<float> sum(600);
    for (std::size_t i = 0; i < 600; ++i) sum[i] = values[i] + error[i];
    std::vector<std::byte> payload(how->bytes(600));
    compress::encode_with_feedback(*how, values, error, 9, payload);
    std::vector<float> sent(600);
    how->add(payload, 1.0F, sent);
    for (std::size_t i = 0; i < 600; ++i) EXPECT_EQ(error[i], sum[i] - sent[i]);
  }
}

void expect_summed(const compress::Compressor& how) {
  std::vector<std::vector<float>> results(3);
  const auto values_of = [](std::size_t rank) {
    std::vector<float> values = normal(777, 10 + rank);
    for (float& v : values) v *= static_cast<float>(rank);  // rank 0 has nothing to send
    return values;
  };
  on_ranks(3, [&](chorus::Communicator& ranks) {
    const auto r = static_cast<std::size_t>(ranks.rank());
    std::vector<float> values = values_of(r);
    compress::all_reduce(ranks, how, values, {}, 1);
    results[r] = values;
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  std::vector<float> expected(777);
  for (std::size_t r = 0; r < 3; ++r) {
    const std::vector<float> y = compressed(how, values_of(r));
    for (std::size_t i = 0; i < 777; ++i) expected[i] += y[i];
  }
  EXPECT_EQ(results[0], expected);
}

TEST(AllReduce, AddsWhatEachRankCompressedAndLeavesTheSameBits) {
  expect_summed(compress::OneBit());
  expect_summed(compress::Threshold(1.0F));  // payloads of unequal length
}

// What the sum loses is the sum of what the ranks keep as error; and what has low rank loses
// nothing.
TEST(PowerSgd, LosesWhatTheErrorsHold) {
  constexpr std::size_t kRows = 24, kCols = 15;
  for (const std::size_t rank : {1U, 4U, 40U}) {
    std::vector<std::vector<float>> results(3), errors(3);
    on_ranks(3, [&](chorus::Communicator& ranks) {
      const auto r = static_cast<std::size_t>(ranks.rank());
      const compress::PowerSgd how(kRows, kCols, rank);
      std::vector<float> matrix = normal(kRows * kCols, 20 + r);
      std::vector<float> q(how.q_count()), error(matrix.size());
      how.start(q, 5);
      compress::all_reduce(ranks, how, matrix, q, error);
      results[r] = matrix;
      errors[r] = error;
      EXPECT_EQ(ranks.traffic().messages, 0U);  // shared memory
    });
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    double lost = 0;
    for (std::size_t i = 0; i < kRows * kCols; ++i) {
      double sum = -results[0][i];
      for (std::size_t r = 0; r < 3; ++r) sum += normal(kRows * kCols, 20 + r)[i] - errors[r][i];
      EXPECT_NEAR(sum, 0, 1e-4);
      lost += std::abs(errors[0][i] + errors[1][i] + errors[2][i]);
    }
    if (rank == 40) {  // full rank
      EXPECT_LT(lost, 1e-2);
    }
    if (rank == 1) {
      EXPECT_GT(lost, 1.0);
    }
  }
}

// The estimate of a vector that stands still comes as near as one likes: every round keeps at most
// (1 − k/d) of the square of what is missing.
TEST(Ef21, FollowsAVectorThatStandsStill) {
  const compress::TopK how(0.1);
  const std::vector<float> x = normal(500, 8);
  std::vector<float> estimate(x.size());
  double missing = square_distance(x, estimate);
  for (int round = 0; round < 12; ++round) {
    std::vector<float> values = x;
    std::vector<std::byte> payload(how.bytes(x.size()));
    compress::encode_difference(how, values, estimate, 1, payload);
    const double now = square_distance(x, estimate);
    EXPECT_LE(now, (1 - 0.1) * missing + 1e-9);
    missing = now;
  }
  EXPECT_LT(missing, 1e-6);
}

// An all_gather of payloads grows with the replicas, an all_reduce does not: 8 bits pay between two
// replicas on a slow network, and between 16 on none.
TEST(BreakEven, IsTheRateAtWhichBothTakeAsLong) {
  const std::vector<BreakEven> two = break_even({}, 100'000, 2);
  ASSERT_EQ(two.size(), 3U);
  for (const BreakEven& b : two) {
    EXPECT_EQ(b.dense_bytes, 4 * 100'000);
    EXPECT_GT(b.bytes_per_s(), 0) << b.name;
    const double rate = b.bytes_per_s();
    EXPECT_NEAR(b.sent_bytes / rate + b.work_s, b.dense_bytes / rate, 1e-9 * b.dense_bytes / rate);
  }
  const std::vector<BreakEven> many = break_even({}, 100'000, 16);
  EXPECT_LT(many[0].bytes_per_s(), 0);  // qsgd: 15 bytes per value in place of 7.5
  EXPECT_GT(many[1].bytes_per_s(), 0);  // 1bit
  EXPECT_GT(many[2].bytes_per_s(), 0);  // a hundredth
}

double final_loss(Config config) {
  const Outcome run = train(config, config.training.steps);
  double mean = 0;
  for (std::size_t i = run.losses.size() - 10; i < run.losses.size(); ++i)
    mean += run.losses[i] / 10;
  return mean;
}

// Error feedback makes up for what is lost. EF21's estimate lags behind gradients that change from
// batch to batch: of the same payloads it makes least, and it needs a larger share. NEOLITHIC's two
// rounds make most, as on CIFAR-10 (Huang et al., 2022).
TEST(Training, WithCompressedGradientsComesToTheDenseLoss) {
  Config config = small();
  config.layout.dp = 2;
  config.training.batch = 8;
  config.training.steps = 450;
  const double dense = final_loss(config);
  EXPECT_LT(dense, 1.5);
  config.training.share = 0.1;
  const auto with = [&](Compression how, double share, const char* name) {
    config.training.compression = how;
    const double loss = final_loss(config);
    std::printf("%s: %.4f, dense %.4f\n", name, loss, dense);
    EXPECT_NEAR(loss, dense, share * dense) << name;
    return loss;
  };
  with(Compression::qsgd, 0.01, "qsgd");
  with(Compression::one_bit, 0.02, "1bit");
  with(Compression::power, 0.02, "power");
  config.training.threshold = 0.01;
  with(Compression::threshold, 0.02, "threshold");
  const double feedback = with(Compression::top_k, 0.02, "topk");
  config.training.rounds = 2;
  const double rounds = with(Compression::top_k, 0.02, "topk, NEOLITHIC");
  config.training.rounds = 1;
  config.training.differences = true;
  const double differences = with(Compression::top_k, 0.2, "topk, EF21");
  EXPECT_LT(rounds, feedback);
  EXPECT_LT(feedback, differences);
  config.training.share = 0.3;
  with(Compression::top_k, 0.03, "topk of 0.3, EF21");
}

TEST(Training, SendsNeolithicsBytesInOneCallPerSegment) {
  Config config = small();
  config.layout = {.dp = 2};
  config.training.compression = Compression::top_k;
  config.training.share = 0.05;
  const auto once = predicted_volume(config, 0, sizeof(float))[0];
  config.training.rounds = 3;
  expect_predicted(config);
  EXPECT_EQ(predicted_volume(config, 0, sizeof(float))[0], 3 * once);
  config.training.compression = Compression::power;
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.training.compression = Compression::none;
  EXPECT_THROW(check(config, 2), chorus::InputError);
}

// As many values as reach the threshold: fewer where it is higher, and top-k's at most.
TEST(Training, SendsWhatReachesTheThreshold) {
  Config config = small();
  config.layout = {.dp = 2};
  config.training.compression = Compression::threshold;
  config.training.share = 0.2;
  const auto most = predicted_volume(config, 0, sizeof(float))[0];
  std::uint64_t before = most + 1;
  for (const double threshold : {0.0, 1e-2, 1e3}) {
    config.training.threshold = threshold;
    std::uint64_t sent[2] = {0, 0};
    on_ranks(2, [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      trainer.step();
      sent[world.rank()] = trainer.log().sent_bytes(Axis::data);
    });
    EXPECT_EQ(sent[0], sent[1]);
    EXPECT_LT(sent[0], before) << threshold;
    if (threshold == 0) {
      EXPECT_EQ(sent[0], most);
    }
    before = sent[0];
  }
  EXPECT_LT(before, most / 100);  // lengths alone
}

// Rounds of a threshold are padded to their most: their bytes are known beforehand.
TEST(Training, IsReportedAsSendingAtMostTheBytesOfACompressorWhosePayloadsVary) {
  Config config = small();
  config.layout.dp = 2;
  for (const auto& [how, rounds, varies] :
       {std::tuple(Compression::threshold, 1, true), std::tuple(Compression::threshold, 2, false),
        std::tuple(Compression::top_k, 1, false)}) {
    config.training.compression = how;
    config.training.rounds = rounds;
    const std::string report = comm_report(config, CommLog(), 0, 1, 1.0);
    EXPECT_EQ(report.find("(predicted: at most)") != std::string::npos, varies) << report;
  }
}

TEST(Training, SendsTheCompressorsBytes) {
  Config config = small();
  config.model.width = 64;  // rank 4 of 64 columns: fewer bytes than the gradients have
  config.layout = {.dp = 4, .tp = 2};
  const auto dense = predicted_volume(config, 0, sizeof(float))[0];
  for (const Compression how :
       {Compression::qsgd, Compression::one_bit, Compression::top_k, Compression::power}) {
    config.training.compression = how;
    on_ranks(8, [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      trainer.step();
      EXPECT_EQ(trainer.log().sent_bytes(Axis::data),
                predicted_volume(config, world.rank(), sizeof(float))[0]);
      EXPECT_TRUE(how == Compression::qsgd || trainer.log().sent_bytes(Axis::data) < dense / 2);
    });
  }
}

}  // namespace
}  // namespace trainer::testing
