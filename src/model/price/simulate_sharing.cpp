#include "model/price/simulate_sharing.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>

#include "base/index.hpp"
#include "model/price/cost.hpp"

namespace chorus {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Relative: figures that should be equal are.
constexpr double kSame = 1e-9;
constexpr double kSameRate = 1e-12;
// Where so many times others lost their bottlenecks most will.
constexpr int kMostWidenings = 6;

// Relative: what ends within it is taken together. What goes over many hops is late by it at each:
// by 1e-3 a random wiring of 241 ranks came out 6 % later, by 1e-4 0.6 %.
constexpr double kFineWindow = 1e-12;
constexpr double kCoarseWindow = 1e-4;
constexpr double kManyUnderWay = 1000;
// An update takes as long as transfers are under way: the window grows with them, at first with
// their square, so that all updates together do not. 528,000 transfers came out 0.2 % later, after
// 11 in place of 256 s.
constexpr double kWindowOfThousand = 2e-4;
constexpr double kCoarsestWindow = 0.1;

double capacity_of(double beta_s_per_byte) {
  return beta_s_per_byte > 0 ? 1 / beta_s_per_byte : kInfinity;
}

}  // namespace

FairSharing::FairSharing(const Topology& topology)
    : groups_of_(port_groups_of_links(topology)), num_links_(topology.links.size()) {
  for (const Topology::Link& link : topology.links) {
    resources_.emplace_back().capacity = capacity_of(link.beta_s_per_byte);
  }
  for (const Topology::PortGroup& group : topology.port_groups) {
    resources_.emplace_back().capacity = capacity_of(group.beta_s_per_byte);
  }
}

void FairSharing::begin(int id, const std::vector<int>& path, double bytes, double now_s) {
  if (flows_.size() <= at(id)) flows_.resize(at(id) + 1);
  Flow& flow = flows_[at(id)];
  flow.left_bytes = bytes;
  flow.since_s = now_s;
  flow.queued_s = kInfinity;
  const auto use = [&](int resource) {
    if (resources_[at(resource)].capacity == kInfinity) return;
    const auto known = std::find_if(flow.uses.begin(), flow.uses.end(),
                                    [&](const Use& u) { return u.resource == resource; });
    if (known != flow.uses.end()) {
      known->times += 1;
    } else {
      flow.uses.push_back({resource, 1, 0});
    }
  };
  for (const int link : path) {
    use(link);
    for (const int group : groups_of_[at(link)]) use(static_cast<int>(num_links_) + group);
  }
  for (Use& u : flow.uses) {
    Resource& resource = resources_[at(u.resource)];
    u.place = resource.users.size();
    resource.users.push_back({id, u.times});
    touched_.push_back(u.resource);
  }
  new_.push_back(id);
  ++under_way_;
}

double FairSharing::taken_together_until(double now_s) const {
  const double thousands = under_way_ / kManyUnderWay;
  const double window = thousands <= 1
                            ? kFineWindow
                            : std::clamp(std::min(kCoarseWindow * thousands * thousands / 4,
                                                  kWindowOfThousand * thousands),
                                         kCoarseWindow, kCoarsestWindow);
  return now_s * (1 + window);
}

void FairSharing::end(int id) {
  --under_way_;
  Flow& flow = flows_[at(id)];
  take_up(flow, 0);
  if (flow.bottleneck >= 0) --resources_[at(flow.bottleneck)].held;
  for (const Use& u : flow.uses) {
    std::vector<User>& users = resources_[at(u.resource)].users;
    const User last = users.back();
    users[u.place] = last;
    users.pop_back();
    if (last.flow != id) {
      std::vector<Use>& uses = flows_[at(last.flow)].uses;
      std::find_if(uses.begin(), uses.end(), [&](const Use& other) {
        return other.resource == u.resource;
      })->place = u.place;
    }
    touched_.push_back(u.resource);
  }
  flow.uses.clear();
  flow.uses.shrink_to_fit();
  flow.end_s = kInfinity;
}

void FairSharing::take_up(Flow& flow, double rate) {
  const double more = rate - std::max(flow.rate, 0.0);
  flow.rate = rate;
  for (const Use& u : flow.uses) resources_[at(u.resource)].load += u.times * more;
}

double FairSharing::first_end_s() {
  while (!ends_.empty()) {
    const auto [time_s, id] = ends_.top();
    Flow& flow = flows_[at(id)];
    if (flow.end_s == time_s) return time_s;
    ends_.pop();
    if (flow.queued_s != time_s) continue;  // it was queued anew for an earlier time
    flow.queued_s = flow.end_s;
    if (flow.end_s != kInfinity) ends_.emplace(flow.end_s, id);
  }
  return kInfinity;
}

