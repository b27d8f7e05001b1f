#include "topology/probing/groups.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "topology/probing/fit.hpp"

namespace chorus::probing {
namespace {

// Groups from which a better one is looked for by moving hosts.
constexpr std::size_t kMostStarts = 8;

// The fastest each pair was seen, [src · hosts + dst]; 0: never.
std::vector<double> best_rates(int hosts, std::span<const Experiment> experiments) {
  std::vector<double> best(at(hosts) * at(hosts), 0);
  for (const Experiment& e : experiments) {
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      double& rate = best[at(e.flows[f].src) * at(hosts) + at(e.flows[f].dst)];
      rate = std::max(rate, e.bytes_per_s[f]);
    }
  }
  return best;
}

// Hosts in sets that were joined.
std::vector<Hosts> parts_of(DisjointSets& sets) {
  std::vector<Hosts> parts;
  const std::vector<int> of = sets.sets();
  std::vector<int> index(of.size(), -1);
  for (std::size_t host = 0; host < of.size(); ++host) {
    int& part = index[at(of[host])];
    if (part < 0) {
      part = static_cast<int>(parts.size());
      parts.emplace_back();
    }
    parts[at(part)].push_back(static_cast<int>(host));
  }
  return parts;
}

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

double misfit_with(HostTree tree, const Hosts& group, std::span<const Experiment> experiments) {
  if (!worth_a_trunk(tree.hosts(), group) || !fits_into(tree, group)) {
    return std::numeric_limits<double>::infinity();
  }
  add_group(tree, group, experiments);
  return misfit(tree, experiments);
}

// Moves single hosts in and out while that explains more.
void improve(const HostTree& tree, std::span<const Experiment> experiments, Hosts& group,
             double& error) {
  while (true) {
    Hosts best = group;
    double least = error;
    for (int h = 0; h < tree.hosts(); ++h) {
      Hosts changed = group;
      if (contains(group, h)) {
        std::erase(changed, h);
      } else {
        changed.insert(std::lower_bound(changed.begin(), changed.end(), h), h);
      }
      changed = smaller_side(tree.hosts(), std::move(changed));
      const double now = misfit_with(tree, changed, experiments);
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

}  // namespace

std::vector<std::vector<int>> near_hosts(int hosts, std::span<const Experiment> experiments) {
  const auto n = at(hosts);
  const std::vector<double> best = best_rates(hosts, experiments);
  std::vector<double> out(n, 0);
  std::vector<double> in(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      out[i] = std::max(out[i], best[i * n + j]);
      in[j] = std::max(in[j], best[i * n + j]);
    }
  }
  // Compared with the faster of both: a slow host is no bridge between islands.
  const auto near = [&](std::size_t i, std::size_t j) {
    return best[i * n + j] > 0 && best[i * n + j] >= kSame * std::max(out[i], out[j]) &&
           best[i * n + j] >= kSame * std::max(in[i], in[j]);
  };
  DisjointSets parts(at(hosts));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      if (near(i, j) && near(j, i)) parts.join(static_cast<int>(i), static_cast<int>(j));
    }
  }
  return parts_of(parts);
}

std::vector<std::vector<int>> nested_groups(int hosts, std::span<const Experiment> experiments) {
  const auto n = at(hosts);
  const std::vector<double> best = best_rates(hosts, experiments);
  DisjointSets parts(at(hosts));
  std::vector<Hosts> groups;
  const auto note = [&](const std::vector<Hosts>& list) {
    for (const Hosts& part : list) {
      const Hosts side = smaller_side(hosts, part);
      if (!worth_a_trunk(hosts, side)) continue;
      if (std::find(groups.begin(), groups.end(), side) == groups.end()) groups.push_back(side);
    }
  };
  for (const Hosts& part : near_hosts(hosts, experiments)) {
    for (const int host : part) parts.join(part[0], host);
  }
  while (true) {
    const std::vector<Hosts> list = parts_of(parts);
    note(list);
    if (list.size() == 1) break;
    double fastest = 0;
    const auto each_pair = [&](auto&& visit) {
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = i + 1; j < n; ++j) {
          const int a = static_cast<int>(i);
          const int b = static_cast<int>(j);
          if (parts.find(a) != parts.find(b)) {
            visit(a, b, std::min(best[i * n + j], best[j * n + i]));
          }
        }
      }
    };
    each_pair([&](int, int, double rate) { fastest = std::max(fastest, rate); });
    if (fastest <= 0) break;
    std::vector<std::pair<int, int>> joined;
    each_pair([&](int a, int b, double rate) {
      if (rate >= kSame * fastest) joined.emplace_back(a, b);
    });
    for (const auto& [a, b] : joined) parts.join(a, b);
  }
  return groups;
}

std::vector<std::vector<int>> oversubscribed_groups(const HostTree& given,
                                                    std::span<const Experiment> experiments,
                                                    int most) {
  HostTree tree = given;
  std::vector<Hosts> found;
  double error = misfit(tree, experiments);
  while (static_cast<int>(found.size()) < most) {
    Hosts best;
    double least = error;
    std::vector<std::pair<double, Hosts>> starts;
    for (const Hosts& cluster : starting_points(tree, experiments)) {
      Hosts group = smaller_side(tree.hosts(), cluster);
      const double now = misfit_with(tree, group, experiments);
      if (std::isfinite(now)) starts.emplace_back(now, std::move(group));
    }
    std::stable_sort(starts.begin(), starts.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (starts.size() > kMostStarts) starts.resize(kMostStarts);
    for (auto& [now, group] : starts) {
      improve(tree, experiments, group, now);
      if (now < least) {
        least = now;
        best = std::move(group);
      }
    }
    if (best.empty() || least > 0.85 * error) break;
    HostTree with_core = tree;
    set_core(with_core, experiments);
    if (misfit(with_core, experiments) <= least) break;  // everything is slower, wherever it goes
    add_group(tree, best, experiments);
    found.push_back(std::move(best));
    error = least;
  }
  return found;
}

}  // namespace chorus::probing
