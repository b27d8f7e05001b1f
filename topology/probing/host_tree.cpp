#include "topology/probing/host_tree.hpp"

#include <algorithm>
#include <limits>

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

// Progressive filling: all rates grow alike until a limit is met; its flows stop there.
std::vector<double> fair_rates(std::span<const Limit> limits, std::size_t flows) {
  std::vector<double> rates(flows, 0);
  std::vector<char> growing(flows, 1);
  while (true) {
    const Limit* tightest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Limit& limit : limits) {
      double used = 0;
      int active = 0;
      for (const int f : limit.flows) {
        if (growing[static_cast<std::size_t>(f)] != 0) {
          ++active;
        } else {
          used += rates[static_cast<std::size_t>(f)];
        }
      }
      if (active == 0) continue;
      const double share = std::max(0.0, limit.bytes_per_s - used) / active;
      if (share < least) {
        least = share;
        tightest = &limit;
      }
    }
    if (tightest == nullptr) return rates;
    for (const int f : tightest->flows) {
      const auto flow = static_cast<std::size_t>(f);
      if (growing[flow] != 0) rates[flow] = least;
      growing[flow] = 0;
    }
  }
}

std::vector<double> fair_rates(const HostTree& tree, std::span<const Flow> flows) {
  return fair_rates(limits_of(tree, flows), flows.size());
}

}  // namespace chorus::probing
