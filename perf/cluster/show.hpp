// What an emulated cluster is made of, in words.
#pragma once

#include <string>

#include "perf/cluster/fabric.hpp"

namespace chorus::perf {

/// Hosts with their cables and ranks, trunks, and what no algorithm can beat there at 16 MiB.
/// Rates are MB/s = 10⁶ bytes per second of frames; "up" leaves the host, or the trunk's first end.
[[nodiscard]] std::string described(const Topology& topology, const Fabric& fabric);

}  // namespace chorus::perf
