// Sketches that follow from a network alone.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/sketch.hpp"
#include "synth/sketch/logical.hpp"
#include "synth/sketch/symmetry.hpp"

namespace chorus::synth {
namespace {

/// For each local rank of the first host what all of its ways to other hosts cross.
std::vector<std::vector<int>> ways_out(const Network& network, int per_host) {
  std::vector<std::vector<int>> common(at(per_host));
  for (Rank rank = 0; rank < per_host; ++rank) {
    bool is_first = true;
    for (const int e : network.out(rank)) {
      const Edge& edge = network.edges()[at(e)];
      if (edge.dst < per_host) continue;
      if (std::exchange(is_first, false)) {
        common[at(rank)] = edge.resources;
      } else {
        std::erase_if(common[at(rank)], [&](int resource) {
          return std::find(edge.resources.begin(), edge.resources.end(), resource) ==
                 edge.resources.end();
        });
      }
    }
  }
  return common;
}

/// Local ranks in groups that share what leads out of their host (a network card).
std::vector<std::vector<int>> card_groups(const Network& network, int per_host) {
  const std::vector<std::vector<int>> out = ways_out(network, per_host);
  std::vector<int> group(at(per_host));
  std::iota(group.begin(), group.end(), 0);
  std::vector<int> user(network.resources().size(), -1);
  for (Rank rank = 0; rank < per_host; ++rank) {
    for (const int resource : out[at(rank)]) {
      int& first = user[at(resource)];
      if (first < 0) first = rank;
      const int low = std::min(group[at(rank)], group[at(first)]);
      const int high = std::max(group[at(rank)], group[at(first)]);
      std::replace(group.begin(), group.end(), high, low);
    }
  }
  std::vector<std::vector<int>> groups;
  for (int leader = 0; leader < per_host; ++leader) {
    std::vector<int> members;
    for (int rank = 0; rank < per_host; ++rank) {
      if (group[at(rank)] == leader) members.push_back(rank);
    }
    if (!members.empty()) groups.push_back(std::move(members));
  }
  return groups;
}

/// One of each group sends, for all of it, and another receives.
Sketch relayed(const std::vector<std::vector<int>>& groups) {
  Sketch sketch{.name = "relay", .between = HostLinks::listed};
  for (const std::vector<int>& group : groups) {
    sketch.senders[group.front()] = {group.size() > 1 ? group[1] : group[0]};
    sketch.sends_for[group.front()] = group;
  }
  return sketch;
}

bool possible(const Network& network, const Sketch& sketch) {
  try {
    (void)logical_network(network, sketch);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Adds the turns that map the logical topology onto itself: the shortest inside hosts, and by one
/// host, or by as many as it takes.
void add_symmetry(const Network& network, int per_host, Sketch& sketch) {
  const auto add_shortest = [&](int unit, int group) {
    for (int offset = unit; offset < group; offset += unit) {
      if (group % offset != 0) continue;
      Sketch with = sketch;
      with.symmetry.push_back({offset, group});
      if (!possible(network, with)) continue;
      sketch = std::move(with);
      return;
    }
  };
  add_shortest(1, per_host);
  add_shortest(per_host, network.world_size());
}

}  // namespace

std::vector<Sketch> inferred_sketches(const Network& network) {
  const int per_host = ranks_per_host(network);
  std::vector<Sketch> sketches;
  if (per_host < network.world_size()) {
    const std::vector<std::vector<int>> groups = card_groups(network, per_host);
    if (static_cast<int>(groups.size()) < per_host) sketches.push_back(relayed(groups));
    sketches.push_back({.name = "direct", .between = HostLinks::direct});
  }
  sketches.push_back({.name = "all"});
  std::erase_if(sketches, [&](const Sketch& sketch) { return !possible(network, sketch); });
  for (Sketch& sketch : sketches) {
    sketch.hosts = network.world_size() / per_host;
    add_symmetry(network, per_host, sketch);
  }
  return sketches;
}

}  // namespace chorus::synth
