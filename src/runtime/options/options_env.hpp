// Reading environment variables: used by Options::from_env(), Launch::from_env() and, for NCCL's
// names, by src/nccl alone.
#pragma once

#include <climits>
#include <optional>
#include <string>
#include <string_view>

#include "chorus/options.hpp"

namespace chorus {

/// Throws InputError naming the first field whose value no variable could have given it.
void require_valid(const Options& options);

/// The value of `name`; nothing if it is unset or empty.
[[nodiscard]] std::optional<std::string> env(const char* name);

/// The same as an integer in [low, high]. Throws InputError naming variable, value and range.
[[nodiscard]] std::optional<long long> env_integer(const char* name, long long low, long long high);

/// A whole number in [low, high], written in decimal; nothing if `text` is none.
[[nodiscard]] std::optional<long long> to_integer(const std::string& text, long long low,
                                                  long long high);

/// Options::flight_dir of a private folder: flight_folder().
inline constexpr std::string_view kAutomaticFlightDir = "auto";

/// Of the user who runs this: $XDG_CACHE_HOME/chorus or ~/.cache/chorus; empty if there is neither.
[[nodiscard]] std::string user_cache_directory();

/// Warns, once per process and name, about each CHORUS_* variable that Chorus does not know,
/// with the known name that looks most like it.
void warn_about_unknown_variables();

}  // namespace chorus
