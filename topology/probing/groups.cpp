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

}  // namespace chorus::probing
