// Which of the words that exist was meant by one that does not.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace chorus {

/// The candidate closest to `word` by edits, upper case or lower, if no more than `tolerated` are
/// needed; by default two, or a third of a longer word.
[[nodiscard]] std::optional<std::string_view> nearest_word(
    std::string_view word, std::span<const std::string_view> candidates,
    std::optional<std::size_t> tolerated = std::nullopt);

/// "did you mean WORD? " to put before the list of all, or nothing where no candidate is near.
[[nodiscard]] std::string hint(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace chorus
