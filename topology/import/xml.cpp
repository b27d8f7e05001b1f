#include "topology/import/xml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text/log.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

constexpr int kMostDepth = 200;

struct Depth : pugi::xml_tree_walker {
  int most = 0;
  bool for_each(pugi::xml_node& /*node*/) override {
    most = std::max(most, depth());
    return most <= kMostDepth;
  }
};

}  // namespace

XmlFile::XmlFile(std::string_view text, std::string_view where) : text_(text), where_(where) {
  if (text.size() > kMostInputBytes) {
    throw InputError(
        fmt::format("{}: larger than {} MiB, which no topology is: is it the right file?", where_,
                    kMostInputBytes >> 20));
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw InputError(
        fmt::format("{}: a zero byte: the file is binary or was damaged; write it again",
                    place(static_cast<std::ptrdiff_t>(nul))));
  }
  refuse_entities();
  const pugi::xml_parse_result result =
      document_.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!result) {
    throw InputError(fmt::format("{}: malformed or truncated XML ({}): write the file again",
                                 place(result.offset), result.description()));
  }
  Depth depth;
  document_.traverse(depth);
  if (depth.most > kMostDepth) {
    throw InputError(fmt::format("{}: elements nested more than {} deep, which no topology needs",
                                 where_, kMostDepth));
  }
}

// Entities are of no use in a topology, and a few lines of them expand to gigabytes.
void XmlFile::refuse_entities() const {
  std::size_t at = text_.find("<!ENTITY");
  const std::size_t doctype = text_.find("<!DOCTYPE");
  if (at == std::string_view::npos && doctype != std::string_view::npos) {
    const std::size_t subset = text_.find('[', doctype);
    if (subset < text_.find('>', doctype)) at = subset;
  }
  if (at == std::string_view::npos) return;
  throw InputError(
      fmt::format("{}: the document declares entities or a DTD of its own, which "
                  "topologies never need: remove the declarations",
                  place(static_cast<std::ptrdiff_t>(at))));
}

std::string XmlFile::place(std::ptrdiff_t offset) const {
  const auto length = static_cast<std::ptrdiff_t>(text_.size());
  const auto end = text_.begin() + std::clamp<std::ptrdiff_t>(offset, 0, length);
  return fmt::format("{}:{}", where_, 1 + std::count(text_.begin(), end, '\n'));
}

void XmlFile::fail(pugi::xml_node at, std::string_view what) const {
  throw InputError(fmt::format("{}: {}", place(at.offset_debug()), what));
}

void XmlFile::warn(pugi::xml_node at, std::string_view what) const {
  log(LogLevel::warn, "", fmt::format("{}: {}", place(at.offset_debug()), what));
}

long XmlFile::integer(pugi::xml_node at, const char* attribute, long fallback, long least,
                      long most) const {
  std::string_view text = at.attribute(attribute).value();
  if (text.empty()) return fallback;
  const std::string_view whole = text;
  int base = 10;
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    fail(at, fmt::format("{}=\"{}\" of <{}> must be a whole number from {} to {}", attribute, whole,
                         at.name(), least, most));
  }
  return value;
}

}  // namespace chorus
