#include "cli/draw/draw_layout.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/index.hpp"

namespace chorus {
namespace {

constexpr double kBetween = 14;  // shapes of a row
constexpr double kBoxes = 24;    // boxes side by side
constexpr double kRows = 44;     // one above the other; links bend there
constexpr double kMargin = 10;   // within a box
constexpr double kPage = 1700;   // width; boxes beyond stand below
constexpr double kPi = 3.14159265358979323846;

class Layout {
 public:
  Layout(std::vector<Placed>& nodes, const std::vector<std::pair<int, int>>& links)
      : nodes_(nodes), children_(nodes.size()), links_(links) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      auto& siblings = nodes[i].parent < 0 ? roots_ : children_[at(nodes[i].parent)];
      siblings.push_back(static_cast<int>(i));
    }
  }

  /// Places `children`, and the shape of the box itself, in a rectangle whose lower left corner is
  /// (0, 0); returns its extent.
  Point place(const std::vector<int>& children, int box) {
    using Level = std::pair<int, int>;
    std::map<Level, std::vector<int>> rows;
    std::vector<int> boxes;
    Level highest_of_boxes{1 << 30, 0};
    if (box >= 0 && nodes_[at(box)].has_shape) rows[nodes_[at(box)].level].push_back(box);
    for (const int child : children) {
      if (!nodes_[at(child)].is_box) {
        rows[nodes_[at(child)].level].push_back(child);
        continue;
      }
      boxes.push_back(child);
      highest_of_boxes = std::min(highest_of_boxes, highest(child));
    }
    // From below.
    std::vector<std::pair<std::vector<int>, Point>> blocks;
    bool boxes_placed = boxes.empty();
    for (auto row = rows.rbegin(); row != rows.rend() || !boxes_placed;) {
      if (!boxes_placed && (row == rows.rend() || row->first <= highest_of_boxes)) {
        blocks.emplace_back(boxes, place_boxes(boxes));
        boxes_placed = true;
        continue;
      }
      blocks.emplace_back(row->second, place_row(row->second));
      ++row;
    }
    Point extent;
    for (const auto& [members, size] : blocks) extent.x = std::max(extent.x, size.x);
    for (const auto& [members, size] : blocks) {
      if (extent.y > 0) extent.y += kRows;
      for (const int member : members) {
        shift(member, {(extent.x - size.x) / 2, extent.y}, member == box);
      }
      extent.y += size.y;
    }
    return extent;
  }

  [[nodiscard]] const std::vector<int>& roots() const { return roots_; }

 private:
  [[nodiscard]] std::pair<int, int> highest(int box) const {
    std::pair<int, int> level = nodes_[at(box)].level;
    if (!nodes_[at(box)].has_shape) level = {1 << 30, 0};
    for (const int child : children_[at(box)]) level = std::min(level, highest(child));
    return level;
  }

  /// In rows that are no wider than a page, the first at the top, if need be.
  Point place_boxes(const std::vector<int>& boxes) {
    std::vector<std::pair<std::vector<int>, Point>> rows;
    double area = 0;
    for (const int box : boxes)
      area += (place_box(box) + kBoxes) * (nodes_[at(box)].high.y + kRows);
    constexpr double kAspect = 2;
    const double page = std::max(kPage, std::sqrt(kAspect * area));
    Point extent;
    for (const int box : boxes) {
      const double width = nodes_[at(box)].high.x;
      if (rows.empty() || rows.back().second.x + kBoxes + width > page) rows.emplace_back();
      auto& [members, size] = rows.back();
      if (!members.empty()) size.x += kBoxes;
      shift(box, {size.x, 0}, false);
      members.push_back(box);
      size = {size.x + width, std::max(size.y, nodes_[at(box)].high.y)};
      extent.x = std::max(extent.x, size.x);
    }
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
      const auto& [members, size] = *row;
      if (extent.y > 0) extent.y += kRows;
      for (const int box : members) {  // tops are level
        shift(box, {0, extent.y + size.y - nodes_[at(box)].high.y}, false);
      }
      extent.y += size.y;
    }
    return extent;
  }

  /// A box at (0, 0); returns its width.
  double place_box(int box) {
    Placed& node = nodes_[at(box)];
    const Point inner = place(children_[at(box)], box);
    for (const int child : children_[at(box)]) shift(child, {kMargin, kMargin}, false);
    if (node.has_shape) shift(box, {kMargin, kMargin}, true);
    node.low = {0, 0};
    node.high = {std::max(inner.x, node.label.x) + 2 * kMargin,
                 inner.y + node.label.y + 2 * kMargin};
    node.label_at = {kMargin + node.label.x / 2, node.high.y - 3 - node.label.y / 2};
    return node.high.x;
  }

  Point place_row(const std::vector<int>& row) {
    if (is_mesh(row)) return place_circle(row);
    Point extent;
    for (const int index : row) {
      Placed& node = nodes_[at(index)];
      if (extent.x > 0) extent.x += kBetween;
      node.at = {extent.x + node.size.x / 2, node.size.y / 2};
      extent = {extent.x + node.size.x, std::max(extent.y, node.size.y)};
    }
    return extent;
  }

  [[nodiscard]] bool is_mesh(const std::vector<int>& row) const {
    const std::set<int> members(row.begin(), row.end());
    const auto within = std::count_if(links_.begin(), links_.end(), [&](const auto& link) {
      return members.contains(link.first) && members.contains(link.second);
    });
    return row.size() > 2 && within >= static_cast<std::ptrdiff_t>(row.size()) - 1;
  }

  /// Clockwise from the upper left, turned so that equal boxes side by side do not hide each
  /// other's links.
  Point place_circle(const std::vector<int>& row) {
    constexpr double kTurn = 1.95;
    Point size;
    for (const int index : row) {
      size.x = std::max(size.x, nodes_[at(index)].size.x);
      size.y = std::max(size.y, nodes_[at(index)].size.y);
    }
    const auto count = static_cast<double>(row.size());
    const double radius = std::max(66.0, (size.x + 2 * kBetween) * count / (2 * kPi));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double angle = kTurn - 2 * kPi * static_cast<double>(i) / count;
      nodes_[at(row[i])].at = {radius * (1 + std::cos(angle)) + size.x / 2,
                               radius * (1 + std::sin(angle)) + size.y / 2};
    }
    return {2 * radius + size.x, 2 * radius + size.y};
  }

  /// Moves a shape, and a box with all that lies in it unless `shape_only`.
  void shift(int index, Point by, bool shape_only) {
    Placed& node = nodes_[at(index)];
    const auto move = [&](Point& point) { point = {point.x + by.x, point.y + by.y}; };
    move(node.at);
    if (shape_only) return;
    for (Point* point : {&node.label_at, &node.low, &node.high}) move(*point);
    for (const int child : children_[at(index)]) shift(child, by, false);
  }

  std::vector<Placed>& nodes_;
  std::vector<int> roots_;
  std::vector<std::vector<int>> children_;
  const std::vector<std::pair<int, int>>& links_;
};

}  // namespace

Point lay_out(std::vector<Placed>& nodes, const std::vector<std::pair<int, int>>& links) {
  Layout layout(nodes, links);
  return layout.place(layout.roots(), -1);
}

}  // namespace chorus
