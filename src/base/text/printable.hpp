// Text of strangers on its way to a terminal or a picture: names come from files.
#pragma once

#include <string>
#include <string_view>

namespace chorus {

/// `text` with what could move a terminal's cursor, or turn the direction of writing, made visible:
/// control characters become ?, others their number, as in \u202e. Line breaks and tabs stay.
[[nodiscard]] std::string printable(std::string_view text);

/// The same on one line: line breaks and tabs become \n and \t.
[[nodiscard]] std::string printable_name(std::string_view name);

}  // namespace chorus
