#include "runtime/options/variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <vector>

#include "base/text/log.hpp"
#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

/// "must be a whole number in [1, 16]", or nothing.
std::optional<std::string> why_no_number(const std::string& value, long long low, long long high) {
  if (to_integer(value, low, high)) return std::nullopt;
  return fmt::format("must be a whole number in [{}, {}]", low, high);
}

}  // namespace

std::optional<long long> to_integer(const std::string& text, long long low, long long high) {
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && value >= low && value <= high ? std::optional(value) : std::nullopt;
}

const Variable* find_variable(std::string_view name) {
  const auto all = variables();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Variable& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::optional<std::string> value_of(const Variable& variable) {
  const char* value = std::getenv(variable.name);
  if (value == nullptr || (*value == '\0' && !variable.may_be_empty)) return std::nullopt;
  return value;
}

std::optional<std::string> why_malformed(const Variable& variable, const std::string& value) {
  switch (variable.type) {
    case Variable::Type::number:
      return why_no_number(value, variable.low, variable.high);
    case Variable::Type::flag:
      if (value == "on" || value == "off") return std::nullopt;
      return why_no_number(value, 0, 1);
    case Variable::Type::bytes: {
      if (auto why = why_no_number(value, variable.low, variable.high)) return why;
      if (*to_integer(value, variable.low, variable.high) % 64 == 0) return std::nullopt;
      return "must be a multiple of 64";
    }
    case Variable::Type::level:
      try {
        (void)parse_log_level(value);
        return std::nullopt;
      } catch (const InputError&) {
        return "must be one of error, warn, info and debug";
      }
    case Variable::Type::on_loss:
      if (value == "error" || value == "shrink" || value == "finish") return std::nullopt;
      return "must be error, shrink or finish";
    case Variable::Type::names:
      // Which names exist is for whoever uses them to say; here only the shape of the list.
      if (value.empty() ||
          (value.front() != ',' && value.back() != ',' && value.find(",,") == std::string::npos &&
           value.find(' ') == std::string::npos)) {
        return std::nullopt;
      }
      return "must be names separated by single commas, such as shm,tcp";
    case Variable::Type::text:
    case Variable::Type::file:
    case Variable::Type::folder:
    case Variable::Type::secret:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string default_of(const Variable& variable) {
  if (*variable.otherwise != '\0') return variable.otherwise;
  const Options options;
  struct Print {
    const Options& options;
    std::string operator()(std::monostate) const { return ""; }
    std::string operator()(int Options::*field) const { return fmt::format("{}", options.*field); }
    std::string operator()(std::size_t Options::*field) const {
      return fmt::format("{}", options.*field);
    }
    std::string operator()(bool Options::*field) const { return options.*field ? "1" : "0"; }
    std::string operator()(std::string Options::*field) const { return options.*field; }
  };
  return std::visit(Print{options}, variable.field);
}

std::string type_of(const Variable& variable) {
  switch (variable.type) {
    case Variable::Type::number:
      if (variable.high < INT_MAX) {
        return fmt::format("whole number in [{}, {}]", variable.low, variable.high);
      }
      if (variable.low <= INT_MIN) return "whole number";
      return fmt::format("whole number from {} on", variable.low);
    case Variable::Type::flag:
      return "0 or 1";
    case Variable::Type::bytes:
      return fmt::format("multiple of 64 in [{}, {}]", variable.low, variable.high);
    case Variable::Type::level:
      return "error, warn, info or debug";
    case Variable::Type::on_loss:
      return "error, shrink or finish";
    case Variable::Type::names:
      return "names, separated by commas";
    case Variable::Type::text:
      return "text";
    case Variable::Type::file:
      return "file";
    case Variable::Type::folder:
      return "folder";
    case Variable::Type::secret:
      return "secret";
  }
  return "";
}

std::optional<std::string> why_unknown(std::string_view name) {
  if (!name.starts_with("CHORUS_") || find_variable(name) != nullptr) return std::nullopt;
  // The tests' and the benchmark's own.
  if (name.starts_with("CHORUS_TEST_") || name.starts_with("CHORUS_PERF_")) return std::nullopt;
  std::vector<std::string_view> names;
  for (const Variable& variable : variables()) {
    if (std::string_view(variable.name).starts_with("CHORUS_")) names.emplace_back(variable.name);
  }
  // A third of the word after "CHORUS_" may be wrong; beyond that a suggestion is a guess.
  const auto nearest = nearest_word(name, names, std::max<std::size_t>(1, (name.size() - 7) / 3));
  return nearest ? fmt::format("did you mean {}?", *nearest) : "it has no effect";
}

}  // namespace chorus
