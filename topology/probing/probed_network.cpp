#include "topology/probing/probed_network.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/host_memory.hpp"
#include "topology/discover/rates.hpp"
#include "topology/probing/declared_host.hpp"
#include "topology/probing/several_networks.hpp"

namespace chorus::probing {
namespace {

std::string rates_text(double out, double in) {
  if (out == in) return fmt::format("{:.1f} MB/s", out * 1e-6);
  return fmt::format("{:.1f} MB/s out, {:.1f} in", out * 1e-6, in * 1e-6);
}

}  // namespace

std::string title_of(const ProbedNetwork& network, std::size_t hosts) {
  return fmt::format("{}, {}", counted(static_cast<long>(hosts), "host"),
                     network.provenance == Provenance::measured ? "probed" : "described");
}

Wire wire_of(const ProbedNetwork& network, double bytes_per_s, double alpha_s,
             std::string_view type) {
  return {bytes_per_s * 1e-9, alpha_s * 1e6, type, network.provenance};
}

int add_host(TopologyBuilder& builder, const ProbedNetwork& network, const HostPart& part,
             double out, double in, std::vector<int>& rank_nodes) {
  if (part.declared != nullptr) {
    return add_declared_host(builder, network, part, out, in, rank_nodes);
  }
  const std::string& name = network.hosts[at(part.host)];
  const int host = builder.node(name, NodeKind::host);
  std::vector<std::string> names;
  for (const Rank rank : part.ranks) names.push_back(fmt::format("{}/rank{}", name, rank));
  const HostNodes nodes = add_memory(builder, name, host, names, part.memory);
  for (std::size_t i = 0; i < part.ranks.size(); ++i) {
    rank_nodes[at(part.ranks[i])] = nodes.ranks[i];
  }
  const Adapter nic =
      add_adapter(builder, name, nodes, part.memory, wire_of(network, out, 0, "sockets"),
                  wire_of(network, in, 0, "sockets"));
  builder.group(name + "/sockets", {nic.to, nic.from}, (out + in) * 1e-9,
                loopback_of(part.memory.rates).message_s * 1e6 / part.memory.cores);
  return nic.node;
}

double cable_alpha_s(const ProbedNetwork& network, const HostPart& part) {
  const double measured_s = at(part.host) < network.cable_alpha_s.size()
                                ? network.cable_alpha_s[at(part.host)]
                                : kEthernetPathUs * 1e-6 / 2;
  if (part.declared != nullptr) return measured_s;  // the cable's alone
  return std::max(0.0, measured_s - pair_at(part.memory.rates, span_of(part.memory.places)).line_s);
}

// Coordinate descent: each figure in turn becomes what its pairs leave over, on average.
void fit_latencies(ProbedNetwork& network, std::span<const PairLatency> pairs) {
  const auto n = network.hosts.size();
  const auto& groups = network.tree.groups;
  std::vector<double> figures(n + groups.size(), 0);
  std::vector<std::vector<std::size_t>> ways;
  std::vector<std::vector<std::size_t>> users(figures.size());
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    std::vector<std::size_t> way = {at(pairs[p].a), at(pairs[p].b)};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (holds(groups[g].hosts, pairs[p].a) != holds(groups[g].hosts, pairs[p].b)) {
        way.push_back(n + g);
      }
    }
    for (const std::size_t figure : way) users[figure].push_back(p);
    ways.push_back(std::move(way));
  }
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < figures.size(); ++i) {
      if (users[i].empty()) continue;
      double rest = 0;
      for (const std::size_t p : users[i]) {
        rest += pairs[p].alpha_s;
        for (const std::size_t other : ways[p]) rest -= other == i ? 0 : figures[other];
      }
      figures[i] = std::max(0.0, rest / static_cast<double>(users[i].size()));
    }
  }
  const auto middle = figures.begin() + static_cast<std::ptrdiff_t>(n);
  network.cable_alpha_s.assign(figures.begin(), middle);
  network.trunk_alpha_s.assign(middle, figures.end());
}

