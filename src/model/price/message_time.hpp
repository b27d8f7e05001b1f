// What messages take of the port groups they cross, whatever their size.
#pragma once

#include <algorithm>
#include <vector>

#include "base/index.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"

namespace chorus {

/// Serves messages one after another at every port group with a message_s: a core that four
/// messages need for 5 µs each is busy for 20 µs.
class MessageTime {
 public:
  explicit MessageTime(const Topology& topology) : groups_of_(topology.links.size()) {
    const auto all = port_groups_of_links(topology);
    for (std::size_t link = 0; link < all.size(); ++link) {
      for (const int group : all[link]) {
        if (topology.port_groups[at(group)].message_s > 0) groups_of_[link].push_back(group);
      }
    }
    for (const auto& group : topology.port_groups) groups_.push_back({group.message_s, 0});
  }

  /// When a message that comes to the first link of `path` at `now_s` has been served by all groups
  /// of its links. To be asked in the order of time.
  [[nodiscard]] double served_s(const std::vector<int>& path, double now_s) {
    for (const int link : path) {
      for (const int index : groups_of_[at(link)]) {
        Group& group = groups_[at(index)];
        group.free_s = std::max(group.free_s, now_s) + group.message_s;
        now_s = group.free_s;
      }
    }
    return now_s;
  }

 private:
  struct Group {
    double message_s = 0;
    double free_s = 0;
  };
  std::vector<std::vector<int>> groups_of_;  // by link
  std::vector<Group> groups_;
};

}  // namespace chorus
