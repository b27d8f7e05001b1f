#include "model/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "model/symmetry.hpp"

namespace chorus {
namespace {

/// Chunks and messages that cross each link and port group within one step; forgets only what was
/// touched. Chunks of a step from one rank to another that follow each other are one message
/// (delivery.cpp packs no others).
class Load {
 public:
  explicit Load(const Topology& topology)
      : topology_(topology),
        groups_of_(port_groups_of_links(topology)),
        on_link_(topology.links.size(), 0),
        on_group_(topology.port_groups.size(), 0),
        messages_on_group_(topology.port_groups.size(), 0) {}

  void add(const std::vector<int>& path, bool new_message) {
    for (const int index : path) {
      const auto link = static_cast<std::size_t>(index);
      if (on_link_[link]++ == 0) links_.push_back(link);
      for (const int group_index : groups_of_[link]) {
        const auto group = static_cast<std::size_t>(group_index);
        if (on_group_[group]++ == 0) groups_.push_back(group);
        if (new_message) ++messages_on_group_[group];
      }
    }
  }

  /// Seconds that the messages alone take of the most loaded port group.
  [[nodiscard]] double worst_of_messages() const {
    double worst = 0;
    for (const std::size_t group : groups_) {
      worst = std::max(worst, messages_on_group_[group] * topology_.port_groups[group].message_s);
    }
    return worst;
  }

  /// Seconds per byte of one chunk on the most loaded link or port group; empties the load.
  double take_worst() {
    double worst = 0;
    for (const std::size_t link : links_) {
      worst = std::max(worst, on_link_[link] * topology_.links[link].beta_s_per_byte);
      on_link_[link] = 0;
    }
    for (const std::size_t group : groups_) {
      worst = std::max(worst, on_group_[group] * topology_.port_groups[group].beta_s_per_byte);
      on_group_[group] = messages_on_group_[group] = 0;
    }
    links_.clear();
    groups_.clear();
    return worst;
  }

 private:
  const Topology& topology_;
  std::vector<std::vector<int>> groups_of_;
  std::vector<int> on_link_, on_group_, messages_on_group_;
  std::vector<std::size_t> links_, groups_;
};

}  // namespace

double chunk_bytes(const Schedule& schedule, double size_bytes) {
  if (schedule.collective.kind == CollectiveKind::barrier || schedule.num_chunks <= 0) return 0;
  const double chunks = schedule.num_chunks;
  if (schedule.collective.kind == CollectiveKind::all_to_all) {
    return size_bytes * schedule.world_size / chunks;
  }
  return size_bytes / chunks;
}

std::vector<std::vector<int>> port_groups_of_links(const Topology& topology) {
  std::vector<std::vector<int>> groups(topology.links.size());
  for (std::size_t group = 0; group < topology.port_groups.size(); ++group) {
    for (const int link : topology.port_groups[group].links) {
      groups[static_cast<std::size_t>(link)].push_back(static_cast<int>(group));
    }
  }
  return groups;
}

void require_routes(const Schedule& schedule, const Topology& topology, const Routes& routes) {
  if (schedule.world_size != topology.world_size()) {
    throw TopologyError(
        fmt::format("the schedule '{}' is made for {} ranks but the topology '{}' has {}; make one "
                    "for the other's number of ranks",
                    schedule.name, schedule.world_size, topology.name, topology.world_size()));
  }
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      if (routes.connected(transfer.src, transfer.dst)) continue;
      throw TopologyError(
          fmt::format("the topology '{}' has no path from rank {} to rank {}, over which the "
                      "schedule '{}' sends; add the missing link",
                      topology.name, transfer.src, transfer.dst, schedule.name));
    }
  }
}

Cost cost(const Schedule& schedule, const Topology& topology, const Routes& routes) {
  if (!schedule.symmetry.empty()) return cost(expanded(schedule), topology, routes);
  require_routes(schedule, topology, routes);
  const double chunk_share = chunk_bytes(schedule, 1.0);
  Load load(topology);
  Cost total;
  const auto n = static_cast<std::size_t>(schedule.world_size);
  struct Last {
    std::size_t step = 0;  // counted from 1
    ChunkId chunk = 0;
  };
  std::vector<Last> last_sent(n * n);  // by src to dst
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    double alpha_s = 0;
    for (const Transfer& transfer : schedule.steps[s]) {
      alpha_s = std::max(alpha_s, routes.alpha_s(transfer.src, transfer.dst));
      Last& last = last_sent[static_cast<std::size_t>(transfer.src) * n +
                             static_cast<std::size_t>(transfer.dst)];
      const bool goes_on = last.step == s + 1 && last.chunk + 1 == transfer.chunk;
      load.add(routes.path(transfer.src, transfer.dst), !goes_on);
      last = {s + 1, transfer.chunk};
    }
    total.alpha_s += alpha_s + load.worst_of_messages();
    total.beta_s_per_byte += load.take_worst() * chunk_share;
  }
  return total;
}

}  // namespace chorus
