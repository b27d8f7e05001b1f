#include "topology/probing/infer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace chorus::probing {
namespace {

// A limit is believed if some flows would be this much faster without it.
constexpr double kNeeded = 1.25;
// Figures of one kind that differ by less are one figure, measured several times.
constexpr double kPooled = 1.06;
// Groups from which a better one is looked for by moving hosts.
constexpr std::size_t kMostStarts = 8;

using Hosts = std::vector<int>;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

bool contains(const Hosts& sorted, int host) {
  return std::binary_search(sorted.begin(), sorted.end(), host);
}

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

// Hosts in sets that can be joined.
class Parts {
 public:
  explicit Parts(int hosts) : parent_(at(hosts)) { std::iota(parent_.begin(), parent_.end(), 0); }

  int find(int host) {
    while (parent_[at(host)] != host) host = parent_[at(host)] = parent_[at(parent_[at(host)])];
    return host;
  }
  void join(int a, int b) {
    const int first = find(a);
    const int second = find(b);
    parent_[at(std::max(first, second))] = std::min(first, second);
  }
  std::vector<Hosts> list() {
    std::vector<Hosts> parts;
    std::vector<int> index(parent_.size(), -1);
    for (int h = 0; h < static_cast<int>(parent_.size()); ++h) {
      int& part = index[at(find(h))];
      if (part < 0) {
        part = static_cast<int>(parts.size());
        parts.emplace_back();
      }
      parts[at(part)].push_back(h);
    }
    return parts;
  }

