#include "cli/draw.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "base/fd.hpp"
#include "chorus/error.hpp"
#include "topology/describe.hpp"

extern char** environ;

namespace chorus {
namespace {

constexpr std::size_t kMostNodes = 600;
constexpr std::size_t kMostEdges = 6000;
constexpr std::size_t kMostLegendRows = 14;
constexpr int kFar = 1 << 20;
constexpr double kPi = 3.14159265358979323846;

/// A link, or two that are each other's way back, or several of either between the same ends.
struct Edge {
  int src = 0;
  int dst = 0;
  std::string type;
  double gb_s = 0;
  bool both = false;
};

struct Look {
  std::string_view shape;
  std::string_view fill;
  std::string_view line;
  int level;  ///< in a layered picture, from the top
};

Look look_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::host:
    case NodeKind::package:
      return {"box", "#f2f4f7", "#5b6675", 2};
    case NodeKind::numa:
      return {"box", "#e3e8ef", "#5b6675", 2};
    case NodeKind::pcie_bridge:
      return {"box", "#dbe7f6", "#2f6db5", 3};
    case NodeKind::gpu:
      return {"box", "#e4f2cf", "#4d7a00", 4};
    case NodeKind::nic:
      return {"ellipse", "#ece2f5", "#7a3fae", 1};
    case NodeKind::gpu_switch:
      return {"box", "#cfe6a8", "#4d7a00", 5};
    case NodeKind::network_switch:
      return {"box", "#f7e5cf", "#b5651d", 0};
    case NodeKind::core:
      return {"box", "#fff7d6", "#8a7400", 4};
  }
  return {"box", "white", "black", 2};
}

std::string colour_of(const std::string& type) {
  static const std::map<std::string, std::string> colours = {
      {"nvlink", "#5d9400"},   {"xgmi", "#c8312b"},       {"c2c", "#2a9d8f"},
      {"pcie", "#2f6db5"},     {"socket", "#8d6e63"},     {"shm", "#9aa3ad"},
      {"memory", "#9aa3ad"},   {"infiniband", "#7a3fae"}, {"slingshot", "#7a3fae"},
      {"ethernet", "#d98324"}, {"link", "#4a6fa5"},       {"local", "#2a9d8f"},
      {"global", "#c8312b"}};
  const auto it = colours.find(type);
  return it == colours.end() ? "#333333" : it->second;
}

std::string quoted(std::string_view text) {
  std::string all = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') all += '\\';
    all += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return all + "\"";
}

