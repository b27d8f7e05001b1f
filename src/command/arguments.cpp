#include "command/arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;

/// Between the words in the name of a validator of one_of(), the one thing of it that can be read.
constexpr char kOr = '|';

/// The power of two that a unit stands for, or -1.
int shift_of(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (unit.size() == 3 && unit.ends_with("IB")) unit.resize(1);
  if (unit.empty() || unit == "B") return 0;
  if (unit == "K") return 10;
  if (unit == "M") return 20;
  if (unit == "G") return 30;
  return unit == "T" ? 40 : -1;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

CLI::Validator check_of(std::function<std::string(std::string&)> check) {
  return {std::move(check), ""};
}

}  // namespace

std::uint64_t parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const int shift = shift_of(std::string(rest, end));
  if (error == std::errc::invalid_argument || shift < 0) {
    throw InputError(fmt::format("\"{:.40}\" is not a size: write it as 4, 64K, 16M or 2G", text));
  }
  if (error == std::errc::result_out_of_range || value > kMostBytes >> shift) {
    throw InputError(fmt::format("{:.40} is too large: a size is at most 1024G", text));
  }
  return value << shift;
}

CLI::Validator byte_size() {
  return check_of([](std::string& text) {
    try {
      text = std::to_string(parse_size(text));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  });
}

CLI::Validator whole_number() {
  return check_of([](std::string& text) {
    const char* const end = text.data() + text.size();
    std::uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end) return std::string();
    return fmt::format("{:.40} is not a whole number from 0 to 2^64 - 1", text);
  });
}

CLI::Validator number_within(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && value >= low && value <= high) {
              return std::string();
            }
            return fmt::format("{:.40} is not a number in [{}, {}]", text, low, high);
          },
          fmt::format("in [{}, {}]", low, high)};
}

CLI::Validator one_of(std::vector<std::string> words, std::string what) {
  std::string name = fmt::format("{}", fmt::join(words, std::string_view(&kOr, 1)));
  return check_of([words = std::move(words), what = std::move(what)](std::string& word) {
           if (std::find(words.begin(), words.end(), word) != words.end()) return std::string();
           const std::vector<std::string_view> known(words.begin(), words.end());
           return fmt::format("'{:.40}' is not {}: {}use one of {}", word, what, hint(word, known),
                              fmt::join(words, ", "));
         })
      .name(std::move(name));
}

CLI::Validator collective() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(CollectiveKind::barrier); ++i) {
    names.emplace_back(name_of(static_cast<CollectiveKind>(i)));
  }
  return one_of(std::move(names), "a collective");
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  // CLI11 hands out validators of an option that may be changed only.
  auto& owned = const_cast<CLI::Option&>(option);
  for (int i = 0;; ++i) {
    try {
      const std::string& name = owned.get_validator(i)->get_name();
      if (name.find(kOr) != std::string::npos) return split(name, kOr);
    } catch (const CLI::OptionNotFound&) {
      break;
    }
  }
  const std::string type = option.get_type_name();  // of IsMember: "TEXT:{a,b}"
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}', open);
  if (close == std::string::npos || open == std::string::npos) return {};
  return split(std::string_view(type).substr(open + 1, close - open - 1), ',');
}

}  // namespace chorus
