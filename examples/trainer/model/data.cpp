#include "model/data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "chorus/error.hpp"
#include "model/random.hpp"

namespace trainer {

Data::Data(const Config& config) : config_(config) {
  const std::string& path = config.training.data;
  if (path.empty()) return;
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none)) {
    throw chorus::InputError(
        fmt::format("{} is not a file: --data takes a file of bytes, whose end is known", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw chorus::InputError(fmt::format("the data file {} cannot be opened", path));
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  const auto need = static_cast<std::uint64_t>(config.model.context) + 1;
  train_ = bytes_.size() - bytes_.size() / 10;
  if (bytes_.size() < need || train_ < need) {
    const std::string remedy = train_ < 3 ? std::string("choose a longer file")
                                          : fmt::format("--context {} would fit", train_ - 1);
    throw chorus::InputError(
        fmt::format("{} has {} bytes, of which nine tenths must hold a sequence of {} and the byte "
                    "after it; {}",
                    path, bytes_.size(), config.model.context, remedy));
  }
  const int largest = *std::ranges::max_element(bytes_);
  if (largest >= config.model.vocab) {
    throw chorus::InputError(
        fmt::format("{} holds the byte {}, but the vocabulary has {} entries: use --vocab 256",
                    path, largest, config.model.vocab));
  }
}

std::uint64_t Data::fingerprint() const {
  if (bytes_.empty()) return 0;
  return checksum({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()});
}

void Data::sequence(std::uint64_t id, bool held_out, std::int32_t* tokens,
                    std::int32_t* targets) const {
  const int T = config_.model.context;
  const std::uint64_t seed = config_.training.seed;
  const std::uint64_t stream = held_out ? 2 : 1;
  if (!bytes_.empty()) {
    const auto length = static_cast<std::uint64_t>(T) + 1;
    const std::uint64_t tail = bytes_.size() - train_;
    // A file whose last tenth is too short to hold anything out is used whole.
    const bool apart = held_out && tail >= length;
    const std::uint64_t choices = (apart ? tail : train_) - length + 1;
    const std::uint64_t at = (apart ? train_ : 0) + random_bits(seed, stream, id) % choices;
    for (int i = 0; i < T; ++i) {
      tokens[i] = bytes_[at + static_cast<std::uint64_t>(i)];
      targets[i] = bytes_[at + static_cast<std::uint64_t>(i) + 1];
    }
    return;
  }
  // Each token has four successors, equally likely: the best loss is ln 4 = 1.386.
  const auto vocab = static_cast<std::uint64_t>(config_.model.vocab);
  const std::uint64_t own = random_bits(seed, stream, id);
  std::uint64_t token = own % vocab;
  for (int i = 0; i < T; ++i) {
    tokens[i] = static_cast<std::int32_t>(token);
    const std::uint64_t choice = random_bits(own, 3, static_cast<std::uint64_t>(i)) % 4;
    token = random_bits(seed, 4, token * 4 + choice) % vocab;
    targets[i] = static_cast<std::int32_t>(token);
  }
}

}  // namespace trainer