std::string html(std::string_view text) {
  std::string all;
  for (const char c : text) {
    switch (c) {
      case '<':
        all += "&lt;";
        break;
      case '>':
        all += "&gt;";
        break;
      case '&':
        all += "&amp;";
        break;
      case '"':
        all += "&quot;";
        break;
      default:
        all += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return all;
}

std::vector<Edge> edges_of(const Topology& topology) {
  std::map<std::tuple<int, int, std::string>, double> rates;  // parallel links add up
  for (const Topology::Link& link : topology.links) {
    rates[{link.src, link.dst, link.type}] += 1e-9 / link.beta_s_per_byte;
  }
  std::vector<Edge> edges;
  for (const auto& [key, gb_s] : rates) {
    const auto& [src, dst, type] = key;
    const auto back = rates.find({dst, src, type});
    const bool both = back != rates.end() && std::abs(back->second - gb_s) < 1e-9 * gb_s;
    if (both && src > dst) continue;
    edges.push_back({src, dst, type, gb_s, both});
  }
  return edges;
}

/// Writes one picture in graphviz's language.
class Picture {
 public:
  explicit Picture(const Topology& topology)
      : topology_(topology),
        edges_(edges_of(topology)),
        children_(topology.nodes.size()),
        linked_(topology.nodes.size(), false),
        ranks_(topology.nodes.size()) {
    for (const Edge& edge : edges_) linked_[edge.src] = linked_[edge.dst] = true;
    for (int r = 0; r < topology.world_size(); ++r) ranks_[topology.rank_nodes[r]].push_back(r);
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
      const int parent = topology.nodes[i].parent;
      if (parent >= 0) children_[parent].push_back(static_cast<int>(i));
    }
    measure_distances();
    for (const Edge& edge : edges_) {
      slowest_ = std::min(slowest_, edge.gb_s);
      fastest_ = std::max(fastest_, edge.gb_s);
      if (level(edge.src) == level(edge.dst)) ++between_equals_;
    }
  }

  std::string text() {
    layered_ = 3 * between_equals_ <= edges_.size();
    const bool is_flat = std::all_of(topology_.nodes.begin(), topology_.nodes.end(),
                                     [](const Topology::Node& node) { return node.parent < 0; });
    const char* engine = layered_ ? "dot" : is_flat ? "neato" : "fdp";
    out_ = fmt::format(
        "graph {} {{\n  layout={};\n  graph [fontname=\"Helvetica\", fontsize=11, labelloc=t, "
        "labeljust=l, "
        "compound=true, splines=true, overlap=false, nodesep=0.18, ranksep=0.55, K={}, "
        "pad=0.2];\n  node [fontname=\"Helvetica\", fontsize=10, style=\"filled,rounded\", "
        "height=0.3, margin=\"0.08,0.04\"];\n  edge [fontname=\"Helvetica\", fontsize=8];\n",
        quoted(topology_.name), engine, is_flat ? 0.7 : 1.3);
    std::vector<int> roots;
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      if (topology_.nodes[i].parent < 0) roots.push_back(static_cast<int>(i));
    }
    if (!layered_ && !is_flat) place(roots);
    for (const int root : roots) add_node(root, 1);
    for (const Edge& edge : edges_) add_edge(edge);
    add_legend();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  /// Hops from each node to the nearest rank: what is farther is drawn higher.
  void measure_distances() {
    distance_.assign(topology_.nodes.size(), kFar);
    for (const int node : topology_.rank_nodes) distance_[node] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (const Edge& edge : edges_) {
        for (const auto& [a, b] : {std::pair(edge.src, edge.dst), std::pair(edge.dst, edge.src)}) {
          if (distance_[a] + 1 >= distance_[b]) continue;
          distance_[b] = distance_[a] + 1;
          changed = true;
        }
      }
    }
  }

  /// Of a layered picture, from the top: first by kind, then by the way to the ranks.
  [[nodiscard]] std::pair<int, int> level(int node) const {
    return {look_of(topology_.nodes[node].kind).level, -distance_[node]};
  }

  /// A box that nothing is wired to is drawn as a box only.
  [[nodiscard]] bool has_shape(int node) const { return linked_[node] || !ranks_[node].empty(); }

  struct Point {
    double x = 0;
    double y = 0;
  };

  /// Places siblings and all below them in a rectangle whose lower left corner is (0, 0), inches;
  /// returns its extent. Boxes stand in a row, with what is loose in a row beneath; a box that
  /// holds nothing but loose things has them on a circle, turned so that equal boxes side by side
  /// do not hide each other's cables.
  Point place(const std::vector<int>& siblings) {
    constexpr double kGap = 1.1;
    constexpr double kRow = 1.3;
    constexpr double kTurn = 1.95;
    std::vector<int> loose;
    Point extent;
    for (const int node : siblings) {
      if (children_[node].empty()) {
        loose.push_back(node);
        continue;
      }
      Point inner = place(children_[node]);
      if (has_shape(node)) {  // the box's own node beneath what it holds
        for (const int child : children_[node]) shift(child, {0, kRow});
        places_[node] = {inner.x / 2, kRow / 3};
        inner.y += kRow;
      }
      if (extent.x > 0) extent.x += kGap;
      shift(node, {extent.x, 0});
      extent = {extent.x + inner.x, std::max(extent.y, inner.y)};
    }
    const auto count = static_cast<double>(loose.size());
    if (extent.x == 0) {
      const double radius = std::max(0.95, count * 0.19);
      for (std::size_t i = 0; i < loose.size(); ++i) {
        const double angle = kTurn - 2 * kPi * static_cast<double>(i) / count;
        places_[loose[i]] = {radius * (1.25 + std::cos(angle)) * 1.15,
                             radius * (1.1 + std::sin(angle))};
      }
      return {2.5 * radius * 1.15, 2.2 * radius};
    }
    if (loose.empty()) return extent;
    for (const int node : siblings) {
      if (!children_[node].empty()) shift(node, {0, kRow});
    }
    for (std::size_t i = 0; i < loose.size(); ++i) {
      places_[loose[i]] = {extent.x * (static_cast<double>(i) + 1) / (count + 1), kRow / 3};
    }
    return {extent.x, extent.y + kRow};
  }

  void shift(int node, Point by) {
    if (const auto it = places_.find(node); it != places_.end()) {
      it->second.x += by.x;
      it->second.y += by.y;
    }
    for (const int child : children_[node]) shift(child, by);
  }

  void indent(int depth) { out_.append(2 * static_cast<std::size_t>(depth), ' '); }

  void add_node(int index, int depth) {
    if (children_[index].empty()) {
      add_shape(index, depth);
      return;
    }
    const Topology::Node& node = topology_.nodes[index];
    indent(depth);
    const std::string detail = node.detail.size() > 48 ? "" : node.detail;
    out_ += fmt::format(
        "subgraph cluster_{} {{ label={}; style=\"rounded,filled\"; color=\"{}\"; "
        "fillcolor=\"{}\"; fontsize=10; margin=10;\n",
        index, quoted(detail.empty() ? short_name(index) : short_name(index) + "  " + detail),
        "#aab2bd", depth % 2 == 1 ? "#fbfcfd" : "#f3f5f8");
    if (has_shape(index)) add_shape(index, depth + 1);
    // dot sets what hangs from nothing within its box from the right.
    std::vector<int> children = children_[index];
    if (layered_ && !has_shape(index)) std::reverse(children.begin(), children.end());
    for (const int child : children) add_node(child, depth + 1);
    indent(depth);
    out_ += "}\n";
  }

  /// "gpu3" of "host1/gpu3": the box around it names the host.
  std::string short_name(int index) const {
    const Topology::Node& node = topology_.nodes[index];
    for (int above = node.parent; above >= 0; above = topology_.nodes[above].parent) {
      const std::string prefix = topology_.nodes[above].name + "/";
      if (node.name.starts_with(prefix)) return node.name.substr(prefix.size());
    }
    return node.name;
  }

  void add_shape(int index, int depth) {
    const Look look = look_of(topology_.nodes[index].kind);
    std::string label = quoted(short_name(index));
    if (const std::vector<int>& ranks = ranks_[index]; !ranks.empty()) {
      std::string line = fmt::format("\\nrank {}", ranks.front());
      if (ranks.size() > 1) line += fmt::format(" … {}", ranks.back());
      label.insert(label.size() - 1, line);
    }
    const bool wide = topology_.nodes[index].kind == NodeKind::gpu_switch ||
                      topology_.nodes[index].kind == NodeKind::network_switch;
    const auto pinned = places_.find(index);
    indent(depth);
    out_ += fmt::format(
        "n{} [label={}, shape={}, fillcolor=\"{}\", color=\"{}\", tooltip={}{}{}];\n", index, label,
        look.shape, look.fill, look.line, quoted(topology_.nodes[index].detail),
        wide ? ", width=1.6" : "",
        pinned == places_.end()
            ? ""
            : fmt::format(", pos=\"{:.3f},{:.3f}!\"", pinned->second.x, pinned->second.y));
  }

  /// Wide for fast, on a logarithmic scale over what the picture holds.
  double width(double gb_s) const {
    constexpr double kLeastSpan = 8;  // so that 24 beside 22 GB/s looks like what it is
    const double span = std::max(fastest_ / slowest_, kLeastSpan);
    return 1.2 + 4 * std::log(gb_s / slowest_) / std::log(span);
  }

  void add_edge(const Edge& edge) {
    const bool equal = level(edge.src) == level(edge.dst);
    const bool swap = edge.both && level(edge.src) > level(edge.dst);
    out_ += fmt::format(
        "  n{} -- n{} [color=\"{}\", penwidth={:.2f}, tooltip={}{}{}];\n",
        swap ? edge.dst : edge.src, swap ? edge.src : edge.dst, colour_of(edge.type),
        width(edge.gb_s), quoted(fmt::format("{} {:.4g} GB/s", edge.type, edge.gb_s)),
        edge.both ? "" : ", dir=forward", layered_ && equal ? ", constraint=false" : "");
  }

  void add_legend() {
    std::map<std::pair<std::string, double>, int> rows;
    for (const Edge& edge : edges_) {
      ++rows[{edge.type, std::round(edge.gb_s * 1000) / 1000}];
    }
    std::string table;
    std::size_t shown = 0;
    for (const auto& [key, count] : rows) {
      if (++shown > kMostLegendRows) break;
      const int height = std::max(1, static_cast<int>(std::lround(width(key.second))));
      table += fmt::format(
          "<TR><TD><TABLE BORDER=\"0\" CELLPADDING=\"0\" CELLSPACING=\"0\"><TR><TD "
          "FIXEDSIZE=\"TRUE\" "
          "WIDTH=\"28\" HEIGHT=\"{}\" BGCOLOR=\"{}\"></TD></TR></TABLE></TD><TD ALIGN=\"LEFT\">{} "
          "{:.4g} GB/s</TD><TD ALIGN=\"RIGHT\">&nbsp;{}x</TD></TR>",
          height, colour_of(key.first), html(key.first), key.second, count);
    }
    if (rows.size() > kMostLegendRows) {
      table += fmt::format("<TR><TD></TD><TD ALIGN=\"LEFT\">and {} more</TD><TD></TD></TR>",
                           rows.size() - kMostLegendRows);
    }
    out_ += fmt::format(
        "  label=<<TABLE BORDER=\"0\" CELLPADDING=\"1\" CELLSPACING=\"2\"><TR><TD "
        "COLSPAN=\"3\" ALIGN=\"LEFT\"><B>{}</B>: {} rank{}</TD></TR>{}</TABLE>>;\n",
        html(topology_.name), topology_.world_size(), topology_.world_size() == 1 ? "" : "s",
        table);
  }

  const Topology& topology_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> children_;
  std::vector<bool> linked_;
  std::vector<std::vector<int>> ranks_;
  double slowest_ = 1e30;
  double fastest_ = 0;
  std::size_t between_equals_ = 0;
  std::vector<int> distance_;
  std::map<int, Point> places_;  // of what has none of the layout's own
  bool layered_ = true;
  std::string out_;
};

