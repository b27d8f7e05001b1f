// Probed networks on disk, so that a job need not probe what the last one did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "topology/probing/probed_network.hpp"

namespace chorus {

/// Format: docs/probing.md. Same value, same text.
[[nodiscard]] std::string to_json(const probing::ProbedNetwork& network);
/// Throws InputError beginning with `where` for anything that is not a well-formed probed network.
[[nodiscard]] probing::ProbedNetwork probed_network_from_json(std::string_view text,
                                                              std::string_view where);

/// Directory of the cache: `configured` (Options::probe_cache); for "auto" the user's cache
/// directory (XDG_CACHE_HOME and HOME are read by Options::from_env()). Empty: no cache.
/// The file in which the network of `key` is kept.
[[nodiscard]] std::string probe_cache_file(const std::string& directory, const std::string& key);

/// What was saved under `key`, if it is readable, well formed and younger than `max_age_s` at
/// `now_s`; anything else counts as absent (and is logged at info).
[[nodiscard]] std::optional<probing::ProbedNetwork> load_probe(const std::string& directory,
                                                               const std::string& key,
                                                               std::int64_t max_age_s,
                                                               std::int64_t now_s);
/// Writes a file of the cache atomically, and its folder. What goes wrong is logged at info: a
/// cache is a convenience.
void keep_in_cache(const std::string& path, const std::string& text);
/// The same for a network.
void save_probe(const std::string& directory, const std::string& key,
                const probing::ProbedNetwork& network);

/// Whoever asks next probes again.
void forget_probe(const std::string& directory, const std::string& key);

/// "lo", or "eth0 52:54:00:12:34:56": the interface that has this address, with the hardware's;
/// the address itself if none has.
[[nodiscard]] std::string interface_identity(const std::string& address_or_name);

}  // namespace chorus
