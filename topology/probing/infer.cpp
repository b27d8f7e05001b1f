#include "topology/probing/infer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/index.hpp"
#include "topology/probing/fit.hpp"

namespace chorus::probing {
namespace {

// A limit is believed if some flows would be this much faster without it.
constexpr double kNeeded = 1.25;
// What carries so much of what it may is full: rates scatter by as much.
constexpr double kFull = 0.9;
// Figures of one kind that differ by less are one figure, measured several times.
constexpr double kPooled = 1.03;
// The largest rate of one host, unless it is doubtful and stands alone.
struct Fastest {
  double certain = 0, first = 0, second = 0;

  void see(double rate, bool doubtful) {
    if (!doubtful) certain = std::max(certain, rate);
    second = std::max(second, std::min(first, rate));
    first = std::max(first, rate);
  }
  [[nodiscard]] double credible() const { return std::max(certain, second); }
};

// How much faster the flows that fill it could be without the limit, where that matters most.
double need(const std::vector<Limit::Kind>& kinds, int index, const HostTree& tree,
            std::span<const Experiment> experiments) {
  const auto is_it = [&](const Limit& limit) {
    return limit.index == index && std::find(kinds.begin(), kinds.end(), limit.kind) != kinds.end();
  };
  double most = 1, second = 1;
  for (const Experiment& e : experiments) {
    const std::vector<Limit> with = limits_of(tree, e.flows);
    std::vector<Limit> without;
    for (const Limit& limit : with) {
      if (!is_it(limit)) without.push_back(limit);
    }
    if (without.size() == with.size()) continue;
    for (const Limit& limit : with) {
      if (!is_it(limit) || fullness_of(limit, e.bytes_per_s) < kFull) continue;
      const double faster = room(without, e.bytes_per_s, limit.flows);
      second = std::max(second, std::min(most, faster));
      most = std::max(most, faster);
    }
  }
  return second;
}

// What was measured where the limit is what stops all of its flows.
struct AtLimit {
  std::vector<double> alone;  // with one flow in the network
  std::vector<double> among_others;
};

using AtLimits = std::map<std::pair<Limit::Kind, int>, AtLimit>;

AtLimits sums_at_limits(const HostTree& tree, std::span<const Experiment> experiments) {
  AtLimits sums;
  for (const Experiment& e : experiments) {
    const std::vector<Limit> limits = limits_of(tree, e.flows);
    const std::vector<double> rates = fair_rates(limits, e.flows.size());
    for (const Limit& limit : limits) {
      const double measured = load_of(limit, e.bytes_per_s);
      // Where something disturbed the measurement by half it says nothing.
      if (fullness_of(limit, rates) < 0.97 || measured <= 0.5 * limit.bytes_per_s) continue;
      AtLimit& sum = sums[{limit.kind, limit.index}];
      (e.flows.size() == 1 ? sum.alone : sum.among_others).push_back(measured);
    }
  }
  return sums;
}

// A flow alone is measured best. Where those that compete agree on more, it was disturbed if more
// of them say that than what it says; else these are queues that drained late.
double settled(const AtLimit& sums, double otherwise) {
  constexpr double kSameRate = 0.05;
  double rate = 0;
  if (!sums.alone.empty()) rate = *std::max_element(sums.alone.begin(), sums.alone.end());
  const double most = agreed(sums.among_others);
  const auto count_at = [&](double one) {
    return std::count_if(sums.among_others.begin(), sums.among_others.end(),
                         [&](double other) { return std::abs(other - one) < kSameRate * one; });
  };
  if (most > (1 + kSameRate) * rate && count_at(most) > count_at(rate)) return most;
  return rate > 0 ? rate : otherwise;
}

// Removes what explains least, one group after another. Groups that contradict each other may both
// be there until only those are left that explain something; then the weaker one goes.
void keep_needed_groups(HostTree& tree, std::span<const Experiment> experiments) {
  while (!tree.groups.empty()) {
    std::vector<double> needs;
    for (std::size_t g = 0; g < tree.groups.size(); ++g) {
      needs.push_back(need({Limit::Kind::group_out, Limit::Kind::group_in}, static_cast<int>(g),
                           tree, experiments));
    }
    auto weakest = std::min_element(needs.begin(), needs.end()) - needs.begin();
    if (needs[static_cast<std::size_t>(weakest)] >= kNeeded) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t a = 0; a < needs.size(); ++a) {
        for (std::size_t b = 0; b < needs.size(); ++b) {
          if (compatible(tree.groups[a].hosts, tree.groups[b].hosts) || needs[a] >= least) continue;
          least = needs[a];
          weakest = static_cast<std::ptrdiff_t>(a);
        }
      }
      if (!std::isfinite(least)) return;
    }
    tree.groups.erase(tree.groups.begin() + weakest);
  }
}

// Need is judged for one group after another; two that explain the same may leave the wrong one. So
// each group that is left gives way to one of `others` where that is nearer to what was measured.
void exchange_groups(HostTree& tree, std::span<const HostTree::Group> others,
                     std::span<const Experiment> experiments) {
  constexpr double kNearer = 0.9;
  double error = misfit(tree, experiments);
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    for (const HostTree::Group& other : others) {
      HostTree changed = tree;
      changed.groups.erase(changed.groups.begin() + static_cast<std::ptrdiff_t>(g));
      if (other.hosts == tree.groups[g].hosts || !fits(changed, other.hosts)) continue;
      changed.groups.insert(changed.groups.begin() + static_cast<std::ptrdiff_t>(g), other);
      const double now = misfit(changed, experiments);
      if (now >= kNearer * error) continue;
      error = now;
      tree = std::move(changed);
    }
  }
}

