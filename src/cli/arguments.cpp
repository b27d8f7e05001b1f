// What options accept where CLI11's own checks let wrong values through: a size of -1 is there
// 2^64 - 1, and no number is larger or smaller than "nan".
#include <fmt/format.h>

#include <charconv>

#include "cli/cli.hpp"

namespace chorus {

CLI::Validator byte_size() {
  CLI::Validator size = CLI::AsSizeValue(false);
  return {[size](std::string& text) {
            const char* const end = text.data() + text.size();
            std::uint64_t number = 0;
            const auto [stop, error] = std::from_chars(text.data(), end, number);
            if (error == std::errc::invalid_argument) {
              return fmt::format("{:.40} is no size: 4, 64K and 16M are some", text);
            }
            if (error == std::errc::result_out_of_range) {
              return fmt::format("{:.40} is more than a size can be", text);
            }
            return size(text);
          },
          size.get_description()};
}

CLI::Validator whole_number() {
  return {[](std::string& text) {
            const char* const end = text.data() + text.size();
            std::uint64_t value = 0;
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end) return std::string();
            return fmt::format("{:.40} is no whole number from 0 to 2^64 - 1", text);
          },
          ""};
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
