// Where the nodes of a topology stand in its picture, if some lie within others.
#pragma once

#include <compare>
#include <utility>
#include <vector>

namespace chorus {

// All lengths are in points, y grows upwards.

struct Point {
  double x = 0;
  double y = 0;
};

/// A node as the layout sees it.
struct Placed {
  int parent = -1;                 ///< the box that it lies in
  bool is_box = false;             ///< others lie in it
  bool has_shape = true;           ///< it is drawn itself; a box may be nothing but its frame
  std::pair<int, int> level = {};  ///< what is less stands higher
  Point size = {};                 ///< of its shape
  Point label = {};                ///< size of a box's name
  // The layout fills in:
  Point at = {};              ///< middle of the shape
  Point label_at = {};        ///< middle of the name, in the upper left corner of the box
  Point low = {}, high = {};  ///< corners of the box
};

/// Boxes of one box stand side by side, in the order of `nodes`; the shapes in it stand in rows by
/// their level, above the boxes or below. Shapes of one row that `links` join to each other stand
/// on a circle. Returns the extent of all.
Point lay_out(std::vector<Placed>& nodes, const std::vector<std::pair<int, int>>& links);

}  // namespace chorus
