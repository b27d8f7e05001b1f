// A program's manual page and completions, made from its own table of options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace chorus {

/// In roff, as man(1) reads it: the program, and a section for each of its subcommands.
[[nodiscard]] std::string manual_page(CLI::App& app);

/// Scripts that complete subcommands, options, the values of options that take one of a few, and
/// names of files.
[[nodiscard]] std::string bash_completion(const CLI::App& app);
[[nodiscard]] std::string zsh_completion(const CLI::App& app);

}  // namespace chorus