 private:
  std::vector<int> parent_;
};

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

// Disjoint or one within the other.
bool compatible(const Hosts& a, const Hosts& b) {
  Hosts both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both.empty() || both.size() == std::min(a.size(), b.size());
}

bool worth_a_trunk(int hosts, const Hosts& group) {
  return group.size() >= 2 && at(hosts) - group.size() >= 2;
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

// How much faster the flows it limits would be without the limit, where that matters most.
double need(const std::vector<Limit::Kind>& kinds, int index, const HostTree& tree,
            std::span<const Experiment> experiments) {
  const auto is_it = [&](const Limit& limit) {
    return limit.index == index && std::find(kinds.begin(), kinds.end(), limit.kind) != kinds.end();
  };
  double most = 1;
  for (const Experiment& e : experiments) {
    const std::vector<Limit> with = limits_of(tree, e.flows);
    std::vector<Limit> without;
    for (const Limit& limit : with) {
      if (!is_it(limit)) without.push_back(limit);
    }
    if (without.size() == with.size()) continue;
    const std::vector<double> slow = fair_rates(with, e.flows.size());
    const std::vector<double> fast = fair_rates(without, e.flows.size());
    for (const Limit& limit : with) {
      if (!is_it(limit)) continue;
      double slow_sum = 0;
      double fast_sum = 0;
      for (const int f : limit.flows) {
        slow_sum += slow[at(f)];
        fast_sum += fast[at(f)];
      }
      if (slow_sum > 0) most = std::max(most, fast_sum / slow_sum);
    }
  }
  return most;
}

// What was measured where the limit is what stops all of its flows.
struct AtLimit {
  std::vector<double> alone;  // with one pair in the network
  std::vector<double> among_others;
};

AtLimit sums_at_limit(Limit::Kind kind, int index, const HostTree& tree,
                      std::span<const Experiment> experiments) {
  AtLimit sums;
  for (const Experiment& e : experiments) {
    const std::vector<Limit> limits = limits_of(tree, e.flows);
    const std::vector<double> rates = fair_rates(limits, e.flows.size());
    for (const Limit& limit : limits) {
      if (limit.kind != kind || limit.index != index) continue;
      double predicted = 0;
      double measured = 0;
      for (const int f : limit.flows) {
        predicted += rates[at(f)];
        measured += e.bytes_per_s[at(f)];
      }
      // Where something disturbed the measurement by half it says nothing.
      if (predicted >= 0.97 * limit.bytes_per_s && measured > 0.5 * limit.bytes_per_s) {
        (e.flows.size() <= 2 ? sums.alone : sums.among_others).push_back(measured);
      }
    }
  }
  return sums;
}

// A pair alone is measured best, and disturbances only slow it down. Flows that compete scatter
// both ways, but are slowed down more often than not: their upper quartile, which also shows
// whether the pair alone was disturbed.
double settled(AtLimit sums, double otherwise) {
  constexpr double kDisturbed = 1.15;
  double rate = 0;
  if (!sums.alone.empty()) rate = *std::max_element(sums.alone.begin(), sums.alone.end());
  std::vector<double>& others = sums.among_others;
  if (others.empty()) return rate > 0 ? rate : otherwise;
  std::sort(others.begin(), others.end());
  const double quartile = others[(others.size() * 3 - 1) / 4];
  return quartile > kDisturbed * rate ? quartile : rate;
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

void refine(HostTree& tree, std::span<const Experiment> experiments) {
  HostTree refined = tree;
  for (int h = 0; h < tree.hosts(); ++h) {
    refined.out[at(h)] =
        settled(sums_at_limit(Limit::Kind::host_out, h, tree, experiments), tree.out[at(h)]);
    refined.in[at(h)] =
        settled(sums_at_limit(Limit::Kind::host_in, h, tree, experiments), tree.in[at(h)]);
  }
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    const int index = static_cast<int>(g);
    refined.groups[g].out = settled(sums_at_limit(Limit::Kind::group_out, index, tree, experiments),
                                    tree.groups[g].out);
    refined.groups[g].in =
        settled(sums_at_limit(Limit::Kind::group_in, index, tree, experiments), tree.groups[g].in);
  }
  tree = std::move(refined);
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
    while (end < order.size() && *order[end] < kPooled * *order[end - 1] &&
           *order[end] < kPooled * kPooled * *order[begin]) {
      ++end;
    }
    const double middle = *order[begin + (end - begin) / 2];
    for (std::size_t i = begin; i < end; ++i) *order[i] = middle;
    begin = end;
  }
}

HostTree cables(int hosts, std::span<const Experiment> experiments) {
  HostTree tree;
  tree.out.assign(at(hosts), 0);
  tree.in.assign(at(hosts), 0);
  for (const Experiment& e : experiments) {
    std::vector<double> out(at(hosts), 0);
    std::vector<double> in(at(hosts), 0);
    for (std::size_t f = 0; f < e.flows.size(); ++f) {
      out[at(e.flows[f].src)] += e.bytes_per_s[f];
      in[at(e.flows[f].dst)] += e.bytes_per_s[f];
    }
    for (std::size_t h = 0; h < at(hosts); ++h) {
      tree.out[h] = std::max(tree.out[h], out[h]);
      tree.in[h] = std::max(tree.in[h], in[h]);
    }
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

std::vector<int> smaller_side(int hosts, std::vector<int> group) {
  const std::size_t rest = at(hosts) - group.size();
  if (group.size() < rest || (group.size() == rest && !contains(group, 0))) return group;
  Hosts other;
  for (int h = 0; h < hosts; ++h) {
    if (!contains(group, h)) other.push_back(h);
  }
  return other;
}

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
  Parts parts(hosts);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      if (near(i, j) && near(j, i)) parts.join(static_cast<int>(i), static_cast<int>(j));
    }
  }
  return parts.list();
}

std::vector<std::vector<int>> nested_groups(int hosts, std::span<const Experiment> experiments) {
  const auto n = at(hosts);
  const std::vector<double> best = best_rates(hosts, experiments);
  Parts parts(hosts);
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
    const std::vector<Hosts> list = parts.list();
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
  keep_needed_groups(tree, experiments);
  HostTree with_core = tree;
  set_core(with_core, experiments);
  if (need({Limit::Kind::core}, 0, with_core, experiments) >= kNeeded) tree.core = with_core.core;
  for (int round = 0; round < 2; ++round) refine(tree, experiments);
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
