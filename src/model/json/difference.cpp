// How one topology differs from another, in words.
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "base/counted.hpp"
#include "model/json/json.hpp"

namespace chorus {
namespace {

std::string figures(const Topology::Link& link) {
  return link.beta_s_per_byte > 0 ? fmt::format("{:.6g} GB/s with {:.4g} us",
                                                1e-9 / link.beta_s_per_byte, link.alpha_s * 1e6)
                                  : fmt::format("{:.4g} us", link.alpha_s * 1e6);
}

/// The links by the names of their ends and their number among those with the same ends.
auto by_name(const Topology& topology) {
  std::map<std::pair<std::string, int>, const Topology::Link*> links;
  std::map<std::string, int> count;
  for (const Topology::Link& link : topology.links) {
    const std::string ends =
        fmt::format("{} -> {}", topology.nodes[static_cast<std::size_t>(link.src)].name,
                    topology.nodes[static_cast<std::size_t>(link.dst)].name);
    links[{ends, count[ends]++}] = &link;
  }
  return links;
}

}  // namespace

std::string difference(const Topology& topology, const Topology& other) {
  if (topology.nodes.empty()) {
    return fmt::format("the first was not kept, the other is '{}' with fingerprint {}", other.name,
                       fingerprint(other));
  }
  if (fingerprint(topology) == fingerprint(other)) return "nothing";
  if (topology.world_size() != other.world_size()) {
    return fmt::format("'{}' has {}, '{}' has {}", topology.name,
                       counted(topology.world_size(), "rank"), other.name, other.world_size());
  }
  const auto mine = by_name(topology);
  const auto theirs = by_name(other);
  for (const auto& [ends, link] : mine) {
    const auto twin = theirs.find(ends);
    if (twin == theirs.end()) {
      return fmt::format("'{}' has a link {} that '{}' lacks", topology.name, ends.first,
                         other.name);
    }
    if (link->alpha_s != twin->second->alpha_s ||
        link->beta_s_per_byte != twin->second->beta_s_per_byte) {
      return fmt::format("the link {} has {} in '{}' and {} in '{}'", ends.first, figures(*link),
                         topology.name, figures(*twin->second), other.name);
    }
  }
  for (const auto& [ends, link] : theirs) {
    if (mine.contains(ends)) continue;
    return fmt::format("'{}' has a link {} that '{}' lacks", other.name, ends.first, topology.name);
  }
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    const auto node_of = [rank](const Topology& t) {
      return t.nodes[static_cast<std::size_t>(t.rank_nodes[static_cast<std::size_t>(rank)])].name;
    };
    if (node_of(topology) == node_of(other)) continue;
    return fmt::format("rank {} sits on {} in '{}' and on {} in '{}'", rank, node_of(topology),
                       topology.name, node_of(other), other.name);
  }
  return fmt::format("the nodes or port groups of '{}' are not those of '{}'", topology.name,
                     other.name);
}

}  // namespace chorus
