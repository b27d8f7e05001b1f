#include "model/bounds/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "base/index.hpp"
#include "model/schedule/ways.hpp"

namespace chorus::bounds {
namespace {

constexpr std::size_t kMostAlone = 128;  // terminals that are looked at one by one

/// GB/s, or 0 for "no limit". Takes back the rounding of 1/x where x was a round figure, so that
/// sums of capacities are exact.
double capacity_of(double beta_s_per_byte) {
  if (beta_s_per_byte <= 0) return 0;
  const double gb_s = 1e-9 / beta_s_per_byte;
  const double round = std::round(gb_s * 1e6) / 1e6;
  return std::abs(round - gb_s) <= 1e-13 * gb_s ? round : gb_s;
}

std::string names_of(const Network& network, const std::vector<int>& nodes) {
  constexpr std::size_t kAll = 4;
  const auto name = [&](int node) { return network.topology.nodes[at(node)].name; };
  if (nodes.size() <= kAll) {
    std::string text;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      text += (i == 0 ? "" : i + 1 == nodes.size() ? " and " : ", ") + name(nodes[i]);
    }
    return text;
  }
  return fmt::format("{} nodes {}, {} … {}", nodes.size(), name(nodes[0]), name(nodes[1]),
                     name(nodes.back()));
}

/// "6 nvlink and 1 pcie"
std::string types_of(const Network& network, const std::vector<int>& arcs) {
  std::map<std::string, int> count;
  for (const int arc : arcs) ++count[network.topology.links[at(arc)].type];
  std::string text;
  for (const auto& [type, number] : count) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : " and ", number, type.empty() ? "links" : type);
  }
  return text.empty() ? "no links" : text;
}

std::string group_names(const Network& network, const std::vector<int>& groups) {
  constexpr std::size_t kAll = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kAll); ++i) {
    text +=
        fmt::format("{}'{}'", i == 0 ? "" : ", ", network.topology.port_groups[at(groups[i])].name);
  }
  if (groups.size() > kAll) text += fmt::format(" and {} more", groups.size() - kAll);
  return text;
}

}  // namespace

Side turned(Side side) {
  for (char& one : side) one = static_cast<char>(one == 0 ? 1 : 0);
  return side;
}

Network::Network(const Topology& t, Direction d) : topology(t), direction(d) {
  Ways ways(t);
  double sum = 1;
  for (std::size_t link = 0; link < t.links.size(); ++link) {
    arcs.push_back({ways.src[link], ways.dst[link], capacity_of(t.links[link].beta_s_per_byte)});
    if (d == Direction::reversed) std::swap(arcs.back().src, arcs.back().dst);
    sum += arcs.back().capacity;
  }
  for (const Topology::PortGroup& group : t.port_groups) {
    groups.push_back({group.links, capacity_of(group.beta_s_per_byte)});
    std::vector<int>& members = groups.back().arcs;
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    sum += groups.back().capacity;
  }
  total = sum;
  unlimited = 1e5 * sum;
  for (Arc& arc : arcs) {
    if (arc.capacity <= 0) arc.capacity = unlimited;
  }
  for (Group& group : groups) {
    if (group.capacity <= 0) group.capacity = unlimited;
    for (const int arc : group.arcs) {
      arcs[at(arc)].capacity = std::min(arcs[at(arc)].capacity, group.capacity);
    }
  }
  node_of = std::move(ways.node_of);
  arriving = std::move(ways.arriving);
  ranks_on.resize(node_of.size());
  for (Rank rank = 0; rank < t.world_size(); ++rank) {
    ranks_on[at(t.rank_nodes[at(rank)])].push_back(rank);
  }
  for (int node = 0; node < num_nodes(); ++node) {
    if (is_terminal(node)) terminals.push_back(node);
  }
  representatives = terminals;
  if (terminals.size() <= kMostAlone) return;
  Repetition found = repetition_of(t);
  if (found.cells.count() == 1) return;
  repetition = std::move(found);
  std::erase_if(representatives, [&](int node) {
    return std::none_of(ranks_on[at(node)].begin(), ranks_on[at(node)].end(),
                        [&](Rank rank) { return rank < repetition->cells.size(); });
  });
}

bool Network::plain() const {
  if (!groups.empty()) return false;
  std::vector<double> in(ranks_on.size(), 0), out(ranks_on.size(), 0);
  for (const Arc& arc : arcs) {
    out[at(arc.src)] += arc.capacity;
    in[at(arc.dst)] += arc.capacity;
  }
  for (int node = 0; node < num_nodes(); ++node) {
    if (is_terminal(node)) continue;
    if (std::abs(in[at(node)] - out[at(node)]) > 1e-9 * in[at(node)]) return false;
  }
  return true;
}

std::vector<int> Network::arcs_across(const std::vector<char>& side) const {
  std::vector<int> across;
  for (std::size_t arc = 0; arc < arcs.size(); ++arc) {
    if (side[at(arcs[arc].src)] != 0 && side[at(arcs[arc].dst)] == 0) {
      across.push_back(static_cast<int>(arc));
    }
  }
  return across;
}

int Network::moved(int node, const Automorphism& automorphism) const {
  const int image = automorphism.nodes[at(node_of[at(node)])];
  return node_of[at(node)] == node ? image : arriving[at(image)];
}

double Network::crossing(const std::vector<int>& across) const {
  std::vector<char> left(arcs.size(), 0);
  for (const int arc : across) left[at(arc)] = 1;
  double sum = 0;
  for (const Group& group : groups) {
    double members = 0;
    for (const int arc : group.arcs) {
      if (std::exchange(left[at(arc)], 0) != 0) members += arcs[at(arc)].capacity;
    }
    sum += std::min(members, group.capacity);
  }
  for (const int arc : across) {
    if (left[at(arc)] != 0) sum += arcs[at(arc)].capacity;
  }
  return sum;
}

double Network::crossing(const std::vector<char>& side) const {
  return crossing(arcs_across(side));
}

std::string describe(const Network& network, const Rate& rate) {
  std::string text = rate.words;
  double gb_s = 0;
  if (!rate.side.empty()) {
    std::vector<int> inside, outside;
    for (const int node : network.terminals) {
      (rate.side[at(node)] != 0 ? inside : outside).push_back(node);
    }
    // The network may be reversed; the words speak of the links as they are.
    const bool inwards = outside.size() <= inside.size();
    const bool forward = network.direction == Direction::forward;
    text +=
        (inwards == forward ? "into " : "out of ") + names_of(network, inwards ? outside : inside);
    gb_s = network.crossing(rate.side);
  } else {
    gb_s = network.crossing(rate.arcs);
  }
  text += fmt::format("{}{}, {:.6g} GB/s", text.empty() ? "" : ": ", types_of(network, rate.arcs),
                      gb_s);
  if (!rate.groups.empty()) text += ", limited by port group " + group_names(network, rate.groups);
  return text;
}

}  // namespace chorus::bounds
