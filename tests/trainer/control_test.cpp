// The ladder can go red: with any one group cut, a run leaves its reference. And what is promised
// of memory: nothing is allocated while training, and each ZeRO stage keeps what it says.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "report/volume.hpp"
#include "world.hpp"

namespace {
// Of this thread: the coordinator of Chorus is one of its own.
thread_local std::uint64_t allocations = 0;
}  // namespace

// Not inlined, or the compiler sees free() on what new gave and warns.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace trainer::testing {
namespace {

/// How far the first gradients and the later losses are from one rank's.
double gap(const Config& config, const std::function<void(Trainer<float>&)>& sabotage) {
  Config alone = config;
  alone.layout = {};
  alone.layout.micro_batches = config.layout.dp * config.layout.micro_batches;
  const Outcome run = train<float>(config, 4, sabotage);
  const Outcome reference = train(alone, 4);
  double worst = distance(run.gradients, reference.gradients).first;
  for (std::size_t i = 0; i < reference.losses.size(); ++i) {
    worst = std::max(worst, std::abs(run.losses[i] - reference.losses[i]));
  }
  return worst;
}

struct Cut {
  const char* name;
  Layout layout;
  Group Groups::*group;
  bool tied = false;
  int experts = 0;
};

class Cuts : public ::testing::TestWithParam<Cut> {};

TEST_P(Cuts, AreNoticed) {
  Config config = small();
  config.layout = GetParam().layout;
  config.model.tied = GetParam().tied;
  config.model.experts = GetParam().experts;
  EXPECT_LT(gap(config, nullptr), 1e-4);
  EXPECT_GT(gap(config, [](Trainer<float>& t) { t.groups().*GetParam().group = Group(); }), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Cuts,
    ::testing::Values(
        Cut{"gradients_of_replicas", {.dp = 2}, &Groups::data},
        Cut{"sharded_updates", {.dp = 2, .zero = 1}, &Groups::data},
        Cut{"sharded_gradients", {.dp = 2, .zero = 2}, &Groups::data},
        Cut{"sharded_values", {.dp = 2, .zero = 3}, &Groups::data},
        Cut{"tensor_sums", {.tp = 2}, &Groups::tensor},
        Cut{"tied_matrices", {.pp = 2, .micro_batches = 2}, &Groups::tie, true},
        Cut{"experts_of_replicas", {.dp = 4, .ep = 2}, &Groups::expert_data, false, 4}),
    [](const auto& cut) { return cut.param.name; });

TEST(Memory, IsNotAllocatedAfterTheSecondStep) {
  for (const int experts : {0, 4}) {
    Config config = small();
    config.model.experts = experts;
    config.layout.micro_batches = 2;
    config.layout.zero = 3;
    on_ranks(1, [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      trainer.step();
      trainer.step();
      const std::uint64_t before = allocations;
      for (int i = 0; i < 3; ++i) trainer.step();
      EXPECT_EQ(allocations - before, 0U) << experts << " experts";
    });
  }
}

std::size_t bytes(const Config& config, Use use) {
  return Trainer<float>(config, 0).memory().used_bytes(use);
}

TEST(Memory, OfEachZeroStageIsWhatItSays) {
  Config config = small(8);
  config.model.width = 64;
  config.layout.dp = 8;
  const double all = static_cast<double>(parameters(config.model)) * 4;
  const double layer = 12 * 64 * 64 * 4 + 13 * 64 * 4;
  const double ends = (2 * 64 * 64 + 16 * 64 + 128) * 4.0;
  const double slack = 4096;
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::optimizer)), 2 * all, slack);
  config.layout.zero = 1;
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::optimizer)), 2 * all / 8, slack);
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::gradients)), all, slack);
  config.layout.zero = 2;
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::gradients)), all / 8 + 2 * layer + ends,
              slack);
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::parameters)), all, slack);
  config.layout.zero = 3;
  EXPECT_NEAR(static_cast<double>(bytes(config, Use::parameters)), all / 8 + 2 * layer + ends,
              slack);
}

TEST(Memory, OfActivationsFallsWithRecomputationSequenceParallelismAndFewerMicroBatchesAlive) {
  Config config = small(4);
  config.layout.pp = 2;
  config.layout.micro_batches = 8;
  const std::size_t plain = bytes(config, Use::activations);
  config.layout.recompute = Recompute::selective;
  const std::size_t selective = bytes(config, Use::activations);
  config.layout.recompute = Recompute::full;
  const std::size_t full = bytes(config, Use::activations);
  EXPECT_LT(selective, plain);
  EXPECT_LT(full, selective);
  config.layout.recompute = Recompute::none;
  config.layout.pipeline = Pipeline::gpipe;
  EXPECT_EQ(bytes(config, Use::activations), 4 * plain);  // 8 alive instead of 2
  config = small(4);
  config.layout.tp = 4;
  const std::size_t tensor = bytes(config, Use::activations);
  config.layout.sequence_parallel = true;
  EXPECT_LT(bytes(config, Use::activations), tensor);
}

TEST(Experts, GetEveryRowThatIsSent) {
  Config config = small();
  config.model.experts = 4;
  config.layout = {.dp = 4, .ep = 4};
  std::atomic<std::uint64_t> sent{0};
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    const StepResult result = trainer.step();
    EXPECT_EQ(result.dropped, 0U);
    sent += trainer.log().at(Axis::expert, Kind::all_to_all_v).sent_bytes;
  });
  // Rows there and back, forward and backward, of 2 layers; about 3 in 4 leave their rank.
  const std::uint64_t pairs = 4ULL * 2 * 16 * 2;
  const std::uint64_t most = pairs * 2 * 4 * 32 * sizeof(float);
  EXPECT_EQ(sent % (4 * 32 * sizeof(float)), 0U);
  EXPECT_GT(sent, most / 2);
  EXPECT_LT(sent, most);
  config.model.capacity = 0.5;
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    const StepResult result = trainer.step();
    EXPECT_GE(result.dropped, pairs * 2 / 2);  // half the room: at least half is dropped
    EXPECT_LT(result.dropped, pairs * 2);
  });
}

}  // namespace
}  // namespace trainer::testing
