#include "model/bounds/partitions.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"

namespace chorus::bounds {
namespace {

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
  add(by_switches(network));
  add(from_sets(network, tight_sets(network)));
  return found;
}

std::optional<Partition> merged_partition(const Network& network) {
  constexpr std::size_t kMost = 128;
  const std::size_t n = network.terminals.size();
  if (n < 2 || n > kMost) return std::nullopt;
  Partition now = from_labels(network, own_labels(network));
  std::vector<std::vector<double>> joined(n, std::vector<double>(n, 0));
  double between = 0;
  for (const Network::Arc& arc : network.arcs) {
    const int src = now.part_of[at(arc.src)];
    const int dst = now.part_of[at(arc.dst)];
    if (src < 0 || dst < 0 || src == dst) continue;
    joined[at(src)][at(dst)] += arc.capacity;
    joined[at(dst)][at(src)] += arc.capacity;
    between += arc.capacity;
  }
  std::vector<int> alive(n);
  std::iota(alive.begin(), alive.end(), 0);
  Partition best = now;
  double least = between / static_cast<double>(n - 1);
  while (alive.size() > 2) {
    std::pair<int, int> pair(alive[0], alive[1]);
    for (const int a : alive) {
      for (const int b : alive) {
        if (a < b && joined[at(a)][at(b)] > joined[at(pair.first)][at(pair.second)]) pair = {a, b};
      }
    }
    const auto [into, gone] = pair;
    between -= joined[at(into)][at(gone)];
    for (const int other : alive) {
      if (other == into || other == gone) continue;
      joined[at(into)][at(other)] += joined[at(gone)][at(other)];
      joined[at(other)][at(into)] = joined[at(into)][at(other)];
    }
    std::erase(alive, gone);
    for (int& part : now.part_of) {
      if (part == gone) part = into;
    }
    const double ratio = between / static_cast<double>(alive.size() - 1);
    if (ratio >= least * (1 - 1e-9)) continue;
    least = ratio;
    best = now;
    best.parts = static_cast<int>(alive.size());
  }
  std::map<int, int> numbers;
  for (int& part : best.part_of) {
    if (part >= 0) part = numbers.try_emplace(part, static_cast<int>(numbers.size())).first->second;
  }
  return best;
}

}  // namespace chorus::bounds
