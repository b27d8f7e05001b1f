#include "model/price/simulate_sharing.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Relative: figures that should be equal are.
constexpr double kSame = 1e-9;
constexpr double kSameRate = 1e-12;
// Where so many times others lost their bottlenecks most will.
constexpr int kMostWidenings = 6;

// Of the time that passed: what should happen at once may differ in the last bits.
constexpr double kFineWindow = 1e-12;
// Of the time that transfers took of late: what begins and ends within it is taken together where
// more than so many are under way. The window grows as long as an update works out so many rates
// for each that begins or ends, and shrinks where it is less than half as many: where few share a
// link, none is needed. Of fewer the order in which the ends come is kept: an all-reduce over the
// trees of eight PCIe boxes and three DGX-1, whose lanes keep to that order, took 7 % longer.
constexpr int kManyUnderWay = 1000;
constexpr double kManyOpened = 3;
constexpr int kUpdates = 32;  // after which the window changes
constexpr double kWindowStep = 2;
constexpr double kLeastWindow = 1e-4;
constexpr double kOfLate = 256;  // transfers

double capacity_of(double beta_s_per_byte) {
  return beta_s_per_byte > 0 ? 1 / beta_s_per_byte : kInfinity;
}

}  // namespace

FairSharing::FairSharing(const Topology& topology, const std::vector<std::span<const int>>& paths,
                         double largest_window)
    : largest_window_(largest_window) {
  for (const Topology::Link& link : topology.links) {
    resources_.emplace_back().capacity = capacity_of(link.beta_s_per_byte);
  }
  for (const Topology::PortGroup& group : topology.port_groups) {
    resources_.emplace_back().capacity = capacity_of(group.beta_s_per_byte);
  }
  filling_.resize(resources_.size());
  const std::vector<std::vector<int>> groups_of = port_groups_of_links(topology);
  for (const std::span<const int> path : paths) {
    const auto use = [&](int resource) {
      if (resources_[at(resource)].capacity == kInfinity) return;
      const auto known =
          std::find_if(uses_.begin() + static_cast<std::ptrdiff_t>(uses_from_.back()), uses_.end(),
                       [&](const Use& u) { return u.resource == resource; });
      if (known != uses_.end()) {
        known->times += 1;
      } else {
        uses_.push_back({resource, 1});
      }
    };
    for (const int link : path) {
      use(link);
      for (const int group : groups_of[at(link)]) {
        use(static_cast<int>(topology.links.size()) + group);
      }
    }
    uses_from_.push_back(uses_.size());
  }
  leave_out_who_never_limit();
}

void FairSharing::leave_out_who_never_limit() {
  // By resource: those that are fuller on every path that crosses it. Of two that are equally full
  // the first counts as the fuller one.
  std::vector<std::optional<std::vector<int>>> fuller(resources_.size());
  const auto is_fuller = [&](const Use& use, const Use& than) {
    const double load = use.times / resources_[at(use.resource)].capacity;
    const double other = than.times / resources_[at(than.resource)].capacity;
    return load > other || (load == other && use.resource < than.resource);
  };
  const int num_paths = static_cast<int>(uses_from_.size()) - 1;
  for (int path = 0; path < num_paths; ++path) {
    const std::span<const Use> uses = uses_of(path);
    for (const Use& own : uses) {
      std::optional<std::vector<int>>& known = fuller[at(own.resource)];
      if (!known) {
        known.emplace();
        for (const Use& use : uses) {
          if (is_fuller(use, own)) known->push_back(use.resource);
        }
        continue;
      }
      std::erase_if(*known, [&](int resource) {
        const auto use = std::ranges::find(uses, resource, &Use::resource);
        return use == uses.end() || !is_fuller(*use, own);
      });
    }
  }
  std::vector<Use> kept;
  std::vector<std::size_t> kept_from = {0};
  for (int path = 0; path < num_paths; ++path) {
    std::ranges::copy_if(uses_of(path), std::back_inserter(kept),
                         [&](const Use& use) { return fuller[at(use.resource)]->empty(); });
    kept_from.push_back(kept.size());
  }
  uses_ = std::move(kept);
  uses_from_ = std::move(kept_from);
}

void FairSharing::change(int index, double time_s) {
  resources_[at(index)].changes.add(time_s);
  touched_.push_back(index);
}

void FairSharing::begin(int id, int path, double bytes, double now_s) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<int>(flows_.size()));
    flows_.emplace_back();
  }
  count_work(1, 500);  // and its events
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  if (slot_of_.size() <= at(id)) slot_of_.resize(at(id) + 1, kEnded);
  slot_of_[at(id)] = slot;
  Flow& flow = flows_[at(slot)];
  std::vector<int> places = std::move(flow.places);  // for their memory
  places.clear();
  for (const Use& use : uses_of(path)) {
    std::vector<User>& users = resources_[at(use.resource)].users;
    places.push_back(static_cast<int>(users.size()));
    users.push_back({slot, use.times});
    change(use.resource, now_s);
  }
  flow = {.places = std::move(places),
          .path = path,
          .left_bytes = bytes,
          .since_s = now_s,
          .begun_s = now_s,
          .queued_s = kInfinity,
          .id = id};
  new_.push_back(slot);
  changes_.add(now_s);
}

