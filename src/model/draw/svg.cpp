#include "model/draw/svg.hpp"

#include <cmath>
#include <vector>

#include "base/text/printable.hpp"

namespace chorus {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable_name(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string shortened(const std::string& text, std::size_t longest) {
  const auto starts_letter = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  std::vector<std::size_t> letters;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (starts_letter(text[i])) letters.push_back(i);
  }
  if (letters.size() <= longest) return text;
  const std::size_t half = longest / 2;
  return text.substr(0, letters[half]) + "…" + text.substr(letters[letters.size() - half + 1]);
}

double tick_spacing(double length) {
  const double rough = length / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace chorus
