#include "cli/draw/draw.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "chorus/topology.hpp"
#include "cli/draw/draw_layout.hpp"

namespace chorus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Drawn {
  std::string svg;
  std::map<int, Point> at;  // by node of the topology
};

/// What graphviz made of it; y grows downwards.
Drawn drawn(const Topology& topology) {
  const std::string path = ::testing::TempDir() + "draw_test.svg";
  draw_svg(topology, path);
  std::ifstream file(path);
  Drawn result{.svg = {std::istreambuf_iterator<char>(file), {}}, .at = {}};
  std::filesystem::remove(path);
  const std::regex shape(R"re(<title>n(\d+)</title>[^]*?<text[^>]* x="([-\d.]+)" y="([-\d.]+)")re");
  for (auto it = std::sregex_iterator(result.svg.begin(), result.svg.end(), shape);
       it != std::sregex_iterator(); ++it) {
    result.at[std::stoi((*it)[1])] = {std::stod((*it)[2]), std::stod((*it)[3])};
  }
  return result;
}

bool has_graphviz() { return std::system("dot -V > /dev/null 2>&1") == 0; }

TEST(Draw, GpusOfARowStandFromLeftToRight) {
  if (!has_graphviz()) GTEST_SKIP() << "graphviz is not installed";
  for (const char* name :
       {"pcie8", "pcie:2x2x4", "2*dgx-a100", "3*dgx-h100", "2*pcie8", "cpu:2x4", "dgx2", "2*dgx2",
        "islands", "switch:8", "fat-tree:4x4", "16*dgx-a100"}) {
    const Topology topology = find_topology(name);
    const Drawn picture = drawn(topology);
    std::map<double, double> last_x;  // by height
    for (std::size_t i = 0; i < topology.nodes.size(); ++i) {
      const NodeKind kind = topology.nodes[i].kind;
      if (kind != NodeKind::gpu && kind != NodeKind::core && kind != NodeKind::nic) continue;
      ASSERT_TRUE(picture.at.contains(static_cast<int>(i))) << name << topology.nodes[i].name;
      const Point at = picture.at.at(static_cast<int>(i));
      const auto [before, is_first] = last_x.try_emplace(at.y, -1e9);
      EXPECT_GT(at.x, before->second) << name << " " << topology.nodes[i].name;
      before->second = at.x;
    }
  }
}

