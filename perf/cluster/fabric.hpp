// A Topology as machines and cables: what an emulated cluster is built of.
#pragma once

#include <string>
#include <vector>

#include "chorus/topology.hpp"
#include "perf/cluster/traffic.hpp"

namespace chorus::perf {

/// Hosts and switches joined by cables, without a cycle (a bridge would send round it for ever).
/// Machines are numbered: hosts [0, hosts.size()), then switches. A host with several cables has
/// each in a network of its own, which no switch shares with another network; all hosts are on
/// network 0.
struct Fabric {
  struct Host {
    std::string name;     ///< as in the topology
    std::string address;  ///< IPv4, of its cable to network 0
  };
  /// Full duplex; rates are those of the frames on the wire. Hosts come first: a < hosts.size()
  /// unless both ends are switches.
  struct Cable {
    int a = 0;
    int b = 0;
    double there_bytes_per_s = 0;  ///< a to b
    double back_bytes_per_s = 0;   ///< b to a
    int network = 0;
  };

  std::vector<Host> hosts;
  int num_switches = 0;
  int num_networks = 1;
  std::vector<Cable> cables;
  std::vector<int> host_of_rank;  ///< [world_size]

  /// IPv4, of the host's cable to network `network`.
  [[nodiscard]] std::string address(int host, int network) const;
  [[nodiscard]] bool has_cable(int host, int network) const;
  /// True if every host has a cable to every network.
  [[nodiscard]] bool is_even() const;
  /// Bytes per second from host to host through `network`: the slowest cable on the way; 0 where
  /// one of them has no cable there.
  [[nodiscard]] double rate(int from_host, int to_host, int network) const;
  /// The same over all networks.
  [[nodiscard]] double rate(int from_host, int to_host) const;
  /// The ranks on `host`.
  [[nodiscard]] std::vector<int> ranks_on(int host) const;
};

/// What lies inside a host (cores, memory, adapters) is left to the machine that emulates it: a
/// host's cable has the rate of its links that leave it, together. Latencies are left out too.
///
/// `shares`: of each cable, what the first, second, … network has, each with switches of its own;
/// {1} leaves the cables as they are in the topology.
///
/// Throws InputError naming what cannot be emulated: a host with two cables into one network, a
/// cycle, a machine that nothing connects, no network that all hosts are on, a port group over
/// several cables, more than 250 hosts or 64 networks.
[[nodiscard]] Fabric fabric_of(const Topology& topology, const std::vector<double>& shares = {1});

/// `topology` with rank r at the place of rank order[r]. Throws InputError unless `order` is a
/// permutation of the ranks; an empty one changes nothing.
[[nodiscard]] Topology reordered(Topology topology, const std::vector<int>& order);

/// `topology` as switches use it that block what would close a ring (a spanning tree): of the
/// trunks between switches the fastest stay that join all that the trunks join, by the slower of
/// their directions, of equals the first; links and port groups of the others are left out.
[[nodiscard]] Topology spanned(Topology topology);

/// How cables are made.
struct CableOptions {
  int mtu = 1500;
  /// Congestion control of the hosts' sockets unless they choose: "" for this machine's default.
  std::string congestion = {};
  int queue_bytes = 1 << 20;         ///< of each direction; what does not fit is dropped
  std::vector<Stream> traffic = {};  ///< of others, as long as the cluster stands
  double speed = 1;                  ///< so many times the rates of the fabric
};

/// What `ip -batch` and `tc -batch` are told, by machine: in the namespace of each host and of the
/// switches, which have one together. `keepers`: [hosts + 1], a process in each of these
/// namespaces, the switches' last.
struct Batches {
  std::string links;                    ///< ip, in the switches' namespace, before all others
  std::vector<std::string> addresses;   ///< [hosts] ip
  std::vector<std::string> host_rates;  ///< [hosts] tc
  std::string switch_rates;             ///< tc
};
[[nodiscard]] Batches batches_for(const Fabric& fabric, const std::vector<int>& keepers,
                                  const CableOptions& options);

/// The hosts' interfaces: net0 and, where they have several cables, net1, …
[[nodiscard]] std::string host_interface(int network);
/// The switch's end of a host's cable, in the switches' namespace: cable2, cable2n1, …
[[nodiscard]] std::string cable_name(int host, int network);
inline constexpr const char* kHostInterface = "net0";
/// The part of a TCP stream that is payload, by frame size (1448 of 1514 at an MTU of 1500).
[[nodiscard]] double payload_share(int mtu);

}  // namespace chorus::perf
