// Fingerprints of topologies and plans, and whether a topology is sound.
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <unordered_set>

#include "base/hash.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/json/names.hpp"

namespace chorus {
namespace {

/// FNV-1a over fields in a fixed order. Every sequence is preceded by
/// its length, so no two values spell the same bytes.
class Hasher {
 public:
  void add(std::string_view text) {
    add(text.size());
    hash_.bytes(text);
  }
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) hash_.byte(static_cast<std::uint8_t>(number >> (8 * i)));
  }
  void add(int number) { add(static_cast<std::uint64_t>(static_cast<std::int64_t>(number))); }
  void add(double number) {
    add(std::bit_cast<std::uint64_t>(number == 0 ? 0.0 : number));  // -0 equals 0
  }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", hash_.value()); }

 private:
  Fnv1a hash_;
};

void add(Hasher& hasher, const Schedule& schedule) {
  hasher.add(schedule.name);
  hasher.add(static_cast<int>(schedule.collective.kind));
  hasher.add(schedule.collective.root);
  hasher.add(schedule.world_size);
  hasher.add(schedule.num_chunks);
  if (!schedule.symmetry.empty()) {
    hasher.add(-1);  // no number of steps
    for (const int radix : schedule.symmetry) hasher.add(radix);
  }
  hasher.add(schedule.steps.size());
  for (const Step& step : schedule.steps) {
    hasher.add(step.size());
    for (const Transfer& transfer : step) {
      hasher.add(transfer.src);
      hasher.add(transfer.dst);
      hasher.add(transfer.chunk);
      hasher.add(static_cast<int>(transfer.action));
    }
  }
}

using Fault = std::optional<std::string>;

bool out_of(int index, std::size_t size) { return index < 0 || index >= static_cast<int>(size); }

bool bad_figure(double figure, double most) { return !(figure >= 0 && figure <= most); }

Fault bad_nodes(const Topology& topology) {
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    const Topology::Node& node = topology.nodes[i];
    if (node.name.empty()) return fmt::format("node {} has no name", i);
    if (!names.insert(node.name).second) return fmt::format("two nodes are named '{}'", node.name);
    if (static_cast<std::size_t>(node.kind) >= kNodeKindNames.size()) {
      return fmt::format("node '{}' is of unknown kind {}", node.name, static_cast<int>(node.kind));
    }
    if (node.parent != -1 && out_of(node.parent, topology.nodes.size())) {
      return fmt::format("node '{}' has parent {}, but there are {} nodes", node.name, node.parent,
                         topology.nodes.size());
    }
  }
  return std::nullopt;
}

/// Nodes lie within others: not within themselves, and not deeper than any machine is built.
Fault bad_parents(const Topology& topology) {
  constexpr int kMostDepth = 64;
  std::vector<int> depth(topology.nodes.size(), -1);  // of those that are known
  for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
    int above = 0;
    int at = static_cast<int>(i);
    for (; at != -1 && depth[at] < 0; at = topology.nodes[at].parent) {
      if (++above > kMostDepth) break;
    }
    if (at != -1 && depth[at] >= 0) above += depth[at];
    if (above > kMostDepth) {
      return fmt::format(
          "node '{}' lies within more than {} others, or contains itself through its "
          "parents",
          topology.nodes[i].name, kMostDepth);
    }
    for (at = static_cast<int>(i); at != -1 && depth[at] < 0; at = topology.nodes[at].parent) {
      depth[at] = above--;
    }
  }
  return std::nullopt;
}

