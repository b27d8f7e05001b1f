// Files that options name.
#pragma once

#include <string>
#include <string_view>

namespace chorus {

/// The whole of a file. Throws InputError naming the path and the cause.
[[nodiscard]] std::string read_file(const std::string& path);

/// The same of JSON that `variable` names. What commands take in its place, a machine's name or
/// XML, is refused with the command that writes such a file.
[[nodiscard]] std::string read_option_file(const std::string& path, std::string_view variable,
                                           std::string_view command);

}  // namespace chorus
