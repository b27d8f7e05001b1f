#include "chorus/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/options/options_env.hpp"
#include "runtime/options/variables.hpp"

namespace chorus {
namespace {

/// Sets the field of Options that a variable is for to a value that has been judged.
struct Assign {
  Options& options;
  const std::string& value;

  [[nodiscard]] long long integer() const {
    return to_integer(value, LLONG_MIN, LLONG_MAX).value_or(0);
  }
  void operator()(std::monostate) const {}
  void operator()(int Options::*field) const { options.*field = static_cast<int>(integer()); }
  void operator()(std::size_t Options::*field) const {
    options.*field = static_cast<std::size_t>(integer());
  }
  void operator()(bool Options::*field) const { options.*field = value == "on" || integer() == 1; }
  void operator()(std::string Options::*field) const { options.*field = value; }
};

}  // namespace

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<long long> env_integer(const char* name, long long low, long long high) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  const auto value = to_integer(*text, low, high);
  if (!value) {
    throw InputError(
        fmt::format("{}={}: must be a whole number in [{}, {}]", name, *text, low, high));
  }
  return value;
}

std::string user_cache_directory() {
  if (const auto cache = env("XDG_CACHE_HOME")) return *cache + "/chorus";
  if (const auto home = env("HOME")) return *home + "/.cache/chorus";
  return {};
}

void warn_about_unknown_variables() {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> warned;
  const std::lock_guard lock(mutex);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const auto why = why_unknown(name);
    if (!why || !warned.insert(std::string(name)).second) continue;
    log(LogLevel::warn, "", fmt::format("unknown variable {}: {}", name, *why));
  }
}

void require_valid(const Options& options) {
  for (const Variable& variable : variables()) {
    if (const auto* const field = std::get_if<int Options::*>(&variable.field)) {
      const int value = options.*(*field);
      if (value >= variable.low && value <= variable.high) continue;
      throw InputError(fmt::format("Options::{} = {}: must be in [{}, {}]", variable.field_name,
                                   value, variable.low, variable.high));
    }
    if (variable.type == Variable::Type::on_loss) {
      const auto why = why_malformed(variable, options.on_loss);
      if (why) throw InputError(fmt::format("Options::on_loss = {}: {}", options.on_loss, *why));
    }
    if (const auto* const field = std::get_if<std::size_t Options::*>(&variable.field)) {
      const auto value = std::to_string(options.*(*field));
      if (!why_malformed(variable, value)) continue;
      throw InputError(fmt::format("Options::{} = {}: must be a multiple of 64 in [{}, {}]",
                                   variable.field_name, value, variable.low, variable.high));
    }
  }
}

Options Options::from_env() {
  warn_about_unknown_variables();
  Options options;
  options.probe_cache = user_cache_directory();
  for (const Variable& variable : variables()) {
    if (std::holds_alternative<std::monostate>(variable.field)) continue;
    const auto value = value_of(variable);
    if (!value) continue;
    if (const auto why = why_malformed(variable, *value)) {
      throw InputError(fmt::format("{}={}: {}", variable.name, *value, *why));
    }
    std::visit(Assign{options, *value}, variable.field);
  }
  return options;
}

}  // namespace chorus
