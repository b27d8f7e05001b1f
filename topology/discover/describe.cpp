#include "topology/discover/describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "base/counted.hpp"
#include "base/text/printable.hpp"

namespace chorus {
namespace {

/// Columns that are as wide as their widest cell.
class Table {
 public:
  explicit Table(std::vector<std::string> head, std::size_t first_right = 99)
      : first_right_(first_right) {
    add(std::move(head));
  }
  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], width(row[i]));
    rows_.push_back(std::move(row));
  }
  /// Columns from `first_right` on whose cells begin with a digit are set flush right.
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string pad(widths_[i] - width(row[i]), ' ');
        if (i > 0) line += "  ";
        line += is_right(i) ? pad + row[i] : row[i] + pad;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      all += line + "\n";
    }
    return all;
  }

 private:
  /// Code points: names may hold any UTF-8, and the tree's branches do.
  static std::size_t width(const std::string& cell) {
    return static_cast<std::size_t>(std::count_if(cell.begin(), cell.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    }));
  }
  [[nodiscard]] bool is_right(std::size_t column) const {
    if (column < first_right_) return false;
    return rows_.size() > 1 && column < rows_[1].size() && !rows_[1][column].empty() &&
           rows_[1][column][0] >= '0' && rows_[1][column][0] <= '9';
  }

  std::size_t first_right_;
  std::vector<std::size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

std::string rate(double beta_s_per_byte) { return fmt::format("{:.4g}", 1e-9 / beta_s_per_byte); }

/// "0-3, 6" of the ranks on each node.
std::vector<std::string> ranks_by_node(const Topology& topology) {
  std::vector<std::vector<int>> ranks(topology.nodes.size());
  for (int r = 0; r < topology.world_size(); ++r) ranks[topology.rank_nodes[r]].push_back(r);
  std::vector<std::string> texts;
  for (const std::vector<int>& list : ranks) {
    std::string text;
    for (std::size_t i = 0; i < list.size();) {
      std::size_t j = i;
      while (j + 1 < list.size() && list[j + 1] == list[j] + 1) ++j;
      text += fmt::format("{}{}", text.empty() ? "" : ",", list[i]);
      if (j > i) text += fmt::format("-{}", list[j]);
      i = j + 1;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

class Tree {
 public:
  explicit Tree(const Topology& topology)
      : topology_(topology), ranks_(ranks_by_node(topology)), children_(topology.nodes.size()) {
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
      const int parent = topology.nodes[i].parent;
      (parent < 0 ? roots_ : children_[parent]).push_back(static_cast<int>(i));
    }
  }
  std::string text() {
    for (const int root : roots_) add(root, "", "");
    return table_.text();
  }

 private:
  void add(int node, const std::string& branch, const std::string& indent) {
    const Topology::Node& n = topology_.nodes[node];
    table_.add({branch + printable_name(n.name), std::string(name_of(n.kind)), ranks_[node],
                printable_name(n.detail)});
    for (std::size_t i = 0; i < children_[node].size(); ++i) {
      const bool last = i + 1 == children_[node].size();
      add(children_[node][i], indent + (last ? "└─ " : "├─ "), indent + (last ? "   " : "│  "));
    }
  }

  const Topology& topology_;
  std::vector<std::string> ranks_;
  std::vector<std::vector<int>> children_;
  std::vector<int> roots_;
  Table table_{{"node", "kind", "rank", "detail"}};
};

/// What two links must share to be told in one line, but for their ends.
using Figures = std::tuple<std::string, double, double, Provenance>;
using Ends = std::pair<int, int>;

std::string link_table(const Topology& topology) {
  std::map<std::pair<Ends, Figures>, int> counts;
  for (const Topology::Link& link : topology.links) {
    ++counts[{{link.src, link.dst},
              {link.type, link.beta_s_per_byte, link.alpha_s, link.provenance}}];
  }
  Table table({"src", "", "dst", "links", "type", "GB/s", "alpha_us", "provenance"}, 3);
  for (const auto& [link, count] : counts) {
    const auto& [ends, figures] = link;
    const auto& [type, beta, alpha, provenance] = figures;
    const auto back = counts.find({{ends.second, ends.first}, figures});
    const bool both = back != counts.end() && back->second == count;
    if (both && ends.first > ends.second) continue;  // told with its other direction
    table.add({printable_name(topology.nodes[ends.first].name), both ? "<->" : "->",
               printable_name(topology.nodes[ends.second].name), std::to_string(count),
               printable_name(type), rate(beta), fmt::format("{:.4g}", alpha * 1e6),
               std::string(name_of(provenance))});
  }
  return table.text();
}

std::string group_table(const Topology& topology) {
  Table table({"port group", "GB/s", "links"}, 1);
  for (const Topology::PortGroup& group : topology.port_groups) {
    constexpr std::size_t kShown = 4;
    std::string links;
    for (std::size_t i = 0; i < std::min(kShown, group.links.size()); ++i) {
      const Topology::Link& link = topology.links[group.links[i]];
      links +=
          fmt::format("{}{}->{}", i > 0 ? ", " : "", printable_name(topology.nodes[link.src].name),
                      printable_name(topology.nodes[link.dst].name));
    }
    if (group.links.size() > kShown) {
      links += fmt::format(" and {} more", group.links.size() - kShown);
    }
    table.add({printable_name(group.name), rate(group.beta_s_per_byte), std::move(links)});
  }
  return table.text();
}

}  // namespace

std::string_view name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::host:
      return "host";
    case NodeKind::package:
      return "package";
    case NodeKind::numa:
      return "numa";
    case NodeKind::pcie_bridge:
      return "pcie_bridge";
    case NodeKind::gpu:
      return "gpu";
    case NodeKind::nic:
      return "nic";
    case NodeKind::gpu_switch:
      return "gpu_switch";
    case NodeKind::network_switch:
      return "network_switch";
    case NodeKind::core:
      return "core";
  }
  return "?";
}

std::string_view name_of(Provenance provenance) {
  switch (provenance) {
    case Provenance::declared:
      return "declared";
    case Provenance::table:
      return "assumed";
    case Provenance::measured:
      return "measured";
  }
  return "?";
}

std::string describe(const Topology& topology) {
  std::string text = fmt::format(
      "{}: {}, {}, {}\n\n", printable_name(topology.name), counted(topology.world_size(), "rank"),
      counted(std::ssize(topology.nodes), "node"), counted(std::ssize(topology.links), "link"));
  text += Tree(topology).text();
  if (!topology.links.empty()) text += "\n" + link_table(topology);
  if (!topology.port_groups.empty()) text += "\n" + group_table(topology);
  return text;
}

}  // namespace chorus
