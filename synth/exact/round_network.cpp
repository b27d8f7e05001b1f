#include "synth/exact/round_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace chorus::synth::exact {
namespace {

// Speeds are quotients of decimal figures: 24.999999 chunks are 25.
constexpr double kRounding = 1e-6;

/// The slowest resource that an edge in use crosses, seconds per byte; 0 if nothing limits.
double slowest_beta(const Network& network, const std::vector<char>& used) {
  double worst = 0;
  for (std::size_t e = 0; e < network.edges().size(); ++e) {
    if (used[e] == 0) continue;
    const std::vector<int>& resources = network.edges()[e].resources;
    for (std::size_t i = 0; i < resources.size(); ++i) {
      worst = std::max(worst,
                       network.resources()[static_cast<std::size_t>(resources[i])].beta_s_per_byte);
    }
  }
  return worst;
}

std::vector<Limit> all_limits(const Network& network, const std::vector<char>& used, double beta) {
  std::vector<Limit> limits(network.resources().size());
  for (std::size_t r = 0; r < limits.size(); ++r) {
    const Resource& resource = network.resources()[r];
    limits[r].name = resource.name;
    limits[r].per_round = resource.beta_s_per_byte > 0 ? beta / resource.beta_s_per_byte : 0;
  }
  int way = 0;
  for (std::size_t e = 0; e < network.edges().size(); ++e) {
    if (used[e] == 0) continue;
    for (const int resource : network.edges()[e].resources) {
      auto& crossed = limits[static_cast<std::size_t>(resource)].crossed;
      if (!crossed.empty() && crossed.back().first == way) {
        ++crossed.back().second;
      } else {
        crossed.emplace_back(way, 1);
      }
    }
    ++way;
  }
  std::erase_if(limits,
                [](const Limit& limit) { return limit.per_round <= 0 || limit.crossed.empty(); });
  return limits;
}

/// True if what `strict` allows, `lax` allows too.
bool implies(const Limit& strict, const Limit& lax) {
  if (strict.per_round > lax.per_round * (1 + kRounding)) return false;
  auto at = strict.crossed.begin();
  for (const auto& [way, times] : lax.crossed) {
    while (at != strict.crossed.end() && at->first < way) ++at;
    if (at == strict.crossed.end() || at->first != way || at->second < times) return false;
  }
  return true;
}

std::vector<Limit> without_implied(std::vector<Limit> limits) {
  // Only limits that share a way can imply one another.
  std::map<int, std::vector<std::size_t>> by_way;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    for (const auto& crossing : limits[i].crossed) by_way[crossing.first].push_back(i);
  }
  std::vector<char> dropped(limits.size(), 0);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    for (const std::size_t other : by_way[limits[i].crossed.front().first]) {
      if (other == i || dropped[other] != 0 || !implies(limits[other], limits[i])) continue;
      dropped[i] = 1;
      break;
    }
  }
  std::vector<Limit> kept;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    if (dropped[i] == 0) kept.push_back(std::move(limits[i]));
  }
  return kept;
}

}  // namespace

int Limit::capacity(int rounds) const {
  return static_cast<int>(std::floor(per_round * rounds + kRounding));
}

std::vector<std::vector<int>> RoundNetwork::distances() const {
  const auto n = static_cast<std::size_t>(world_size);
  std::vector<std::vector<int>> steps(n, std::vector<int>(n, kUnreachable));
  for (std::size_t from = 0; from < n; ++from) {
    std::vector<Rank> queue = {static_cast<Rank>(from)};
    steps[from][from] = 0;
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto rank = static_cast<std::size_t>(queue[head]);
      for (const int way : out[rank]) {
        const Rank next = ways[static_cast<std::size_t>(way)].dst;
        int& distance = steps[from][static_cast<std::size_t>(next)];
        if (distance != kUnreachable) continue;
        distance = steps[from][rank] + 1;
        queue.push_back(next);
      }
    }
  }
  return steps;
}

RoundNetwork in_rounds(const Network& network, int rounds_of_slowest, const EdgeFilter& use) {
  RoundNetwork result;
  result.world_size = network.world_size();
  result.out.resize(static_cast<std::size_t>(result.world_size));
  result.in.resize(static_cast<std::size_t>(result.world_size));
  std::vector<char> used(network.edges().size(), 1);
  for (std::size_t e = 0; e < used.size(); ++e) {
    const Edge& edge = network.edges()[e];
    if (use && !use(edge)) {
      used[e] = 0;
      continue;
    }
    const auto way = static_cast<int>(result.ways.size());
    result.ways.push_back({edge.src, edge.dst});
    result.out[static_cast<std::size_t>(edge.src)].push_back(way);
    result.in[static_cast<std::size_t>(edge.dst)].push_back(way);
    result.alpha_s = std::max(result.alpha_s, edge.alpha_s);
  }
  result.beta_s_per_byte = slowest_beta(network, used) / rounds_of_slowest;
  result.limits = without_implied(all_limits(network, used, result.beta_s_per_byte));
  return result;
}

Topology round_topology(const RoundNetwork& network) {
  Topology topology;
  topology.name = "rounds";
  for (Rank rank = 0; rank < network.world_size; ++rank) {
    topology.nodes.push_back({fmt::format("rank {}", rank), NodeKind::host, -1, {}});
    topology.rank_nodes.push_back(rank);
  }
  for (const Way& way : network.ways) {
    topology.links.push_back({way.src, way.dst, 1, 0, "way", Provenance::declared});
  }
  for (const Limit& limit : network.limits) {
    const double beta = 1 / limit.per_round;
    if (limit.crossed.size() == 1) {
      const auto [way, times] = limit.crossed.front();
      double& own = topology.links[static_cast<std::size_t>(way)].beta_s_per_byte;
      own = std::max(own, beta * times);
      continue;
    }
    Topology::PortGroup group{limit.name, {}, beta, 0};
    for (const auto& crossing : limit.crossed) group.links.push_back(crossing.first);
    topology.port_groups.push_back(std::move(group));
  }
  return topology;
}

}  // namespace chorus::synth::exact