/// A file without a name that holds `text`, at its beginning.
Fd unnamed_file(const std::string& text) {
  std::string name = "/tmp/chorus-XXXXXX";
  Fd file(::mkstemp(name.data()));
  if (file) ::unlink(name.c_str());
  std::size_t done = 0;
  while (file && done < text.size()) {
    const ssize_t wrote = ::write(file.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno != EINTR) break;
    done += wrote > 0 ? static_cast<std::size_t>(wrote) : 0;
  }
  if (!file || done < text.size() || ::lseek(file.get(), 0, SEEK_SET) != 0) {
    throw Error(fmt::format("no temporary file in /tmp: {}", std::strerror(errno)));
  }
  return file;
}

}  // namespace

std::string graphviz_source(const Topology& topology) {
  if (topology.nodes.size() > kMostNodes || topology.links.size() > 2 * kMostEdges) {
    throw InputError(
        fmt::format("{} nodes and {} links are too many for a picture: at most {} and "
                    "{} are drawn; draw a smaller one of the kind",
                    topology.nodes.size(), topology.links.size(), kMostNodes, 2 * kMostEdges));
  }
  return Picture(topology).text();
}

void draw_svg(const Topology& topology, const std::string& path) {
  const Fd source = unnamed_file(graphviz_source(topology));
  std::string program = "dot";
  std::string format = "-Tsvg";
  std::string output = "-o" + path;
  std::array<char*, 4> arguments = {program.data(), format.data(),
                                    path == "-" ? nullptr : output.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, source.get(), STDIN_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw InputError(
        fmt::format("the picture needs graphviz, whose program dot cannot be run: "
                    "{}; install graphviz, or leave out --svg",
                    std::strerror(error)));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw InputError(
        fmt::format("{}: graphviz could not draw this picture (see its message)", path));
  }
}

}  // namespace chorus
