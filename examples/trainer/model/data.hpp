// Where sequences come from: a file of bytes, or a seeded synthetic source.
#pragma once

#include <cstdint>
#include <vector>

#include "config.hpp"

namespace trainer {

/// Sequences by number: sequence `id` is the same on every rank and under every layout.
class Data {
 public:
  /// Throws chorus::InputError if the file cannot be read, is shorter than one sequence, or holds
  /// bytes beyond the vocabulary.
  explicit Data(const Config& config);

  /// tokens, targets [T]: targets are the tokens one further on. `held_out`: from the last tenth of
  /// the file, which training never sees.
  void sequence(std::uint64_t id, bool held_out, std::int32_t* tokens, std::int32_t* targets) const;
  /// Of the whole file; 0 for the synthetic source.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  Config config_;
  std::vector<std::uint8_t> bytes_;
  std::uint64_t train_ = 0;  ///< bytes before the held-out part
};

}  // namespace trainer
