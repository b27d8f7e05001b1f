// Data that shows whether it came where it was sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace chorus::cuda {

/// No word is at another place too, or under another seed.
void fill_pattern(std::span<std::uint64_t> words, std::uint64_t seed);
/// The offset in bytes of the first word that is not the pattern's.
[[nodiscard]] std::optional<std::size_t> first_damaged(std::span<const std::uint64_t> words,
                                                       std::uint64_t seed);

}  // namespace chorus::cuda
