// A run that stops and goes on is the run that did not stop.
#include "checkpoint.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "world.hpp"

namespace trainer::testing {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) / ("checkpoints-" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove_all(directory_); }

  /// Steps `from` to `to`, resumed if from > 0, saved at the end.
  Tensors part(const Config& config, int from, int to) {
    Tensors values;
    std::mutex mutex;
    on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      if (from > 0) load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
      EXPECT_EQ(trainer.steps_done(), from);
      for (int i = from; i < to; ++i) trainer.step();
      save_checkpoint(trainer, directory_.string());
      const std::lock_guard lock(mutex);
      collect(trainer, false, values);
    });
    return values;
  }

  /// What load_checkpoint says on one rank.
  std::string complaint(const Config& config) {
    std::string said;
    on_ranks(1, [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      try {
        load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
      } catch (const chorus::InputError& error) {
        said = error.what();
      }
    });
    return said;
  }

  fs::path directory_;
};

TEST_F(Checkpoints, ResumeBitForBitInTheSameLayout) {
  std::vector<Layout> layouts = {{.dp = 2, .zero = 0},
                                 {.dp = 2, .zero = 1},
                                 {.dp = 2, .zero = 3},
                                 {.tp = 2, .pp = 2, .zero = 2, .micro_batches = 2}};
  for (const Layout& layout : layouts) {
    Config config = small();
    config.model.tied = true;
    config.layout = layout;
    const Tensors whole = part(config, 0, 6);
    fs::remove_all(directory_);
    part(config, 0, 3);
    EXPECT_TRUE(part(config, 3, 6) == whole) << "zero " << layout.zero;
    fs::remove_all(directory_);
  }
}

TEST_F(Checkpoints, ResumeInAnotherLayoutToRounding) {
  Config config = small();
  config.model.experts = 4;
  config.layout = {.dp = 4, .ep = 2, .zero = 1};
  const Tensors whole = part(config, 0, 6);
  fs::remove_all(directory_);
  part(config, 0, 3);
  config.layout = {.dp = 2, .tp = 2, .ep = 2, .zero = 3, .micro_batches = 2};
  const auto [gap, tensor] = distance(part(config, 3, 6), whole);
  EXPECT_LT(gap, 1e-3) << tensor;
  EXPECT_GT(gap, 0);  // it is another layout
}

TEST_F(Checkpoints, KeepTheLastTwo) {
  Config config = small();
  for (int step = 0; step < 3; ++step) part(config, step, step + 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator{}), 2);
  EXPECT_EQ(last_checkpoint(directory_.string()), (directory_ / "step-00000003").string());
}

TEST_F(Checkpoints, OfAnotherModelAreRefusedWithBoth) {
  Config config = small();
  part(config, 0, 1);
  config.model.width = 16;
  const std::string said = complaint(config);
  EXPECT_NE(said.find("h=32"), std::string::npos) << said;
  EXPECT_NE(said.find("h=16"), std::string::npos) << said;
}

TEST_F(Checkpoints, TornAtAnyPlaceAreRefused) {
  const Config config = small();
  part(config, 0, 1);
  const fs::path file = directory_ / "step-00000001" / "rank-0000.bin";
  const auto size = fs::file_size(file);
  for (const std::uintmax_t keep : {std::uintmax_t{0}, std::uintmax_t{7}, size / 2, size - 1}) {
    fs::copy_file(file, directory_ / "whole");
    fs::resize_file(file, keep);
    EXPECT_NE(complaint(config).find("torn"), std::string::npos) << keep << " bytes kept";
    fs::rename(directory_ / "whole", file);
  }
  std::fstream flip(file, std::ios::in | std::ios::out | std::ios::binary);
  flip.seekp(static_cast<std::streamoff>(size / 3));
  flip.put('\x55').put('\xaa');
  flip.close();
  EXPECT_NE(complaint(config).find("torn"), std::string::npos);
}

TEST_F(Checkpoints, WithoutAllFilesAreRefused) {
  Config config = small();
  config.layout.tp = 2;
  part(config, 0, 1);
  fs::remove(directory_ / "step-00000001" / "rank-0001.bin");
  config.layout.tp = 1;
  EXPECT_NE(complaint(config).find("rank-0001.bin"), std::string::npos);
}

}  // namespace
}  // namespace trainer::testing
