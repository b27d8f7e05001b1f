#include "model/json/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "chorus/error.hpp"

namespace chorus::json {
namespace {

using Library = nlohmann::json;

constexpr std::size_t kMostLevels = 16;

/// "line 3, column 7" of a byte offset; columns count bytes.
std::string position(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto last = before.rfind('\n');
  const std::size_t column =
      last == std::string_view::npos ? before.size() : before.size() - last - 1;
  return fmt::format("line {}, column {}", line, std::max<std::size_t>(column, 1));
}

/// The library's sentence without its number and its own idea of the position.
std::string_view cause(std::string_view what) {
  for (const std::string_view end : {"] ", "parse error at line "}) {
    const auto at = what.find(end);
    if (at == std::string_view::npos) continue;
    what.remove_prefix(at + end.size());
    if (end == "] ") continue;
    const auto colon = what.find(": ");
    if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
  }
  return what;
}

/// Builds a Value as the library finds its parts, so that nothing is built beyond the limits.
class Builder : public nlohmann::json_sax<Library> {
 public:
  Builder(std::string_view text, std::string_view where, std::size_t most_members)
      : text_(text), where_(where), most_members_(most_members) {}

  Value take() { return std::move(root_); }

  bool null() override { return add({nullptr}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(std::int64_t value) override { return add({value}); }
  bool number_unsigned(std::uint64_t value) override { return add({value}); }
  bool number_float(double value, const std::string&) override { return add({value}); }
  bool string(std::string& value) override {
    return add({std::make_unique<std::string>(std::move(value))});
  }
  bool binary(Library::binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open({std::make_unique<Object>()}); }
  bool start_array(std::size_t) override { return open({std::make_unique<Array>()}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Object& object = *std::get<std::unique_ptr<Object>>(open_.back()->data);
    for (const auto& [known, value] : object) {
      if (known != name) continue;
      throw InputError(
          fmt::format("{}: {}: '{}' is given twice: keep one of them", where_, path(), name));
    }
    // Every format has few members; a file that has many is none of ours, and looking each up
    // would take quadratic time.
    if (object.size() >= most_members_) {
      throw InputError(fmt::format("{}: {}: more than {} members: this is not a Chorus file",
                                   where_, path(), most_members_));
    }
    object.emplace_back(std::move(name), Value());
    return true;
  }

  bool parse_error(std::size_t offset, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw InputError(
        fmt::format("{}: {}: {}", where_, position(text_, offset), cause(error.what())));
  }

 private:
  /// Where the next value goes.
  Value& slot() {
    if (open_.empty()) return root_;
    if (auto* object = std::get_if<std::unique_ptr<Object>>(&open_.back()->data)) {
      return (*object)->back().second;
    }
    return std::get<std::unique_ptr<Array>>(open_.back()->data)->emplace_back();
  }

  bool add(Value value) {
    slot() = std::move(value);
    return true;
  }

  bool open(Value value) {
    if (open_.size() == kMostLevels) {
      throw InputError(
          fmt::format("{}: {}: nested deeper than {} levels: this is not a Chorus file", where_,
                      path(), kMostLevels));
    }
    // Values under construction do not move: only the innermost container grows.
    Value& here = slot();
    here = std::move(value);
    open_.push_back(&here);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  [[nodiscard]] std::string path() const {
    std::string result;
    for (const Value* value : open_) {
      if (value == open_.back()) break;
      if (const auto* object = std::get_if<std::unique_ptr<Object>>(&value->data)) {
        result += "/" + (*object)->back().first;
      } else {
        const auto size = std::get<std::unique_ptr<Array>>(value->data)->size();
        result += fmt::format("/{}", size - 1);
      }
    }
    return result.empty() ? "/" : result;
  }

  std::string_view text_;
  std::string_view where_;
  std::size_t most_members_;
  Value root_;
  std::vector<Value*> open_;  // containers not yet closed, outermost first
};

std::string listed(std::initializer_list<std::string_view> a,
                   std::initializer_list<std::string_view> b) {
  std::string result;
  for (const auto& names : {a, b}) {
    for (const std::string_view name : names) {
      result += fmt::format("{}{}", result.empty() ? "" : ", ", name);
    }
  }
  return result;
}

bool contains(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Names from a file are shown, but not at any length.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "…";
}

}  // namespace

Value parse(std::string_view text, std::string_view where, std::size_t most_members) {
  Builder builder(text, where, most_members);
  Library::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

void Node::fail(std::string_view complaint) const {
  const std::string at = path();
  throw InputError(fmt::format("{}: {}: {}", where_, at.empty() ? "/" : at, complaint));
}

std::string Node::path() const {
  if (parent_ == nullptr) return "";
  const std::string up = parent_->path();
  return name_.empty() ? fmt::format("{}/{}", up, index_) : fmt::format("{}/{}", up, name_);
}

std::string_view Node::kind() const {
  constexpr std::string_view kKinds[] = {"null",     "true or false", "a number", "a number",
                                         "a number", "a string",      "an array", "an object"};
  return kKinds[value_->data.index()];
}

const Object& Node::object() const {
  const auto* object = std::get_if<std::unique_ptr<Object>>(&value_->data);
  if (object == nullptr) fail(fmt::format("{} where an object is expected", kind()));
  return **object;
}

void Node::expect_members(std::initializer_list<std::string_view> required,
                          std::initializer_list<std::string_view> optional) const {
  for (const auto& [name, value] : object()) {
    if (contains(required, name) || contains(optional, name)) continue;
    fail(fmt::format("'{}' is unknown: members are {}", shown(name), listed(required, optional)));
  }
  for (const std::string_view name : required) {
    if (!has(name)) fail(fmt::format("'{}' is missing: add it", name));
  }
}

bool Node::has(std::string_view name) const {
  const Object& members = object();
  return std::any_of(members.begin(), members.end(),
                     [&](const auto& member) { return member.first == name; });
}

std::vector<std::string> Node::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object()) names.push_back(name);
  return names;
}

Node Node::member(std::string_view name) const {
  for (const auto& [known, value] : object()) {
    if (known == name) return {value, *this, known, 0};
  }
  fail(fmt::format("'{}' is missing: add it", name));
}

std::size_t Node::size() const {
  const auto* array = std::get_if<std::unique_ptr<Array>>(&value_->data);
  if (array == nullptr) fail(fmt::format("{} where an array is expected", kind()));
  return (*array)->size();
}

Node Node::item(std::size_t index) const {
  const auto& array = std::get<std::unique_ptr<Array>>(value_->data);
  return {(*array)[index], *this, {}, index};
}

bool Node::is_null() const { return value_->data.index() == 0; }

bool Node::is_text() const {
  return std::holds_alternative<std::unique_ptr<std::string>>(value_->data);
}

bool Node::truth() const {
  const auto* truth = std::get_if<bool>(&value_->data);
  if (truth == nullptr) fail(fmt::format("{} where true or false is expected", kind()));
  return *truth;
}

const std::string& Node::text() const {
  const auto* text = std::get_if<std::unique_ptr<std::string>>(&value_->data);
  if (text == nullptr) fail(fmt::format("{} where a string is expected", kind()));
  return **text;
}

std::uint64_t Node::whole(std::uint64_t low, std::uint64_t high) const {
  if (const auto* number = std::get_if<std::uint64_t>(&value_->data)) {
    if (*number >= low && *number <= high) return *number;
    fail(fmt::format("{} is not in [{}, {}]", *number, low, high));
  }
  if (const auto* number =
          std::get_if<std::int64_t>(&value_->data)) {  // negative, or it were above
    fail(fmt::format("{} is not in [{}, {}]", *number, low, high));
  }
  if (const auto* number = std::get_if<double>(&value_->data)) {
    fail(fmt::format("{} where a whole number in [{}, {}] is expected", *number, low, high));
  }
  fail(fmt::format("{} where a whole number in [{}, {}] is expected", kind(), low, high));
}

int Node::integer(int low, int high) const {
  return static_cast<int>(whole(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high)));
}

double Node::figure(double most) const {
  double number = 0;
  if (const auto* real = std::get_if<double>(&value_->data)) {
    number = *real;
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value_->data)) {
    number = static_cast<double>(*natural);
  } else if (const auto* integer = std::get_if<std::int64_t>(&value_->data)) {
    number = static_cast<double>(*integer);
  } else {
    fail(fmt::format("{} where a number is expected", kind()));
  }
  if (!std::isfinite(number) || number < 0) {
    fail(fmt::format("{} is not a finite number of 0 or more", number));
  }
  if (number > most) fail(fmt::format("{} is too large: at most {}", number, most));
  return number;
}

void expect_format(const Node& root, std::string_view format, int newest) {
  const std::string& found = root.member("format").text();
  if (found != format) {
    root.member("format").fail(
        fmt::format("this is '{}', but '{}' is expected", shown(found), format));
  }
  const Node version = root.member("version");
  const auto number = version.whole(1, UINT64_MAX);
  if (number > static_cast<std::uint64_t>(newest)) {
    version.fail(
        fmt::format("the file has version {}, but this Chorus reads up to version {}: "
                    "update Chorus, or write the file again with this one",
                    number, newest));
  }
}

std::string quote(std::string_view text) try {
  return Library(text).dump();
} catch (const Library::exception&) {
  throw InputError(
      fmt::format("a text of {} bytes is not UTF-8, as JSON must be: rename it", text.size()));
}

}  // namespace chorus::json
