// What pictures have in common.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace chorus {

/// As text between SVG's tags or in its attributes.
[[nodiscard]] std::string escaped(std::string_view text);
/// `text` with its middle left out if it has more than `longest` letters.
[[nodiscard]] std::string shortened(const std::string& text, std::size_t longest);
/// 1, 2 or 5 times a power of ten, so that about ten ticks cover `length`.
[[nodiscard]] double tick_spacing(double length);

}  // namespace chorus
