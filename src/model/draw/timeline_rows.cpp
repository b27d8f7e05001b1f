#include "model/draw/timeline_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/index.hpp"
#include "model/price/slow_links.hpp"

namespace chorus {

void Course::add(double begin_s, double end_s, double amount) {
  const double cell_s = seconds_ / kCells;
  const auto cell_at = [&](double time_s) {
    return std::clamp(static_cast<int>(time_s / cell_s), 0, kCells - 1);
  };
  const int first = cell_at(begin_s);
  const int last = cell_at(end_s);
  if (first == last || !(end_s > begin_s)) {
    part_[at(last)] += amount;
    return;
  }
  const double rate = amount / (end_s - begin_s);
  part_[at(first)] += rate * (cell_s * (first + 1) - begin_s);
  part_[at(last)] += rate * (end_s - cell_s * last);
  whole_[at(first + 1)] += rate;
  whole_[at(last)] -= rate;
}

std::vector<double> Course::rates() const {
  std::vector<double> rates(kCells);
  double whole = 0;
  for (int cell = 0; cell < kCells; ++cell) {
    whole += whole_[at(cell)];
    rates[at(cell)] = whole + part_[at(cell)] * kCells / seconds_;
  }
  return rates;
}

namespace {

/// In the order of the picture.
enum class Section { nic, network_switch, port_group, gpu_switch, link };

/// Something with a capacity that transfers share.
struct Resource {
  Section section = Section::link;
  std::string name;
  std::string family;  ///< what it is folded with, besides its rate
  std::string host;
  std::string type;
  double capacity = 0;  ///< bytes per second; infinite: no limit
  double message_s = 0;
  bool slow = false;
  std::vector<int> links;
  double busy_s = 0;
};

std::string kind_name(NodeKind kind) {
  switch (kind) {
    case NodeKind::host:
      return "host";
    case NodeKind::package:
      return "socket";
    case NodeKind::numa:
      return "NUMA node";
    case NodeKind::pcie_bridge:
      return "PCIe switch";
    case NodeKind::gpu:
      return "GPU";
    case NodeKind::nic:
      return "NIC";
    case NodeKind::gpu_switch:
      return "GPU switch";
    case NodeKind::network_switch:
      return "switch";
    case NodeKind::core:
      return "core";
  }
  return "node";
}

int top_of(const Topology& topology, int index) {
  while (topology.nodes[at(index)].parent >= 0) index = topology.nodes[at(index)].parent;
  return index;
}

/// Whether a link leads out of the machine at one of its ends.
bool leaves_host(const Topology& topology, const Topology::Link& link) {
  return top_of(topology, link.src) != top_of(topology, link.dst);
}

/// Finds the resources of a topology and what each transfer takes of them.
class Resources {
 public:
  explicit Resources(const Topology& topology)
      : topology_(topology), slow_(slow_links(topology)), of_link_(topology.links.size()) {
    for (std::size_t n = 0; n < topology.nodes.size(); ++n) add_node(static_cast<int>(n));
    for (const Topology::PortGroup& group : topology.port_groups) add_group(group);
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      if (!is_cable_of_nic(static_cast<int>(i))) add_link(static_cast<int>(i));
    }
    // The picture has adapters first, then switches, and so on.
    std::stable_sort(all.begin(), all.end(),
                     [](const Resource& a, const Resource& b) { return a.section < b.section; });
    for (std::size_t r = 0; r < all.size(); ++r) {
      for (const int link : all[r].links) of_link_[at(link)].push_back(static_cast<int>(r));
    }
  }

  [[nodiscard]] const std::vector<int>& of_link(int link) const { return of_link_[at(link)]; }

  /// Seconds of the resource that one transfer over one of its links takes.
  static double taken_s(const Resource& resource, double bytes, bool opens_message) {
    return bytes / resource.capacity + (opens_message ? resource.message_s : 0);
  }

  std::vector<Resource> all;

 private:
  [[nodiscard]] const Topology::Node& node(int index) const { return topology_.nodes[at(index)]; }

  /// Leads out of the machine that holds the adapter at one of its ends.
  [[nodiscard]] bool is_cable_of_nic(int index) const {
    const Topology::Link& link = topology_.links[at(index)];
    const bool nic = node(link.src).kind == NodeKind::nic || node(link.dst).kind == NodeKind::nic;
    return nic && leaves_host(topology_, link);
  }

  [[nodiscard]] std::string host_of(int index) const {
    const int top = top_of(topology_, index);
    return node(top).kind == NodeKind::host || top != index ? node(top).name : "";
  }