void refine(HostTree& tree, std::span<const Experiment> experiments) {
  AtLimits sums = sums_at_limits(tree, experiments);
  for (int h = 0; h < tree.hosts(); ++h) {
    double& out = tree.out[at(h)];
    double& in = tree.in[at(h)];
    out = settled(sums[{Limit::Kind::host_out, h}], out);
    in = settled(sums[{Limit::Kind::host_in, h}], in);
  }
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    HostTree::Group& group = tree.groups[g];
    const int index = static_cast<int>(g);
    group.out = settled(sums[{Limit::Kind::group_out, index}], group.out);
    group.in = settled(sums[{Limit::Kind::group_in, index}], group.in);
  }
}

// Values that follow each other closely become their middle: the same cable, measured often.
void pool(const std::vector<double*>& values) {
  std::vector<double*> order;
  for (double* value : values) {
    if (*value > 0) order.push_back(value);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const double* a, const double* b) { return *a < *b; });
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && *order[end] < kPooled * *order[begin]) ++end;
    const double middle = *order[begin + (end - begin) / 2];
    for (std::size_t i = begin; i < end; ++i) *order[i] = middle;
    begin = end;
  }
}

HostTree cables(int hosts, std::span<const Experiment> experiments) {
  HostTree tree;
  std::vector<std::vector<double>> sent(at(hosts)), got(at(hosts));
  for (const Experiment& e : experiments) {
    std::vector<double> out(at(hosts), 0);
    std::vector<double> in(at(hosts), 0);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      out[at(e.flows[f].src)] += e.bytes_per_s[f];
      in[at(e.flows[f].dst)] += e.bytes_per_s[f];
    }
    for (std::size_t h = 0; h < at(hosts); ++h) {
      sent[h].push_back(out[h]);
      got[h].push_back(in[h]);
    }
  }
  for (std::size_t h = 0; h < at(hosts); ++h) {
    tree.out.push_back(agreed(std::move(sent[h])));
    tree.in.push_back(agreed(std::move(got[h])));
  }
  const double fastest = std::max(*std::max_element(tree.out.begin(), tree.out.end()),
                                  *std::max_element(tree.in.begin(), tree.in.end()));
  for (std::vector<double>* rates : {&tree.out, &tree.in}) {
    for (double& rate : *rates) {
      if (rate <= 0) rate = fastest;
    }
  }
  return tree;
}

}  // namespace

std::vector<Experiment> believable(int hosts, std::span<const Experiment> experiments) {
  constexpr double kDoubtful = 2;  // so many times faster than the way back at the same time
  std::vector<Fastest> out(at(hosts));
  std::vector<Fastest> in(at(hosts));
  for (const Experiment& e : experiments) {
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      bool doubtful = false;
      for (std::size_t back = 0; back < e.flows.size(); ++back) {
        const bool other_way =
            e.flows[back].src == e.flows[f].dst && e.flows[back].dst == e.flows[f].src;
        doubtful = doubtful || (other_way && e.bytes_per_s[f] > kDoubtful * e.bytes_per_s[back]);
      }
      out[at(e.flows[f].src)].see(e.bytes_per_s[f], doubtful);
      in[at(e.flows[f].dst)].see(e.bytes_per_s[f], doubtful);
    }
  }
  std::vector<Experiment> result(experiments.begin(), experiments.end());
  for (Experiment& e : result) {
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      e.bytes_per_s[f] = std::min({e.bytes_per_s[f], out[at(e.flows[f].src)].credible(),
                                   in[at(e.flows[f].dst)].credible()});
    }
  }
  return result;
}

HostTree infer(int hosts, std::span<const Experiment> experiments,
               const std::vector<std::vector<int>>& groups) {
  HostTree tree = cables(hosts, experiments);
  // Larger groups first, so that the nested ones are judged beside what holds them.
  std::vector<Hosts> candidates;
  for (const Hosts& group : groups) candidates.push_back(smaller_side(hosts, group));
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Hosts& a, const Hosts& b) { return a.size() > b.size(); });
  for (const Hosts& group : candidates) {
    const bool known = std::any_of(tree.groups.begin(), tree.groups.end(),
                                   [&](const auto& other) { return other.hosts == group; });
    if (worth_a_trunk(hosts, group) && !known) add_group(tree, group, experiments);
  }
  const std::vector<HostTree::Group> all = tree.groups;
  keep_needed_groups(tree, experiments);
  exchange_groups(tree, all, experiments);
  HostTree with_core = tree;
  set_core(with_core, experiments);
  if (need({Limit::Kind::core}, 0, with_core, experiments) >= kNeeded) tree.core = with_core.core;
  for (int round = 0; round < 2; ++round) refine(tree, experiments);
  // So far the rates were the highest that were seen: between two trunks there seemed to be a
  // third.
  keep_needed_groups(tree, experiments);
  std::vector<double*> values;
  for (double& rate : tree.out) values.push_back(&rate);
  for (double& rate : tree.in) values.push_back(&rate);
  pool(values);
  values.clear();
  for (HostTree::Group& group : tree.groups) {
    values.push_back(&group.out);
    values.push_back(&group.in);
  }
  pool(values);
  return tree;
}

}  // namespace chorus::probing
