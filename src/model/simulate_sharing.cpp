#include "model/simulate_sharing.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "model/cost.hpp"

namespace chorus {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int index) { return static_cast<std::size_t>(index); }

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
  if (flow.uses.empty()) gathered_flows_.push_back(id);  // nothing holds it back or ties it
}

void FairSharing::end(int id) {
  Flow& flow = flows_[at(id)];
  for (const Use& u : flow.uses) {
    std::erase(resources_[at(u.resource)].flows, id);
    touched_.push_back(u.resource);
  }
  flow.uses.clear();
  flow.uses.shrink_to_fit();
  ++flow.version;
}

bool FairSharing::current(const Forecast& forecast) const {
  return flows_[at(forecast.id)].version == forecast.version;
}

/// All flows that are tied to a touched resource, directly or through others.
void FairSharing::gather() {
  for (const int resource : touched_) touch(resource);
  touched_.clear();
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

/// Raises all rates together; when a resource is full, those that use it stay as they are.
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
  std::vector<int> open;
  for (const int index : gathered_resources_) {
    const Resource& resource = resources_[at(index)];
    if (resource.users > 0) open.push_back(index);
  }
  while (!open.empty()) {
    double share = kInfinity;
    int fullest = open.front();
    for (const int index : open) {
      const Resource& resource = resources_[at(index)];
      const double here = std::max(resource.left, 0.0) / resource.users;
      if (here < share) {
        share = here;
        fullest = index;
      }
    }
    for (const int id : resources_[at(fullest)].flows) {
      Flow& flow = flows_[at(id)];
      if (flow.fixed) continue;
      flow.fixed = true;
      flow.next_rate = share;
      for (const Use& u : flow.uses) {
        resources_[at(u.resource)].left -= u.times * share;
        resources_[at(u.resource)].users -= u.times;
      }
    }
    std::erase_if(open, [&](int index) { return resources_[at(index)].users < 0.5; });
  }
}

const std::vector<FairSharing::Forecast>& FairSharing::update(double now_s) {
  forecasts_.clear();
  gather();
  fill();
  for (const int index : gathered_resources_) resources_[at(index)].gathered = false;
  for (const int id : gathered_flows_) {
    Flow& flow = flows_[at(id)];
    flow.gathered = false;
    if (flow.next_rate == flow.rate) continue;  // its forecast stands
    if (flow.rate > 0) {
      flow.left_bytes = std::max(0.0, flow.left_bytes - flow.rate * (now_s - flow.since_s));
    }
    flow.since_s = now_s;
    flow.rate = flow.next_rate;
    ++flow.version;
    const double end_s = flow.rate == kInfinity ? now_s : now_s + flow.left_bytes / flow.rate;
    forecasts_.push_back({end_s, id, flow.version});
  }
  gathered_resources_.clear();
  gathered_flows_.clear();
  return forecasts_;
}

}  // namespace chorus
