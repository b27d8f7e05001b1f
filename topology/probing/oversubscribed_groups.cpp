#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "topology/probing/fit.hpp"
#include "topology/probing/groups.hpp"

namespace chorus::probing {
namespace {

// Groups from which a better one is looked for by moving hosts.
constexpr std::size_t kMostStarts = 8;
// Trees that are followed at a time: of two trunks that explain something together only, either
// may explain less than a third one does alone.
constexpr std::size_t kBeam = 6;
// Of what was unexplained so much remains at most, or a group is not worth it.
constexpr double kExplains = 0.85;

// How near hosts are, by how close their flows come to what the tree says; clustered by average
// linkage. Every cluster that forms on the way.
std::vector<Hosts> clusters_by_deficit(const HostTree& tree,
                                       std::span<const Experiment> experiments) {
  const auto n = at(tree.hosts());
  std::vector<double> sum(n * n, 0);
  std::vector<double> count(n * n, 0);
  for (const Experiment& e : experiments) {
    const std::vector<double> predicted = fair_rates(tree, e.flows);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      if (predicted[f] <= 0) continue;
      const double share = std::min(1.0, e.bytes_per_s[f] / predicted[f]);
      for (const std::size_t cell : {at(e.flows[f].src) * n + at(e.flows[f].dst),
                                     at(e.flows[f].dst) * n + at(e.flows[f].src)}) {
        sum[cell] += share;
        count[cell] += 1;
      }
    }
  }
  const double total = std::accumulate(count.begin(), count.end(), 0.0);
  const double usual = total > 0 ? std::accumulate(sum.begin(), sum.end(), 0.0) / total : 1;
  std::vector<Hosts> clusters(n);
  for (std::size_t h = 0; h < n; ++h) clusters[h] = {static_cast<int>(h)};
  std::vector<Hosts> formed;
  while (clusters.size() > 1) {
    double best = -1;
    std::size_t first = 0;
    std::size_t second = 1;
    for (std::size_t a = 0; a < clusters.size(); ++a) {
      for (std::size_t b = a + 1; b < clusters.size(); ++b) {
        double s = 0;
        double c = 0;
        for (const int i : clusters[a]) {
          for (const int j : clusters[b]) {
            s += sum[at(i) * n + at(j)];
            c += count[at(i) * n + at(j)];
          }
        }
        const double nearness = c > 0 ? s / c : usual;
        if (nearness > best + 1e-9) {
          best = nearness;
          first = a;
          second = b;
        }
      }
    }
    Hosts& merged = clusters[first];
    merged.insert(merged.end(), clusters[second].begin(), clusters[second].end());
    std::sort(merged.begin(), merged.end());
    clusters.erase(clusters.begin() + static_cast<std::ptrdiff_t>(second));
    formed.push_back(clusters[first]);
  }
  return formed;
}

// Where to look for a group: of few hosts everywhere; else among the clusters.
std::vector<Hosts> starting_points(const HostTree& tree, std::span<const Experiment> experiments) {
  constexpr int kFew = 10;
  if (tree.hosts() > kFew) return clusters_by_deficit(tree, experiments);
  std::vector<Hosts> points;
  for (unsigned set = 1; set < 1U << (tree.hosts() - 1); ++set) {  // without the last host
    Hosts group;
    for (int h = 0; h < tree.hosts(); ++h) {
      if ((set >> h & 1) != 0) group.push_back(h);
    }
    points.push_back(std::move(group));
  }
  return points;
}

bool fits_into(const HostTree& tree, const Hosts& group) {
  return std::all_of(tree.groups.begin(), tree.groups.end(), [&](const HostTree::Group& other) {
    return other.hosts != group && compatible(other.hosts, group);
  });
}

// misfit() of a tree with any one group more. All that its own limits say is the same for each, and
// hundreds are tried.
class MisfitWith {
 public:
  MisfitWith(const HostTree& tree, std::span<const Experiment> experiments)
      : tree_(tree), experiments_(experiments) {
    for (const Experiment& e : experiments) {
      const std::vector<Limit> limits = limits_of(tree, e.flows);
      const std::vector<const Limit*> fullest = fullest_limits(limits, e.bytes_per_s);
      std::vector<double>& full = fullness_.emplace_back();
      for (std::size_t f = 0; f < e.flows.size(); ++f) {
        full.push_back(waited_for_way_back(e, f) ? 0 : fullness_of(*fullest[f], e.bytes_per_s));
      }
    }
  }

