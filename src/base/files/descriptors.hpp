// The limit of open files, which shells set to 1024: less than a rank of a large world needs.
#pragma once

#include <cstddef>
#include <string>

namespace chorus {

/// Lets this process have `count` files open, as far as its hard limit allows. Never less than
/// before.
void allow_descriptors(std::size_t count);

/// The same for `more` files than are open now. To be called before files are opened that stay.
void allow_more_descriptors(std::size_t more);

/// Whether `error`, an errno, says that this process or machine can open no more files.
[[nodiscard]] bool lacks_descriptors(int error);

/// Why not, and what to do: "Too many open files: 1024 are the most that this process may have (its
/// hard limit); it needs more: raise that (ulimit -n 2048)".
[[nodiscard]] std::string why_no_descriptor(int error);

}  // namespace chorus