Fault bad_link(const Topology& topology, const Topology::Link& link) {
  for (const int end : {link.src, link.dst}) {
    if (out_of(end, topology.nodes.size())) {
      return fmt::format("node {} is not in [0, {})", end, topology.nodes.size());
    }
  }
  if (link.src == link.dst) {
    return fmt::format("it leads from '{}' to itself", topology.nodes[link.src].name);
  }
  if (bad_figure(link.alpha_s, kMostLinkSeconds)) return fmt::format("alpha_s is {}", link.alpha_s);
  if (bad_figure(link.beta_s_per_byte, kMostLinkSecondsPerByte)) {
    return fmt::format("beta_s_per_byte is {}", link.beta_s_per_byte);
  }
  if (static_cast<std::size_t>(link.provenance) >= kProvenanceNames.size()) {
    return fmt::format("provenance {} is unknown", static_cast<int>(link.provenance));
  }
  return std::nullopt;
}

Fault bad_group(const Topology& topology, const Topology::PortGroup& group) {
  if (bad_figure(group.beta_s_per_byte, kMostLinkSecondsPerByte)) {
    return fmt::format("beta_s_per_byte is {}", group.beta_s_per_byte);
  }
  if (bad_figure(group.message_s, kMostLinkSeconds))
    return fmt::format("message_s is {}", group.message_s);
  std::unordered_set<int> seen;
  for (const int link : group.links) {
    if (out_of(link, topology.links.size())) {
      return fmt::format("link {} is not in [0, {})", link, topology.links.size());
    }
    if (!seen.insert(link).second) return fmt::format("link {} is in it twice", link);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> malformed(const Topology& topology) {
  if (Fault fault = bad_nodes(topology)) return fault;
  if (Fault fault = bad_parents(topology)) return fault;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    if (Fault fault = bad_link(topology, topology.links[i])) {
      return fmt::format("link {}: {}", i, *fault);
    }
  }
  for (const Topology::PortGroup& group : topology.port_groups) {
    if (Fault fault = bad_group(topology, group)) {
      return fmt::format("port group '{}': {}", group.name, *fault);
    }
  }
  for (std::size_t rank = 0; rank < topology.rank_nodes.size(); ++rank) {
    if (!out_of(topology.rank_nodes[rank], topology.nodes.size())) continue;
    return fmt::format("rank {} sits on node {}, but there are {} nodes", rank,
                       topology.rank_nodes[rank], topology.nodes.size());
  }
  return std::nullopt;
}

Topology sound(Topology topology, std::string_view where) {
  if (const auto fault = malformed(topology)) {
    throw InputError(fmt::format("{}: {}: correct the topology", where, *fault));
  }
  return topology;
}

std::string fingerprint(const Topology& topology) {
  Hasher hasher;
  hasher.add(topology.nodes.size());
  for (const Topology::Node& node : topology.nodes) {
    hasher.add(node.name);
    hasher.add(static_cast<int>(node.kind));
    hasher.add(node.parent);
  }
  hasher.add(topology.links.size());
  for (const Topology::Link& link : topology.links) {
    hasher.add(link.src);
    hasher.add(link.dst);
    hasher.add(link.alpha_s);
    hasher.add(link.beta_s_per_byte);
    hasher.add(link.type);
  }
  hasher.add(topology.port_groups.size());
  for (const Topology::PortGroup& group : topology.port_groups) {
    hasher.add(group.name);
    hasher.add(group.beta_s_per_byte);
    hasher.add(group.message_s);
    hasher.add(group.links.size());
    for (const int link : group.links) hasher.add(link);
  }
  hasher.add(topology.rank_nodes.size());
  for (const int node : topology.rank_nodes) hasher.add(node);
  return hasher.text();
}

std::string fingerprint(const Plan& plan) {
  Hasher hasher;
  hasher.add(plan.topology_fingerprint);
  hasher.add(plan.world_size);
  hasher.add(plan.entries.size());
  for (const PlanEntry& entry : plan.entries) {
    hasher.add(entry.min_bytes);
    hasher.add(entry.max_bytes);
    hasher.add(entry.min_bytes_time_s);
    hasher.add(entry.per_byte_time_s);
    add(hasher, entry.schedule);
  }
  return hasher.text();
}

}  // namespace chorus
