#include "base/text/printable.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace chorus {
namespace {

struct Range {
  char32_t first, last;
};

// Control characters of ISO 8859, line separators and the marks of the bidirectional algorithm (UAX
// #9).
constexpr std::array<Range, 6> kHidden{{{0x80, 0x9f},
                                        {0x61c, 0x61c},
                                        {0x200b, 0x200f},
                                        {0x2028, 0x202e},
                                        {0x2066, 0x2069},
                                        {0xfeff, 0xfeff}}};

bool is_hidden(char32_t point) {
  for (const Range& range : kHidden) {
    if (point >= range.first && point <= range.last) return true;
  }
  return false;
}

/// The length of the UTF-8 sequence that `text` begins with, 0 if it begins with none; its code
/// point in `point`.
std::size_t decode(std::string_view text, char32_t& point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80   ? 1
                             : byte(0) < 0xc2 ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
  if (length == 0 || text.size() < length) return 0;
  point = length == 1 ? byte(0) : byte(0) & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  return length;
}

std::string shown(std::string_view text, bool one_line) {
  std::string all;
  all.reserve(text.size());
  while (!text.empty()) {
    char32_t point = 0;
    const std::size_t length = decode(text, point);
    if (point == '\n' || point == '\t') {
      all += !one_line ? text.substr(0, 1) : point == '\n' ? "\\n" : "\\t";
    } else if (length == 0 || (length == 1 && (point < ' ' || point == 0x7f))) {
      all += '?';
    } else if (is_hidden(point)) {
      all += fmt::format("\\u{:04x}", static_cast<unsigned>(point));
    } else {
      all += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return all;
}

}  // namespace

std::string printable(std::string_view text) { return shown(text, false); }
std::string printable_name(std::string_view name) { return shown(name, true); }

}  // namespace chorus
