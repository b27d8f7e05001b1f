#include "cli/draw/draw.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/files/fd.hpp"
#include "base/files/files.hpp"
#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/draw/draw_layout.hpp"
#include "model/price/slow_links.hpp"
#include "topology/discover/describe.hpp"

extern char** environ;

namespace chorus {
namespace {

constexpr std::size_t kMostNodes = 600;
constexpr std::size_t kMostEdges = 6000;
constexpr std::size_t kMostLegendRows = 14;
constexpr std::size_t kLongestDetail = 48;
constexpr int kFar = 1 << 20;
constexpr const char* kSlowColour = "#c0161b";
constexpr std::size_t kMostBent = 120;  // beyond nodes, leading links round them takes minutes
constexpr double kPointsPerInch = 72;
constexpr double kPadding = 14;  // beside the text of a shape

/// A link, or two that are each other's way back, or several of either between the same ends.
struct Edge {
  int src = 0;
  int dst = 0;
  std::string type;
  double gb_s = 0;
  bool both = false;
  bool slow = false;  ///< far below its peers
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
      {"nvlink", "#5d9400"},    {"xgmi", "#c8312b"},     {"c2c", "#2a9d8f"},
      {"pcie", "#2f6db5"},      {"socket", "#8d6e63"},   {"sockets", "#8d6e63"},
      {"shm", "#9aa3ad"},       {"memory", "#9aa3ad"},   {"infiniband", "#7a3fae"},
      {"slingshot", "#7a3fae"}, {"ethernet", "#d98324"}, {"link", "#4a6fa5"},
      {"local", "#2a9d8f"},     {"global", "#c8312b"}};
  const auto it = colours.find(type);
  return it == colours.end() ? "#333333" : it->second;
}

/// Lines of a label are set apart by "\n".
std::string quote(std::string_view text) {
  std::string all = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') all += '\\';
    if (c == '\n') {
      all += "\\n";
    } else {
      all += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return all + "\"";
}

std::string html(std::string_view text) {
  std::string all;
  for (const char c : printable_name(text)) {
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
  std::set<std::pair<int, int>> slow;
  const std::vector<bool> is_slow = slow_links(topology);
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Topology::Link& link = topology.links[i];
    rates[{link.src, link.dst, link.type}] += 1e-9 / link.beta_s_per_byte;
    if (is_slow[i]) slow.emplace(link.src, link.dst);
  }
  std::vector<Edge> edges;
  for (const auto& [key, gb_s] : rates) {
    const auto& [src, dst, type] = key;
    const auto back = rates.find({dst, src, type});
    const bool both = back != rates.end() && std::abs(back->second - gb_s) < 1e-9 * gb_s;
    if (both && src > dst) continue;
    edges.push_back({src, dst, type, gb_s, both, slow.contains({src, dst})});
  }
  return edges;
}

bool has_boxes(const Topology& topology) {
  return std::any_of(topology.nodes.begin(), topology.nodes.end(),
                     [](const Topology::Node& node) { return node.parent >= 0; });
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
    std::vector<int> degree(topology.nodes.size(), 0);
    for (const Edge& edge : edges_) {
      linked_[edge.src] = linked_[edge.dst] = true;
      ++degree[edge.src];
      ++degree[edge.dst];
    }
    // The slow member is at the end that has fewer links: the host, not the switch.
    for (const Edge& edge : edges_) {
      if (edge.slow) slow_.insert(degree[edge.src] <= degree[edge.dst] ? edge.src : edge.dst);
    }
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
    const bool is_flat = !has_boxes(topology_);
    const bool is_mesh = 3 * between_equals_ > edges_.size();
    const bool bends = topology_.nodes.size() <= kMostBent;
    out_ = fmt::format(
        "graph {} {{\n  layout={};\n  graph [fontname=\"Helvetica\", fontsize=11, labelloc=t, "
        "labeljust=l, splines={}, overlap=false, outputorder=edgesfirst, nodesep=0.18, "
        "ranksep=0.55, K=0.7, pad=0.2];\n"
        "  node [fontname=\"Helvetica\", fontsize=10, style=\"filled,rounded\", height=0.3, "
        "margin=\"0.08,0.04\"];\n  edge [fontname=\"Helvetica\", fontsize=8];\n",
        quote(printable_name(topology_.name)), is_flat && !is_mesh ? "dot" : "neato",
        bends ? "true" : "line");
    if (!is_flat) place();
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      if (topology_.nodes[i].parent < 0) add_node(static_cast<int>(i), 1);
    }
    if (is_flat && !is_mesh) add_order();
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

  /// Graphviz cannot be told the order of boxes, nor keep links off their names; so where there are
  /// boxes it only leads the links round what stands here.
  void place() {
    placed_.resize(topology_.nodes.size());
    for (std::size_t i = 0; i < placed_.size(); ++i) {
      const int index = static_cast<int>(i);
      Placed& node = placed_[i];
      node.parent = topology_.nodes[i].parent;
      node.is_box = !children_[i].empty();
      node.has_shape = !node.is_box || has_shape(index);
      node.level = level(index);
      node.size = size_of(shape_label(index), topology_.nodes[i].kind == NodeKind::nic);
      node.size.x = std::max(node.size.x, 48.0);
      if (is_switch(index)) node.size.x = std::max(node.size.x, 110.0);
      node.label = size_of(box_label(index), false);
      node.label.x -= kPadding / 2;
    }
    std::vector<std::pair<int, int>> links;
    for (const Edge& edge : edges_) links.emplace_back(edge.src, edge.dst);
    extent_ = lay_out(placed_, links);
  }

  static Point size_of(const std::string& label, bool round) {
    constexpr double kLetter = 5.4, kLine = 12;
    double longest = 0, lines = 0;
    for (std::size_t begin = 0; begin <= label.size(); ++lines) {
      const std::size_t end = std::min(label.find('\n', begin), label.size());
      longest = std::max(longest, static_cast<double>(end - begin));
      begin = end + 1;
    }
    return {(round ? 1.4 : 1) * (kLetter * longest + kPadding), kLine * lines + 8};
  }

  [[nodiscard]] bool is_switch(int index) const {
    const NodeKind kind = topology_.nodes[index].kind;
    return kind == NodeKind::gpu_switch || kind == NodeKind::network_switch;
  }

  void indent(int depth) { out_.append(2 * static_cast<std::size_t>(depth), ' '); }

  void add_node(int index, int depth) {
    if (children_[index].empty()) {
      add_shape(index, depth);
      return;
    }
    const Placed& box = placed_[index];
    const char* fill = depth % 2 == 1 ? "#fbfcfd" : "#f3f5f8";
    indent(depth);
    out_ += fmt::format(
        "subgraph cluster_{} {{ style=\"rounded,filled\"; color=\"#aab2bd\"; fillcolor=\"{}\"; "
        "bb=\"{:.1f},{:.1f},{:.1f},{:.1f}\";\n",
        index, fill, box.low.x, box.low.y, box.high.x, box.high.y);
    indent(depth + 1);
    // A node, because links are led round nodes, or beneath them, but across labels.
    out_ += fmt::format(
        "label{} [label={}, shape=box, style=filled, color=\"{}\", fillcolor=\"{}\", "
        "margin=0{}];\n",
        index, quote(box_label(index)), fill, fill, pin(box.label_at, box.label));
    if (has_shape(index)) add_shape(index, depth + 1);
    for (const int child : children_[index]) add_node(child, depth + 1);
    indent(depth);
    out_ += "}\n";
  }

  static std::string pin(Point at, Point size) {
    return fmt::format(", fixedsize=true, width={:.3f}, height={:.3f}, pos=\"{:.1f},{:.1f}!\"",
                       size.x / kPointsPerInch, size.y / kPointsPerInch, at.x, at.y);
  }

  /// What dot has on one level stands in the order of the topology, from left to right.
  void add_order() {
    std::map<std::pair<int, int>, std::vector<std::string>> rows;
    for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
      rows[level(static_cast<int>(i))].push_back(fmt::format("n{}", i));
    }
    for (const auto& [level, names] : rows) {
      if (names.size() < 2) continue;
      out_ += fmt::format("  {{ rank=same; {} [style=invis]; }}\n", fmt::join(names, " -- "));
    }
  }

