// Inputs to begin with: files of tests/data, recordings beside the project, what writers write.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace chorus::fuzz {

/// The files of `folder` (below tests/data) and, where they are there, of `recordings` (below
/// $CHORUS_TEST_DATA) whose names end in `ending`, in the order of their paths.
[[nodiscard]] std::vector<std::string> files(std::string_view folder, std::string_view recordings,
                                             std::string_view ending);

/// The inputs of tests/fuzz/corpus/`reader`: each once made its reader break a promise.
[[nodiscard]] std::vector<std::string> regressions(std::string_view reader);

}  // namespace chorus::fuzz
