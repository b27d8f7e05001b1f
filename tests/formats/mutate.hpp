// Small changes to a file, for fuzzing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>

namespace chorus::formats {

/// When to stop: after CHORUS_TEST_FUZZ_SECONDS, else 2.
inline std::chrono::steady_clock::time_point fuzz_end() {
  const char* text = std::getenv("CHORUS_TEST_FUZZ_SECONDS");
  const double seconds = text == nullptr ? 2 : std::atof(text);
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

/// One to four changes: bytes, pieces cut, repeated or moved, numbers and words for others.
inline std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return random() % std::max<std::size_t>(bound, 1); };
  static const std::string kPieces[] = {
      "-1",    "0",    "1",    "2",   "3",    "1048576", "2147483648", "1e9",   "rrcs",
      "nop",   "re",   "cpy",  "rcs", "s",    "o",       "custom",     "<",     "\"",
      "&amp;", "&#0;", "<!--", "]]>", "\xff", "{}",      "[]",         "reduce"};
  for (std::size_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes) {
    const std::size_t at = below(text.size());
    const std::size_t length = std::min(below(120), text.size() - at);
    switch (below(8)) {
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
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      default: {  // a whole number or quoted word for another
        const auto begin = text.find_first_of("0123456789\"", at);
        if (begin == std::string::npos) break;
        auto end = text.find_first_not_of("0123456789", begin);
        const bool quoted = text[begin] == '"';
        if (quoted) end = text.find('"', begin + 1);
        if (end == std::string::npos) break;
        const std::string& piece = kPieces[below(std::size(kPieces))];
        text.replace(begin + (quoted ? 1 : 0), end - begin - (quoted ? 1 : 0), piece);
      }
    }
  }
  return text;
}

}  // namespace chorus::formats
