#include "synth/ordering/list_scheduler.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus::synth {
namespace {

constexpr double kSameTime = 1 + 1e-12;  // what should happen together may differ in the last bits

}  // namespace

ListScheduler::ListScheduler(const Network& network, JobGraph graph, double chunk_bytes)
    : network_(network),
      bytes_(chunk_bytes),
      jobs_(std::move(graph.jobs())),
      urgency_(jobs_.size()),
      missing_(jobs_.size(), 0),
      after_(graph.waits().size()),
      after_at_(jobs_.size() + 1, 0),
      waiting_(network.edges().size(), Queue(Later{this})),
      blocked_(network.resources().size(), Queue(Later{this})),
      heads_(LaterHead{this}),
      free_at_s_(network.resources().size(), 0) {
  std::vector<int> least_first(jobs_.size());
  std::iota(least_first.begin(), least_first.end(), 0);
  std::ranges::sort(least_first, [&](int a, int b) {
    const Job &x = jobs_[at(a)], &y = jobs_[at(b)];
    return x.urgency != y.urgency ? x.urgency < y.urgency : a > b;
  });
  for (std::size_t i = 0; i < least_first.size(); ++i) {
    urgency_[at(least_first[i])] = static_cast<int>(i);
  }
  for (const auto& [before, after] : graph.waits()) {
    ++after_at_[at(before) + 1];
    ++missing_[at(after)];
  }
  for (std::size_t job = 0; job < jobs_.size(); ++job) after_at_[job + 1] += after_at_[job];
  std::vector<std::size_t> next(after_at_.begin(), after_at_.end() - 1);
  for (const auto& [before, after] : graph.waits()) after_[next[at(before)]++] = after;
}

std::vector<int> ListScheduler::run(double give_up_s) {
  std::vector<int> free_from_the_start;
  for (std::size_t job = 0; job < jobs_.size(); ++job) {
    if (missing_[job] == 0) free_from_the_start.push_back(static_cast<int>(job));
  }
  for (const int job : free_from_the_start) arrive(job);
  begin_what_can();
  while (!events_.empty()) {
    now_s_ = events_.top().time_s;
    if (now_s_ > give_up_s) {
      end_s_ = std::numeric_limits<double>::infinity();
      break;
    }
    while (!events_.empty() && events_.top().time_s <= now_s_ * kSameTime) {
      const Event event = events_.top();
      events_.pop();
      if (event.freed) {
        advance(event.id);
      } else {
        end_s_ = event.time_s;
        ended(event.id);
      }
    }
    begin_what_can();
  }
  return std::move(order_);
}

void ListScheduler::ended(int job) {
  std::vector<int> stack = {job};
  while (!stack.empty()) {
    const std::size_t one = at(stack.back());
    stack.pop_back();
    for (std::size_t i = after_at_[one]; i < after_at_[one + 1]; ++i) {
      const int next = after_[i];
      if (--missing_[at(next)] > 0) continue;
      if (jobs_[at(next)].edge < 0) {
        stack.push_back(next);
      } else {
        arrive(next);
      }
    }
  }
}

void ListScheduler::arrive(int job) {
  if (jobs_[at(job)].edge < 0) {
    ended(job);
    return;
  }
  Queue& waiting = waiting_[at(jobs_[at(job)].edge)];
  waiting.push(job);
  if (waiting.top() == job) offer(job);
}

/// A resource of the job's edge that is busy, or -1.
int ListScheduler::obstacle(int job) const {
  for (const int resource : network_.edges()[at(jobs_[at(job)].edge)].resources) {
    if (busy(resource)) return resource;
  }
  return -1;
}

bool ListScheduler::busy(int resource) const {
  return free_at_s_[at(resource)] > now_s_ * kSameTime;
}

/// The job is the first of those that wait for its edge.
bool ListScheduler::leads(int job) const {
  const Queue& waiting = waiting_[at(jobs_[at(job)].edge)];
  return !waiting.empty() && waiting.top() == job;
}

/// The first job of an edge: a candidate to begin now, or one that waits for a busy resource.
void ListScheduler::offer(int job) {
  const int resource = obstacle(job);
  if (resource < 0) {
    heads_.push({job, -1});
  } else {
    blocked_[at(resource)].push(job);
  }
}

/// Of those that waited for `resource`, the most urgent becomes a candidate. One is enough: it
/// makes the resource busy, or the next is asked for.
void ListScheduler::advance(int resource) {
  Queue& blocked = blocked_[at(resource)];
  while (!blocked.empty() && !busy(resource)) {
    const int job = blocked.top();
    blocked.pop();
    count_work(1, 200);
    if (!leads(job)) continue;
    heads_.push({job, resource});
    return;
  }
}

void ListScheduler::begin_what_can() {
  while (!heads_.empty()) {
    const auto [job, resource] = heads_.top();
    heads_.pop();
    count_work(1, 250);
    if (leads(job)) {
      const int other = obstacle(job);
      if (other >= 0) {
        blocked_[at(other)].push(job);
      } else {
        Queue& waiting = waiting_[at(jobs_[at(job)].edge)];
        waiting.pop();
        begin(job);
        if (!waiting.empty()) offer(waiting.top());
      }
    }
    if (resource >= 0) advance(resource);  // it may still be free
  }
}

void ListScheduler::begin(int job) {
  const Edge& edge = network_.edges()[at(jobs_[at(job)].edge)];
  for (const int index : edge.resources) {
    const Resource& resource = network_.resources()[at(index)];
    double& free_at_s = free_at_s_[at(index)];
    free_at_s =
        std::max(free_at_s, now_s_) + resource.message_s + bytes_ * resource.beta_s_per_byte;
    events_.push({free_at_s, true, index});
  }
  events_.push({now_s_ + edge.alpha_s + bytes_ * edge.beta_s_per_byte, false, job});
  order_.push_back(job);
  count_work(1 + edge.resources.size(), 250);
}

}  // namespace chorus::synth
