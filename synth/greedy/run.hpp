// One greedy run: hops in the order in which they begin, and when the last one ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "synth/budget.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

struct GreedyRun {
  std::vector<Hop> hops;
  double seconds = 0;  ///< as the run sees it: whoever crosses a resource has it for itself
};

/// What all runs on one network share.
struct GreedyGround {
  explicit GreedyGround(const Network& network);

  const Network& network;
  std::vector<std::vector<int>> over;  ///< edges that cross each resource
  /// Ranks that fast edges join are one cluster where other edges are much slower: [rank].
  std::vector<int> cluster;
  int num_clusters = 1;
};

/// all_gather or broadcast in chunks of `chunk_bytes`. Nothing if some rank cannot be reached or
/// the budget is spent.
[[nodiscard]] std::optional<GreedyRun> spread_greedily(const GreedyGround& ground,
                                                       Collective collective, int chunks_per_block,
                                                       double chunk_bytes, std::uint64_t seed,
                                                       const Budget& budget);

/// all_to_all, gather or scatter.
[[nodiscard]] std::optional<GreedyRun> exchange_greedily(const GreedyGround& ground,
                                                         Collective collective,
                                                         int chunks_per_block, double chunk_bytes,
                                                         std::uint64_t seed, const Budget& budget);

/// When the resources of a network are free again, and what happens next.
class Clock {
 public:
  Clock(const Network& network, double chunk_bytes)
      : network_(network), bytes_(chunk_bytes), free_at_s_(network.resources().size(), 0) {}

  struct Event {
    double time_s = 0;
    bool arrival = false;  // else: a resource is free
    int id = 0;            // of the hop or resource

    bool operator>(const Event& other) const {
      return std::tie(time_s, arrival, id) > std::tie(other.time_s, other.arrival, other.id);
    }
  };

  [[nodiscard]] double now_s() const { return now_s_; }
  [[nodiscard]] bool idle(int resource) const {
    return free_at_s_[static_cast<std::size_t>(resource)] <= now_s_ * (1 + 1e-12);
  }
  [[nodiscard]] bool idle(const Edge& edge) const {
    for (const int resource : edge.resources) {
      if (!idle(resource)) return false;
    }
    return true;
  }
  /// When a chunk that begins to cross now arrives.
  [[nodiscard]] double arrival_s(const Edge& edge) const {
    return now_s_ + edge.alpha_s + bytes_ * edge.beta_s_per_byte;
  }
  /// Hop `id` begins to cross `edge`. Returns when it arrives.
  double begin(const Edge& edge, int id) {
    for (const int index : edge.resources) {
      const Resource& resource = network_.resources()[static_cast<std::size_t>(index)];
      double& free = free_at_s_[static_cast<std::size_t>(index)];
      free = std::max(free, now_s_) + resource.message_s + bytes_ * resource.beta_s_per_byte;
      events_.push({free, false, index});
    }
    const double end_s = arrival_s(edge);
    events_.push({end_s, true, id});
    return end_s;
  }
  /// What began to cross `edge` at `begun_s` is given up: its resources are free at once.
  void give_up(const Edge& edge, double begun_s) {
    for (const int index : edge.resources) {
      const Resource& resource = network_.resources()[static_cast<std::size_t>(index)];
      double& free = free_at_s_[static_cast<std::size_t>(index)];
      const double its_end_s = begun_s + resource.message_s + bytes_ * resource.beta_s_per_byte;
      if (free <= now_s_ || free > its_end_s * (1 + 1e-12)) continue;  // free, or another's by now
      free = now_s_;
      events_.push({now_s_, false, index});
    }
  }
  [[nodiscard]] bool over() const { return events_.empty(); }
  /// Goes to the next event; happened() holds all that is then.
  void advance() {
    happened_.clear();
    now_s_ = std::max(now_s_, events_.top().time_s);
    while (!events_.empty() && events_.top().time_s <= now_s_ * (1 + 1e-12)) {
      happened_.push_back(events_.top());
      events_.pop();
    }
  }
  [[nodiscard]] const std::vector<Event>& happened() const { return happened_; }

 private:
  const Network& network_;
  double bytes_;
  double now_s_ = 0;
  std::vector<double> free_at_s_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Event> happened_;
};

}  // namespace chorus::synth
