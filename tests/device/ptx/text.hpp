// Cutting text.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "module.hpp"

namespace ptx {

inline constexpr std::string_view kBlank = " \t\r\n";

inline std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// At `separator`, but not within brackets.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) {
      if (std::strchr("({[", text[i]) != nullptr) ++depth;
      if (std::strchr(")}]", text[i]) != nullptr) --depth;
      if (text[i] != separator || depth > 0) continue;
    }
    if (const auto part = trim(text.substr(begin, i - begin)); !part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

inline std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (!(text = trim(text)).empty()) {
    const auto end = std::min(text.find_first_of(kBlank), text.size());
    found.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return found;
}

inline std::optional<Type> type_of(std::string_view name) {
  constexpr std::string_view kNames[] = {"pred", "b8",  "b16",  "b32", "b64", "u8",
                                         "u16",  "u32", "u64",  "s8",  "s16", "s32",
                                         "s64",  "f16", "bf16", "f32", "f64"};
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Type>(i);
  }
  return std::nullopt;
}

inline std::uint64_t number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && std::strchr("fFdDxX", text[1]) != nullptr) {
    base = 16;
    text.remove_prefix(2);
  }
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return negative ? 0 - value : value;
}

inline bool is_number(std::string_view text) {
  return !text.empty() &&
         (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-');
}

}  // namespace ptx
