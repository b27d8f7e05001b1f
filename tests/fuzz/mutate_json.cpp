#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/fuzz/mutate.hpp"

namespace chorus::fuzz {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kMostChanges = 4;

void collect(Json& value, std::vector<Json*>& all) {
  all.push_back(&value);
  if (!value.is_structured()) return;
  for (Json& item : value) collect(item, all);
}

/// A number or string near `value`; what holds others becomes something that holds none.
Json perturbed(const Json& value, Random& random) {
  if (value.is_string()) return perturbed_word(value.get<std::string>(), random);
  if (value.is_boolean()) return !value.get<bool>();
  const std::string text =
      value.is_number() ? perturbed_number(value.dump(), random) : perturbed_number("1", random);
  const Json number = Json::parse(text, nullptr, false);
  if (number.is_discarded()) return text;
  return number;
}

/// Deletes, doubles or moves an item or member of `value`.
void rearrange(Json& value, Random& random) {
  const auto at = [&] {
    return std::next(value.begin(), static_cast<std::ptrdiff_t>(below(random, value.size())));
  };
  const std::size_t action = below(random, 4);
  if (value.is_object()) {
    const auto member = at();
    if (action == 0) {
      value.erase(member.key());
    } else if (action == 1) {
      std::string name = perturbed_word(member.key(), random);
      Json moved = member.value();
      value[std::move(name)] = std::move(moved);
    } else {
      std::swap(*at(), *at());
    }
    return;
  }
  if (action == 0) {
    value.erase(at());
  } else if (action == 1) {
    Json item = *at();
    value.insert(at(), std::move(item));
  } else {
    std::swap(*at(), *at());
  }
}

void change(Json& root, Random& random) {
  std::vector<Json*> all;
  collect(root, all);
  Json& one = *all[below(random, all.size())];
  Json& other = *all[below(random, all.size())];
  const std::size_t action = below(random, 8);
  if (action == 0) {
    Json copy = other;
    one = std::move(copy);
  } else if (action == 1 && one.is_array()) {
    Json copy = other;
    one.push_back(std::move(copy));
  } else if (action == 2) {
    Json inner = std::move(one);
    one = Json::array({std::move(inner)});
  } else if (action <= 4 && one.is_structured() && !one.empty()) {
    rearrange(one, random);
  } else {
    one = perturbed(one, random);
  }
}

}  // namespace

std::string mutated_json(const std::string& text, Random& random) {
  Json root = Json::parse(text, nullptr, false);
  if (root.is_discarded()) return {};
  for (std::size_t changes = 1 + below(random, kMostChanges); changes > 0; --changes) {
    change(root, random);
  }
  return root.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace chorus::fuzz
