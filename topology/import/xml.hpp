// Foreign XML, read with suspicion.
#pragma once

#include <pugixml.hpp>
#include <string>
#include <string_view>

namespace chorus {

/// Larger inputs are no topology.
inline constexpr std::size_t kMostInputBytes = std::size_t{16} << 20;

/// A parsed document that knows the line of every element.
class XmlFile {
 public:
  /// `where` begins every message. Throws InputError for what is malformed, too large, too deep or
  /// declares entities. `text` must outlive the object.
  XmlFile(std::string_view text, std::string_view where);

  [[nodiscard]] pugi::xml_node root() const { return document_.document_element(); }
  [[nodiscard]] pugi::xml_document& document() { return document_; }

  /// Throws InputError "where:line: what".
  [[noreturn]] void fail(pugi::xml_node at, std::string_view what) const;
  /// Logs the same as a warning.
  void warn(pugi::xml_node at, std::string_view what) const;

  /// A whole number within [least, most], or `fallback` if the attribute is absent or empty.
  long integer(pugi::xml_node at, const char* attribute, long fallback, long least,
               long most) const;

 private:
  [[nodiscard]] std::string place(std::ptrdiff_t offset) const;
  void refuse_entities() const;

  std::string_view text_;
  std::string where_;
  pugi::xml_document document_;
};

}  // namespace chorus
