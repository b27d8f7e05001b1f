// A probed network as a value, and the Topology it means for a communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chorus/topology.hpp"
#include "topology/discover/host_memory.hpp"
#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

inline constexpr std::size_t kMostNetworks = 64;  ///< the one of all hosts and further ones

/// What a probe found out.
struct ProbedNetwork {
  std::string name = {};  ///< as NetworkShare has it; empty for the one that joins all hosts
  std::vector<std::string> hosts = {};  ///< names, in the order of the tree
  HostTree tree = {};
  std::vector<double> cable_alpha_s = {};  ///< by host: its part of the latency
  std::vector<double> trunk_alpha_s = {};  ///< by group
  std::int64_t measured_at_s = 0;          ///< seconds since 1970, UTC
  /// Networks that some of the hosts have a further cable into, each measured by itself, as was
  /// this one then. Without any, `tree` is what all cables of a host carry together. Their
  /// latencies are not measured: small messages take this network.
  std::vector<ProbedNetwork> further = {};
  Provenance provenance = Provenance::measured;  ///< of all figures

  bool operator==(const ProbedNetwork&) const = default;
};

/// Half a round trip between two hosts, seconds.
struct PairLatency {
  int a = 0;
  int b = 0;
  double alpha_s = 0;
};

/// Shares the latencies out among the cables and trunks on each pair's way (least squares, none
/// below 0) and writes them to `network`.
void fit_latencies(ProbedNetwork& network, std::span<const PairLatency> pairs);

/// The ranks of one host of a communicator.
struct HostPart {
  int host = 0;             ///< index into ProbedNetwork::hosts
  std::vector<Rank> ranks;  ///< ascending
  HostMemory memory = {};
  /// That says what lies inside the host, in place of `memory`; null: none does.
  const Topology* declared = nullptr;
  int node = -1;  ///< of `declared`: the host
};

/// The network with these ranks on its hosts: every host and trunk with its figures; what lies
/// inside a host as its part says. Hosts without a part are left out. Where there are further
/// networks every set of them that joins two hosts is a tree of switches of its own, which shares
/// what its networks carry with those of the other sets.
[[nodiscard]] Topology topology_of(const ProbedNetwork& network, std::span<const HostPart> parts);

/// The part of `network` that joins `hosts` (names, any order), in that order. Throws InputError
/// naming a host that is not in it.
[[nodiscard]] ProbedNetwork restricted(const ProbedNetwork& network,
                                       const std::vector<std::string>& hosts);

/// For people: hosts, islands and trunks with their rates, one a line.
[[nodiscard]] std::string describe(const ProbedNetwork& network);

}  // namespace chorus::probing