  // Infinity where the group does not fit into the tree.
  double operator()(const Hosts& group) const {
    if (!worth_a_trunk(tree_.hosts(), group) || !fits_into(tree_, group)) {
      return std::numeric_limits<double>::infinity();
    }
    std::vector<bool> inside(at(tree_.hosts()), false);
    for (const int host : group) inside[at(host)] = true;
    std::vector<double> out, in;
    for (const Experiment& e : experiments_) {
      out.push_back(0);
      in.push_back(0);
      for (std::size_t f = 0; f < e.flows.size(); ++f) {
        const bool from = inside[at(e.flows[f].src)];
        if (from != inside[at(e.flows[f].dst)]) (from ? out : in).back() += e.bytes_per_s[f];
      }
    }
    const double most_out = agreed(out), most_in = agreed(in);
    const bool crossed = most_out > 0 && most_in > 0;
    double sum = 0;
    int count = 0;
    for (std::size_t i = 0; i < experiments_.size(); ++i) {
      const std::vector<Flow>& flows = experiments_[i].flows;
      for (std::size_t f = 0; f < flows.size(); ++f) {
        double full = fullness_[i][f];
        if (full <= 0) continue;
        const bool from = inside[at(flows[f].src)];
        if (crossed && from != inside[at(flows[f].dst)]) {
          full = std::max(full, from ? out[i] / most_out : in[i] / most_in);
        }
        sum += std::abs(std::log(full));
        ++count;
      }
    }
    return count == 0 ? 0 : sum / count;
  }

 private:
  const HostTree& tree_;
  std::span<const Experiment> experiments_;
  std::vector<std::vector<double>> fullness_;  // of the fullest limit of each flow; 0: no evidence
};

// Moves single hosts in and out while that explains more.
void improve(int hosts, const MisfitWith& misfit_with, Hosts& group, double& error) {
  while (true) {
    Hosts best = group;
    double least = error;
    for (int h = 0; h < hosts; ++h) {
      Hosts changed = group;
      if (contains(group, h)) {
        std::erase(changed, h);
      } else {
        changed.insert(std::lower_bound(changed.begin(), changed.end(), h), h);
      }
      changed = smaller_side(hosts, std::move(changed));
      const double now = misfit_with(changed);
      if (now < 0.98 * least) {
        least = now;
        best = std::move(changed);
      }
    }
    if (least >= error) return;
    group = std::move(best);
    error = least;
  }
}

// A tree, and how far measurements are from it.
struct Explanation {
  HostTree tree;
  double error = 0;
};

HostTree without_core(HostTree tree) {
  tree.core = 0;
  return tree;
}

HostTree cables_of(HostTree tree) {
  tree.core = 0;
  tree.groups.clear();
  return tree;
}

// Each with one group more, from where most is explained.
std::vector<Explanation> with_one_more(const Explanation& before,
                                       std::span<const Experiment> experiments) {
  const HostTree& tree = before.tree;
  const MisfitWith misfit_with(tree, experiments);
  std::vector<std::pair<double, Hosts>> starts;
  for (const Hosts& cluster : starting_points(tree, experiments)) {
    Hosts group = smaller_side(tree.hosts(), cluster);
    const double now = misfit_with(group);
    if (std::isfinite(now)) starts.emplace_back(now, std::move(group));
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (starts.size() > kMostStarts) starts.resize(kMostStarts);
  std::vector<Explanation> longer;
  for (auto& [now, group] : starts) {
    improve(tree.hosts(), misfit_with, group, now);
    if (now > kExplains * before.error) continue;
    longer.push_back({.tree = tree, .error = now});
    add_group(longer.back().tree, group, experiments);
  }
  return longer;
}

bool explain_alike(const Explanation& a, const Explanation& b) {
  const auto groups_of = [](const Explanation& one) {
    std::vector<Hosts> groups;
    for (const HostTree::Group& group : one.tree.groups) groups.push_back(group.hosts);
    std::sort(groups.begin(), groups.end());
    return groups;
  };
  return groups_of(a) == groups_of(b);
}

// The nearest to what was measured first, each once.
void keep_best(std::vector<Explanation>& explanations) {
  std::stable_sort(explanations.begin(), explanations.end(),
                   [](const auto& a, const auto& b) { return a.error < b.error; });
  std::vector<Explanation> best;
  for (Explanation& one : explanations) {
    const bool known = std::any_of(best.begin(), best.end(),
                                   [&](const auto& other) { return explain_alike(one, other); });
    if (!known && best.size() < kBeam) best.push_back(std::move(one));
  }
  explanations = std::move(best);
}

}  // namespace

std::vector<std::vector<int>> oversubscribed_groups(const HostTree& given,
                                                    std::span<const Experiment> experiments,
                                                    int most) {
  std::vector<Explanation> beam;
  for (const HostTree& start : {without_core(given), cables_of(given)}) {
    beam.push_back({.tree = start, .error = misfit(start, experiments)});
  }
  keep_best(beam);
  std::vector<Explanation> all = beam;
  for (int added = 0; added < most; ++added) {
    std::vector<Explanation> next;
    for (const Explanation& before : beam) {
      for (Explanation& one : with_one_more(before, experiments)) next.push_back(std::move(one));
    }
    keep_best(next);
    all.insert(all.end(), next.begin(), next.end());
    beam = std::move(next);
  }
  keep_best(all);
  HostTree with_core = cables_of(given);
  set_core(with_core, experiments);
  // Everything is slower, wherever it goes.
  if (misfit(with_core, experiments) <= all.front().error) return {};
  std::vector<Hosts> groups;
  for (const HostTree::Group& group : all.front().tree.groups) groups.push_back(group.hosts);
  std::sort(groups.begin(), groups.end());
  return groups;
}

}  // namespace chorus::probing
