// The readers of each subject.
#pragma once

#include <vector>

#include "tests/fuzz/reader.hpp"

namespace chorus::fuzz {

[[nodiscard]] std::vector<Reader> topology_readers();
[[nodiscard]] std::vector<Reader> schedule_readers();
[[nodiscard]] std::vector<Reader> record_readers();
[[nodiscard]] std::vector<Reader> wire_readers();

}  // namespace chorus::fuzz
