// From the way a process was launched to the id it joins by.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/secret.hpp"
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

/// Where ranks meet that were told an address in place of an id.
struct MeetingPlace {
  std::string host;  ///< name or address
  std::uint16_t port = 0;
  Secret secret;
  std::string named_by;  ///< "MASTER_ADDR, MASTER_PORT", for messages
};

/// The id of that place. Rank 0 of `launch` listens there from its first call on, for as long as
/// its process, and takes every later joining; the others wait until it does, at most
/// options.join_timeout_ms. Throws BootstrapError.
std::string meet_at(const MeetingPlace& place, const Launch& launch, const Options& options);

}  // namespace chorus
