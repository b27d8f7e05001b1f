#include "model/price/simulate_sharing.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/index.hpp"
#include "model/price/cost.hpp"

namespace chorus {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

void FairSharing::touch(int resource) {
  if (resources_[at(resource)].gathered) return;
  resources_[at(resource)].gathered = true;
  gathered_resources_.push_back(resource);
}

void FairSharing::begin(int id, const std::vector<int>& path, double bytes, double now_s) {
  if (flows_.size() <= at(id)) flows_.resize(at(id) + 1);
  Flow& flow = flows_[at(id)];
  flow.left_bytes = bytes;
  flow.since_s = now_s;
  const auto use = [&](int resource) {
    if (resources_[at(resource)].capacity == kInfinity) return;
    const auto known = std::find_if(flow.uses.begin(), flow.uses.end(),
                                    [&](const Use& u) { return u.resource == resource; });
    if (known != flow.uses.end()) {
      known->times += 1;
    } else {
      flow.uses.push_back({resource, 1});
    }
  };
  for (const int link : path) {
    use(link);
    for (const int group : groups_of_[at(link)]) use(static_cast<int>(num_links_) + group);
  }
  for (const Use& u : flow.uses) {
    resources_[at(u.resource)].flows.push_back(id);
    touched_.push_back(u.resource);
  }
  if (flow.uses.empty()) unlimited_.push_back(id);
}

void FairSharing::end(int id) {
  Flow& flow = flows_[at(id)];
  for (const Use& u : flow.uses) {
    std::erase(resources_[at(u.resource)].flows, id);
    touched_.push_back(u.resource);
  }
  flow.uses.clear();
  flow.uses.shrink_to_fit();
  flow.end_s = kInfinity;
}

bool FairSharing::current(const Forecast& forecast) const {
  return components_[at(forecast.component)].version == forecast.version;
}

void FairSharing::ending(int component, double until_s, std::vector<int>& ids) const {
  const auto first = static_cast<std::ptrdiff_t>(ids.size());
  for (const int id : components_[at(component)].flows) {
    if (flows_[at(id)].end_s <= until_s) ids.push_back(id);
  }
  std::sort(ids.begin() + first, ids.end());
}

/// All flows that are tied to a resource, directly or through others.
void FairSharing::gather(int first) {
  touch(first);
  for (std::size_t next = 0; next < gathered_resources_.size(); ++next) {
    const Resource& resource = resources_[at(gathered_resources_[next])];
    for (const int id : resource.flows) {
      Flow& flow = flows_[at(id)];
      if (flow.gathered) continue;
      flow.gathered = true;
      gathered_flows_.push_back(id);
      for (const Use& u : flow.uses) touch(u.resource);
    }
  }
}

/// Raises all rates together; when a resource is full, those that use it stay as they are. A
/// resource that others leave gives more to the rest, so a share that was put down is at most too
/// small and can be corrected when its turn comes.
void FairSharing::fill() {
  for (const int index : gathered_resources_) {
    Resource& resource = resources_[at(index)];
    resource.left = resource.capacity;
    resource.users = 0;
  }
  for (const int id : gathered_flows_) {
    flows_[at(id)].fixed = false;
    flows_[at(id)].next_rate = kInfinity;
    for (const Use& u : flows_[at(id)].uses) resources_[at(u.resource)].users += u.times;
  }
  const auto share_of = [&](int index) {
    const Resource& resource = resources_[at(index)];
    return Share{std::max(resource.left, 0.0) / resource.users, index};
  };
  shares_.clear();
  for (const int index : gathered_resources_) {
    if (resources_[at(index)].users > 0) shares_.push_back(share_of(index));
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  while (!shares_.empty()) {
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    const Share fullest = shares_.back();
    shares_.pop_back();
    if (resources_[at(fullest.resource)].users < 0.5) continue;
    const Share now = share_of(fullest.resource);
    if (now.rate > fullest.rate) {
      shares_.push_back(now);
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    for (const int id : resources_[at(fullest.resource)].flows) {
      Flow& flow = flows_[at(id)];
      if (flow.fixed) continue;
      flow.fixed = true;
      flow.next_rate = fullest.rate;
      for (const Use& u : flow.uses) {
        resources_[at(u.resource)].left -= u.times * fullest.rate;
        resources_[at(u.resource)].users -= u.times;
      }
    }
  }
}

/// The gathered flows go on at their new rates, as one component.
void FairSharing::settle(double now_s) {
  if (gathered_flows_.empty()) return;
  if (free_components_.empty()) {
    free_components_.push_back(static_cast<int>(components_.size()));
    components_.emplace_back();
  }
  const int number = free_components_.back();
  free_components_.pop_back();
  double first_end_s = kInfinity;
  for (const int id : gathered_flows_) {
    Flow& flow = flows_[at(id)];
    if (flow.component >= 0 && !components_[at(flow.component)].flows.empty()) {
      components_[at(flow.component)].flows.clear();
      ++components_[at(flow.component)].version;
      left_components_.push_back(flow.component);
    }
    flow.component = -1;
    if (flow.next_rate != flow.rate) {
      if (flow.rate > 0) {
        flow.left_bytes = std::max(0.0, flow.left_bytes - flow.rate * (now_s - flow.since_s));
      }
      flow.since_s = now_s;
      flow.rate = flow.next_rate;
      flow.end_s = flow.rate == kInfinity ? now_s : now_s + flow.left_bytes / flow.rate;
    }
    first_end_s = std::min(first_end_s, flow.end_s);
  }
  for (const int id : gathered_flows_) flows_[at(id)].component = number;
  Component& component = components_[at(number)];
  component.flows = gathered_flows_;
  forecasts_.push_back({first_end_s, number, component.version});
}

const std::vector<FairSharing::Forecast>& FairSharing::update(double now_s) {
  forecasts_.clear();
  const auto pass = [&] {
    passed_resources_.insert(passed_resources_.end(), gathered_resources_.begin(),
                             gathered_resources_.end());
    passed_flows_.insert(passed_flows_.end(), gathered_flows_.begin(), gathered_flows_.end());
    gathered_resources_.clear();
    gathered_flows_.clear();
  };
  for (const int resource : touched_) {
    if (resources_[at(resource)].gathered) continue;
    gather(resource);
    fill();
    settle(now_s);
    pass();
  }
  touched_.clear();
  for (const int id : unlimited_) {
    flows_[at(id)].next_rate = kInfinity;
    gathered_flows_.assign(1, id);
    settle(now_s);
    pass();
  }
  unlimited_.clear();
  for (const int index : passed_resources_) resources_[at(index)].gathered = false;
  for (const int id : passed_flows_) flows_[at(id)].gathered = false;
  passed_resources_.clear();
  passed_flows_.clear();
  // Not before: flows of one component may have come into several.
  free_components_.insert(free_components_.end(), left_components_.begin(), left_components_.end());
  left_components_.clear();
  return forecasts_;
}

}  // namespace chorus
