// Numbers of things in sentences.
#pragma once

#include <string>
#include <string_view>

namespace chorus {

/// "1 rank", "2 ranks"; `many` where the plural takes more than an s: "1 entry", "2 entries".
[[nodiscard]] inline std::string counted(long long number, std::string_view one,
                                         std::string_view many = {}) {
  std::string text = std::to_string(number) + ' ';
  if (number == 1 || many.empty()) text += one;
  if (number != 1) text += many.empty() ? std::string_view("s") : many;
  return text;
}

}  // namespace chorus
