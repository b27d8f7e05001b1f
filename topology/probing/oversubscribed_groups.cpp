#include <algorithm>
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

// Moves single hosts in and out while that explains more.
void improve(const HostTree& tree, const Misfit& misfit, Hosts& group, double& error) {
  const int hosts = tree.hosts();
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
      if (!fits(tree, changed)) continue;
      const double now = misfit.with(changed);
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
  const Misfit misfit(tree, experiments);
  std::vector<std::pair<double, Hosts>> starts;
  for (const Hosts& cluster : starting_points(tree, experiments)) {
    Hosts group = smaller_side(tree.hosts(), cluster);
    if (!fits(tree, group)) continue;
    const double now = misfit.with(group);
    starts.emplace_back(now, std::move(group));
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (starts.size() > kMostStarts) starts.resize(kMostStarts);
  std::vector<Explanation> longer;
  for (auto& [now, group] : starts) {
    improve(tree, misfit, group, now);
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
