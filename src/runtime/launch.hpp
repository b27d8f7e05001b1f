// From the way a process was launched to the id it joins by.
#pragma once

#include <memory>
#include <string>

#include "chorus/options.hpp"

namespace chorus {

/// The id by which the ranks of `launch` meet: the one given, or one that rank 0 makes and hands
/// round by the launcher's own means. Blocks at most options.join_timeout_ms. `keep_alive` is set
/// to what must live as long as the Control joined with it.
///
/// Every rank calls it the same number of times, in the same order (joining is collective). Throws
/// BootstrapError, InputError.
std::string resolve_id(const Launch& launch, const Options& options,
                       std::shared_ptr<void>& keep_alive);

}  // namespace chorus
