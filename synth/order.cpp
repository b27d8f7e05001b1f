// in_order(): list scheduling of the hops of a spread.
#include <algorithm>
#include <cstddef>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// What a hop waits for and how urgent it is.
struct Job {
  int edge = 0;
  int brought_by = -1;  // the hop that brings the chunk to its source
  double way_s = 0;     // its own time and that of the longest way on from its end
  int reaches = 1;      // ranks that get the chunk through it
};

std::vector<Job> jobs_of(const Network& network, const Spread& spread, double chunk_bytes) {
  std::vector<Job> jobs(spread.hops.size());
  const auto n = static_cast<std::size_t>(network.world_size());
  std::unordered_map<std::size_t, int> bringer;  // chunk · n + rank to the hop that brought it
  bringer.reserve(spread.hops.size());
  for (std::size_t i = 0; i < spread.hops.size(); ++i) {
    const Hop& hop = spread.hops[i];
    const std::optional<int> edge = network.edge(hop.src, hop.dst);
    CHORUS_CHECK(edge.has_value(), "hops are edges of the network they are ordered on");
    const auto found = bringer.find(at(hop.chunk) * n + at(hop.src));
    jobs[i] = {*edge, found == bringer.end() ? -1 : found->second};
    const bool first =
        bringer.try_emplace(at(hop.chunk) * n + at(hop.dst), static_cast<int>(i)).second;
    CHORUS_CHECK(first, "no rank receives a chunk of a spread twice");
  }
  for (std::size_t i = jobs.size(); i-- > 0;) {
    const Edge& edge = network.edges()[at(jobs[i].edge)];
    jobs[i].way_s += edge.alpha_s + chunk_bytes * edge.beta_s_per_byte;
    if (jobs[i].brought_by < 0) continue;
    Job& before = jobs[at(jobs[i].brought_by)];
    before.way_s = std::max(before.way_s, jobs[i].way_s);
    before.reaches += jobs[i].reaches;
  }
  return jobs;
}

/// Time passes from event to event; what can begin begins, most urgent first.
class ListScheduler {
 public:
  ListScheduler(const Network& network, const Spread& spread, double chunk_bytes)
      : network_(network),
        spread_(spread),
        bytes_(chunk_bytes),
        jobs_(jobs_of(network, spread, chunk_bytes)),
        waiting_(network.edges().size(), Queue(Later{this})),
        edges_over_(network.resources().size()),
        free_at_s_(network.resources().size(), 0),
        next_on_(jobs_.size(), -1),
        first_on_(jobs_.size(), -1) {
    for (std::size_t edge = 0; edge < network.edges().size(); ++edge) {
      for (const int resource : network.edges()[edge].resources) {
        std::vector<int>& over = edges_over_[at(resource)];
        if (over.empty() || over.back() != static_cast<int>(edge)) {
          over.push_back(static_cast<int>(edge));
        }
      }
    }
    for (std::size_t i = jobs_.size(); i-- > 0;) {  // lists of the hops that each hop enables
      if (jobs_[i].brought_by < 0) continue;
      next_on_[i] = std::exchange(first_on_[at(jobs_[i].brought_by)], static_cast<int>(i));
    }
  }

