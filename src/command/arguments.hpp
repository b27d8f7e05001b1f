// What options accept, and where CLI11's own checks let wrong values through: a size of -1 is there
// 2^64 - 1, and no number is larger or smaller than "nan".
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chorus {

/// "4", "64K", "1M", "2G" (powers of 1024; KiB and capital or small letters as well), up to 2^40.
/// Throws InputError naming the text.
[[nodiscard]] std::uint64_t parse_size(std::string_view text);

/// A transform for options that take bytes: 4, 64K, 16M.
[[nodiscard]] CLI::Validator byte_size();
/// A check for options that take any unsigned number of 64 bits.
[[nodiscard]] CLI::Validator whole_number();
/// A check for options that take a finite number in [low, high].
[[nodiscard]] CLI::Validator number_within(double low, double high);
/// Of options in seconds, and in GB/s: what fits into every sum and product made of them.
inline constexpr double kLeastSeconds = 1e-3, kMostSeconds = 1e8;
inline constexpr double kLeastGbS = 1e-6, kMostGbS = 1e6;
/// Of options that multiply how much is tried.
inline constexpr double kLeastEffort = 1e-3, kMostEffort = 1e6;

/// A check for options that take one of these words, which completion offers too. `what` they are:
/// "a strategy".
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words, std::string what);
/// one_of the collectives.
[[nodiscard]] CLI::Validator collective();

/// The words that an option takes by one_of() or CLI::IsMember; none if it takes others.
[[nodiscard]] std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace chorus