TEST(Draw, LinksRunBeneathNamesNotAcross) {
  if (!has_graphviz()) GTEST_SKIP() << "graphviz is not installed";
  for (const char* name : {"2*dgx-a100", "dgx1", "2*ndv2", "pcie8", "16*dgx-h100"}) {
    const std::string svg = drawn(find_topology(name)).svg;
    EXPECT_LT(svg.rfind("class=\"edge\""), svg.find("class=\"node\"")) << name;
    // Names of boxes are nodes, not text of the frame that links would be drawn upon.
    const std::regex text_of_frame(R"re(class="cluster">(?:(?!</g>)[^])*<text)re");
    EXPECT_FALSE(std::regex_search(svg.begin(), svg.begin() + 20'000, text_of_frame)) << name;
    EXPECT_THAT(svg, HasSubstr("<title>label")) << name;
  }
}

TEST(Draw, MarksTheSlowHostAndNobodyElse) {
  const std::string slow = graphviz_source(find_topology("slow"));
  EXPECT_THAT(slow, HasSubstr("host3\\nrank 3\\nslow"));
  EXPECT_THAT(slow, HasSubstr("slow beside its peers"));
  EXPECT_THAT(slow, Not(HasSubstr("host2\\nrank 2\\nslow")));
  for (const char* name : {"homo", "pairs", "dgx1", "2*dgx-a100", "2*mi250x", "fat-tree:4x8"}) {
    EXPECT_THAT(graphviz_source(find_topology(name)), Not(HasSubstr("slow"))) << name;
  }
}

TEST(Draw, SaysARankOnceThatIsTheNameOfItsNode) {
  Topology topology = find_topology("ring:3");
  for (int r = 0; r < 3; ++r) {
    topology.nodes[static_cast<std::size_t>(r)].name = "host/rank" + std::to_string(r);
  }
  topology.nodes.push_back({.name = "host", .kind = NodeKind::host, .detail = ""});
  for (int r = 0; r < 3; ++r) topology.nodes[static_cast<std::size_t>(r)].parent = 3;
  const std::string text = graphviz_source(topology);
  EXPECT_THAT(text, HasSubstr("[label=\"rank 2\""));
  EXPECT_THAT(text, Not(HasSubstr("rank2")));
}

/// Boxes of `nodes` that share a parent.
bool apart(const Placed& a, const Placed& b) {
  return a.high.x <= b.low.x || b.high.x <= a.low.x || a.high.y <= b.low.y || b.high.y <= a.low.y;
}

TEST(DrawLayout, KeepsEveryShapeInItsBoxAndSiblingsApart) {
  // Boxes of boxes, of uneven sizes.
  for (int hosts = 1; hosts < 40; hosts += 6) {
    std::vector<Placed> nodes;
    std::vector<std::pair<int, int>> links;
    const auto add = [&](int parent, bool box, int level) {
      nodes.push_back({.parent = parent,
                       .is_box = box,
                       .has_shape = !box || level % 2 == 0,
                       .level = {level, 0},
                       .size = {50.0 + static_cast<double>(nodes.size() % 30), 30},
                       .label = {90, 14}});
      return static_cast<int>(nodes.size()) - 1;
    };
    add(-1, false, 0);
    for (int h = 0; h < hosts; ++h) {
      const int host = add(-1, true, 1 + h % 3);
      for (int n = 0; n <= h % 5; ++n) add(host, false, 1);
      for (int c = 0; c < 2; ++c) {
        const int inner = add(host, true, 2 + h % 2);
        int before = -1;
        for (int g = 0; g < 1 + (h + c) % 9; ++g) {
          const int gpu = add(inner, false, 4);
          if (before >= 0 && h % 4 == 0) links.emplace_back(before, gpu);
          before = gpu;
        }
      }
    }
    const Point extent = lay_out(nodes, links);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Placed& node = nodes[i];
      if (node.has_shape) {
        EXPECT_GE(node.at.x - node.size.x / 2, -1e-6);
        EXPECT_LE(node.at.y + node.size.y / 2, extent.y + 1e-6);
      }
      if (node.parent >= 0) {
        const Placed& box = nodes[static_cast<std::size_t>(node.parent)];
        if (node.has_shape) {
          EXPECT_GE(node.at.x - node.size.x / 2, box.low.x);
          EXPECT_LE(node.at.x + node.size.x / 2, box.high.x);
          EXPECT_GE(node.at.y - node.size.y / 2, box.low.y);
          EXPECT_LE(node.at.y + node.size.y / 2, box.label_at.y - box.label.y / 2 + 1e-6)
              << "below the name";
        }
      }
      for (std::size_t j = 0; node.is_box && j < i; ++j) {
        if (nodes[j].is_box && nodes[j].parent == node.parent) {
          EXPECT_TRUE(apart(node, nodes[j])) << i << " and " << j;
        }
      }
    }
  }
}

TEST(DrawLayout, ManyBoxesStandInRowsOfAPage) {
  std::vector<Placed> nodes;
  for (int h = 0; h < 60; ++h) {
    nodes.push_back({.parent = -1, .is_box = true, .has_shape = false, .label = {60, 14}});
    const int host = static_cast<int>(nodes.size()) - 1;
    for (int g = 0; g < 8; ++g) nodes.push_back({.parent = host, .size = {60, 30}, .label = {}});
  }
  const Point extent = lay_out(nodes, {});
  EXPECT_LT(extent.x, 3 * extent.y);
  EXPECT_LT(extent.y, 3 * extent.x);
}

}  // namespace
}  // namespace chorus
