// Training by the cuda backend with the host in the GPU's place: gradients, losses and bytes are
// those of the cpu backend, whatever the layout; what it cannot do is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "report/compare.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

/// The same run by both backends.
template <class R = float>
void expect_same(Config config, double tolerance, int steps = 3, bool gradients = true) {
  const Outcome host = train<R>(config, steps);
  config.training.backend = Backend::cuda_emulated;
  const Outcome gpu = train<R>(config, steps);
  ASSERT_EQ(gpu.losses.size(), host.losses.size());
  for (std::size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(gpu.losses[i], host.losses[i], 10 * tolerance) << "step " << i;
    EXPECT_NEAR(gpu.norms[i], host.norms[i], 100 * tolerance * host.norms[i]) << "step " << i;
  }
  // Of replicas that drift apart an Outcome has those of any one.
  if (gradients && config.training.average == Average::gradients) {
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

// What differs by a rounding may be sent or not, rounded up in place of down, or, where nothing but
// rounding is left of a gradient (biases of keys), have the other sign.
TEST(CudaBackend, CompressesGradientsAlike) {
  for (const Compression how : {Compression::qsgd, Compression::one_bit, Compression::top_k,
                                Compression::threshold, Compression::power}) {
    Config config = small();
    config.layout.dp = 3;
    config.training.compression = how;
    config.training.share = 0.2;
    config.training.threshold = 1e-3;
    SCOPED_TRACE(static_cast<int>(how));
    expect_same(config, 1e-4, 3, how != Compression::one_bit);
  }
}

TEST(CudaBackend, CompressesDifferencesAlike) {
  Config config = small();
  config.layout.dp = 2;
  config.training.compression = Compression::top_k;
  config.training.share = 0.5;
  config.training.differences = true;
  expect_same(config, 1e-4);
}

TEST(CudaBackend, KeepsATimelineByTheDevicesClock) {
  Config config = small(4);
  config.layout = {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 3};
  config.training.backend = Backend::cuda_emulated;
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    Trace& trace = trainer.groups().flights.trace;
    trainer.step();
    trainer.groups().flights.wait_all();
    trainer.log().clear();
    trace.start(10'000, trainer.gpu());
    const auto begin = Trace::Clock::now();
    trainer.step();
    trainer.groups().flights.wait_all();
    trace.stop();
    const double whole = std::chrono::duration<double>(Trace::Clock::now() - begin).count();
    std::uint64_t calls = 0;
    for (const auto& axis : trainer.log().table) {
      for (const Traffic& t : axis) calls += t.calls;
    }
    std::map<std::string, int> passes;
    std::uint64_t in_flight = 0;
    double still = 0;
    for (const Span& s : trace.spans()) {
      EXPECT_LE(0, s.begin_s);
      EXPECT_LE(s.begin_s, s.end_s) << s.name;
      EXPECT_LE(s.end_s, whole) << s.name;
      if (s.lane == Span::Lane::compute) ++passes[s.name];
      if (s.lane == Span::Lane::in_flight) ++in_flight;
      if (s.lane == Span::Lane::exposed) still += s.end_s - s.begin_s;
    }
    EXPECT_EQ(trace.left_out(), 0U);
    EXPECT_EQ(in_flight, calls);
    EXPECT_EQ(passes, (std::map<std::string, int>{{"backward", 3}, {"forward", 3}, {"update", 1}}));
    EXPECT_GT(still, 0) << "the pipeline's bubble at least";
    trainer.step();
    EXPECT_EQ(trace.spans().size(), in_flight + 7 +
                                        static_cast<std::size_t>(std::ranges::count(
                                            trace.spans(), Span::Lane::exposed, &Span::lane)))
        << "nothing is kept after the end";
  });
}

TEST(CudaBackend, IsComparedWithItselfAndWithItsEstimate) {
  Config config = small();
  config.layout = {.dp = 2, .zero = 1};
  config.training.backend = Backend::cuda_emulated;
  on_ranks(2, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    const OverlapFigures overlap = compare_overlap(world, trainer, 3);
    EXPECT_GT(overlap.alone_s, 0);
    for (const auto& [whole, exposed] : {std::pair{overlap.with_s, overlap.with_exposed_s},
                                         std::pair{overlap.without_s, overlap.without_exposed_s}}) {
      EXPECT_GT(exposed, 0);
      EXPECT_LT(exposed, whole);
    }
    const PlanFigures plan = compare_plan(world, trainer, {.topology = world.topology()}, 3);
    EXPECT_GT(plan.measured_s, 0);
    EXPECT_GT(plan.estimate.seconds, 0);
    const auto& price = plan.machine.prices.at(0);  // beta is 0 where a short call took longer
    EXPECT_GT(price.alpha_s + price.beta_s_per_byte, 0);
  });
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
