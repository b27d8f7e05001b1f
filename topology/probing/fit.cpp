#include "topology/probing/fit.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/index.hpp"

namespace chorus::probing {
namespace {

// Of the flows of `experiment` that cross out of (into) the group, the sum of `rates`.
double crossing(const Hosts& group, bool outward, std::span<const Flow> flows,
                std::span<const double> rates) {
  double sum = 0;
  for (std::size_t f = 0; f < flows.size(); ++f) {
    const bool src = contains(group, flows[f].src);
    const bool dst = contains(group, flows[f].dst);
    if (outward ? src && !dst : dst && !src) sum += rates[f];
  }
  return sum;
}

}  // namespace

bool contains(const Hosts& group, int host) {
  return std::binary_search(group.begin(), group.end(), host);
}

bool compatible(const Hosts& a, const Hosts& b) {
  Hosts both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both.empty() || both.size() == std::min(a.size(), b.size());
}

bool worth_a_trunk(int hosts, const Hosts& group) {
  return group.size() >= 2 && at(hosts) - group.size() >= 2;
}

Hosts smaller_side(int hosts, Hosts group) {
  const std::size_t rest = at(hosts) - group.size();
  if (group.size() < rest || (group.size() == rest && !contains(group, 0))) return group;
  Hosts other;
  for (int h = 0; h < hosts; ++h) {
    if (!contains(group, h)) other.push_back(h);
  }
  return other;
}

void add_group(HostTree& tree, const Hosts& hosts, std::span<const Experiment> experiments) {
  HostTree::Group group{hosts, 0, 0};
  for (const Experiment& e : experiments) {
    group.out = std::max(group.out, crossing(hosts, true, e.flows, e.bytes_per_s));
    group.in = std::max(group.in, crossing(hosts, false, e.flows, e.bytes_per_s));
  }
  if (group.out <= 0 || group.in <= 0) return;
  tree.groups.push_back(std::move(group));
}

void set_core(HostTree& tree, std::span<const Experiment> experiments) {
  tree.core = std::numeric_limits<double>::max();
  double most = 0;
  for (const Experiment& e : experiments) {
    for (const Limit& limit : limits_of(tree, e.flows)) {
      if (limit.kind != Limit::Kind::core) continue;
      double sum = 0;
      for (const int f : limit.flows) sum += e.bytes_per_s[at(f)];
      most = std::max(most, sum);
    }
  }
  tree.core = most;
}

double misfit(const HostTree& tree, std::span<const Experiment> experiments) {
  double sum = 0;
  int count = 0;
  for (const Experiment& e : experiments) {
    const std::vector<double> predicted = fair_rates(tree, e.flows);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      if (predicted[f] <= 0 || e.bytes_per_s[f] <= 0) continue;
      sum += std::abs(std::log(predicted[f] / e.bytes_per_s[f]));
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace chorus::probing
