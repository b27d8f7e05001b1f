// Small values with every member in use.
#pragma once

#include "chorus/plan.hpp"
#include "chorus/topology.hpp"

namespace chorus::test {

/// Two GPUs and a NIC in one host; NVLink both ways, sharing one bus.
Topology sample_topology();
/// For that topology: all_reduce in two ranges of sizes, and broadcast.
Plan sample_plan();

}  // namespace chorus::test
