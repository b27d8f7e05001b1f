#include "synth/sketch/timing.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "synth/list_scheduler.hpp"

namespace chorus::synth {
namespace {

constexpr double kSameMoment = 1 + 1e-9;
constexpr int kMostRounds = 4;  // through all windows
constexpr double kGain = 1 - 1e-6;

std::int64_t place(const Network& network, ChunkId chunk, Rank rank) {
  return std::int64_t{chunk} * network.world_size() + rank;
}

/// Sends of one chunk each, in the order in which list scheduling begins them.
std::vector<Send> listed(const Network& network, const Spread& spread, double chunk_bytes) {
  std::unordered_map<std::int64_t, int> bringer;
  std::vector<Send> sends;
  JobGraph graph;
  for (const Hop& hop : spread.hops) {
    const auto index = static_cast<int>(sends.size());
    const std::optional<int> edge = network.edge(hop.src, hop.dst);
    CHORUS_CHECK(edge.has_value(), "hops are edges of the network they are ordered on");
    Send& send = sends.emplace_back(Send{*edge, {hop.chunk}, {}, 0, 0});
    graph.add({*edge, {0, 1, -hop.chunk}});
    const auto brought = bringer.find(place(network, hop.chunk, hop.src));
    if (brought != bringer.end()) {
      send.after.push_back(brought->second);
      graph.wait(index, brought->second);
    }
    bringer.emplace(place(network, hop.chunk, hop.dst), index);
  }
  for (std::size_t i = sends.size(); i-- > 0;) {
    const Edge& edge = network.edges()[at(sends[i].edge)];
    auto& [way_s, reaches, chunk] = graph.jobs()[i].urgency;
    way_s += edge.alpha_s + chunk_bytes * edge.beta_s_per_byte;
    for (const int before : sends[i].after) {
      auto& [way_before_s, reaches_before, chunk_before] = graph.jobs()[at(before)].urgency;
      way_before_s = std::max(way_before_s, way_s);
      reaches_before += reaches;
    }
  }
  ListScheduler scheduler(network, std::move(graph), chunk_bytes);
  const std::vector<int> order = scheduler.run();
  std::vector<int> position(sends.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[at(order[i])] = static_cast<int>(i);
  std::vector<Send> result;
  for (const int index : order) {
    result.push_back(std::move(sends[at(index)]));
    for (int& before : result.back().after) before = position[at(before)];
  }
  return result;
}

/// Steps of sends in the order of begins: after those of what brings their chunks, and not before
/// what their source has sent. Within a step a lane goes by chunk.
class SendNumbering {
 public:
  explicit SendNumbering(const Network& network)
      : network_(network),
        last_step_(at(network.world_size()), 0),
        last_on_(network.edges().size(), {-1, -1}) {}

  int step(const Send& send) {
    const Edge& edge = network_.edges()[at(send.edge)];
    int& last = last_step_[at(edge.src)];
    int step = last;
    for (const ChunkId chunk : send.chunks) {
      const auto brought = brought_.find(place(network_, chunk, edge.src));
      if (brought != brought_.end()) step = std::max(step, brought->second + 1);
    }
    auto& [before, chunk_before] = last_on_[at(send.edge)];
    if (before == step && chunk_before > send.chunks.front()) ++step;
    before = step;
    chunk_before = send.chunks.back();
    last = step;
    for (const ChunkId chunk : send.chunks) brought_[place(network_, chunk, edge.dst)] = step;
    return step;
  }

 private:
  const Network& network_;
  std::vector<int> last_step_;                // by source
  std::vector<std::pair<int, int>> last_on_;  // by edge: step and chunk
  std::unordered_map<std::int64_t, int> brought_;
};

}  // namespace

Timing::Timing(const Network& network, const Spread& spread, double chunk_bytes)
    : network_(network),
      collective_(spread.collective),
      num_chunks_(spread.num_chunks),
      bytes_(chunk_bytes),
      sends_(listed(network, spread, chunk_bytes)) {
  replay();
}

double Timing::length_s(const Send& send) const {
  const Edge& edge = network_.edges()[at(send.edge)];
  return edge.alpha_s + static_cast<double>(send.chunks.size()) * bytes_ * edge.beta_s_per_byte;
}

/// Per crossing; an edge that crosses a resource twice names it twice.
double Timing::busy_s(int resource, const Send& send) const {
  const Resource& facts = network_.resources()[at(resource)];
  return facts.message_s + static_cast<double>(send.chunks.size()) * bytes_ * facts.beta_s_per_byte;
}

/// Begins of the sends in their order, each as early as what it waits for and what it crosses let
/// it; then the order of these begins.
void Timing::replay() {
  std::vector<double> free_s(network_.resources().size(), 0);
  for (Send& send : sends_) {
    double begin_s = 0;
    for (const int before : send.after) begin_s = std::max(begin_s, sends_[at(before)].end_s);
    const std::vector<int>& resources = network_.edges()[at(send.edge)].resources;
    for (const int r : resources) begin_s = std::max(begin_s, free_s[at(r)]);
    send.begin_s = begin_s;
    send.end_s = begin_s + length_s(send);
    for (const int r : resources)
      free_s[at(r)] = std::max(free_s[at(r)], begin_s) + busy_s(r, send);
  }
  std::vector<int> order(sends_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return sends_[at(a)].begin_s < sends_[at(b)].begin_s; });
  std::vector<int> position(sends_.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[at(order[i])] = static_cast<int>(i);
  std::vector<Send> sorted;
  for (const int index : order) {
    sorted.push_back(std::move(sends_[at(index)]));
    for (int& before : sorted.back().after) before = position[at(before)];
  }
  sends_ = std::move(sorted);
}

double Timing::seconds() const {
  double end_s = 0;
  for (const Send& send : sends_) end_s = std::max(end_s, send.end_s);
  return end_s;
}

/// By send: from its end to the end of what waits for it, nothing else being in the way.
std::vector<double> Timing::tails() const {
  std::vector<double> tail_s(sends_.size(), 0);
  for (std::size_t i = sends_.size(); i-- > 0;) {
    for (const int before : sends_[i].after) {
      tail_s[at(before)] = std::max(tail_s[at(before)], tail_s[i] + length_s(sends_[i]));
    }
  }
  return tail_s;
}

TimingWindow Timing::window(std::size_t first, std::size_t last) const {
  TimingWindow window;
  std::vector<double> free_s(network_.resources().size(), 0);
  const auto occupy = [&](const Send& send) {
    for (const int r : network_.edges()[at(send.edge)].resources) {
      free_s[at(r)] = std::max(free_s[at(r)], send.begin_s) + busy_s(r, send);
    }
  };
  for (std::size_t i = 0; i < first; ++i) occupy(sends_[i]);
  const std::vector<double> free_before_s = free_s;
  const std::vector<double> tail_s = tails();
  struct Sum {
    double ready_s = 1e300;
    double work_s = 0;
  };
  std::map<int, Sum> sums;
  for (std::size_t i = first; i < last; ++i) {
    const Send& send = sends_[i];
    TimingWindow::Job job{.edge = send.edge,
                          .chunk = send.chunks.back(),
                          .chunks = static_cast<int>(send.chunks.size()),
                          .length_s = length_s(send),
                          .tail_s = tail_s[i],
                          .uses = {},
                          .after = {},
                          .begin_s = send.begin_s};
    for (const int before : send.after) {
      if (at(before) >= first) {
        job.after.push_back(before - static_cast<int>(first));
      } else {
        job.ready_s = std::max(job.ready_s, sends_[at(before)].end_s);
      }
    }
    for (const int r : network_.edges()[at(send.edge)].resources) {
      job.ready_s = std::max(job.ready_s, free_before_s[at(r)]);
      if (!job.uses.empty() && job.uses.back().resource == r) {
        job.uses.back().seconds += busy_s(r, send);
        job.uses.back().message_s += network_.resources()[at(r)].message_s;
      } else {
        job.uses.push_back({r, busy_s(r, send), network_.resources()[at(r)].message_s});
      }
    }
    for (const TimingWindow::Use& use : job.uses) {
      Sum& sum = sums[use.resource];
      sum.ready_s = std::min(sum.ready_s, job.ready_s);
      sum.work_s += use.seconds - use.message_s;
    }
    window.end_s = std::max(window.end_s, send.end_s + job.tail_s);
    window.bound_s = std::max(window.bound_s, job.ready_s + job.length_s + job.tail_s);
    occupy(send);
    window.jobs.push_back(std::move(job));
  }
  for (std::size_t i = last; i < sends_.size(); ++i) {
    for (const int r : network_.edges()[at(sends_[i].edge)].resources) {
      if (sums.contains(r)) window.behind_s[r] += busy_s(r, sends_[i]);
    }
  }
  for (const auto& [r, sum] : sums) {
    const double behind_s = window.behind_s[r];
    window.end_s = std::max(window.end_s, free_s[at(r)] + behind_s);
    window.bound_s = std::max(window.bound_s, sum.ready_s + sum.work_s + behind_s);
  }
  return window;
}

/// Puts the sends of the window that begins at `first` in their new order, joins those that travel
/// together, and times all anew. What becomes no better is taken back.
bool Timing::take(std::size_t first, const std::vector<double>& begins,
                  const std::vector<int>& with) {
  const std::vector<Send> before = sends_;
  const double before_s = seconds();
  std::vector<int> into(sends_.size());  // by send: the one it is now part of
  std::iota(into.begin(), into.end(), 0);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    sends_[first + i].begin_s = begins[i];
    int head = static_cast<int>(i);
    while (with[at(head)] >= 0) head = with[at(head)];
    into[first + i] = static_cast<int>(first) + head;
  }
  std::vector<int> order;
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (into[i] == index) {
      order.push_back(index);
      continue;
    }
    Send& head = sends_[at(into[i])];
    head.chunks.insert(head.chunks.end(), sends_[i].chunks.begin(), sends_[i].chunks.end());
    head.after.insert(head.after.end(), sends_[i].after.begin(), sends_[i].after.end());
  }
  // The rest stays behind the window: its begins follow from the order alone.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const auto phase = [&](int i) {
      return at(i) < first ? 0 : at(i) < first + begins.size() ? 1 : 2;
    };
    if (phase(a) != phase(b)) return phase(a) < phase(b);
    return phase(a) == 1 && sends_[at(a)].begin_s < sends_[at(b)].begin_s;
  });
  std::vector<int> position(sends_.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[at(order[i])] = static_cast<int>(i);
  std::vector<Send> sorted;
  for (const int index : order) {
    Send& send = sorted.emplace_back(std::move(sends_[at(index)]));
    std::sort(send.chunks.begin(), send.chunks.end());
    for (int& one : send.after) one = position[at(into[at(one)])];
  }
  sends_ = std::move(sorted);
  replay();
  if (seconds() <= before_s * kSameMoment) return true;
  sends_ = before;
  return false;
}