  void add_node(int index) {
    const NodeKind kind = node(index).kind;
    if (kind != NodeKind::nic && kind != NodeKind::network_switch && kind != NodeKind::gpu_switch) {
      return;
    }
    const bool nic = kind == NodeKind::nic;
    Resource out, in;
    for (std::size_t i = 0; i < topology_.links.size(); ++i) {
      const Topology::Link& link = topology_.links[i];
      const int id = static_cast<int>(i);
      if (link.src != index && link.dst != index) continue;
      if (nic && !is_cable_of_nic(id)) continue;
      if (!nic && link.src == index) continue;  // what leaves a switch has come in
      Resource& way = link.src == index ? out : in;
      way.links.push_back(id);
      way.capacity += 1 / link.beta_s_per_byte;
      way.slow = way.slow || (nic && slow_[i]);
      way.type = link.type;
    }
    for (Resource* way : {&out, &in}) {
      if (way->links.empty()) continue;
      way->section = nic                            ? Section::nic
                     : kind == NodeKind::gpu_switch ? Section::gpu_switch
                                                    : Section::network_switch;
      const char* does = !nic ? "" : way == &out ? " sends" : " receives";
      way->name = node(index).name + does;
      way->family = kind_name(kind) + (nic ? "s" : "es") +
                    (!nic          ? ""
                     : way == &out ? " send"
                                   : " receive");
      way->host = host_of(index);
      all.push_back(std::move(*way));
    }
  }

  void add_group(const Topology::PortGroup& group) {
    if (group.links.empty()) return;
    Resource resource{.section = Section::port_group,
                      .name = group.name,
                      .family = "port groups",
                      .host = host_of(topology_.links[at(group.links.front())].src),
                      .type = topology_.links[at(group.links.front())].type,
                      .capacity = 1 / group.beta_s_per_byte,
                      .message_s = group.message_s,
                      .links = group.links};
    all.push_back(std::move(resource));
  }

  void add_link(int index) {
    const Topology::Link& link = topology_.links[at(index)];
    Resource resource{.section = Section::link,
                      .name = fmt::format("{} → {}", node(link.src).name, node(link.dst).name),
                      .family = fmt::format("{} → {}", kind_name(node(link.src).kind),
                                            kind_name(node(link.dst).kind)),
                      .host = host_of(link.src),
                      .type = link.type,
                      .capacity = 1 / link.beta_s_per_byte,
                      .slow = slow_[at(index)],
                      .links = {index}};
    all.push_back(std::move(resource));
  }

  const Topology& topology_;
  std::vector<bool> slow_;
  std::vector<std::vector<int>> of_link_;
};

std::string rate_text(double bytes_per_s) {
  return std::isinf(bytes_per_s) ? std::string("no limit")
                                 : fmt::format("{:.3g} GB/s", bytes_per_s * 1e-9);
}

/// Which row each used resource is in; -1: it is not used.
struct Folding {
  std::vector<int> row_of;
  std::vector<TimelineRow> rows;
};

/// `level` 0: each by itself; 1: with its like in the same host; 2: with its like everywhere.
Folding fold(const std::vector<Resource>& resources, int level, double seconds) {
  using Key = std::tuple<Section, std::string, std::string, std::string, std::string, bool>;
  Folding folding;
  folding.row_of.assign(resources.size(), -1);
  std::map<Key, int> known;
  for (std::size_t r = 0; r < resources.size(); ++r) {
    const Resource& resource = resources[r];
    if (!(resource.busy_s > 0)) continue;
    const std::string rate = rate_text(resource.capacity);
    const Key key = level == 0 ? Key{resource.section, std::to_string(r), "", "", "", false}
                               : Key{resource.section,
                                     resource.family,
                                     resource.type,
                                     rate,
                                     level == 1 ? resource.host : "",
                                     resource.slow};
    const auto [found, is_new] = known.try_emplace(key, static_cast<int>(folding.rows.size()));
    if (is_new) {
      TimelineRow row;
      row.label = resource.name;
      row.detail = fmt::format("{} {}", resource.type, rate);
      row.members = 0;
      row.slow = resource.slow;
      row.course = Course(seconds);
      folding.rows.push_back(std::move(row));
    }
    folding.row_of[r] = found->second;
    TimelineRow& row = folding.rows[at(found->second)];
    ++row.members;
    row.use += resource.busy_s / seconds;
    row.busiest = std::max(row.busiest, resource.busy_s / seconds);
    row.links.insert(row.links.end(), resource.links.begin(), resource.links.end());
    if (row.members == 2) {
      row.label = level == 1 && !resource.host.empty()
                      ? fmt::format("{}: {}, {}", resource.host, resource.family, resource.type)
                      : fmt::format("{}, {}", resource.family, resource.type);
    }
  }
  for (TimelineRow& row : folding.rows) {
    row.use /= row.members;
    if (row.members > 1) row.label = fmt::format("{} × {}", row.members, row.label);
  }
  return folding;
}

/// Beyond `most` rows the least used are one.
void cut(Folding& folding, std::size_t most, double seconds) {
  if (folding.rows.size() <= most) return;
  std::vector<std::size_t> order(folding.rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return folding.rows[a].busiest > folding.rows[b].busiest;
  });
  std::vector<bool> kept(order.size(), false);
  for (std::size_t i = 0; i + 1 < most; ++i) kept[order[i]] = true;
  std::vector<TimelineRow> rows;
  std::vector<int> moved(order.size(), static_cast<int>(most) - 1);
  TimelineRow rest;
  rest.members = 0;
  rest.course = Course(seconds);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    TimelineRow& row = folding.rows[i];
    if (kept[i]) {
      moved[i] = static_cast<int>(rows.size());
      rows.push_back(std::move(row));
      continue;
    }
    rest.use += row.use * row.members;
    rest.busiest = std::max(rest.busiest, row.busiest);
    rest.members += row.members;
    rest.links.insert(rest.links.end(), row.links.begin(), row.links.end());
  }
  rest.use /= rest.members;
  rest.label = fmt::format("{} less used", rest.members);
  rows.push_back(std::move(rest));
  folding.rows = std::move(rows);
  for (int& row : folding.row_of) {
    if (row >= 0) row = moved[at(row)];
  }
}