void FairSharing::ending(double until_s, std::vector<int>& ids) {
  ids.clear();
  while (first_end_s() <= until_s) {
    const int id = ends_.top().second;
    ends_.pop();
    if (std::exchange(flows_[at(id)].queued_s, kInfinity) != kInfinity) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
}

void FairSharing::open(int id) {
  Flow& flow = flows_[at(id)];
  if (std::exchange(flow.open, true)) return;
  open_flows_.push_back(id);
  if (flow.bottleneck >= 0) --resources_[at(std::exchange(flow.bottleneck, -1))].held;
  for (const Use& u : flow.uses) {
    Resource& resource = resources_[at(u.resource)];
    if (!std::exchange(resource.open, true)) open_resources_.push_back(u.resource);
    resource.open_users.push_back({id, u.times});
  }
}

void FairSharing::open_held_by(int resource) {
  if (resources_[at(resource)].held == 0) return;
  for (const User& user : resources_[at(resource)].users) {
    if (flows_[at(user.flow)].bottleneck == resource) open(user.flow);
  }
}

void FairSharing::open_above(int index, double rate) {
  Resource& resource = resources_[at(index)];
  if (resource.highest <= rate) return;
  resource.highest = 0;
  for (const User& user : resource.users) {
    const Flow& flow = flows_[at(user.flow)];
    if (!flow.open && flow.rate > rate) open(user.flow);
    resource.highest = std::max(resource.highest, flow.open ? flow.next_rate : flow.rate);
  }
}

/// All flows that are tied to an open one, directly or through others.
void FairSharing::open_all_tied() {
  for (std::size_t next = 0; next < open_resources_.size(); ++next) {
    for (const User& user : resources_[at(open_resources_[next])].users) open(user.flow);
  }
}

/// Raises the rates of all open flows together; when a resource is full, those that use it stay as
/// they are. A resource that others leave gives more to the rest, so a share that was put down is
/// at most too small and can be corrected when its turn comes.
void FairSharing::fill() {
  const auto share_of = [&](int index) {
    const Resource& resource = resources_[at(index)];
    return Share{std::max(resource.left, 0.0) / resource.open_times, index};
  };
  for (const int id : open_flows_) flows_[at(id)].next_rate = kInfinity;
  shares_.clear();
  for (const int index : open_resources_) {
    Resource& resource = resources_[at(index)];
    const bool all = resource.open_users.size() == resource.users.size();
    resource.left = resource.capacity - (all ? 0 : resource.load);
    resource.open_times = 0;
    resource.new_level = -1;
    resource.new_highest = 0;
    for (const User& user : resource.open_users) {
      resource.open_times += user.times;
      if (!all) resource.left += user.times * std::max(flows_[at(user.flow)].rate, 0.0);
    }
    shares_.push_back(share_of(index));
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  while (!shares_.empty()) {
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    const Share fullest = shares_.back();
    shares_.pop_back();
    Resource& full = resources_[at(fullest.resource)];
    if (full.open_times < 0.5) continue;
    const Share now = share_of(fullest.resource);
    if (now.rate > fullest.rate) {
      shares_.push_back(now);
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    full.new_level = fullest.rate;
    for (const User& user : full.open_users) {
      Flow& flow = flows_[at(user.flow)];
      if (flow.next_rate != kInfinity) continue;
      flow.next_rate = fullest.rate;
      flow.bottleneck = fullest.resource;
      for (const Use& u : flow.uses) {
        Resource& resource = resources_[at(u.resource)];
        resource.left -= u.times * fullest.rate;
        resource.open_times -= u.times;
        resource.new_highest = fullest.rate;  // rates only grow
      }
    }
  }
}

/// Users that are not open lose their bottleneck where it is no longer full or others are faster,
/// and have to give where they are faster than those whose bottleneck it is now. False if none
/// does.
bool FairSharing::open_who_lose_theirs() {
  const std::size_t before = open_flows_.size();
  const std::size_t resources = open_resources_.size();
  for (std::size_t i = 0; i < resources; ++i) {
    const int index = open_resources_[i];
    const Resource& resource = resources_[at(index)];
    const bool full = resource.left <= kSame * resource.capacity;
    if (!full || resource.new_highest > resource.level * (1 + kSame)) open_held_by(index);
    if (resource.new_level >= 0) open_above(index, resource.new_level * (1 + kSame));
  }
  return open_flows_.size() > before;
}

/// The open flows go on at their new rates.
void FairSharing::settle(double now_s) {
  for (const int id : open_flows_) {
    Flow& flow = flows_[at(id)];
    flow.open = false;
    if (flow.bottleneck >= 0) {
      Resource& resource = resources_[at(flow.bottleneck)];
      ++resource.held;
      resource.level = flow.next_rate;
    }
    if (std::abs(flow.next_rate - flow.rate) <= kSameRate * flow.rate) continue;
    if (flow.rate > 0) {
      flow.left_bytes = std::max(0.0, flow.left_bytes - flow.rate * (now_s - flow.since_s));
    }
    flow.since_s = now_s;
    take_up(flow, flow.next_rate);
    flow.end_s = flow.rate == kInfinity ? now_s : now_s + flow.left_bytes / flow.rate;
    if (flow.end_s >= flow.queued_s) continue;
    flow.queued_s = flow.end_s;
    ends_.emplace(flow.end_s, id);
  }
  for (const int index : open_resources_) {
    Resource& resource = resources_[at(index)];
    resource.highest = std::max(resource.highest, resource.new_highest);
    // Of many small changes the sum would drift.
    if (resource.open_users.size() == resource.users.size()) {
      resource.load = 0;
      for (const User& user : resource.users) {
        resource.load += user.times * flows_[at(user.flow)].rate;
      }
    }
    resource.open = false;
    resource.open_users.clear();
  }
  open_flows_.clear();
  open_resources_.clear();
}

void FairSharing::update(double now_s) {
  for (const int id : new_) {
    if (flows_[at(id)].rate < 0) open(id);  // else it has ended already
  }
  new_.clear();
  for (const int index : touched_) open_held_by(index);
  touched_.clear();
  fill();
  for (int widenings = 0; open_who_lose_theirs(); ++widenings) {
    if (widenings == kMostWidenings) open_all_tied();
    fill();
  }
  settle(now_s);
}

}  // namespace chorus