bool Timing::improve(const WindowSolver& exact, const Effort& effort) {
  bool changed = false;
  for (int round = 0; round < kMostRounds; ++round) {
    const double before_s = seconds();
    constexpr auto kWindow = static_cast<std::size_t>(kMostWindowJobs);
    for (std::size_t first = 0; first < sends_.size(); first += kWindow / 2) {
      if (effort.spent()) return changed;
      const std::size_t last = std::min(first + kWindow, sends_.size());
      const TimingWindow asked = window(first, last);
      if (asked.bound_s >= asked.end_s * kGain) continue;
      const std::optional<Retimed> found = exact(asked, effort);
      if (found && take(first, found->begin_s, found->with)) changed = true;
      if (last == sends_.size()) break;
    }
    if (seconds() >= before_s * kGain) break;
  }
  return changed;
}

/// Joins sends that wait at an edge for nothing but the one before them, and have all their chunks
/// there when that one begins.
std::vector<Send> Timing::together() const {
  std::vector<Send> joined;
  std::vector<int> last_on(network_.edges().size(), -1);
  std::vector<int> last_of(at(network_.world_size()), -1);  // by source: what it sent last
  for (const Send& send : sends_) {
    const Rank src = network_.edges()[at(send.edge)].src;
    double ready_s = 0;
    for (const int before : send.after) ready_s = std::max(ready_s, sends_[at(before)].end_s);
    const int before = last_on[at(send.edge)];
    const bool follows = before >= 0 && last_of[at(src)] == before;
    if (follows && ready_s <= joined[at(before)].begin_s * kSameMoment &&
        joined[at(before)].chunks.size() + send.chunks.size() <= at(kMostTogether) &&
        joined[at(before)].chunks.back() < send.chunks.front()) {
      Send& head = joined[at(before)];
      head.chunks.insert(head.chunks.end(), send.chunks.begin(), send.chunks.end());
      continue;
    }
    last_on[at(send.edge)] = last_of[at(src)] = static_cast<int>(joined.size());
    joined.push_back(send);
  }
  return joined;
}

Schedule Timing::schedule(std::string_view name) const {
  Schedule schedule{std::string(name), collective_, network_.world_size(), num_chunks_, {}};
  SendNumbering numbering(network_);
  for (const Send& send : together()) {
    const Edge& edge = network_.edges()[at(send.edge)];
    const auto step = at(numbering.step(send));
    if (step >= schedule.steps.size()) schedule.steps.resize(step + 1);
    for (const ChunkId chunk : send.chunks) {
      schedule.steps[step].push_back({edge.src, edge.dst, chunk, Action::copy});
    }
  }
  for (Step& step : schedule.steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  return schedule;
}

}  // namespace chorus::synth
