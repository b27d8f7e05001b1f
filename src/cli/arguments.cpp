// What options accept where CLI11's own checks let wrong values through: a size of -1 is there
// 2^64 - 1, and no number is larger or smaller than "nan".
#include <fmt/format.h>

#include <charconv>

#include "cli/cli.hpp"

namespace chorus {

CLI::Validator byte_size() {
  CLI::Validator size = CLI::AsSizeValue(false);
  return {[size](std::string& text) {
            if (text.find('-') != std::string::npos) {
              return fmt::format("{:.40} is no size: 4, 64K and 16M are some", text);
            }
            return size(text);
          },
          size.get_description()};
}

CLI::Validator number_within(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && value >= low && value <= high) {
              return std::string();
            }
            return fmt::format("{:.40} is no number in [{}, {}]", text, low, high);
          },
          fmt::format("in [{}, {}]", low, high)};
}

}  // namespace chorus
