// What the ranks of a communicator tell each other about the machines that they run on.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "chorus/options.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

/// What `rank` tells all: as the first of its machine what copying costs there, as the first of its
/// host where the ranks and the adapter with `local_address` are. Empty if it is neither. Measures
/// and discovers what Options::probe_cache does not have.
[[nodiscard]] std::vector<std::byte> machine_facts(const std::vector<Member>& members, Rank rank,
                                                   const std::string& local_address,
                                                   const Options& options);

/// Sets Member::rates, place and adapter_numa. `said`: machine_facts(), by rank. Throws
/// BootstrapError naming the rank that said something malformed.
void learn(std::vector<Member>& members, std::span<const std::span<const std::byte>> said);

}  // namespace chorus
