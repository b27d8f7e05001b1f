// What is missing or slower than it was built: faults as names give them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "topology/catalog/spec.hpp"

namespace chorus {
namespace {

/// Where a cable ends, and whether only the direction from `a` to `b` is meant.
struct NamedCable {
  int a = 0;
  int b = 0;
  bool one_way = false;

  [[nodiscard]] bool is(const Topology::Link& link) const {
    return (link.src == a && link.dst == b) || (!one_way && link.src == b && link.dst == a);
  }
};

class Faults {
 public:
  Faults(Topology topology, const Spec& spec) : topology_(std::move(topology)), spec_(spec) {
    keep_node_.assign(topology_.nodes.size(), 1);
    keep_link_.assign(topology_.links.size(), 1);
  }

  void apply(const Spec::Option& fault) {
    if (fault.key == "without") {
      remove(node(fault.value, fault.value_at));
    } else if (fault.key == "cut") {
      const NamedCable cut = cable(fault.value, fault.value_at);
      for (std::size_t i = 0; i < topology_.links.size(); ++i) {
        if (cut.is(topology_.links[i])) keep_link_[i] = 0;
      }
    } else {
      slow(fault);
    }
  }

  Topology take() {
    if (std::ranges::none_of(topology_.rank_nodes, [&](int node) { return kept(node); })) {
      spec_.fail(spec_.begin_at, "no rank is left");
    }
    renumber();
    return std::move(topology_);
  }

 private:
  [[nodiscard]] bool kept(int node) const {
    return keep_node_[static_cast<std::size_t>(node)] != 0;
  }

  [[nodiscard]] std::optional<int> find(std::string_view name) const {
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      if (topology_.nodes[i].name == name) return static_cast<int>(i);
    }
    return std::nullopt;
  }

  [[nodiscard]] int node(std::string_view name, std::size_t at) const {
    if (const auto found = find(name)) return *found;
    std::vector<std::string_view> names;
    for (const Topology::Node& node : topology_.nodes) names.emplace_back(node.name);
    spec_.fail(at, fmt::format("no node is called '{}'; {}`chorus topo` lists them", name,
                               hint(name, names)));
  }

  /// "A-B", or "A>B" for one direction. Names of nodes may have a '-' of their own.
  [[nodiscard]] NamedCable cable(std::string_view text, std::size_t at) const {
    NamedCable cable;
    std::size_t split = text.find('>');
    cable.one_way = split != std::string_view::npos;
    for (std::size_t dash = text.find('-'); !cable.one_way && dash != std::string_view::npos;
         dash = text.find('-', dash + 1)) {
      const bool both = find(text.substr(0, dash)) && find(text.substr(dash + 1));
      if (split == std::string_view::npos || both) split = dash;
      if (both) break;
    }
    if (split == std::string_view::npos) {
      spec_.fail(at, "expected the two ends of a cable, as in host0/gpu1-host0/gpu5");
    }
    cable.a = node(text.substr(0, split), at);
    cable.b = node(text.substr(split + 1), at + split + 1);
    if (std::ranges::none_of(topology_.links, [&](const auto& link) { return cable.is(link); })) {
      spec_.fail(at, fmt::format("no cable joins {} and {}", text.substr(0, split),
                                 text.substr(split + 1)));
    }
    return cable;
  }

  /// The node and all that it contains.
  void remove(int gone) {
    keep_node_[static_cast<std::size_t>(gone)] = 0;
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      if (topology_.nodes[i].parent == gone && keep_node_[i] != 0) remove(static_cast<int>(i));
    }
  }

  void slow(const Spec::Option& fault) {
    const std::size_t colon = fault.value.rfind(':');
    const std::string figure = fault.value.substr(colon + 1);
    char* end = nullptr;
    const double share = std::strtod(figure.c_str(), &end);
    const bool plain = !figure.empty() && *end == '\0' &&
                       figure.find_first_not_of("0123456789.e-") == std::string::npos;
    if (!plain || !(share >= 1e-6) || share > 1) {
      spec_.fail(fault.value_at + colon + 1,
                 fmt::format("what is left of the rate must be a share from 0.000001 to 1, not {}",
                             figure.empty() ? "nothing" : figure));
    }
    const std::string what = fault.value.substr(0, colon);
    const auto slower = [&](auto& thing) { thing.beta_s_per_byte /= share; };
    if (const auto whole = find(what)) {
      const auto touches = [&](int link) {
        const Topology::Link& cable = topology_.links[static_cast<std::size_t>(link)];
        return cable.src == *whole || cable.dst == *whole;
      };
      for (std::size_t i = 0; i < topology_.links.size(); ++i) {
        if (touches(static_cast<int>(i))) slower(declared(topology_.links[i]));
      }
      for (Topology::PortGroup& group : topology_.port_groups) {
        if (std::ranges::all_of(group.links, touches)) slower(group);
      }
      return;
    }
    if (what.find_first_of("->") == std::string::npos) (void)node(what, fault.value_at);
    const NamedCable slowed = cable(what, fault.value_at);
    for (Topology::Link& link : topology_.links) {
      if (slowed.is(link)) slower(declared(link));
    }
  }

  static Topology::Link& declared(Topology::Link& link) {
    link.provenance = Provenance::declared;
    return link;
  }

  void renumber() {
    std::vector<int> new_node(topology_.nodes.size(), -1);
    std::vector<Topology::Node> nodes;
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      if (keep_node_[i] == 0) continue;
      new_node[i] = static_cast<int>(nodes.size());
      nodes.push_back(std::move(topology_.nodes[i]));
    }
    const auto number = [&](int node) { return new_node[static_cast<std::size_t>(node)]; };
    for (Topology::Node& node : nodes) {
      if (node.parent >= 0) node.parent = number(node.parent);
    }
    std::vector<int> new_link(topology_.links.size(), -1);
    std::vector<Topology::Link> links;
    for (std::size_t i = 0; i < topology_.links.size(); ++i) {
      Topology::Link& link = topology_.links[i];
      if (keep_link_[i] == 0 || !kept(link.src) || !kept(link.dst)) continue;
      new_link[i] = static_cast<int>(links.size());
      link.src = number(link.src);
      link.dst = number(link.dst);
      links.push_back(std::move(link));
    }
    for (Topology::PortGroup& group : topology_.port_groups) {
      for (int& link : group.links) link = new_link[static_cast<std::size_t>(link)];
      std::erase(group.links, -1);
    }
    std::erase_if(topology_.port_groups, [](const auto& group) { return group.links.empty(); });
    std::erase_if(topology_.rank_nodes, [&](int node) { return !kept(node); });
    for (int& node : topology_.rank_nodes) node = number(node);
    topology_.nodes = std::move(nodes);
    topology_.links = std::move(links);
  }

  Topology topology_;
  const Spec& spec_;
  std::vector<char> keep_node_, keep_link_;
};

}  // namespace

Topology with_faults(Topology topology, std::span<const Spec> specs) {
  if (std::ranges::all_of(specs, [](const Spec& spec) { return spec.faults.empty(); })) {
    return topology;
  }
  Faults faults(std::move(topology), specs.front());
  for (const Spec& spec : specs) {
    for (const Spec::Option& fault : spec.faults) faults.apply(fault);
  }
  return faults.take();
}

}  // namespace chorus
