// Files that options name.
#pragma once

#include <string>

namespace chorus {

/// The whole of a file. Throws InputError naming the path and the cause.
[[nodiscard]] std::string read_file(const std::string& path);

}  // namespace chorus
