// Probing: the ranks of a communicator measure the network between their hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "chorus/options.hpp"
#include "chorus/topology.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/call_gate.hpp"
#include "runtime/engine/connections.hpp"
#include "topology/probing/probed_network.hpp"
#include "topology/probing/prober.hpp"

namespace chorus {

/// What a communicator knows of the network between its hosts, and how it came to know it.
struct Probed {
  probing::ProbedNetwork network;
  std::vector<probing::HostPart> parts;
  Topology topology;
  std::string key = {};     ///< in the cache; empty for a part of another communicator's
  bool cached = false;      ///< by an earlier probe
  double seconds = 0;       ///< that probing took
  std::uint64_t bytes = 0;  ///< sent between hosts, in all
  int experiments = 0;
  /// Rank 0 only: every experiment, with the bytes of each flow, in order.
  std::vector<probing::Experiment> measured = {};
  std::vector<std::vector<std::uint64_t>> measured_bytes = {};
};

struct ProbeRequest {
  int budget_ms = 0;  ///< no experiment is made after so much time in experiments
  bool write_cache = true;
  /// What calls go by now is known to be wrong.
  bool in_a_hurry = false;
  /// Of calls that may be made meanwhile; null: there are none.
  CallGate* gate = nullptr;
  std::stop_token stop = {};  ///< no answer is needed any more
  /// Rank 0 only: experiments behind, foreseen, and what is being done.
  std::function<void(int done, int total, const std::string& phase)> progress = {};
};

/// The hosts of the members, in an order that does not depend on that of the ranks, and who is on
/// each. Names are the machines' own, made distinct.
struct HostList {
  std::vector<std::string> identities;  ///< Member::host, ascending
  std::vector<std::string> names;
  std::vector<probing::HostPart> parts;  ///< one per host; ranks are group ranks
};
[[nodiscard]] HostList hosts_of(const Connections& connections);

/// Collective over the ranks of several hosts, and brief: what an earlier probe of these hosts
/// found (Probed::cached), as rank 0's cache has it; else all but the network and the topology.
/// Throws BootstrapError.
[[nodiscard]] Probed recall_network(Control& control, const GroupPlace& place,
                                    const Options& options, const HostList& hosts, bool use_cache);

/// Collective likewise: one rank of each host measures, over links of its own, rank 0 infers and
/// gives the result to all, who check that they have understood the same. `recalled` by
/// recall_network(). Throws CollectiveError or BootstrapError naming the rank that failed,
/// ProbeStopped.
[[nodiscard]] Probed measure_network(Control& control, const GroupPlace& place,
                                     const Options& options, const SlotLayout& layout,
                                     const HostList& hosts, const ProbeRequest& request,
                                     Probed recalled);

/// Where `declared` contradicts what was measured: the worst pair of hosts, as a sentence; empty if
/// all agree within a third.
[[nodiscard]] std::string disagreement(const Topology& declared, const Topology& measured,
                                       const std::vector<probing::HostPart>& parts,
                                       const std::vector<std::string>& names);

}  // namespace chorus
