// What the command lines of all our programs have in common: how they are read, how they answer a
// usage error, and the options that every program has.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

namespace chorus {

/// Print this and leave with this code: help on standard output (0), or what is wrong with the
/// arguments on standard error (2).
struct Leave {
  std::string text;
  int exit_code = 0;
};

/// Adds --version, --man and --completion to a program's own options.
void add_common_options(CLI::App& app);

/// Parses the arguments, which runs the callbacks of `app`; what these throw passes through.
///
/// "help" and "help COMMAND" stand for --help. A list option goes on with the following words that
/// its validators accept, so that "-b 1K 1M" and "-b 1K,1M" are the same and a word of another kind
/// ends it. A list option is one with the delimiter ',' and without allow_extra_args.
[[nodiscard]] std::optional<Leave> read_command_line(CLI::App& app, int argc,
                                                     const char* const* argv);

/// "chorus synth": the program and the subcommands that were read.
[[nodiscard]] std::string command_read(const CLI::App& app);

/// For records: the program and its arguments as they were given.
[[nodiscard]] std::string command_given(const std::string& program, int argc,
                                        const char* const* argv);

/// The exit code of `run`. What it throws is told on standard error in one line: 2 for bad input
/// and for memory that is exhausted, 1 for anything else.
[[nodiscard]] int exit_code_of(const std::string& program, const std::function<int()>& run);

}  // namespace chorus
