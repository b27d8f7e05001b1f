#include "device/driver/pattern.hpp"

namespace chorus::cuda {
namespace {

/// splitmix64.
std::uint64_t word(std::uint64_t seed, std::size_t index) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

void fill_pattern(std::span<std::uint64_t> words, std::uint64_t seed) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(seed, i);
}

std::optional<std::size_t> first_damaged(std::span<const std::uint64_t> words, std::uint64_t seed) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != word(seed, i)) return i * sizeof(std::uint64_t);
  }
  return std::nullopt;
}

}  // namespace chorus::cuda
