// Mutators that know the structure of an input: what they make is well-formed, so that it passes
// the parser and reaches the code behind it. Same input and same numbers, same result.
#pragma once

#include <random>
#include <span>
#include <string>
#include <string_view>

#include "tests/fuzz/reader.hpp"

namespace chorus::fuzz {

using Random = std::mt19937_64;

/// A number below `bound`, which is not 0.
[[nodiscard]] inline std::size_t below(Random& random, std::size_t bound) {
  return static_cast<std::size_t>(random() % bound);
}

/// Elements moved into others, wrapped, unwrapped, copied, duplicated and deleted; attributes
/// perturbed, exchanged, added and removed. Empty if `text` is no XML.
[[nodiscard]] std::string mutated_xml(const std::string& text, Random& random);

/// The same for the values of JSON. Empty if `text` is no JSON.
[[nodiscard]] std::string mutated_json(const std::string& text, Random& random);

/// Words exchanged, lines and pieces cut, repeated or moved.
[[nodiscard]] std::string mutated_text(std::string text, Random& random);

/// Bytes and integers perturbed, pieces cut, repeated or moved.
[[nodiscard]] std::string mutated_bytes(std::string bytes, Random& random);

/// By the mutator of the reader's grammar, or of text where `input` is not of that grammar.
[[nodiscard]] std::string mutated(const Reader& reader, const std::string& input, Random& random);

/// A number, in decimal digits, that is near `text` or at the end of some range.
[[nodiscard]] std::string perturbed_number(std::string_view text, Random& random);
/// A name or figure in place of `text`.
[[nodiscard]] std::string perturbed_word(std::string_view text, Random& random);

}  // namespace chorus::fuzz
