// A run that stops and goes on is the run that did not stop.
#include "checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
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

  struct Ended {
    std::vector<double> losses, norms, scales;  ///< of its steps
    Tensors values;                             ///< over all ranks
    std::vector<Tensors> own;                   ///< of each rank, with what it keeps to itself
    std::string notes;
  };

  /// Steps `from` to `to`, resumed if from > 0, saved at the end.
  Ended part(const Config& config, int from, int to) {
    Ended ended;
    ended.own.resize(static_cast<std::size_t>(config.layout.world_size()));
    std::mutex mutex;
    on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      std::string notes;
      if (from > 0) notes = load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
      EXPECT_EQ(trainer.steps_done(), from);
      for (int i = from; i < to; ++i) {
        const StepResult result = trainer.step();
        if (world.rank() > 0) continue;
        ended.losses.push_back(result.loss);
        ended.norms.push_back(result.gradient_norm);
        ended.scales.push_back(trainer.progress().loss_scale);
      }
      save_checkpoint(trainer, directory_.string());
      const std::lock_guard lock(mutex);
      collect(trainer, false, ended.values);
      Tensors& own = ended.own[static_cast<std::size_t>(world.rank())];
      collect(trainer, false, own);
      for (const auto& kept : trainer.store().kept()) {
        own[kept.name].assign(kept.elements.begin(), kept.elements.end());
      }
      if (world.rank() == 0) ended.notes = notes;
    });
    return ended;
  }

  /// Six steps with a stop after the third are six steps.
  void expect_resumable(const Config& config) {
    Ended whole = part(config, 0, 6);
    fs::remove_all(directory_);
    part(config, 0, 3);
    const Ended resumed = part(config, 3, 6);
    fs::remove_all(directory_);
    for (auto* series : {&whole.losses, &whole.norms, &whole.scales}) {
      series->erase(series->begin(), series->begin() + 3);
    }
    EXPECT_EQ(resumed.losses, whole.losses);
    EXPECT_EQ(resumed.scales, whole.scales);
    EXPECT_TRUE(resumed.own == whole.own);
    EXPECT_EQ(resumed.notes, "");
  }

  /// What `body(trainer)` says on each rank.
  template <class Body>
  static std::vector<std::string> said_by(const Config& config, Body body) {
    std::vector<std::string> said(static_cast<std::size_t>(config.layout.world_size()));
    on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      try {
        body(trainer);
      } catch (const chorus::InputError& error) {
        said[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    return said;
  }
  /// What load_checkpoint says on each rank.
  std::vector<std::string> complaints(const Config& config) {
    return said_by(config, [&](Trainer<float>& trainer) {
      load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
    });
  }
  std::string complaint(const Config& config) { return complaints(config)[0]; }

  fs::path directory_;
};

TEST_F(Checkpoints, ResumeBitForBitInTheSameLayout) {
  std::vector<Layout> layouts = {{.dp = 2, .zero = 0},
                                 {.dp = 2, .zero = 1},
                                 {.dp = 2, .zero = 3},
                                 {.tp = 2, .pp = 2, .zero = 2, .micro_batches = 2}};
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.zero);
    Config config = small();
    config.model.tied = true;
    config.layout = layout;
    expect_resumable(config);
  }
}

// Halved twice before the checkpoint and again after it, the scale is not what was asked for.
TEST_F(Checkpoints, ResumeAtTheLossScaleThatStood) {
  Config config = small();
  config.layout = {.dp = 2, .zero = 1};
  config.training.loss_scale = std::ldexp(1.0, 136);
  expect_resumable(config);
}