  /// "gpu3" of "host1/gpu3": the box around it names the host.
  std::string short_name(int index) const {
    const Topology::Node& node = topology_.nodes[index];
    for (int above = node.parent; above >= 0; above = topology_.nodes[above].parent) {
      const std::string prefix = topology_.nodes[above].name + "/";
      if (node.name.starts_with(prefix)) return printable_name(node.name.substr(prefix.size()));
    }
    return printable_name(node.name);
  }

  [[nodiscard]] std::string box_label(int index) const {
    const std::string& detail = topology_.nodes[index].detail;
    const bool shown = !detail.empty() && detail.size() <= kLongestDetail;
    return short_name(index) + (shown ? "  " + printable_name(detail) : "");
  }

  [[nodiscard]] std::string shape_label(int index) const {
    const std::string name = short_name(index);
    std::string label = name;
    if (const std::vector<int>& ranks = ranks_[index]; !ranks.empty()) {
      std::string text = fmt::format("rank {}", ranks.front());
      if (ranks.size() > 1) text += fmt::format(" … {}", ranks.back());
      const bool is_name = name == fmt::format("rank{}", ranks.front()) && ranks.size() == 1;
      label = is_name ? text : name + "\n" + text;
    }
    return slow_.contains(index) ? label + "\nslow" : label;
  }

  void add_shape(int index, int depth) {
    const Look look = look_of(topology_.nodes[index].kind);
    const bool slow = slow_.contains(index);
    indent(depth);
    out_ += fmt::format(
        "n{} [label={}, shape={}, fillcolor=\"{}\", color=\"{}\", tooltip={}{}{}];\n", index,
        quote(shape_label(index)), look.shape, look.fill, slow ? kSlowColour : look.line,
        quote(topology_.nodes[index].detail), slow ? ", penwidth=2" : "",
        !placed_.empty()   ? pin(placed_[index].at, placed_[index].size)
        : is_switch(index) ? ", width=1.6"
                           : "");
  }

