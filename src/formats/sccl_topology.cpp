// SCCL's topologies: a matrix of links in whole units, and switches that bound groups of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "chorus/error.hpp"
#include "formats/sccl_json.hpp"
#include "model/json/json.hpp"
#include "model/json/reader.hpp"

namespace chorus::formats {
namespace {

constexpr int kMostScclTopologyRanks = 512;
constexpr int kMostUnits = 1 << 20;

std::vector<char> are_ranks(const json::Node& list, int n) {
  std::vector<char> result(n);
  for (std::size_t i = 0; i < list.size(); ++i) result[list.item(i).integer(0, n - 1)] = 1;
  return result;
}

void read_links(const json::Node& rows, Topology& topology, const ScclLinks& unit) {
  const int n = static_cast<int>(rows.size());
  for (int dst = 0; dst < n; ++dst) {
    const json::Node row = rows.item(dst);
    if (static_cast<int>(row.size()) != n) {
      row.fail(fmt::format("has {} items where the matrix has {} rows", row.size(), n));
    }
    for (int src = 0; src < n; ++src) {
      const int units = row.item(src).integer(0, kMostUnits);
      if (units == 0) continue;
      if (src == dst) row.item(src).fail("links a rank with itself");
      topology.links.push_back({.src = src,
                                .dst = dst,
                                .alpha_s = unit.alpha_s,
                                .beta_s_per_byte = 1 / (units * unit.gb_s * 1e9),
                                .type = "",
                                .provenance = Provenance::declared});
    }
  }
}

void read_switches(const json::Node& switches, Topology& topology, const ScclLinks& unit) {
  const int n = topology.world_size();
  for (std::size_t i = 0; i < switches.size(); ++i) {
    const json::Node entry = switches.item(i);
    if (entry.size() != 4) entry.fail("is not [sources, destinations, units, name]");
    const std::vector<char> sources = are_ranks(entry.item(0), n);
    const std::vector<char> destinations = are_ranks(entry.item(1), n);
    Topology::PortGroup group;
    group.name = entry.item(3).text();
    group.beta_s_per_byte = 1 / (entry.item(2).integer(1, kMostUnits) * unit.gb_s * 1e9);
    for (std::size_t l = 0; l < topology.links.size(); ++l) {
      const Topology::Link& link = topology.links[l];
      if (sources[link.src] && destinations[link.dst]) group.links.push_back(static_cast<int>(l));
    }
    if (!group.links.empty()) topology.port_groups.push_back(std::move(group));
  }
}

}  // namespace

bool is_sccl_topology(std::string_view text) {
  return text.find("\"msccl_type\"") != std::string_view::npos &&
         text.find("\"algorithm\"") == std::string_view::npos;
}

Topology topology_from_sccl_json(std::string_view text, std::string_view where,
                                 const ScclLinks& links) {
  const json::Value value = json::parse(text, where);
  const json::Node root(value, where);
  if (!root.has("msccl_type") || root.member("msccl_type").text() != "topology") {
    root.fail("no topology of SCCL: msccl_type is to be 'topology'");
  }
  root.expect_members({"msccl_type", "links"}, {"name", "switches"});
  Topology topology;
  if (root.has("name")) topology.name = root.member("name").text();
  const json::Node rows = root.member("links");
  if (rows.size() < 1 || rows.size() > kMostScclTopologyRanks) {
    rows.fail(fmt::format("has {} rows: 1 to {} are read", rows.size(), kMostScclTopologyRanks));
  }
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    topology.nodes.push_back(
        {.name = fmt::format("gpu{}", rank), .kind = NodeKind::gpu, .parent = -1, .detail = ""});
    topology.rank_nodes.push_back(static_cast<int>(rank));
  }
  read_links(rows, topology, links);
  if (root.has("switches")) read_switches(root.member("switches"), topology, links);
  return sound(std::move(topology), where);
}

std::string topology_to_sccl_json(const Topology& topology, const ScclLinks& links) {
  const int n = topology.world_size();
  std::vector<int> rank_of(topology.nodes.size(), -1);
  for (int rank = 0; rank < n; ++rank) {
    int& known = rank_of[topology.rank_nodes[rank]];
    if (known >= 0) {
      throw InputError(
          fmt::format("{}: ranks {} and {} share a place, which SCCL's topologies cannot express",
                      topology.name, known, rank));
    }
    known = rank;
  }
  const auto units = [&](double beta_s_per_byte) {
    const double wide = beta_s_per_byte > 0 ? 1 / (beta_s_per_byte * links.gb_s * 1e9) : kMostUnits;
    return static_cast<int>(std::clamp(std::round(wide), 1.0, static_cast<double>(kMostUnits)));
  };
  std::vector<std::vector<int>> matrix(n, std::vector<int>(n));
  for (const Topology::Link& link : topology.links) {
    const int src = rank_of[link.src];
    const int dst = rank_of[link.dst];
    if (src < 0 || dst < 0) {
      throw InputError(fmt::format(
          "{}: the link from '{}' to '{}' does not lead from rank to rank, and SCCL's topologies "
          "have no other",
          topology.name, topology.nodes[link.src].name, topology.nodes[link.dst].name));
    }
    matrix[dst][src] += units(link.beta_s_per_byte);
  }
  std::string switches;
  for (const Topology::PortGroup& group : topology.port_groups) {
    std::vector<int> sources;
    std::vector<int> destinations;
    for (const int l : group.links) {
      sources.push_back(rank_of[topology.links[l].src]);
      destinations.push_back(rank_of[topology.links[l].dst]);
    }
    for (auto* list : {&sources, &destinations}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    switches += fmt::format("{}\n  [[{}], [{}], {}, {}]", switches.empty() ? "" : ",",
                            fmt::join(sources, ", "), fmt::join(destinations, ", "),
                            units(group.beta_s_per_byte), json::quote(group.name));
  }
  std::string rows;
  for (const auto& row : matrix) {
    rows += fmt::format("{}\n  [{}]", rows.empty() ? "" : ",", fmt::join(row, ", "));
  }
  return fmt::format(
      "{{\n \"msccl_type\": \"topology\",\n \"name\": {},\n \"switches\": [{}\n ],\n"
      " \"links\": [{}\n ]\n}}\n",
      json::quote(topology.name), switches, rows);
}

}  // namespace chorus::formats
