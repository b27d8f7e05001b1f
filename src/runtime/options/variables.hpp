// Every environment variable that Chorus reads: one table, from which values are read and judged,
// `chorus env` prints, misspelt names are recognised and docs/variables.md is made.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "chorus/options.hpp"

namespace chorus {

struct Variable {
  enum class Section : unsigned char {
    options,       ///< of Options
    job,           ///< CHORUS_* that are not: how ranks meet, libnccl.so.2
    nccl,          ///< NCCL's, which libnccl.so.2 of Chorus heeds
    surroundings,  ///< of launchers and the system
  };
  enum class Type : unsigned char {
    number,
    flag,
    bytes,
    level,
    on_loss,
    names,
    text,
    file,
    folder,
    secret
  };
  using Field = std::variant<std::monostate, int Options::*, std::size_t Options::*,
                             bool Options::*, std::string Options::*>;

  const char* name;
  Section section;
  Type type;
  const char* text;  ///< what it does: one or two sentences
  Field field = {};  ///< that it sets
  const char* field_name = "";
  long long low = 0, high = 0;  ///< of numbers and bytes
  bool may_be_empty = false;    ///< an empty value is one; elsewhere it is as none
  const char* otherwise = "";   ///< the default, where no field of Options{} holds it
  const char* stands_for = "";  ///< the variable of Chorus that wins over this one
};

/// All of them, by section.
[[nodiscard]] std::span<const Variable> variables();
/// Null if there is none of that name.
[[nodiscard]] const Variable* find_variable(std::string_view name);

/// The value of `variable` in the environment; nothing where it is as unset.
[[nodiscard]] std::optional<std::string> value_of(const Variable& variable);
/// Why `value` cannot be its value: "must be a whole number in [1, 16]"; nothing if it can.
[[nodiscard]] std::optional<std::string> why_malformed(const Variable& variable,
                                                       const std::string& value);
/// What holds where it is not set.
[[nodiscard]] std::string default_of(const Variable& variable);
/// "whole number in [1, 16]"
[[nodiscard]] std::string type_of(const Variable& variable);

/// Of a CHORUS_* name that is none of these: "did you mean CHORUS_TIMEOUT_MS?", or "it has no
/// effect" where no name is near. Nothing for names that are known, or of Chorus's own tests.
[[nodiscard]] std::optional<std::string> why_unknown(std::string_view name);

}  // namespace chorus
