// List scheduling: jobs that occupy the resources of an edge, begun as soon as they can, most
// urgent first. For synth/ only.
#pragma once

#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// One chunk crossing one edge, or, with edge -1, an instant that others wait for.
struct Job {
  int edge = -1;
  /// Higher goes first; then, among equals, the earlier job.
  std::tuple<double, int, int> urgency = {};
};

/// Jobs and which of them wait for the end of which.
class JobGraph {
 public:
  int add(Job job) {
    jobs_.push_back(job);
    return static_cast<int>(jobs_.size()) - 1;
  }
  void wait(int job, int for_job) { waits_.emplace_back(for_job, job); }

  [[nodiscard]] std::vector<Job>& jobs() { return jobs_; }
  [[nodiscard]] const std::vector<std::pair<int, int>>& waits() const { return waits_; }

 private:
  std::vector<Job> jobs_;
  std::vector<std::pair<int, int>> waits_;  // (before, after)
};

/// Runs through time once. Every resource serves one job at a time, for `chunk_bytes` times its
/// beta and its message time; a job ends after the alpha of its edge and its bytes at the worst
/// beta.
class ListScheduler {
 public:
  /// Edges are those of `network`, which outlives the scheduler. The graph has no cycle.
  ListScheduler(const Network& network, JobGraph graph, double chunk_bytes);

  /// Jobs with an edge, in the order in which they begin. Without those that would begin after
  /// `give_up_s`: then seconds() is infinite.
  std::vector<int> run(double give_up_s = std::numeric_limits<double>::infinity());
  /// After run(): when the last job ends.
  [[nodiscard]] double seconds() const { return end_s_; }

 private:
  struct Later {  // orders heaps by urgency
    const ListScheduler* scheduler;
    bool operator()(int a, int b) const {
      return scheduler->urgency_[at(a)] < scheduler->urgency_[at(b)];
    }
  };
  using Queue = std::priority_queue<int, std::vector<int>, Later>;

  /// A candidate to begin now, and the resource it waited for, or -1.
  struct Head {
    int job = 0;
    int resource = -1;
  };
  struct LaterHead {
    const ListScheduler* scheduler;
    bool operator()(const Head& a, const Head& b) const {
      return a.job != b.job ? Later{scheduler}(a.job, b.job) : a.resource < b.resource;
    }
  };
  /// A resource is free again, or a job has ended.
  struct Event {
    double time_s = 0;
    bool freed = false;
    int id = 0;

    bool operator>(const Event& other) const {
      return std::tie(time_s, freed, id) > std::tie(other.time_s, other.freed, other.id);
    }
  };

  void ended(int job);
  void arrive(int job);
  void offer(int job);
  void advance(int resource);
  void begin_what_can();
  void begin(int job);
  [[nodiscard]] int obstacle(int job) const;
  [[nodiscard]] bool busy(int resource) const;
  [[nodiscard]] bool leads(int job) const;

  const Network& network_;
  double bytes_;
  std::vector<Job> jobs_;
  std::vector<int> urgency_;           // by job: how many are less urgent
  std::vector<int> missing_;           // by job: jobs that it still waits for
  std::vector<int> after_;             // jobs that wait, grouped by the one they wait for
  std::vector<std::size_t> after_at_;  // [jobs + 1]
  std::vector<Queue> waiting_;         // by edge: jobs that could begin
  std::vector<Queue> blocked_;         // by resource: first jobs of edges that wait for it
  std::priority_queue<Head, std::vector<Head>, LaterHead> heads_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<double> free_at_s_;  // by resource
  std::vector<int> order_;
  double now_s_ = 0;
  double end_s_ = 0;
};

}  // namespace chorus::synth
