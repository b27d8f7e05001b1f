#include "model/bounds/partitions.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "model/price/max_flow.hpp"

namespace chorus::bounds {
namespace {

constexpr std::size_t kMostTakenApart = 128;  // machines, each two rows of the program

/// The nodes that contain `node`, outermost first, and the node itself.
std::vector<int> containers(const Topology& topology, int node) {
  std::vector<int> chain;
  for (int up = node; up >= 0 && chain.size() <= topology.nodes.size();
       up = topology.nodes[at(up)].parent) {
    chain.push_back(up);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

/// Parts from labels: nodes of one label are one part, parts without a terminal are none.
Partition from_labels(const Network& network, const std::vector<int>& labels) {
  std::map<int, int> part_of_label;
  Partition partition{std::vector<int>(labels.size(), -1), 0};
  for (const int node : network.terminals) {
    const auto [known, is_new] = part_of_label.try_emplace(labels[at(node)], partition.parts);
    if (is_new) ++partition.parts;
  }
  for (std::size_t node = 0; node < labels.size(); ++node) {
    const auto known = part_of_label.find(labels[node]);
    if (known != part_of_label.end()) partition.part_of[node] = known->second;
  }
  return partition;
}

std::vector<int> own_labels(const Network& network) {
  std::vector<int> labels(at(network.num_nodes()));
  std::iota(labels.begin(), labels.end(), 0);
  return labels;
}

/// Ranks, and what lies between them and the first switch on their way out, by that switch: leaves,
/// islands, routers with what hangs on them.
Partition by_switches(const Network& network) {
  const auto is_switch = [&](int node) {
    const NodeKind kind = network.topology.nodes[at(network.node_of[at(node)])].kind;
    return kind == NodeKind::gpu_switch || kind == NodeKind::network_switch;
  };
  DisjointSets sets(at(network.num_nodes()));
  for (const Network::Arc& arc : network.arcs) {
    if (!is_switch(arc.src) || !is_switch(arc.dst)) sets.join(arc.src, arc.dst);
  }
  return from_labels(network, sets.sets());
}

/// The ranks of one machine, each by itself, against all that lies outside: what they exchange
/// among themselves goes twice through what they share.
std::vector<Partition> machines_taken_apart(const Network& network,
                                            const std::vector<std::vector<int>>& chains) {
  std::map<int, int> ranks_of;  // nodes with ranks, by machine
  for (const int node : network.terminals) ++ranks_of[chains[at(node)].front()];
  std::vector<Partition> found;
  if (ranks_of.size() > kMostTakenApart) return found;
  for (const auto& [machine, ranks] : ranks_of) {
    if (ranks < 2) continue;
    std::vector<int> labels = own_labels(network);
    for (std::size_t node = 0; node < labels.size(); ++node) {
      if (chains[node].front() != machine) labels[node] = network.num_nodes();
    }
    found.push_back(from_labels(network, labels));
  }
  return found;
}

/// Sets that overlap become one part.
Partition from_sets(const Network& network, const std::vector<std::vector<char>>& sets) {
  std::vector<int> labels = own_labels(network);
  for (const std::vector<char>& set : sets) {
    std::vector<char> merged(labels.size(), 0);  // by label
    int first = -1;
    for (std::size_t node = 0; node < set.size(); ++node) {
      if (set[node] == 0) continue;
      merged[at(labels[node])] = 1;
      if (first < 0) first = labels[node];
    }
    for (int& label : labels) {
      if (merged[at(label)] != 0) label = first;
    }
  }
  return from_labels(network, labels);
}

}  // namespace

std::vector<int> Partition::arcs(const Network& network, bool leaving) const {
  std::vector<int> found;
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    const int src = part_of[at(network.arcs[arc].src)];
    const int dst = part_of[at(network.arcs[arc].dst)];
    if (src != dst && (leaving ? src : dst) >= 0) found.push_back(static_cast<int>(arc));
  }
  return found;
}

std::vector<char> Partition::side(int part) const {
  std::vector<char> side(part_of.size());
  std::transform(part_of.begin(), part_of.end(), side.begin(),
                 [part](int other) { return static_cast<char>(other == part ? 1 : 0); });
  return side;
}

std::vector<Partition> natural_partitions(const Network& network) {
  std::vector<Partition> found;
  const auto add = [&](Partition partition) {
    const auto same = [&](const Partition& other) { return other.part_of == partition.part_of; };
    if (partition.parts >= 2 && std::none_of(found.begin(), found.end(), same)) {
      found.push_back(std::move(partition));
    }
  };
  add(from_labels(network, own_labels(network)));
  std::vector<std::vector<int>> chains;
  std::size_t depth = 0;
  for (int node = 0; node < network.num_nodes(); ++node) {
    chains.push_back(containers(network.topology, network.node_of[at(node)]));
    depth = std::max(depth, chains.back().size());
  }
  for (std::size_t level = 0; level + 1 < depth; ++level) {
    std::vector<int> labels;
    for (const std::vector<int>& chain : chains) {
      labels.push_back(chain[std::min(level, chain.size() - 1)]);
    }
    add(from_labels(network, labels));
  }
  std::ranges::for_each(machines_taken_apart(network, chains), add);
  add(by_switches(network));
  add(from_sets(network, tight_sets(network)));
  return found;
}

std::optional<Partition> wanting_partition(const Network& network,
                                           const std::vector<double>& carried, double rate,
                                           bool leaving) {
  const int source = network.num_nodes();
  const int sink = source + 1;
  MaxFlow flow(sink + 1);
  double plenty = rate;
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    const Network::Arc& ends = network.arcs[arc];
    const double gb_s = std::min(carried[arc], network.total);  // or rounding hides the rest
    flow.add_arc(leaving ? ends.dst : ends.src, leaving ? ends.src : ends.dst, gb_s);
    plenty += gb_s;
  }
  plenty *= 4;
  // A set of terminals lacks 2·rate less what enters it and its switches. Terminal by terminal: the
  // least that a set with the newest has beyond what those before it already account for.
  std::vector<int> stay_out, stay_in;
  for (const int node : network.terminals) {
    stay_out.push_back(flow.add_arc(source, node, plenty));
    stay_in.push_back(flow.add_arc(node, sink, 0));
  }
  DisjointSets sets(at(network.num_nodes()));
  std::vector<int> label = own_labels(network);  // of switches: a terminal that has them
  double positive = 0;
  for (std::size_t i = 0; i < network.terminals.size(); ++i) {
    const int terminal = network.terminals[i];
    flow.set_capacity(stay_out[i], 0);
    flow.set_capacity(stay_in[i], plenty);
    const double worth = flow.solve(source, sink) - positive - 2 * rate;
    const Side side = flow.sink_side();
    for (int node = 0; node < network.num_nodes(); ++node) {
      if (side[at(node)] == 0) continue;
      if (network.is_terminal(node)) {
        sets.join(node, terminal);
      } else {
        label[at(node)] = terminal;
      }
    }
    flow.set_capacity(stay_out[i], std::max(0.0, -worth));
    flow.set_capacity(stay_in[i], std::max(0.0, worth));
    positive += std::max(0.0, worth);
  }
  const std::vector<int> joined = sets.sets();
  for (int& of : label) of = joined[at(of)];
  Partition partition = from_labels(network, label);
  double moved = 0;
  for (const int arc : partition.arcs(network, leaving)) moved += carried[at(arc)];
  constexpr double kWanting = 1 - 1e-6;
  if (partition.parts < 2 || moved >= kWanting * partition.messages() * rate) return std::nullopt;
  return partition;
}

}  // namespace chorus::bounds
