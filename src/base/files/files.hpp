// Files that users name: read whole, up to what such files may have, asked before work whose result
// they are to take, and written whole.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>

namespace chorus {

/// The rest of `file`. Where it cannot be read, or is larger than 64 MiB as endless ones are, the
/// cause in `why`, which is left alone otherwise.
[[nodiscard]] std::string read_text(std::FILE* file, std::string& why);

/// The whole of a file. Throws InputError naming the path and the cause.
[[nodiscard]] std::string read_file(const std::string& path);

/// Throws InputError where no file of this path can be written, which "-" for standard output
/// always can. Leaves what is there as it is.
void require_writable(const std::string& path);

/// True if one of these paths of outputs is "-", so that nothing else belongs on standard output.
/// Throws InputError if two are.
[[nodiscard]] bool one_is_standard_output(std::initializer_list<std::string_view> paths);

/// What a user asked for: to standard output for "-", else as write_file() does.
void write_output(const std::string& path, std::string_view text);

/// Whole, or what was there before stays: on a full disk, too. Throws InputError naming the path.
void write_file(const std::string& path, std::string_view text);

}  // namespace chorus
