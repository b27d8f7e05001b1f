// Every element of the model has one value, on however many ranks it lives: replicas, slices that
// keep the same vectors, both ends of a pipeline with a tied matrix, ranks with the same experts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "world.hpp"

namespace trainer::testing {
namespace {

/// FNV-1a over the bits.
std::uint64_t hash_of(const float* values, std::size_t count) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values);
  for (std::size_t i = 0; i < count * sizeof(float); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  }
  return hash;
}

struct Seen {
  int holders = 0;
  std::vector<std::uint64_t> hashes;  ///< by step
  bool differ = false;                ///< among the holders, after any step
};
/// By the name of a tensor and the rectangle of it.
using Census = std::map<std::string, Seen>;

void look(Trainer<float>& trainer, bool first, Census& census, std::mutex& mutex) {
  for (const auto& s : trainer.store().segments()) {
    trainer.store().acquire(*s);
    for (std::size_t p = 0; p < s->params.size(); ++p) {
      const Param& of = s->params[p];
      const std::string key =
          fmt::format("{}[{}+{},{}+{}]", of.name, of.row, of.row_count, of.col, of.col_count);
      const std::uint64_t hash = hash_of(s->value(p), of.count());
      const std::lock_guard lock(mutex);
      Seen& seen = census[key];
      seen.holders += first ? 1 : 0;
      const auto step = static_cast<std::size_t>(trainer.steps_done());
      if (seen.hashes.size() < step) seen.hashes.push_back(hash);
      seen.differ = seen.differ || seen.hashes[step - 1] != hash;
    }
    trainer.store().release(*s);
  }
}

/// Trains for three steps.
Census census_of(const Config& config) {
  Census census;
  std::mutex mutex;
  on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    for (int i = 0; i < 3; ++i) {
      trainer.step();
      look(trainer, i == 0, census, mutex);
      world.barrier();  // a rank that is ahead would be of another step
    }
  });
  return census;
}

int holders(const Census& census, std::string_view name) {
  int most = 0;
  for (const auto& [key, seen] : census) {
    if (key.starts_with(name)) most = std::max(most, seen.holders);
  }
  return most;
}

/// Tensors whose holders differ.
std::string differing(const Census& census) {
  std::string names;
  for (const auto& [key, seen] : census) names += seen.differ ? key + " " : "";
  return names;
}

TEST(Replicas, OfDenseModelsHoldTheSameBits) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    Config config = small(2);
    config.model.tied = true;
    config.layout = {.dp = 2, .tp = 2, .pp = 2, .zero = zero, .micro_batches = 2};
    const Census census = census_of(config);
    EXPECT_EQ(differing(census), "");
    EXPECT_EQ(holders(census, "layer0.norm1.gain"), 4);  // replicas and slices
    EXPECT_EQ(holders(census, "layer0.qkv.weight"), 2);  // replicas
    EXPECT_EQ(holders(census, "tokens"), 4);             // replicas and both ends
    EXPECT_NE(census.begin()->second.hashes[0], census.begin()->second.hashes[2]);  // it trains
  }
}

TEST(Replicas, OfExpertsHoldTheSameBits) {
  Config config = small(2);
  config.model.experts = 4;
  config.layout = {.dp = 4, .tp = 2, .ep = 2, .zero = 1, .sequence_parallel = true};
  const Census census = census_of(config);
  EXPECT_EQ(differing(census), "");
  EXPECT_EQ(holders(census, "layer0.expert0.up.weight"), 2);
  EXPECT_EQ(holders(census, "layer0.gate"), 8);
}

TEST(Replicas, WithCompressedMessagesHoldTheSameBits) {
  for (const Compression how :
       {Compression::qsgd, Compression::one_bit, Compression::top_k, Compression::power}) {
    SCOPED_TRACE(static_cast<int>(how));
    Config config = small(2);
    config.layout.dp = 3;
    config.training.compression = how;
    EXPECT_EQ(differing(census_of(config)), "");
  }
  Config config = small(2);
  config.layout = {
      .dp = 4, .zero = 3, .quantize_weights = true, .quantize_gradients = true, .secondary = 2};
  const Census census = census_of(config);
  EXPECT_EQ(differing(census), "");
  EXPECT_EQ(holders(census, "layer1.up.weight"), 4);
}

// That the above can fail: replicas that keep their gradients to themselves are seen to differ.
TEST(Replicas, ThatDriftApartAreNoticed) {
  Config config = small(2);
  config.layout.dp = 2;
  config.training.average = Average::local;
  config.training.global_every = 100;
  EXPECT_NE(differing(census_of(config)), "");
}

}  // namespace
}  // namespace trainer::testing
