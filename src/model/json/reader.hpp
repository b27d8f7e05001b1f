// JSON text that came from outside, read without believing any of it. For readers of files only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace chorus::json {

struct Value;
using Array = std::vector<Value>;
/// Members in the order of the text; names are unique.
using Object = std::vector<std::pair<std::string, Value>>;

/// Any JSON value. Nesting is bounded by parse(), so recursion over it is, too.
struct Value {
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double,
               std::unique_ptr<std::string>, std::unique_ptr<Array>, std::unique_ptr<Object>>
      data = nullptr;
};

/// Members that an object of Chorus's own formats may have.
inline constexpr std::size_t kMostMembers = 64;

/// Throws InputError "WHERE: line L, column C: …" for anything but one JSON value, for a member
/// named twice, for nesting deeper than 16, and for more than `most_members` in an object.
[[nodiscard]] Value parse(std::string_view text, std::string_view where,
                          std::size_t most_members = kMostMembers);

/// A value and how it was reached, so that whatever is wrong with it is reported by its path.
///
/// Refers to the parent it came from, which must outlive it.
class Node {
 public:
  Node(const Value& value, std::string_view where) : value_(&value), where_(where) {}

  /// "WHERE: /nodes/3/parent: complaint".
  [[noreturn]] void fail(std::string_view complaint) const;

  /// Fails unless this is an object with all of `required` and, beyond them, only members of
  /// `optional`.
  void expect_members(std::initializer_list<std::string_view> required,
                      std::initializer_list<std::string_view> optional = {}) const;
  [[nodiscard]] bool has(std::string_view name) const;
  /// Of all members, in the order of the text. Fails if this is not an object.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Fails if there is none.
  [[nodiscard]] Node member(std::string_view name) const;
  /// Fails if this is not an array.
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] Node item(std::size_t index) const;

  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_text() const;
  /// Fails if this is neither true nor false.
  [[nodiscard]] bool truth() const;
  [[nodiscard]] const std::string& text() const;
  /// A whole number in [low, high].
  [[nodiscard]] std::uint64_t whole(std::uint64_t low, std::uint64_t high) const;
  [[nodiscard]] int integer(int low, int high) const;
  /// A finite number in [0, most].
  [[nodiscard]] double figure(double most = std::numeric_limits<double>::max()) const;

 private:
  Node(const Value& value, const Node& parent, std::string_view name, std::size_t index)
      : value_(&value), parent_(&parent), where_(parent.where_), name_(name), index_(index) {}

  [[nodiscard]] std::string path() const;
  [[nodiscard]] const Object& object() const;
  [[nodiscard]] std::string_view kind() const;

  const Value* value_;
  const Node* parent_ = nullptr;
  std::string_view where_;
  std::string_view name_;  // in an object
  std::size_t index_ = 0;  // in an array
};

/// Fails unless `root` is an object of this format and of a version up to `newest`, which is
/// judged first so that a later file is refused for what it is.
void expect_format(const Node& root, std::string_view format, int newest);

/// The text as a JSON string, quoted. Throws InputError if it is not UTF-8.
[[nodiscard]] std::string quote(std::string_view text);

}  // namespace chorus::json
