#include "topology/probing/host_tree.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/index.hpp"

namespace chorus::probing {
namespace {

void add(std::vector<Limit>& limits, Limit limit) {
  if (!limit.flows.empty()) limits.push_back(std::move(limit));
}

void add_cable_limits(const HostTree& tree, std::span<const Flow> flows,
                      std::vector<Limit>& limits) {
  const auto n = static_cast<std::size_t>(tree.hosts());
  std::vector<std::vector<int>> from(n);
  std::vector<std::vector<int>> to(n);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    from[static_cast<std::size_t>(flows[f].src)].push_back(static_cast<int>(f));
    to[static_cast<std::size_t>(flows[f].dst)].push_back(static_cast<int>(f));
  }
  for (std::size_t h = 0; h < n; ++h) {
    const int host = static_cast<int>(h);
    add(limits, {Limit::Kind::host_out, host, tree.out[h], std::move(from[h])});
    add(limits, {Limit::Kind::host_in, host, tree.in[h], std::move(to[h])});
  }
}

void add_trunk_limits(const HostTree& tree, std::span<const Flow> flows,
                      std::vector<Limit>& limits) {
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    const HostTree::Group& group = tree.groups[g];
    Limit out{Limit::Kind::group_out, static_cast<int>(g), group.out, {}};
    Limit in{Limit::Kind::group_in, static_cast<int>(g), group.in, {}};
    for (std::size_t f = 0; f < flows.size(); ++f) {
      const bool src = holds(group.hosts, flows[f].src);
      const bool dst = holds(group.hosts, flows[f].dst);
      if (src && !dst) out.flows.push_back(static_cast<int>(f));
      if (dst && !src) in.flows.push_back(static_cast<int>(f));
    }
    add(limits, std::move(out));
    add(limits, std::move(in));
  }
}

// Which child of the top of the tree each host hangs from: a group by its index, a host by itself.
std::vector<int> children_of_top(const HostTree& tree) {
  std::vector<int> child(static_cast<std::size_t>(tree.hosts()));
  const std::vector<int> parents = tree.parents();
  for (int h = 0; h < tree.hosts(); ++h) child[static_cast<std::size_t>(h)] = -1 - h;
  for (std::size_t g = 0; g < tree.groups.size(); ++g) {
    if (parents[g] >= 0) continue;
    for (const int host : tree.groups[g].hosts) {
      child[static_cast<std::size_t>(host)] = static_cast<int>(g);
    }
  }
  return child;
}

}  // namespace

bool holds(const std::vector<int>& sorted, int host) {
  return std::binary_search(sorted.begin(), sorted.end(), host);
}

std::vector<int> HostTree::group_of_hosts() const {
  std::vector<int> smallest(out.size(), -1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const int host : groups[g].hosts) {
      int& best = smallest[static_cast<std::size_t>(host)];
      if (best < 0 ||
          groups[g].hosts.size() < groups[static_cast<std::size_t>(best)].hosts.size()) {
        best = static_cast<int>(g);
      }
    }
  }
  return smallest;
}

std::vector<int> HostTree::parents() const {
  std::vector<int> parents(groups.size(), -1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t other = 0; other < groups.size(); ++other) {
      const auto& inner = groups[g].hosts;
      const auto& outer = groups[other].hosts;
      if (outer.size() <= inner.size() || !holds(outer, inner[0])) continue;
      int& parent = parents[g];
      if (parent < 0 || outer.size() < groups[static_cast<std::size_t>(parent)].hosts.size()) {
        parent = static_cast<int>(other);
      }
    }
  }
  return parents;
}

std::vector<Limit> limits_of(const HostTree& tree, std::span<const Flow> flows) {
  std::vector<Limit> limits;
  add_cable_limits(tree, flows, limits);
  add_trunk_limits(tree, flows, limits);
  if (tree.core > 0) {
    const std::vector<int> child = children_of_top(tree);
    Limit core{Limit::Kind::core, 0, tree.core, {}};
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (child[static_cast<std::size_t>(flows[f].src)] !=
          child[static_cast<std::size_t>(flows[f].dst)]) {
        core.flows.push_back(static_cast<int>(f));
      }
    }
    add(limits, std::move(core));
  }
  return limits;
}

double load_of(const Limit& limit, std::span<const double> rates) {
  double sum = 0;
  for (const int f : limit.flows) sum += rates[at(f)];
  return sum;
}

double fullness_of(const Limit& limit, std::span<const double> rates) {
  return limit.bytes_per_s > 0 ? load_of(limit, rates) / limit.bytes_per_s : 1;
}

std::vector<const Limit*> fullest_limits(std::span<const Limit> limits,
                                         std::span<const double> rates) {
  std::vector<const Limit*> fullest(rates.size(), nullptr);
  std::vector<double> fullness(rates.size(), 0);
  for (const Limit& limit : limits) {
    const double full = fullness_of(limit, rates);
    for (const int f : limit.flows) {
      if (fullest[at(f)] != nullptr && full <= fullness[at(f)]) continue;
      fullest[at(f)] = &limit;
      fullness[at(f)] = full;
    }
  }
  return fullest;
}

std::vector<double> grown_rates(std::span<const Limit> limits, std::vector<double> rates,
                                std::vector<double> speeds) {
  while (true) {
    const Limit* first = nullptr;  // that is full
    double least = std::numeric_limits<double>::infinity();
    for (const Limit& limit : limits) {
      const double speed = load_of(limit, speeds);
      if (speed <= 0) continue;
      const double time = std::max(0.0, limit.bytes_per_s - load_of(limit, rates)) / speed;
      if (time < least) {
        least = time;
        first = &limit;
      }
    }
    if (first == nullptr) return rates;
    for (std::size_t f = 0; f < rates.size(); ++f) rates[f] += speeds[f] * least;
    for (const int f : first->flows) speeds[at(f)] = 0;
  }
}

std::vector<double> fair_rates(std::span<const Limit> limits, std::size_t flows) {
  return grown_rates(limits, std::vector<double>(flows, 0), std::vector<double>(flows, 1));
}

std::vector<double> fair_rates(const HostTree& tree, std::span<const Flow> flows) {
  return fair_rates(limits_of(tree, flows), flows.size());
}

}  // namespace chorus::probing
