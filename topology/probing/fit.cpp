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

// What each experiment brought out of a group, and into it.
struct Crossing {
  std::vector<double> out, in;  // [experiment]
};

std::vector<bool> members(int hosts, const Hosts& group) {
  std::vector<bool> inside(at(hosts), false);
  for (const int host : group) inside[at(host)] = true;
  return inside;
}

Crossing crossing(const std::vector<bool>& inside, std::span<const Experiment> experiments) {
  Crossing sums;
  for (const Experiment& e : experiments) {
    double out = 0, in = 0;
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      const bool from = inside[at(e.flows[f].src)];
      if (from != inside[at(e.flows[f].dst)]) (from ? out : in) += e.bytes_per_s[f];
    }
    sums.out.push_back(out);
    sums.in.push_back(in);
  }
  return sums;
}

// Mean size of the logarithm, without what is 0.
double mean_log(std::span<const double> fullness) {
  double sum = 0;
  int count = 0;
  for (const double full : fullness) {
    if (full <= 0) continue;
    sum += std::abs(std::log(full));
    ++count;
  }
  return count == 0 ? 0 : sum / count;
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

bool fits(const HostTree& tree, const Hosts& group) {
  return worth_a_trunk(tree.hosts(), group) &&
         std::all_of(tree.groups.begin(), tree.groups.end(), [&](const HostTree::Group& other) {
           return other.hosts != group && compatible(other.hosts, group);
         });
}

void add_group(HostTree& tree, const Hosts& hosts, std::span<const Experiment> experiments) {
  Crossing crossed = crossing(members(tree.hosts(), hosts), experiments);
  HostTree::Group group{hosts, agreed(std::move(crossed.out)), agreed(std::move(crossed.in))};
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

Misfit::Misfit(const HostTree& tree, std::span<const Experiment> experiments)
    : tree_(tree), experiments_(experiments) {
  for (const Experiment& e : experiments) {
    const std::vector<Limit> limits = limits_of(tree, e.flows);
    const std::vector<const Limit*> fullest = fullest_limits(limits, e.bytes_per_s);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      fullness_.push_back(waited_for_way_back(e, f) ? 0 : fullness_of(*fullest[f], e.bytes_per_s));
    }
  }
}

double Misfit::alone() const { return mean_log(fullness_); }

double Misfit::with(const Hosts& group) const {
  const std::vector<bool> inside = members(tree_.hosts(), group);
  const Crossing crossed = crossing(inside, experiments_);
  const double most_out = agreed(crossed.out), most_in = agreed(crossed.in);
  if (most_out <= 0 || most_in <= 0) return alone();
  std::vector<double> fullness = fullness_;
  auto full = fullness.begin();
  for (std::size_t i = 0; i < experiments_.size(); ++i) {
    const double out = crossed.out[i] / most_out, in = crossed.in[i] / most_in;
    for (const Flow& flow : experiments_[i].flows) {
      const bool from = inside[at(flow.src)];
      if (*full > 0 && from != inside[at(flow.dst)]) *full = std::max(*full, from ? out : in);
      ++full;
    }
  }
  return mean_log(fullness);
}

}  // namespace chorus::probing
