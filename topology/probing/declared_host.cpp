#include "topology/probing/declared_host.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "base/index.hpp"
#include "model/schedule/ways.hpp"
#include "topology/probing/several_networks.hpp"

namespace chorus::probing {
namespace {

class DeclaredHost {
 public:
  DeclaredHost(TopologyBuilder& builder, const ProbedNetwork& network, const HostPart& part)
      : builder_(builder), network_(network), part_(part), ways_(*part.declared) {
    const auto& nodes = declared().nodes;
    leads_out_.assign(nodes.size(), 0);
    for (const Topology::Link& link : declared().links) {
      if (is_inside(link.src) == is_inside(link.dst)) continue;
      const int end = is_inside(link.src) ? link.src : link.dst;
      if (nodes[at(end)].kind == NodeKind::nic) leads_out_[at(end)] = 1;
    }
  }

  /// Returns the adapter.
  int add(double out, double in, std::vector<int>& rank_nodes) {
    add_nodes();
    for (const Rank rank : part_.ranks) {
      rank_nodes[at(rank)] = copies_[at(declared().rank_nodes[at(rank)])];
    }
    const std::string& name = network_.hosts[at(part_.host)];
    adapter_ = builder_.node(name + "/networks", NodeKind::nic, copies_[at(part_.node)]);
    add_links();
    if (!joined_) {  // cables leave from the host itself
      builder_.one_way(copies_[at(part_.node)], adapter_, wire_of(network_, out, 0, "sockets"));
      builder_.one_way(adapter_, copies_[at(part_.node)], wire_of(network_, in, 0, "sockets"));
    }
    return adapter_;
  }

 private:
  [[nodiscard]] const Topology& declared() const { return *part_.declared; }
  [[nodiscard]] bool is_inside(int node) const { return ways_.outermost[at(node)] == part_.node; }

  void add_nodes() {
    const auto& nodes = declared().nodes;
    copies_.assign(nodes.size(), -1);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (!is_inside(static_cast<int>(n)) || leads_out_[n] != 0) continue;
      copies_[n] = builder_.node(nodes[n].name, nodes[n].kind, -1, nodes[n].detail);
    }
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (copies_[n] < 0 || nodes[n].parent < 0) continue;
      const int parent = copies_[at(nodes[n].parent)];
      builder_.place(copies_[n], parent >= 0 ? parent : copies_[at(part_.node)]);
    }
  }

  void add_links() {
    std::map<int, int> copies;  // of links
    std::map<std::pair<int, int>, Wire> to_adapter;
    const auto ends = [&](const Topology::Link& link) {
      return std::pair(copy_of(link.src), copy_of(link.dst));
    };
    for (std::size_t i = 0; i < declared().links.size(); ++i) {
      const Topology::Link& link = declared().links[i];
      if (!is_inside(link.src) || !is_inside(link.dst)) continue;
      const Wire wire{1e-9 / link.beta_s_per_byte, link.alpha_s * 1e6, link.type, link.provenance};
      // Two adapters that were joined are one.
      if (copy_of(link.src) == copy_of(link.dst)) continue;
      if (leads_out_[at(link.src)] == 0 && leads_out_[at(link.dst)] == 0) {
        copies[static_cast<int>(i)] = builder_.one_way(copy_of(link.src), copy_of(link.dst), wire);
      } else if (const auto [known, is_new] = to_adapter.try_emplace(ends(link), wire); !is_new) {
        known->second.gb_s += wire.gb_s;
        known->second.alpha_us = std::min(known->second.alpha_us, wire.alpha_us);
      }
    }
    for (const auto& [nodes, wire] : to_adapter) {
      builder_.one_way(nodes.first, nodes.second, wire);
      joined_ = true;
    }
    for (const Topology::PortGroup& group : declared().port_groups) {
      std::vector<int> links;
      for (const int link : group.links) {
        if (copies.contains(link)) links.push_back(copies.at(link));
      }
      if (links.empty()) continue;
      builder_.group(group.name, std::move(links), 1e-9 / group.beta_s_per_byte,
                     group.message_s * 1e6);
    }
  }

  [[nodiscard]] int copy_of(int node) const {
    return leads_out_[at(node)] != 0 ? adapter_ : copies_[at(node)];
  }

  TopologyBuilder& builder_;
  const ProbedNetwork& network_;
  const HostPart& part_;
  const Ways ways_;
  std::vector<char> leads_out_;  // by node: an adapter with a cable
  std::vector<int> copies_;      // by node
  int adapter_ = -1;
  bool joined_ = false;
};

}  // namespace

int add_declared_host(TopologyBuilder& builder, const ProbedNetwork& network, const HostPart& part,
                      double out, double in, std::vector<int>& rank_nodes) {
  return DeclaredHost(builder, network, part).add(out, in, rank_nodes);
}

}  // namespace chorus::probing