TEST_F(Checkpoints, HoldWhatCompressionLostOnEachRank) {
  struct Case {
    const char* name;
    Compression compression;
    bool error_feedback = true;
    bool differences = false;
    int rounds = 1;
  };
  for (const Case& c : std::vector<Case>{{"qsgd", Compression::qsgd},
                                         {"qsgd that forgets", Compression::qsgd, false},
                                         {"1bit", Compression::one_bit},
                                         {"topk", Compression::top_k},
                                         {"ef21", Compression::top_k, true, true},
                                         {"neolithic", Compression::top_k, true, false, 2},
                                         {"power", Compression::power},
                                         {"power that forgets", Compression::power, false}}) {
    SCOPED_TRACE(c.name);
    Config config = small();
    config.model.tied = true;
    config.layout = {.dp = 2, .pp = 2, .micro_batches = 2};
    config.training.compression = c.compression;
    config.training.error_feedback = c.error_feedback;
    config.training.differences = c.differences;
    config.training.rounds = c.rounds;
    config.training.levels = 3;
    config.training.share = 0.1;
    expect_resumable(config);
  }
}

TEST_F(Checkpoints, HoldReplicasThatDriftedApart) {
  for (const Average average :
       {Average::local, Average::ring, Average::grid, Average::exponential}) {
    SCOPED_TRACE(name_of(average));
    Config config = small();
    config.layout = {.dp = 3};
    config.training.average = average;
    config.training.global_every = 4;  // once in the part that is resumed
    expect_resumable(config);
  }
}

TEST_F(Checkpoints, OfDeviceMemoryResumeThereAndOnTheHost) {
  Config config = small();
  config.layout = {.dp = 2, .zero = 2};
  config.training.backend = Backend::cuda_emulated;
  expect_resumable(config);
  const Ended whole = part(config, 0, 6);
  fs::remove_all(directory_);
  part(config, 0, 3);
  config.training.backend = Backend::cpu;
  const Ended there = part(config, 3, 6);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(there.losses[i], whole.losses[3 + i], 1e-4);
  config.layout = {.dp = 2};
  config.training.backend = Backend::cuda_emulated;
  config.training.average = Average::ring;
  fs::remove_all(directory_);
  expect_resumable(config);
}

TEST_F(Checkpoints, OfQuantizedShardsAndExpertsResume) {
  Config config = small();
  config.layout = {
      .dp = 4, .zero = 3, .quantize_weights = true, .quantize_gradients = true, .secondary = 2};
  expect_resumable(config);
  config.model.experts = 4;
  config.model.capacity = 1;
  config.layout = {.dp = 2, .ep = 2, .expert_chunks = 2, .zero = 2, .micro_batches = 2};
  expect_resumable(config);
}

// Forgotten, refused, or begun: what ranks keep to themselves has no other layout.
TEST_F(Checkpoints, WithWhatOneLayoutKeepsGoOnInThatLayoutAlone) {
  Config config = small();
  config.layout = {.dp = 2};
  config.training.compression = Compression::top_k;
  part(config, 0, 1);
  config.layout = {.tp = 1};
  EXPECT_EQ(part(config, 1, 2).notes, "what compression lost so far is forgotten");
  config.layout = {.dp = 2};
  EXPECT_EQ(part(config, 2, 3).notes, "");
  config.training.compression = Compression::power;
  const std::string said = complaints(config)[1];
  EXPECT_NE(said.find("under --dp 2 --tp 1 --pp 1 --ep 1 --virtual-stages 1 --partition 2 "
                      "--compress topk; the command line asks for"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("--compress power --rank 4"), std::string::npos) << said;
  fs::remove_all(directory_);
  config.training.compression = Compression::none;
  config.training.average = Average::ring;
  part(config, 0, 1);
  config.training.average = Average::gradients;
  EXPECT_NE(complaints(config)[1].find("--average ring"), std::string::npos);
}

// Twice the batch: no sequence is seen again.
TEST_F(Checkpoints, GoOnAfterTheSequencesThatWereSeen) {
  Config config = small();
  part(config, 0, 2);
  config.training.batch = 1;
  std::uint64_t seen = 0;
  on_ranks(1, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
    trainer.step();
    seen = trainer.progress().sequences;
  });
  EXPECT_EQ(seen, 2U * 2 + 1);
  config.training.seed = 2;
  EXPECT_EQ(part(config, 2, 3).notes, "other sequences follow: --seed was 1");
}