Topology topology_of(const ProbedNetwork& network, std::span<const HostPart> parts) {
  if (!network.further.empty()) return topology_of_several(network, parts);
  const HostTree& tree = network.tree;
  std::size_t ranks = 0;
  for (const HostPart& part : parts) ranks += part.ranks.size();
  std::vector<int> rank_nodes(ranks, -1);
  TopologyBuilder builder(title_of(network, parts.size()));
  const int top = builder.node("network", NodeKind::network_switch);

  // A switch for each group, the larger first so that what hangs below exists.
  const std::vector<int> parents = tree.parents();
  std::vector<std::size_t> order(tree.groups.size());
  for (std::size_t g = 0; g < order.size(); ++g) order[g] = g;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tree.groups[a].hosts.size() > tree.groups[b].hosts.size();
  });
  std::vector<int> switches(tree.groups.size(), top);
  std::vector<int> to_top;
  int number = 0;
  for (const std::size_t g : order) {
    const HostTree::Group& group = tree.groups[g];
    const bool used = std::any_of(parts.begin(), parts.end(), [&](const HostPart& part) {
      return holds(group.hosts, part.host);
    });
    if (!used) continue;
    const int above = parents[g] < 0 ? top : switches[at(parents[g])];
    switches[g] = builder.node(fmt::format("switch{}", number++), NodeKind::network_switch);
    const double alpha_s = g < network.trunk_alpha_s.size() ? network.trunk_alpha_s[g] : 0;
    const int up =
        builder.one_way(switches[g], above, wire_of(network, group.out, alpha_s, "trunk"));
    builder.one_way(above, switches[g], wire_of(network, group.in, alpha_s, "trunk"));
    if (above == top) to_top.push_back(up);
  }
  const std::vector<int> group_of = tree.group_of_hosts();
  for (const HostPart& part : parts) {
    const int nic = add_host(builder, network, part, tree.out[at(part.host)],
                             tree.in[at(part.host)], rank_nodes);
    const int group = group_of[at(part.host)];
    const int above = group < 0 ? top : switches[at(group)];
    const double alpha_s = cable_alpha_s(network, part);
    const int up =
        builder.one_way(nic, above, wire_of(network, tree.out[at(part.host)], alpha_s, "ethernet"));
    builder.one_way(above, nic, wire_of(network, tree.in[at(part.host)], alpha_s, "ethernet"));
    if (above == top) to_top.push_back(up);
  }
  if (tree.core > 0 && to_top.size() > 1) {
    builder.group("network/core", std::move(to_top), tree.core * 1e-9);
  }
  for (const int node : rank_nodes) builder.rank(node);
  return sound(builder.take(), "the probed network");
}

ProbedNetwork restricted(const ProbedNetwork& network, const std::vector<std::string>& hosts) {
  ProbedNetwork part;
  part.name = network.name;
  part.hosts = hosts;
  part.measured_at_s = network.measured_at_s;
  part.provenance = network.provenance;
  part.tree.core = network.tree.core;
  std::vector<int> index(network.hosts.size(), -1);  // in `part`, by host of `network`
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto found = std::find(network.hosts.begin(), network.hosts.end(), hosts[i]);
    if (found == network.hosts.end()) {
      throw InputError(fmt::format("host {} was not probed", hosts[i]));
    }
    const auto h = static_cast<std::size_t>(found - network.hosts.begin());
    index[h] = static_cast<int>(i);
    part.tree.out.push_back(network.tree.out[h]);
    part.tree.in.push_back(network.tree.in[h]);
    part.cable_alpha_s.push_back(network.cable_alpha_s[h]);
  }
  for (std::size_t g = 0; g < network.tree.groups.size(); ++g) {
    HostTree::Group group = network.tree.groups[g];
    std::vector<int> members;
    for (const int host : group.hosts) {
      if (index[at(host)] >= 0) members.push_back(index[at(host)]);
    }
    std::sort(members.begin(), members.end());
    // A trunk with everybody on one side is not crossed.
    if (members.empty() || members.size() == hosts.size()) continue;
    if (2 * members.size() > hosts.size()) {
      std::vector<int> others;
      for (int h = 0; h < static_cast<int>(hosts.size()); ++h) {
        if (!holds(members, h)) others.push_back(h);
      }
      members = std::move(others);
      std::swap(group.out, group.in);
    }
    group.hosts = std::move(members);
    const auto same =
        std::find_if(part.tree.groups.begin(), part.tree.groups.end(),
                     [&](const HostTree::Group& other) { return other.hosts == group.hosts; });
    if (same != part.tree.groups.end()) {  // two trunks in a row: the slower one counts
      same->out = std::min(same->out, group.out);
      same->in = std::min(same->in, group.in);
      part.trunk_alpha_s[static_cast<std::size_t>(same - part.tree.groups.begin())] +=
          network.trunk_alpha_s[g];
      continue;
    }
    part.tree.groups.push_back(std::move(group));
    part.trunk_alpha_s.push_back(network.trunk_alpha_s[g]);
  }
  for (const ProbedNetwork& further : network.further) {
    std::vector<std::string> joined;
    for (const std::string& host : hosts) {
      if (std::ranges::find(further.hosts, host) != further.hosts.end()) joined.push_back(host);
    }
    if (joined.size() > 1) part.further.push_back(restricted(further, joined));
  }
  return part;
}

std::string describe(const ProbedNetwork& network) {
  const HostTree& tree = network.tree;
  std::string text;
  if (!network.further.empty()) text += "network of all hosts\n";
  if (!network.name.empty()) text += fmt::format("network {}\n", network.name);
  std::size_t width = 0;
  for (const std::string& host : network.hosts) width = std::max(width, host.size());
  for (std::size_t h = 0; h < network.hosts.size(); ++h) {
    text += fmt::format("  host   {:<{}}  {}\n", network.hosts[h], width,
                        rates_text(tree.out[h], tree.in[h]));
  }
  for (const HostTree::Group& group : tree.groups) {
    std::string names;
    for (const int host : group.hosts) names += " " + network.hosts[at(host)];
    text += fmt::format("  trunk  {} to{} and back\n", rates_text(group.out, group.in), names);
  }
  if (tree.core > 0) {
    text += fmt::format("  core   {:.1f} MB/s in all\n", tree.core * 1e-6);
  }
  if (tree.groups.empty() && tree.core <= 0) text += "  no trunk limits them further\n";
  for (const ProbedNetwork& further : network.further) text += describe(further);
  return text;
}

}  // namespace chorus::probing