  /// The hops in the order in which they begin, their steps numbered.
  std::vector<int> run() {
    std::vector<int> touched;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].brought_by < 0) arrive(static_cast<int>(i), touched);
    }
    while (order_.size() < jobs_.size()) {
      begin_what_can(touched);
      if (order_.size() == jobs_.size()) break;
      CHORUS_CHECK(!events_.empty(), "every hop of a spread can begin at some time");
      now_s_ = events_.top().time_s;
      touched.clear();
      while (!events_.empty() && events_.top().time_s <= now_s_ * (1 + 1e-12)) {
        const Event event = events_.top();
        events_.pop();
        if (event.freed) {
          const std::vector<int>& over = edges_over_[at(event.id)];
          touched.insert(touched.end(), over.begin(), over.end());
        } else {
          for (int job = first_on_[at(event.id)]; job >= 0; job = next_on_[at(job)]) {
            arrive(job, touched);
          }
        }
      }
    }
    return std::move(order_);
  }

 private:
  struct Later {  // orders heaps by urgency
    const ListScheduler* scheduler;
    bool operator()(int a, int b) const { return scheduler->urgency(a) < scheduler->urgency(b); }
  };
  using Queue = std::priority_queue<int, std::vector<int>, Later>;

  /// A resource is free again, or a hop has arrived.
  struct Event {
    double time_s = 0;
    bool freed = false;
    int id = 0;

    bool operator>(const Event& other) const {
      return std::tie(time_s, freed, id) > std::tie(other.time_s, other.freed, other.id);
    }
  };

  [[nodiscard]] std::tuple<double, int, int, int> urgency(int job) const {
    const Job& facts = jobs_[at(job)];
    return {facts.way_s, facts.reaches, -spread_.hops[at(job)].chunk, -job};
  }

  void arrive(int job, std::vector<int>& touched) {
    waiting_[at(jobs_[at(job)].edge)].push(job);
    touched.push_back(jobs_[at(job)].edge);
  }

  [[nodiscard]] bool free(int edge) const {
    const std::vector<int>& resources = network_.edges()[at(edge)].resources;
    return std::all_of(resources.begin(), resources.end(), [&](int resource) {
      return free_at_s_[at(resource)] <= now_s_ * (1 + 1e-12);
    });
  }

  void begin_what_can(std::vector<int>& touched) {
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    Queue heads(Later{this});
    const auto offer = [&](int edge) {
      if (!waiting_[at(edge)].empty() && free(edge)) heads.push(waiting_[at(edge)].top());
    };
    for (const int edge : touched) offer(edge);
    while (!heads.empty()) {
      const int job = heads.top();
      heads.pop();
      const int edge = jobs_[at(job)].edge;
      if (!free(edge)) continue;  // taken meanwhile; offered again when it is freed
      waiting_[at(edge)].pop();
      begin(job);
      offer(edge);  // where nothing limits the edge
    }
  }

  void begin(int job) {
    const Edge& edge = network_.edges()[at(jobs_[at(job)].edge)];
    for (const int index : edge.resources) {
      const Resource& resource = network_.resources()[at(index)];
      double& free_at_s = free_at_s_[at(index)];
      free_at_s =
          std::max(free_at_s, now_s_) + resource.message_s + bytes_ * resource.beta_s_per_byte;
      events_.push({free_at_s, true, index});
    }
    const double flows_s = bytes_ * edge.beta_s_per_byte;
    events_.push({now_s_ + edge.alpha_s + flows_s, false, job});
    order_.push_back(job);
  }

  const Network& network_;
  const Spread& spread_;
  double bytes_;
  double now_s_ = 0;
  std::vector<Job> jobs_;
  std::vector<Queue> waiting_;                // by edge: hops whose chunk is there
  std::vector<std::vector<int>> edges_over_;  // by resource
  std::vector<double> free_at_s_;             // by resource
  std::vector<int> next_on_, first_on_;       // lists of the hops that wait for a hop
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<int> order_;
};

/// Steps of hops that begin in the order in which they come.
class Numbering {
 public:
  explicit Numbering(const Network& network)
      : network_(network),
        last_step_(at(network.world_size()), 0),
        last_on_(network.edges().size()) {}

  /// After the hop that brought the chunk, and not before what its source has sent. Within a step
  /// a lane goes by chunk: what has to go out of that order begins a new step.
  int step(const Hop& hop) {
    const auto n = static_cast<std::size_t>(network_.world_size());
    const auto brought = brought_.find(at(hop.chunk) * n + at(hop.src));
    int& last = last_step_[at(hop.src)];
    int step = brought == brought_.end() ? last : std::max(last, brought->second + 1);
    const std::optional<int> edge = network_.edge(hop.src, hop.dst);
    CHORUS_CHECK(edge.has_value(), "hops are edges of the network they are ordered on");
    Sent& before = last_on_[at(*edge)];
    if (before.step == step && before.chunk > hop.chunk) ++step;
    before = {step, hop.chunk};
    last = step;
    brought_[at(hop.chunk) * n + at(hop.dst)] = step;
    return step;
  }

 private:
  struct Sent {
    int step = -1;
    ChunkId chunk = -1;
  };

  const Network& network_;
  std::vector<int> last_step_;                    // by source rank
  std::vector<Sent> last_on_;                     // by edge
  std::unordered_map<std::size_t, int> brought_;  // chunk · n + rank: the step that brought it
};

}  // namespace

Schedule as_begun(std::string_view name, const Network& network, const Spread& spread) {
  Schedule schedule{
      std::string(name), spread.collective, network.world_size(), spread.num_chunks, {}};
  Numbering numbering(network);
  for (const Hop& hop : spread.hops) {
    const auto step = at(numbering.step(hop));
    if (step >= schedule.steps.size()) schedule.steps.resize(step + 1);
    schedule.steps[step].push_back({hop.src, hop.dst, hop.chunk, Action::copy});
  }
  for (Step& step : schedule.steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  return schedule;
}

Schedule in_order(std::string_view name, const Network& network, const Spread& spread,
                  double chunk_bytes) {
  Spread begun{spread.collective, spread.num_chunks, {}};
  begun.hops.reserve(spread.hops.size());
  for (const int job : ListScheduler(network, spread, chunk_bytes).run()) {
    begun.hops.push_back(spread.hops[at(job)]);
  }
  return as_begun(name, network, begun);
}

}  // namespace chorus::synth