/// "over infiniband": the slowest link on a route, of those between hosts if there are any.
std::string way_over(const Topology& topology, const std::vector<int>& path) {
  const Topology::Link* slowest = nullptr;
  for (const int index : path) {
    const Topology::Link& link = topology.links[at(index)];
    const auto rank = [&](const Topology::Link& l) {
      return std::pair(leaves_host(topology, l), l.beta_s_per_byte);
    };
    if (slowest == nullptr || rank(link) > rank(*slowest)) slowest = &link;
  }
  return slowest == nullptr ? "within memory" : "over " + slowest->type;
}

/// Calls visit(entry, path, flow begin, opens a message) for every transfer.
template <class Visit>
void for_each_flow(const Simulation& simulation, const Routes& routes, Visit visit) {
  using PairAction = std::tuple<Rank, Rank, Action>;
  std::map<PairAction, std::pair<int, ChunkId>> last;  // step and chunk
  for (const TimelineEntry& entry : simulation.timeline) {
    const Transfer& t = entry.transfer;
    const std::vector<int>& path = routes.path(t.src, t.dst);
    const auto [before, is_first] = last.try_emplace({t.src, t.dst, t.action}, -1, -1);
    const bool opens = is_first || before->second != std::pair(entry.step, t.chunk - 1);
    before->second = {entry.step, t.chunk};
    const double begin_s = std::min(entry.end_s, entry.begin_s + routes.alpha_s(t.src, t.dst));
    visit(entry, path, begin_s, opens);
  }
}

}  // namespace

TimelineRows timeline_rows(const Simulation& simulation, const Topology& topology,
                           const Routes& routes, double chunk_bytes, std::size_t most_rows) {
  const double seconds = simulation.seconds > 0 ? simulation.seconds : 1;
  Resources resources(topology);
  for_each_flow(simulation, routes, [&](const auto&, const auto& path, double, bool opens) {
    for (const int link : path) {
      for (const int r : resources.of_link(link)) {
        Resource& resource = resources.all[at(r)];
        resource.busy_s += Resources::taken_s(resource, chunk_bytes, opens);
      }
    }
  });
  Folding folding = fold(resources.all, 0, seconds);
  for (int level = 1; level <= 2 && folding.rows.size() > most_rows; ++level) {
    folding = fold(resources.all, level, seconds);
  }
  cut(folding, most_rows, seconds);

  TimelineRows result;
  std::map<std::string, std::size_t> phase_of;
  for_each_flow(
      simulation, routes,
      [&](const TimelineEntry& entry, const auto& path, double begin_s, bool opens) {
        for (const int link : path) {
          for (const int r : resources.of_link(link)) {
            const int row = folding.row_of[at(r)];
            if (row < 0) continue;
            TimelineRow& into = folding.rows[at(row)];
            into.course.add(
                begin_s, entry.end_s,
                Resources::taken_s(resources.all[at(r)], chunk_bytes, opens) / into.members);
          }
        }
        const std::string name =
            fmt::format("{} {}", entry.transfer.action == Action::reduce ? "reduce" : "copy",
                        way_over(topology, path));
        const auto [phase, is_new] = phase_of.try_emplace(name, result.phases.size());
        if (is_new) result.phases.push_back({name, 0, Course(seconds)});
        result.phases[phase->second].share += 1.0 / static_cast<double>(simulation.timeline.size());
        result.phases[phase->second].course.add(begin_s, entry.end_s, chunk_bytes);
      });
  result.rows_of_link.resize(topology.links.size());
  for (std::size_t link = 0; link < topology.links.size(); ++link) {
    for (const int r : resources.of_link(static_cast<int>(link))) {
      if (folding.row_of[at(r)] >= 0) result.rows_of_link[link].push_back(folding.row_of[at(r)]);
    }
  }
  result.rows = std::move(folding.rows);
  return result;
}

}  // namespace chorus
