// MSCCL XML as other writers write it.
#pragma once

#include <regex>
#include <string>

namespace chorus::formats {

/// Without the attribute that only Chorus writes.
inline std::string without_levels(const std::string& xml) {
  return std::regex_replace(xml, std::regex(" level=\"[0-9]+\""), "");
}

}  // namespace chorus::formats
