#include "topology/catalog/spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "chorus/error.hpp"

namespace chorus {
namespace {

constexpr std::size_t kLongestName = 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Names have small letters; capital ones are read for the sake of the answer they get.
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-';
}

/// Faults are said of the finished topology, not of the machine whose term they stand in. A
/// generator may have an option `slow` of its own, which is a plain number.
bool is_fault(const Spec::Option& option) {
  return option.key == "without" || option.key == "cut" ||
         (option.key == "slow" && option.value.find(':') != std::string::npos);
}

/// A cursor over the text of a Spec.
struct Reader {
  const Spec& spec;
  std::size_t at = 0;

  [[nodiscard]] bool done() const { return at == spec.end_at; }
  [[nodiscard]] char peek() const { return done() ? '\0' : spec.text[at]; }
  bool skip(char c) {
    if (peek() != c) return false;
    ++at;
    return true;
  }

  int integer(std::string_view what) {
    const std::size_t begin = at;
    while (is_digit(peek())) ++at;
    if (at == begin) spec.fail(begin, fmt::format("expected {}", what));
    int value = 0;
    const char* first = spec.text.data() + begin;
    const auto [end, error] = std::from_chars(first, spec.text.data() + at, value);
    if (error != std::errc{} || value > kMostRanks) {
      spec.fail(begin, fmt::format("{} is larger than {}", spec.text.substr(begin, at - begin),
                                   kMostRanks));
    }
    return value;
  }

  std::string name(std::string_view what) {
    const std::size_t begin = at;
    while (is_name(peek())) ++at;
    if (at == begin) spec.fail(begin, fmt::format("expected {}", what));
    return spec.text.substr(begin, at - begin);
  }

  std::string value() {
    const std::size_t begin = at;
    while (!done() && peek() != ',') ++at;
    if (at == begin) spec.fail(begin, "expected a value after '='");
    return spec.text.substr(begin, at - begin);
  }
};

}  // namespace

std::vector<Spec> Spec::parse(std::string_view text) {
  if (text.empty()) throw InputError("the topology name is empty: try dgx-a100 or torus:4x4");
  if (text.size() > kLongestName) {
    throw InputError(fmt::format("the topology name is longer than {} characters", kLongestName));
  }
  std::vector<Spec> terms;
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= text.size(); ++at) {
    const bool exponent = at >= 2 && text[at - 1] == 'e' && is_digit(text[at - 2]);  // rate=1e+3
    if (at < text.size() && (text[at] != '+' || exponent)) continue;
    terms.push_back(Spec(text, begin, at));
    begin = at + 1;
  }
  return terms;
}

Spec::Spec(std::string_view source, std::size_t first, std::size_t last)
    : text(source), begin_at(first), end_at(last) {
  Reader reader{*this, begin_at};
  const std::size_t star = text.find('*', begin_at);
  if (star < end_at && is_digit(reader.peek())) {
    hosts = reader.integer("a number of hosts");
    if (!reader.skip('*')) fail(reader.at, "expected '*' after the number of hosts");
    if (*hosts == 0) fail(begin_at, "a cluster needs at least one host");
  }
  name_at = reader.at;
  name = reader.name("the name of a machine or generator (a-z, 0-9, '-')");
  if (reader.skip(':')) {
    shape_at = reader.at;
    do {
      shape.push_back(reader.integer("a number of the shape, as in torus:4x4"));
    } while (reader.skip('x'));
  }
  read_options(reader.at);
}

void Spec::read_options(std::size_t at) {
  Reader reader{*this, at};
  while (reader.skip(',')) {
    Option option;
    option.key_at = reader.at;
    option.key = reader.name("an option, as in rate=50");
    if (!reader.skip('=')) fail(reader.at, fmt::format("expected '=' after {}", option.key));
    option.value_at = reader.at;
    option.value = reader.value();
    if (is_fault(option)) {
      faults.push_back(std::move(option));
      continue;
    }
    if (find(option.key) != nullptr) {
      fail(option.key_at, fmt::format("option {} is given twice", option.key));
    }
    options_.push_back(std::move(option));
  }
  if (!reader.done()) {
    fail(reader.at,
         fmt::format("unexpected '{}': the form is [HOSTS*]NAME[:SHAPE][,KEY=VALUE]…, several of "
                     "them joined by '+'",
                     text.substr(reader.at, 8)));
  }
  known_.clear();
}

void Spec::fail(std::size_t at, std::string_view what) const {
  throw InputError(fmt::format("topology \"{}\", column {}: {}", text, at + 1, what));
}

Spec::Option* Spec::find(std::string_view key) {
  known_.emplace_back(key);
  for (Option& option : options_) {
    if (option.key != key) continue;
    option.used = true;
    return &option;
  }
  return nullptr;
}

double Spec::number(std::string_view key, double fallback, double most) {
  const Option* option = find(key);
  if (option == nullptr) return fallback;
  char* end = nullptr;
  const double value = std::strtod(option->value.c_str(), &end);
  const bool plain = option->value.find_first_not_of("0123456789.e+-") == std::string::npos;
  if (!plain || *end != '\0' || !std::isfinite(value) || value <= 0 || value > most) {
    fail(option->value_at, fmt::format("{} must be a number above 0 and at most {}, not {}", key,
                                       most, option->value));
  }
  if (value < 1e-6) fail(option->value_at, fmt::format("{} must be at least 0.000001", key));
  return value;
}

int Spec::integer(std::string_view key, int fallback, int least, int most) {
  const Option* option = find(key);
  if (option == nullptr) return fallback;
  int value = 0;
  const char* last = option->value.data() + option->value.size();
  const auto [end, error] = std::from_chars(option->value.data(), last, value);
  if (error != std::errc{} || end != last || value < least || value > most) {
    fail(option->value_at, fmt::format("{} must be a whole number from {} to {}, not {}", key,
                                       least, most, option->value));
  }
  return value;
}

bool Spec::yes_no(std::string_view key, bool fallback) {
  const Option* option = find(key);
  if (option == nullptr) return fallback;
  if (option->value == "yes") return true;
  if (option->value == "no") return false;
  fail(option->value_at, fmt::format("{} must be yes or no, not {}", key, option->value));
}

void Spec::expect_shape(std::size_t least, std::size_t most, int smallest,
                        std::string_view example) {
  const std::size_t at = shape.empty() ? end_at : shape_at;
  if (shape.size() < least || shape.size() > most) {
    const std::string count =
        least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
    if (most == 0) fail(at, fmt::format("{} takes no shape", name));
    fail(at, fmt::format("{} takes a shape of {} number{}, as in {}", name, count,
                         most == 1 ? "" : "s", example));
  }
  for (const int extent : shape) {
    if (extent < smallest) {
      fail(at, fmt::format("every number of the shape must be at least {}, as in {}", smallest,
                           example));
    }
  }
}

void Spec::expect_all_used() const {
  for (const Option& option : options_) {
    if (option.used) continue;
    std::vector<std::string> known = known_;
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    fail(option.key_at, fmt::format("{} has no option {}; it has: {} (and without, cut, slow: see "
                                    "docs/topologies.md)",
                                    name, option.key, fmt::join(known, ", ")));
  }
}

}  // namespace chorus
