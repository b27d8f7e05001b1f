// Two halves in turn are two micro-batches of half the size: the same bits, the same bytes; each
// waits only while the other works.
#include <gtest/gtest.h>

#include <stdexcept>

#include "chorus/error.hpp"
#include "interleaver.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

constexpr int kSteps = 3;

Config whole(Layout layout, int experts = 0) {
  Config config = small(4);
  config.training.batch = 4;
  config.model.experts = experts;
  config.layout = std::move(layout);
  return config;
}

/// The same in halves, and as micro-batches of half the size without them.
struct Pair {
  Outcome halves, reference;
};
Pair pair_of(Config config) {
  const Outcome reference = train(config.half(), kSteps);
  config.layout.halves = true;
  return {train(config, kSteps), reference};
}

void expect_same_bits(const Pair& pair) {
  EXPECT_EQ(pair.halves.losses, pair.reference.losses);
  EXPECT_EQ(pair.halves.gradients, pair.reference.gradients);
  EXPECT_EQ(pair.halves.values, pair.reference.values);
}

TEST(Halves, OfSlicesEqualSmallerMicroBatchesBitForBit) {
  for (const bool sequence : {false, true}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      SCOPED_TRACE(::testing::Message() << sequence << static_cast<int>(recompute));
      const Pair pair = pair_of(whole(
          {.tp = 2, .sequence_parallel = sequence, .micro_batches = 2, .recompute = recompute}));
      expect_same_bits(pair);
      const auto sent = [](const Outcome& run) { return run.log.sent_bytes(Axis::tensor); };
      EXPECT_EQ(sent(pair.halves), sent(pair.reference));
    }
  }
}

TEST(Halves, WorkUnderEveryPipelineSchedule) {
  for (const Pipeline pipeline :
       {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
    SCOPED_TRACE(name_of(pipeline));
    expect_same_bits(pair_of(whole({.tp = 2,
                                    .pp = 2,
                                    .micro_batches = 2,
                                    .virtual_stages = pipeline == Pipeline::interleaved ? 2 : 1,
                                    .pipeline = pipeline})));
  }
}

// Replicas hold other sequences than those of smaller micro-batches would: the same in all, so
// equal to rounding.
TEST(Halves, OfExpertsAndReplicasEqualOneRankToRounding) {
  Config config = whole({.dp = 2, .ep = 2, .micro_batches = 2}, 4);
  Config alone = config.half();
  alone.layout = {.micro_batches = 2 * config.layout.dp * config.layout.micro_batches};
  const Outcome reference = train(alone, kSteps);
  config.layout.halves = true;
  for (const int zero : {0, 1, 2, 3}) {
    config.layout.zero = zero;
    config.layout.tp = zero == 1 || zero == 3 ? 2 : 1;
    SCOPED_TRACE(::testing::Message() << "ZeRO-" << zero << ", " << config.layout.tp << " slices");
    const Outcome run = train(config, kSteps);
    const auto [gap, tensor] = distance(run.gradients, reference.gradients);
    EXPECT_LT(gap, 1e-5) << tensor;
    for (std::size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], reference.losses[i], 1e-4);
    }
  }
}

TEST(Halves, SendTheFormulasBytes) {
  for (Layout layout : {Layout{.dp = 2, .tp = 2, .zero = 3},
                        Layout{.dp = 2, .tp = 2, .zero = 2, .micro_batches = 2},
                        Layout{.tp = 2, .pp = 2, .sequence_parallel = true, .micro_batches = 2}}) {
    layout.halves = true;
    expect_predicted(whole(layout));
  }
  Layout experts{.dp = 4, .ep = 2, .zero = 3, .micro_batches = 2};
  experts.halves = true;
  expect_predicted(whole(experts, 4));
}

TEST(Halves, AreRefusedWhereThereIsNothingToHide) {
  Config config = whole({.dp = 2});
  config.layout.halves = true;
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout.tp = 2;
  config.training.batch = 3;
  EXPECT_THROW(check(config, 4), chorus::InputError);
  config.training.batch = 2;
  check(config, 4);
}

TEST(MicroBatchInterleaver, GivesWayInTurn) {
  MicroBatchInterleaver interleaver;
  for (int again = 0; again < 100; ++again) {
    std::string seen;
    auto body = [&](int half) {
      for (int i = 0; i < 3 + half; ++i) {
        seen += static_cast<char>((half == 0 ? 'a' : 'A') + i);
        interleaver.give_way();
      }
    };
    interleaver.run(body);
    EXPECT_EQ(seen, "aAbBcCD");
    interleaver.give_way();  // alone: nothing happens
  }
}

TEST(MicroBatchInterleaver, EndsBothHalvesWhereOneFails) {
  MicroBatchInterleaver interleaver;
  for (const int failing : {0, 1}) {
    for (const int when : {0, 1, 2}) {
      int beyond = 0;
      auto body = [&](int half) {
        for (int i = 0; i < 3; ++i) {
          if (half == failing && i == when) throw std::runtime_error("half");
          interleaver.give_way();
        }
        ++beyond;
      };
      EXPECT_THROW(interleaver.run(body), std::runtime_error);
      EXPECT_EQ(beyond, 0) << failing << when;
    }
  }
  int ran = 0;
  auto body = [&](int) { ++ran; };
  interleaver.run(body);
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace trainer::testing
