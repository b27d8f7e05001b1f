// Files of checkpoints, read by the trainer itself: one rank, a model of a few hundred weights.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "checkpoint.hpp"
#include "model/random.hpp"
#include "tests/fuzz/reader.hpp"

namespace chorus::fuzz {
namespace {

namespace fs = std::filesystem;

trainer::Config tiny() {
  trainer::Config config;
  config.model.layers = 1;
  config.model.width = 8;
  config.model.heads = 2;
  config.model.context = 8;
  config.model.vocab = 16;
  return config;
}

Communicator alone() {
  Options options;
  options.flight_dir = "";
  return Communicator::join(UniqueId::make(1), 0, 1, options);
}

/// One trainer for all inputs, and the folder in which each is laid before it.
class Bench {
 public:
  Bench() : folder_(fs::temp_directory_path() / ("chorus-fuzz-" + std::to_string(::getpid()))) {}
  ~Bench() {
    std::error_code none;
    fs::remove_all(folder_, none);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::string load(const std::string& bytes) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "rank-0000.bin", std::ios::binary) << bytes;
    return trainer::load_checkpoint(trainer_, folder_.string());
  }

  std::string sample() {
    const fs::path written = trainer::save_checkpoint(trainer_, (folder_ / "saved").string());
    std::ifstream file(written / "rank-0000.bin", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  Communicator world_ = alone();
  trainer::Trainer<float> trainer_{world_, tiny()};
  fs::path folder_;
};

Bench& bench() {
  static Bench bench;
  return bench;
}

std::string checkpoint(const std::string& input) {
  try {
    (void)bench().load(input);
  } catch (const InputError& refused) {
    if (std::string_view(refused.what()).empty()) return "refused without a word";
  }
  return "";
}

std::string with_checksum(std::string bytes) {
  std::uint64_t sum = 0;
  if (bytes.size() < sizeof sum) return bytes;
  const std::size_t end = bytes.size() - sizeof sum;
  sum = trainer::checksum(std::string_view(bytes).substr(0, end));
  std::memcpy(bytes.data() + end, &sum, sizeof sum);
  return bytes;
}

}  // namespace

std::span<const Reader> readers() {
  static const Reader kReader{"checkpoint", Grammar::bytes, checkpoint,
                              [] { return std::vector<std::string>{bench().sample()}; },
                              with_checksum};
  return {&kReader, 1};
}

}  // namespace chorus::fuzz
