// The networks between hosts as somebody described them, in place of a probe.
#pragma once

#include <optional>

#include "chorus/topology.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/probing/probe.hpp"
#include "topology/probing/probed_network.hpp"

namespace chorus {

/// Collective over the ranks of several hosts, which all have the same `declared`: the several
/// networks that it describes between these hosts, each found by which hosts have an address in it.
/// Nothing where it describes one, where transports other than tcp join hosts, or where addresses
/// make other networks; the last is warned of by rank 0.
[[nodiscard]] std::optional<probing::ProbedNetwork> declared_network(
    Control& control, const GroupPlace& place, const Options& options,
    const Connections& connections, const HostList& hosts, const Topology& declared);

}  // namespace chorus
