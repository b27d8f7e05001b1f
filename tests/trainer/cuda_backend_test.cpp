// Training by the cuda backend with the host in the GPU's place: gradients, losses and bytes are
// those of the cpu backend, whatever the layout; what it cannot do is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "world.hpp"

namespace trainer::testing {
namespace {

/// The same run by both backends.
template <class R = float>
void expect_same(Config config, double tolerance, int steps = 3) {
  const Outcome host = train<R>(config, steps);
  config.training.backend = Backend::cuda_emulated;
  const Outcome gpu = train<R>(config, steps);
  ASSERT_EQ(gpu.losses.size(), host.losses.size());
  for (std::size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(gpu.losses[i], host.losses[i], 10 * tolerance) << "step " << i;
    EXPECT_NEAR(gpu.norms[i], host.norms[i], 100 * tolerance * host.norms[i]) << "step " << i;
  }
  // Of replicas that drift apart an Outcome has those of any one.
  if (config.training.average == Average::gradients) {
    const auto [gap, tensor] = distance(gpu.gradients, host.gradients);
    EXPECT_LT(gap, 10 * tolerance) << tensor;
  }
  EXPECT_NEAR(gpu.held_out, host.held_out, 100 * tolerance);
  for (std::size_t a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    EXPECT_EQ(gpu.log.sent_bytes(axis), host.log.sent_bytes(axis)) << kAxisNames[a];
  }
}

TEST(CudaBackend, HasTheCpuBackendsGradientsInDouble) {
  Config config = small();
  config.model.context = 300;  // more than one tile of queries
  config.training.batch = 1;
  expect_same<double>(config, 1e-11, 1);
  config = small();
  config.model.tied = true;
  config.layout.recompute = Recompute::selective;
  expect_same<double>(config, 1e-11, 1);
}

TEST(CudaBackend, TrainsReplicasAlike) {
  for (int zero = 0; zero <= 3; ++zero) {
    Config config = small();
    config.layout.dp = 2;
    config.layout.zero = zero;
    config.layout.micro_batches = 2;
    expect_same(config, 1e-6);
  }
}

TEST(CudaBackend, TrainsSlicesAlike) {
  for (const bool sequence : {false, true}) {
    Config config = small();
    config.layout.tp = 2;
    config.layout.sequence_parallel = sequence;
    config.layout.recompute = Recompute::full;
    expect_same(config, 1e-6);
  }
}

TEST(CudaBackend, TrainsPipelinesAlike) {
  for (const Pipeline pipeline :
       {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
    Config config = small(4);
    config.model.tied = true;
    config.layout.pp = 2;
    config.layout.micro_batches = 4;
    config.layout.pipeline = pipeline;
    config.layout.virtual_stages = pipeline == Pipeline::interleaved ? 2 : 1;
    expect_same(config, 1e-6);
  }
}

TEST(CudaBackend, TrainsExpertsAlike) {
  Config config = small();
  config.model.experts = 4;
  config.layout.dp = config.layout.ep = 2;
  config.layout.expert_chunks = 2;
  expect_same(config, 1e-6);
  config.model.top_k = 1;
  config.model.capacity = 1.0;
  expect_same(config, 1e-6);
}

TEST(CudaBackend, TrainsAProductOfAxesInHalvesAlike) {
  Config config = small();
  config.layout.dp = config.layout.tp = config.layout.pp = 2;
  config.layout.zero = 1;
  config.layout.micro_batches = 2;
  config.layout.halves = true;
  expect_same(config, 1e-6, 2);
}

TEST(CudaBackend, MixesValuesAlike) {
  for (const Average average : {Average::local, Average::ring, Average::exponential}) {
    Config config = small();
    config.layout.dp = 3;
    config.training.average = average;
    config.training.global_every = 2;
    expect_same(config, 1e-6);
  }
}

// What differs by a rounding may become the next of 255 codes.
TEST(CudaBackend, SendsEightBitsAlike) {
  for (const int secondary : {0, 2}) {
    Config config = small();
    config.layout = {.dp = 4,
                     .zero = 3,
                     .quantize_weights = true,
                     .quantize_gradients = true,
                     .secondary = secondary};
    expect_same(config, 1e-4);
  }
}

TEST(CudaBackend, RoundsToBfloat16) {
  Config config = small();
  config.training.bfloat16 = true;
  expect_same(config, 1e-3);
}

TEST(CudaBackend, RefusesWhatWorksInTheHostsMemory) {
  Config config = small();
  config.training.backend = Backend::cuda_emulated;
  config.training.compression = Compression::top_k;
  try {
    check(config, 1);
    FAIL() << "nothing was refused";
  } catch (const chorus::InputError& error) {
    EXPECT_NE(std::string(error.what()).find("--compress works in the host's memory"),
              std::string::npos)
        << error.what();
  }
}

TEST(CudaBackend, SaysWhyThereIsNoGpuAndWhatToDo) {
  try {
    const auto gpu = open_gpu(0);
    GTEST_SKIP() << "there is a GPU: " << gpu->name();
  } catch (const chorus::InputError& error) {
    const std::string why = error.what();
    EXPECT_TRUE(why.starts_with("--backend cuda")) << why;
    EXPECT_TRUE(why.ends_with("or take --backend cpu")) << why;
  }
}

}  // namespace
}  // namespace trainer::testing