double FairSharing::taken_together_until(double now_s) const {
  const bool many = under_way() > kManyUnderWay;
  return now_s * (1 + kFineWindow) + (many ? window_ * mean_s_ : 0);
}

void FairSharing::end(int id) {
  const int slot = std::exchange(slot_of_[at(id)], kEnded);
  Flow& flow = flows_[at(slot)];
  num_ended_ = std::min(num_ended_ + 1, kOfLate);
  mean_s_ += (flow.end_s - flow.begun_s - mean_s_) / num_ended_;
  changes_.add(flow.end_s);
  take_up(flow, 0);
  if (flow.bottleneck >= 0) --resources_[at(flow.bottleneck)].held;
  const std::span<const Use> uses = uses_of(flow.path);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    std::vector<User>& users = resources_[at(uses[i].resource)].users;
    const User last = users.back();
    users[at(flow.places[i])] = last;
    users.pop_back();
    if (last.slot != slot) {
      Flow& moved = flows_[at(last.slot)];
      const std::span<const Use> others = uses_of(moved.path);
      const auto use = std::ranges::find(others, uses[i].resource, &Use::resource);
      moved.places[static_cast<std::size_t>(use - others.begin())] = flow.places[i];
    }
    change(uses[i].resource, flow.end_s);
  }
  flow.bottleneck = -1;
  free_slots_.push_back(slot);
}

void FairSharing::take_up(Flow& flow, double rate) {
  const double more = rate - std::max(flow.rate, 0.0);
  flow.rate = rate;
  for (const Use& use : uses_of(flow.path)) resources_[at(use.resource)].load += use.times * more;
}

/// Infinite if none is under way.
double FairSharing::first_end_s() {
  while (!ends_.empty()) {
    const auto [time_s, id] = ends_.top();
    const int slot = slot_of_[at(id)];
    if (slot == kEnded) {
      ends_.pop();
      continue;
    }
    Flow& flow = flows_[at(slot)];
    if (flow.end_s == time_s) return time_s;
    ends_.pop();
    if (flow.queued_s != time_s) continue;  // it was queued anew for an earlier time
    flow.queued_s = flow.end_s;
    if (flow.end_s != kInfinity) ends_.emplace(flow.end_s, id);
  }
  return kInfinity;
}

/// The transfers that end first.
void FairSharing::find_ending() {
  ending_.clear();
  const double until_s = first_end_s() * (1 + kFineWindow);
  while (!ends_.empty() && first_end_s() <= until_s) {
    const int id = ends_.top().second;
    ends_.pop();
    double& queued_s = flows_[at(slot_of_[at(id)])].queued_s;
    if (std::exchange(queued_s, kInfinity) != kInfinity) ending_.push_back(id);
  }
  std::sort(ending_.begin(), ending_.end());
}

void FairSharing::open(int slot) {
  Flow& flow = flows_[at(slot)];
  if (std::exchange(flow.open, true)) return;
  open_flows_.push_back(slot);
  if (flow.bottleneck >= 0) --resources_[at(std::exchange(flow.bottleneck, -1))].held;
  for (const Use& u : uses_of(flow.path)) {
    Resource& resource = resources_[at(u.resource)];
    if (!std::exchange(resource.open, true)) open_resources_.push_back(u.resource);
    resource.open_users.push_back({slot, u.times});
  }
}

void FairSharing::open_held_by(int resource) {
  if (resources_[at(resource)].held == 0) return;
  count_work(resources_[at(resource)].users.size(), 4);
  for (const User& user : resources_[at(resource)].users) {
    if (flows_[at(user.slot)].bottleneck == resource) open(user.slot);
  }
}

void FairSharing::open_above(int index, double rate) {
  Resource& resource = resources_[at(index)];
  if (resource.highest <= rate) return;
  resource.highest = 0;
  for (const User& user : resource.users) {
    const Flow& flow = flows_[at(user.slot)];
    if (!flow.open && flow.rate > rate) open(user.slot);
    resource.highest = std::max(resource.highest, flow.open ? flow.next_rate : flow.rate);
  }
}

/// All flows that are tied to an open one, directly or through others.
void FairSharing::open_all_tied() {
  for (std::size_t next = 0; next < open_resources_.size(); ++next) {
    for (const User& user : resources_[at(open_resources_[next])].users) open(user.slot);
  }
}

