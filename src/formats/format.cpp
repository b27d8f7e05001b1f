#include "formats/format.hpp"

#include <fmt/format.h>

#include <array>

#include "chorus/error.hpp"

namespace chorus::formats {
namespace {

constexpr std::array<std::string_view, 5> kFormatNames{"chorus", "plan", "msccl-xml", "sccl",
                                                       "mscclpp"};

}  // namespace

std::string_view name_of(Format format) { return kFormatNames[static_cast<std::size_t>(format)]; }

Format parse_format(std::string_view name) {
  for (std::size_t i = 0; i < kFormatNames.size(); ++i) {
    if (kFormatNames[i] == name) return static_cast<Format>(i);
  }
  throw InputError(
      fmt::format("format '{}' is unknown: use one of {}", name, fmt::join(kFormatNames, ", ")));
}

Format format_of(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string_view::npos && text[first] == '<') return Format::msccl_xml;
  if (text.find("\"msccl_type\"") != std::string_view::npos) return Format::sccl;
  if (text.find("\"chorus-plan\"") != std::string_view::npos) return Format::plan;
  return Format::schedule;
}

}  // namespace chorus::formats