TEST_F(Checkpoints, ResumeInAnotherLayoutToRounding) {
  Config config = small();
  config.model.experts = 4;
  config.layout = {.dp = 4, .ep = 2, .zero = 1};
  const Tensors whole = part(config, 0, 6).values;
  fs::remove_all(directory_);
  part(config, 0, 3);
  config.layout = {.dp = 2, .tp = 2, .ep = 2, .zero = 3, .micro_batches = 2};
  const auto [gap, tensor] = distance(part(config, 3, 6).values, whole);
  EXPECT_LT(gap, 1e-3) << tensor;
  EXPECT_GT(gap, 0);  // it is another layout
}

TEST_F(Checkpoints, KeepTheLastTwo) {
  Config config = small();
  for (int step = 0; step < 3; ++step) part(config, step, step + 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator{}), 2);
  EXPECT_EQ(last_checkpoint(directory_.string()), (directory_ / "step-00000003").string());
}

// Nobody else would remove what a run left that was killed while it wrote.
TEST_F(Checkpoints, RemoveWhatKilledRunsLeft) {
  fs::create_directories(directory_ / "step-00000007.unfinished");
  fs::create_directories(directory_ / "step-7.unfinished");
  part(small(), 0, 1);
  EXPECT_TRUE(fs::exists(directory_ / "step-00000001"));
  EXPECT_FALSE(fs::exists(directory_ / "step-00000007.unfinished"));
  EXPECT_TRUE(fs::exists(directory_ / "step-7.unfinished"));  // not of ours
}

TEST_F(Checkpoints, WhoseFileIsNoneAreRefused) {
  const Config config = small();
  part(config, 0, 1);
  const fs::path file = directory_ / "step-00000001" / "rank-0000.bin";
  const std::string sentence =
      file.string() + " is not a file; remove its directory to resume from the one before";
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(complaint(config), sentence);
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // opened, it would wait for a writer
  EXPECT_EQ(complaint(config), sentence);
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

// One rank's disk is full: all say so, nothing is left of the attempt, and what was saved stays.
TEST_F(Checkpoints, ThatOneRankCannotWriteFailOnAllAndLeaveTheLast) {
  Config config = small();
  config.layout.dp = 2;
  part(config, 0, 1);
  const fs::path next = directory_ / "step-00000002.unfinished";
  fs::create_directories(next);
  fs::create_symlink("/dev/full", next / "rank-0001.bin");
  const auto said = said_by(config, [&](Trainer<float>& trainer) {
    load_checkpoint(trainer, last_checkpoint(directory_.string()).value());
    trainer.step();
    save_checkpoint(trainer, directory_.string());
  });
  EXPECT_EQ(said[0], "rank 1: cannot write " + (next / "rank-0001.bin").string() +
                         ": No space left on device");
  EXPECT_EQ(said[1], said[0]);
  EXPECT_FALSE(fs::exists(next));
  EXPECT_EQ(last_checkpoint(directory_.string()), (directory_ / "step-00000001").string());
  EXPECT_EQ(part(config, 1, 2).notes, "");
}

TEST_F(Checkpoints, MixedOfTwoAreRefused) {
  Config config = small();
  config.layout = {.dp = 2, .zero = 1};
  part(config, 0, 1);
  part(config, 1, 2);
  fs::copy_file(directory_ / "step-00000001" / "rank-0001.bin",
                directory_ / "step-00000002" / "rank-0001.bin",
                fs::copy_options::overwrite_existing);
  EXPECT_NE(complaint(config).find("are not of the same checkpoint"), std::string::npos);
}

TEST_F(Checkpoints, AreFoundByTheirNumbersAlone) {
  const Config config = small();
  part(config, 0, 1);
  fs::create_directories(directory_ / "step-elsewhere");
  fs::create_directories(directory_ / "step-xxxxxxxx");
  std::ofstream(directory_ / "step-00000009") << "a file";
  EXPECT_EQ(last_checkpoint(directory_.string()), (directory_ / "step-00000001").string());
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
