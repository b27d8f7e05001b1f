// Jobs on machines like this one, as commands describe them.
#pragma once

#include "chorus/options.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {

/// `shape` on hosts like this one: as many cores as this process may use (where `shape` says 0),
/// what copying costs here, and where `chorus run` would place the ranks.
[[nodiscard]] JobShape on_this_host(JobShape shape, const Options& options);

}  // namespace chorus
