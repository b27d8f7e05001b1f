// Wirings drawn by a seed, family by family: what plans are judged by.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace chorus::perf {

/// "boxes", "mixes", "faults", …: each with what it is made of.
struct Family {
  std::string_view name;
  std::string_view what;
};
[[nodiscard]] std::span<const Family> families();

/// The name (docs/topologies.md) of the `index`-th wiring of `family` that `seed` draws: of 4 to
/// `most_ranks` ranks, every order of magnitude as often as any other. Its ranks are all connected.
/// Throws InputError for a family that does not exist and for most_ranks below 8.
[[nodiscard]] std::string family_instance(std::string_view family, std::uint64_t seed, int index,
                                          int most_ranks);

}  // namespace chorus::perf
