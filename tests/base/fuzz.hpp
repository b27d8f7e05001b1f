// Small injuries to a text, for fuzzing its reader.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace chorus::test {

/// When to stop: after CHORUS_TEST_FUZZ_SECONDS, else 2, of which a test may take a share.
inline std::chrono::steady_clock::time_point fuzz_end(double share = 1) {
  const char* text = std::getenv("CHORUS_TEST_FUZZ_SECONDS");
  const std::chrono::duration<double> seconds(share * (text == nullptr ? 2 : std::atof(text)));
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds);
}

/// Puts `piece` for the first number or quoted word from `at` on; the quotes stay or go.
inline void replace_token(std::string& text, std::size_t at, std::string_view piece, bool quotes) {
  const auto begin = text.find_first_of("0123456789\"", at);
  if (begin == std::string::npos) return;
  const bool quoted = text[begin] == '"';
  const auto end =
      quoted ? text.find('"', begin + 1) : text.find_first_not_of("0123456789.e-", begin);
  if (end == std::string::npos) return;
  const std::size_t inside = quoted && !quotes ? 1 : 0;
  text.replace(begin + inside, end - begin - inside + (quoted && quotes ? 1 : 0), piece);
}

/// One to six changes: bytes; pieces cut, repeated or taken from `other`; words of `words`, the
/// language of the file, put in or in place of numbers and words; the rest left out.
inline std::string mutated(std::string text, std::span<const std::string_view> words,
                           std::string_view other, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return random() % std::max<std::size_t>(bound, 1); };
  for (std::size_t changes = 1 + below(6); changes > 0 && !text.empty(); --changes) {
    const std::size_t at = below(text.size());
    const std::size_t length = std::min(below(120), text.size() - at);
    switch (below(10)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), length));
        break;
      case 3:
        text.insert(at, words[below(words.size())]);
        break;
      case 4:
        text.replace(at, length, other.substr(below(other.size()), length));
        break;
      case 5:
        text[at] = "0123456789-\"<>/=.:x,* \n"[below(23)];
        break;
      case 6:
        if (below(8) == 0) text.resize(at);
        break;
      default:
        replace_token(text, at, words[below(words.size())], below(2) == 0);
    }
  }
  return text;
}

}  // namespace chorus::test
