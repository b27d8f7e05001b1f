// Files of JSON that options name.
#pragma once

#include <string>
#include <string_view>

namespace chorus {

/// The whole of the file that `variable` names. Throws InputError naming the path and the cause;
/// what commands take in its place, a machine's name or XML, is refused with the command that
/// writes such a file.
[[nodiscard]] std::string read_option_file(const std::string& path, std::string_view variable,
                                           std::string_view command);

}  // namespace chorus
