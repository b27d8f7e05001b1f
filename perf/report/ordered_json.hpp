// JSON as everything in this folder writes it.
#pragma once

#include <nlohmann/json.hpp>

namespace chorus::perf {

/// Ordered, so that a file reads as it is documented and diffs stay small.
using Json = nlohmann::ordered_json;

}  // namespace chorus::perf
