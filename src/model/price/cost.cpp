#include "model/price/cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "model/schedule/symmetry.hpp"

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

  void add(const std::vector<int>& path, int chunks, int messages) {
    for (const int index : path) {
      const auto link = static_cast<std::size_t>(index);
      if (on_link_[link] == 0) links_.push_back(link);
      on_link_[link] += chunks;
      for (const int group_index : groups_of_[link]) {
        const auto group = static_cast<std::size_t>(group_index);
        if (on_group_[group] == 0) groups_.push_back(group);
        on_group_[group] += chunks;
        messages_on_group_[group] += messages;
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

[[noreturn]] void complain_of_no_path(const Schedule& schedule, const Topology& topology, Rank src,
                                      Rank dst) {
  throw TopologyError(
      fmt::format("the topology '{}' has no path from rank {} to rank {}, over which the schedule "
                  "'{}' sends; add the missing link",
                  topology.name, src, dst, schedule.name));
}

/// The cost of a symmetric schedule without writing out its transfers: those that are images of
/// each other load the topology with all their images at once, which is computed once per pair of
/// ranks up to symmetry. A ring of n ranks has one such pair, not 2n(n−1) transfers.
class SymmetricCost {
 public:
  SymmetricCost(const Schedule& schedule, const Topology& topology, const Routes& routes)
      : schedule_(schedule),
        topology_(topology),
        routes_(routes),
        cells_(cells_of(schedule)),
        load_(topology) {}

  Cost run() {
    const double chunk_share = chunk_bytes(schedule_, 1.0);
    Cost total;
    for (const Step& step : schedule_.steps) {
      const std::vector<Pair> pairs = pairs_of(step);
      Worst worst;
      if (pairs.size() == 1) {
        const Worst& one = worst_of(pairs[0]);
        worst = {one.alpha_s, one.messages_s * pairs[0].messages,
                 one.beta_s_per_byte * pairs[0].chunks};
      } else {
        for (const Pair& pair : pairs) worst.alpha_s = std::max(worst.alpha_s, add_images(pair));
        worst.messages_s = load_.worst_of_messages();
        worst.beta_s_per_byte = load_.take_worst();
      }
      total.alpha_s += worst.alpha_s + worst.messages_s;
      total.beta_s_per_byte += worst.beta_s_per_byte * chunk_share;
    }
    return total;
  }

 private:
  /// What `src` of cell 0 sends to `dst`, and with it every image of `src` to that of `dst`.
  struct Pair {
    Rank src = 0;
    Rank dst = 0;
    int chunks = 0;
    int messages = 0;  ///< runs of consecutive chunks
  };
  struct Worst {
    double alpha_s = 0;
    double messages_s = 0;
    double beta_s_per_byte = 0;
  };

  [[nodiscard]] std::vector<Pair> pairs_of(const Step& step) const {
    std::vector<std::tuple<Rank, Rank, ChunkId>> sent;  // with src moved to cell 0
    for (const Transfer& transfer : step) {
      const int by = cells_.minus(0, cells_.cell_of(transfer.src));
      sent.emplace_back(cells_.moved(transfer.src, by), cells_.moved(transfer.dst, by),
                        moved_chunk(schedule_, cells_, transfer.chunk, by));
    }
    std::sort(sent.begin(), sent.end());
    std::vector<Pair> pairs;
    ChunkId last = 0;
    for (const auto& [src, dst, chunk] : sent) {
      const bool known = !pairs.empty() && pairs.back().src == src && pairs.back().dst == dst;
      if (!known) pairs.push_back({.src = src, .dst = dst});
      ++pairs.back().chunks;
      if (!known || chunk != last + 1) ++pairs.back().messages;
      last = chunk;
    }
    return pairs;
  }

  /// Adds every image to the load; returns the longest alpha of their routes.
  double add_images(const Pair& pair) {
    double alpha_s = 0;
    for (int by = 0; by < cells_.count(); ++by) {
      const Rank src = cells_.moved(pair.src, by);
      const Rank dst = cells_.moved(pair.dst, by);
      if (!routes_.connected(src, dst)) complain_of_no_path(schedule_, topology_, src, dst);
      alpha_s = std::max(alpha_s, routes_.alpha_s(src, dst));
      load_.add(routes_.path(src, dst), pair.chunks, pair.messages);
    }
    return alpha_s;
  }

  /// Of one chunk in one message.
  const Worst& worst_of(const Pair& pair) {
    const auto [known, is_new] = known_.try_emplace({pair.src, pair.dst});
    if (is_new) {
      known->second.alpha_s =
          add_images({.src = pair.src, .dst = pair.dst, .chunks = 1, .messages = 1});
      known->second.messages_s = load_.worst_of_messages();
      known->second.beta_s_per_byte = load_.take_worst();
    }
    return known->second;
  }

  const Schedule& schedule_;
  const Topology& topology_;
  const Routes& routes_;
  const Cells cells_;
  Load load_;
  std::map<std::pair<Rank, Rank>, Worst> known_;
};

void require_world(const Schedule& schedule, const Topology& topology) {
  if (schedule.world_size == topology.world_size()) return;
  throw TopologyError(fmt::format(
      "the schedule '{}' is made for {} but the topology '{}' has {}; make one "
      "for the other's number of ranks",
      schedule.name, counted(schedule.world_size, "rank"), topology.name, topology.world_size()));
}

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
  require_world(schedule, topology);
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      if (routes.connected(transfer.src, transfer.dst)) continue;
      complain_of_no_path(schedule, topology, transfer.src, transfer.dst);
    }
  }
}

Cost cost(const Schedule& schedule, const Topology& topology, const Routes& routes) {
  if (!schedule.symmetry.empty()) {
    require_world(schedule, topology);
    return SymmetricCost(schedule, topology, routes).run();
  }
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
      load.add(routes.path(transfer.src, transfer.dst), 1, goes_on ? 0 : 1);
      last = {s + 1, transfer.chunk};
    }
    total.alpha_s += alpha_s + load.worst_of_messages();
    total.beta_s_per_byte += load.take_worst() * chunk_share;
  }
  return total;
}

}  // namespace chorus