/// Raises the rates of all open flows together; when a resource is full, those that use it stay as
/// they are. A resource that others leave gives more to the rest, so a share that was put down is
/// at most too small and can be corrected when its turn comes.
void FairSharing::fill() {
  const auto share_of = [&](int index) {
    const Filling& filling = filling_[at(index)];
    return Share{std::max(filling.left, 0.0) / filling.open_times, index};
  };
  for (const int slot : open_flows_) flows_[at(slot)].next_rate = kInfinity;
  shares_.clear();
  count_work(open_flows_.size(), 110);
  count_work(open_resources_.size(), 60);
  for (const int index : open_resources_) {
    const Resource& resource = resources_[at(index)];
    const bool all = resource.open_users.size() == resource.users.size();
    Filling filling{.left = resource.capacity - (all ? 0 : resource.load)};
    for (const User& user : resource.open_users) {
      filling.open_times += user.times;
      if (!all) filling.left += user.times * std::max(flows_[at(user.slot)].rate, 0.0);
    }
    filling_[at(index)] = filling;
    shares_.push_back(share_of(index));
    count_work(resource.open_users.size(), 50);
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  while (!shares_.empty()) {
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    const Share fullest = shares_.back();
    shares_.pop_back();
    if (filling_[at(fullest.resource)].open_times < 0.5) continue;
    const Share now = share_of(fullest.resource);
    if (now.rate > fullest.rate) {
      shares_.push_back(now);
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    filling_[at(fullest.resource)].new_level = fullest.rate;
    for (const User& user : resources_[at(fullest.resource)].open_users) {
      Flow& flow = flows_[at(user.slot)];
      if (flow.next_rate != kInfinity) continue;
      flow.next_rate = fullest.rate;
      flow.bottleneck = fullest.resource;
      for (const Use& u : uses_of(flow.path)) {
        Filling& filling = filling_[at(u.resource)];
        filling.left -= u.times * fullest.rate;
        filling.open_times -= u.times;
        filling.new_highest = fullest.rate;  // rates only grow
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
    const Filling& filling = filling_[at(index)];
    const bool full = filling.left <= kSame * resource.capacity;
    if (!full || filling.new_highest > resource.level * (1 + kSame)) open_held_by(index);
    if (filling.new_level >= 0) open_above(index, filling.new_level * (1 + kSame));
  }
  return open_flows_.size() > before;
}

/// From when on the new rate of a transfer counts: that of what began or ended on its way, several
/// in the mean, so that what a window takes together is not put off to the window's end.
double FairSharing::changed_s(const Flow& flow, double now_s) const {
  Changes own;
  for (const Use& use : uses_of(flow.path)) own.add(resources_[at(use.resource)].changes);
  const double mean_s = own.count > 0 ? own.mean_s() : changes_.mean_s();
  return std::clamp(mean_s, flow.since_s, now_s);
}

void FairSharing::adapt_window() {
  opened_ += static_cast<double>(open_flows_.size());
  changed_ += changes_.count;
  if (++updates_ < kUpdates) return;
  if (opened_ > kManyOpened * changed_) {
    window_ = std::clamp(window_ * kWindowStep, kLeastWindow, largest_window_);
  } else if (opened_ < kManyOpened / 2 * changed_) {
    window_ = window_ <= kLeastWindow ? 0 : window_ / kWindowStep;
  }
  opened_ = changed_ = 0;
  updates_ = 0;
}

/// The open flows go on at their new rates.
void FairSharing::settle(double now_s) {
  for (const int slot : open_flows_) {
    Flow& flow = flows_[at(slot)];
    flow.open = false;
    if (flow.bottleneck >= 0) {
      Resource& resource = resources_[at(flow.bottleneck)];
      ++resource.held;
      resource.level = flow.next_rate;
    }
    if (std::abs(flow.next_rate - flow.rate) <= kSameRate * flow.rate) continue;
    if (flow.rate >= 0) {  // else it has just begun
      const double since_s = changed_s(flow, now_s);
      flow.left_bytes = std::max(0.0, flow.left_bytes - flow.rate * (since_s - flow.since_s));
      flow.since_s = since_s;
    }
    take_up(flow, flow.next_rate);
    flow.end_s = std::max(now_s, flow.since_s + flow.left_bytes / flow.rate);
    if (flow.end_s >= flow.queued_s) continue;
    flow.queued_s = flow.end_s;
    ends_.emplace(flow.end_s, flow.id);
  }
  for (const int index : open_resources_) {
    Resource& resource = resources_[at(index)];
    resource.highest = std::max(resource.highest, filling_[at(index)].new_highest);
    // Of many small changes the sum would drift.
    if (resource.open_users.size() == resource.users.size()) {
      resource.load = 0;
      for (const User& user : resource.users) {
        resource.load += user.times * flows_[at(user.slot)].rate;
      }
    }
    resource.open = false;
    resource.open_users.clear();
  }
  open_flows_.clear();
  open_resources_.clear();
  for (const int index : touched_) resources_[at(index)].changes = {};
  touched_.clear();
  changes_ = {};
}

void FairSharing::update(double now_s) {
  for (const int slot : new_) {
    if (flows_[at(slot)].rate < 0) open(slot);  // else it has ended already
  }
  new_.clear();
  for (const int index : touched_) open_held_by(index);
  fill();
  for (int widenings = 0; open_who_lose_theirs(); ++widenings) {
    if (widenings == kMostWidenings) open_all_tied();
    fill();
  }
  count_work(touched_.size(), 40);
  adapt_window();
  settle(now_s);
}

}  // namespace chorus