  /// Wide for fast, on a logarithmic scale over what the picture holds.
  double width(double gb_s) const {
    constexpr double kLeastSpan = 8;  // so that 24 beside 22 GB/s looks like what it is
    const double span = std::max(fastest_ / slowest_, kLeastSpan);
    return 1.2 + 4 * std::log(gb_s / slowest_) / std::log(span);
  }

  void add_edge(const Edge& edge) {
    const bool swap = level(edge.src) > level(edge.dst);
    out_ += fmt::format("  n{} -- n{} [color=\"{}\", penwidth={:.2f}, tooltip={}{}{}];\n",
                        swap ? edge.dst : edge.src, swap ? edge.src : edge.dst,
                        edge.slow ? kSlowColour : colour_of(edge.type), width(edge.gb_s),
                        quote(fmt::format("{} {:.4g} GB/s", edge.type, edge.gb_s)),
                        edge.both ? ""
                        : swap    ? ", dir=back"
                                  : ", dir=forward",
                        edge.slow ? ", style=dashed" : "");
  }

  void add_legend() {
    std::map<std::tuple<std::string, double, bool>, int> rows;
    for (const Edge& edge : edges_) {
      ++rows[{edge.type, std::round(edge.gb_s * 1000) / 1000, edge.slow}];
    }
    std::string table;
    std::size_t shown = 0;
    for (const auto& [key, count] : rows) {
      if (++shown > kMostLegendRows) break;
      const auto& [type, gb_s, slow] = key;
      const int height = std::max(1, static_cast<int>(std::lround(width(gb_s))));
      table += fmt::format(
          "<TR><TD><TABLE BORDER=\"0\" CELLPADDING=\"0\" CELLSPACING=\"0\"><TR><TD "
          "FIXEDSIZE=\"TRUE\" "
          "WIDTH=\"28\" HEIGHT=\"{}\" BGCOLOR=\"{}\"></TD></TR></TABLE></TD><TD ALIGN=\"LEFT\">{} "
          "{:.4g} GB/s{}</TD><TD ALIGN=\"RIGHT\">&nbsp;{}x</TD></TR>",
          height, slow ? kSlowColour : colour_of(type), html(type), gb_s,
          slow ? ", slow beside its peers" : "", count);
    }
    if (rows.size() > kMostLegendRows) {
      table += fmt::format("<TR><TD></TD><TD ALIGN=\"LEFT\">and {} more</TD><TD></TD></TR>",
                           rows.size() - kMostLegendRows);
    }
    table = fmt::format(
        "<TABLE BORDER=\"0\" CELLPADDING=\"1\" CELLSPACING=\"2\"><TR><TD COLSPAN=\"3\" "
        "ALIGN=\"LEFT\"><B>{}</B>: {} rank{}</TD></TR>{}</TABLE>",
        html(topology_.name), topology_.world_size(), topology_.world_size() == 1 ? "" : "s",
        table);
    if (placed_.empty()) {
      out_ += fmt::format("  label=<{}>;\n", table);
      return;
    }
    std::size_t longest = topology_.name.size();
    for (const auto& [key, count] : rows) longest = std::max(longest, std::get<0>(key).size() + 14);
    if (!slow_.empty()) longest += 23;
    const Point size{5.6 * static_cast<double>(longest) + 70,
                     18.0 * static_cast<double>(std::min(rows.size(), kMostLegendRows) + 2)};
    out_ += fmt::format("  legend [shape=plaintext, style=\"\", label=<{}>{}];\n", table,
                        pin({size.x / 2, extent_.y + size.y / 2 + 6}, size));
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
  std::set<int> slow_;          // nodes behind slow links
  std::vector<Placed> placed_;  // empty where graphviz finds the places
  Point extent_;
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
    throw InputError(fmt::format("no temporary file in /tmp: {}", std::strerror(errno)));
  }
  return file;
}

/// What was written to `file`.
std::string text_of(const Fd& file) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  ssize_t got = 0;
  ::lseek(file.get(), 0, SEEK_SET);
  while ((got = ::read(file.get(), buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
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
  std::string placed = "-n2";  // nodes have places
  const Fd drawn = unnamed_file("");
  std::string quiet = "-q";  // no warnings: a name may be wider than its letters were counted
  std::vector<char*> arguments = {program.data(), format.data(), quiet.data()};
  if (has_boxes(topology)) arguments.push_back(placed.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, source.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, drawn.get(), STDOUT_FILENO);
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
  const std::string picture = text_of(drawn);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !picture.ends_with("</svg>\n")) {
    throw InputError(
        fmt::format("{}: graphviz could not draw this picture (see its message)", path));
  }
  if (path != "-") return write_file(path, picture);
  if (std::fwrite(picture.data(), 1, picture.size(), stdout) != picture.size() ||
      std::fflush(stdout) != 0) {
    throw InputError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

}  // namespace chorus
