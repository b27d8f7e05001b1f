// The limit of the size of files, which shared memory counts as. Who crosses it gets a signal that
// ends the process.
#pragma once

#include <cstdint>
#include <string>

namespace chorus {

/// Lets this process have a file of `bytes`, as far as its hard limit allows. False where it does
/// not; then none may be made.
[[nodiscard]] bool allow_file_size(std::uint64_t bytes);

/// Why not, and what to do: "memory of 5242880 bytes is more than a file may have; raise …".
[[nodiscard]] std::string why_no_file_size(std::uint64_t bytes);

}  // namespace chorus
