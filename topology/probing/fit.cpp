#include "topology/probing/fit.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

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

double agreed(std::vector<double> rates) {
  constexpr double kAgree = 0.95;
  constexpr double kDisturbed = 0.6;  // below, two that agree may have been slowed alike
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end(), std::greater());
  for (std::size_t i = 1; i < rates.size() && rates[i] >= kDisturbed * rates[0]; ++i) {
    if (rates[i] >= kAgree * rates[i - 1]) return rates[i - 1];
  }
  return rates[0];
}

void add_group(HostTree& tree, const Hosts& hosts, std::span<const Experiment> experiments) {
  std::vector<double> out, in;
  for (const Experiment& e : experiments) {
    out.push_back(crossing(hosts, true, e.flows, e.bytes_per_s));
    in.push_back(crossing(hosts, false, e.flows, e.bytes_per_s));
  }
  HostTree::Group group{hosts, agreed(std::move(out)), agreed(std::move(in))};
  if (group.out <= 0 || group.in <= 0) return;
  tree.groups.push_back(std::move(group));
}

void set_core(HostTree& tree, std::span<const Experiment> experiments) {
  tree.core = std::numeric_limits<double>::max();
  std::vector<double> sums;
  for (const Experiment& e : experiments) {
    for (const Limit& limit : limits_of(tree, e.flows)) {
      if (limit.kind == Limit::Kind::core) sums.push_back(load_of(limit, e.bytes_per_s));
    }
  }
  tree.core = agreed(std::move(sums));
}

double room(std::span<const Limit> limits, std::span<const double> bytes_per_s,
            std::span<const int> flows) {
  std::vector<double> speeds(bytes_per_s.size(), 0);
  for (const int f : flows) speeds[at(f)] = 1;
  const std::vector<double> grown =
      grown_rates(limits, {bytes_per_s.begin(), bytes_per_s.end()}, std::move(speeds));
  double before = 0, after = 0;
  for (const int f : flows) {
    before += bytes_per_s[at(f)];
    after += grown[at(f)];
  }
  return before > 0 ? after / before : 1;
}

bool waited_for_way_back(const Experiment& e, std::size_t flow) {
  constexpr double kWaited = 0.75;
  for (std::size_t back = 0; back < e.flows.size(); ++back) {
    if (e.flows[back].src == e.flows[flow].dst && e.flows[back].dst == e.flows[flow].src) {
      return e.bytes_per_s[flow] < kWaited * e.bytes_per_s[back];
    }
  }
  return false;
}

double misfit(const HostTree& tree, std::span<const Experiment> experiments) {
  double sum = 0;
  int count = 0;
  for (const Experiment& e : experiments) {
    const std::vector<Limit> limits = limits_of(tree, e.flows);
    const std::vector<const Limit*> fullest = fullest_limits(limits, e.bytes_per_s);
    for (std::size_t f = 0; f < fullest.size(); ++f) {
      const double full = fullness_of(*fullest[f], e.bytes_per_s);
      if (full <= 0 || waited_for_way_back(e, f)) continue;
      sum += std::abs(std::log(full));
      ++count;
    }
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace chorus::probing
