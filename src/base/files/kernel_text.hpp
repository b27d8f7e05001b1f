// What the kernel and the system write in files for people: /proc, /sys, /etc/os-release.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace chorus {

/// What stands behind the first `name` at the beginning of a line, without blanks, colons, equals
/// signs and quotation marks around it; empty if no line begins so.
[[nodiscard]] std::string value_in(std::string_view text, std::string_view name);

/// The numbers of a list such as "0-3,8", below 2^20; what is no number is left out.
[[nodiscard]] std::vector<int> listed(std::string_view list);

/// The whole of a small file, empty if it cannot be read.
[[nodiscard]] std::string kernel_text(const std::string& path);

}  // namespace chorus
