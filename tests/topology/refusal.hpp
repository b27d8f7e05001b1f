// What is said to a name that is refused.
#pragma once

#include <string>
#include <string_view>

#include "chorus/error.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::test {

inline std::string refusal(std::string_view name) {
  try {
    (void)topology_from_name(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace chorus::test
