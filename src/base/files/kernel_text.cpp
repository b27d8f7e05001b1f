#include "base/files/kernel_text.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

namespace chorus {
namespace {

std::optional<int> number_at_the_front(std::string_view text) {
  constexpr int kMost = 1 << 20;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value >= kMost) return std::nullopt;
  return value;
}

}  // namespace

std::string value_in(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.starts_with(name)) continue;
    const std::size_t begin = line.find_first_not_of(" \t:=\"", name.size());
    if (begin == line.npos) return {};
    return std::string(line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin));
  }
  return {};
}

std::vector<int> listed(std::string_view list) {
  std::vector<int> numbers;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const std::string_view part = list.substr(0, end);
    const std::size_t dash = part.find('-');
    const auto first = number_at_the_front(part);
    const auto last =
        dash == std::string_view::npos ? first : number_at_the_front(part.substr(dash + 1));
    for (int i = first.value_or(0); first && last && i <= *last; ++i) numbers.push_back(i);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return numbers;
}

std::string kernel_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace chorus
