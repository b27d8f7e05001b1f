#include "synth/sketch/ways.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <random>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/schedule/contract.hpp"
#include "synth/routing/paths.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr double kUnconnected = std::numeric_limits<double>::infinity();
// Prices get steeper from sweep to sweep.
constexpr double kWaySharpness[] = {1, 2, 4, 8, 16, 32, 64, 16, 32, 64, 128, 32};
constexpr double kWayNoise[] = {0.3, 0.1, 0.03, 0};
constexpr double kSame = 1 + 1e-9;

}  // namespace

Ways::Ways(const Logical& logical, Collective collective, int pieces, double chunk_bytes)
    : logical_(logical),
      network_(logical.network()),
      collective_(collective),
      pieces_(pieces),
      symmetry_(collective.kind == CollectiveKind::broadcast ? Symmetry(network_.world_size())
                                                             : logical.symmetry()),
      distances_s_(at(network_.world_size())) {
  for (const Edge& edge : network_.edges()) {
    time_s_.push_back(edge.alpha_s + chunk_bytes * edge.beta_s_per_byte);
    std::vector<double>& weights = weight_.emplace_back();
    for (const int r : edge.resources) {
      const Resource& resource = network_.resources()[at(r)];
      weights.push_back(resource.message_s + chunk_bytes * resource.beta_s_per_byte);
    }
    std::vector<int>& images = images_.emplace_back();
    for (int g = 0; g < symmetry_.order(); ++g) {
      const auto image = network_.edge(symmetry_.image(g, edge.src), symmetry_.image(g, edge.dst));
      CHORUS_CHECK(image.has_value(), "a symmetry maps the logical topology onto itself");
      images.push_back(*image);
    }
  }
  const bool exchange = collective.kind == CollectiveKind::all_to_all;
  const bool rooted = collective.kind == CollectiveKind::broadcast;
  for (const Rank origin : symmetry_.representatives()) {
    if (rooted && origin != collective.root) continue;
    for (Rank to = exchange ? 0 : -1; to < (exchange ? network_.world_size() : 0); ++to) {
      if (to == origin) continue;
      for (int piece = 0; piece < pieces; ++piece) items_.push_back({origin, to, piece});
    }
  }
}

void Ways::clear() {
  load_s_.assign(network_.resources().size(), 0);
  price_.assign(network_.resources().size(), 0);
  users_.assign(network_.edges().size(), 0);
}

/// Loads what the images of a way cross, and makes it dearer.
void Ways::change(const std::vector<int>& way, int by) {
  for (const int e : way) {
    for (const int image : images_[at(e)]) {
      users_[at(image)] += by;
      const std::vector<int>& resources = network_.edges()[at(image)].resources;
      for (std::size_t i = 0; i < resources.size(); ++i) {
        double& load_s = load_s_[at(resources[i])];
        load_s += by * weight_[at(image)][i];
        price_[at(resources[i])] = std::exp(sharpness_ * (load_s / scale_s_ - 1));
      }
    }
  }
}

void Ways::reprice(double sharpness) {
  sharpness_ = sharpness;
  scale_s_ = worst();
  if (scale_s_ <= 0) {  // nobody has a way yet: as if all links were loaded alike
    double heaviest = 1e-300;
    for (const std::vector<double>& weights : weight_) {
      for (const double weight_s : weights) heaviest = std::max(heaviest, weight_s);
    }
    const std::size_t hops = items_.size() * at(symmetry_.order());
    const std::size_t whole_hops_each = hops / std::max<std::size_t>(1, users_.size());
    scale_s_ = heaviest * static_cast<double>(1 + whole_hops_each);
  }
  for (std::size_t r = 0; r < price_.size(); ++r) {
    price_[r] = std::exp(sharpness_ * (load_s_[r] / scale_s_ - 1));
  }
}

double Ways::worst() const {
  return load_s_.empty() ? 0 : *std::max_element(load_s_.begin(), load_s_.end());
}

double Ways::price(int edge, const RoutingWeights& weights) {
  const Edge& facts = network_.edges()[at(edge)];
  double price = 0;
  for (std::size_t i = 0; i < facts.resources.size(); ++i) {
    price += weight_[at(edge)][i] * price_[at(facts.resources[i])];
  }
  if (noise_ > 0) price *= 1 + noise_ * static_cast<double>(random_() >> 11) * 0x1p-53;
  if (weights.switch_weight > 0) {
    const SwitchUse use = logical_.use(facts);
    const int users = users_[at(edge)];
    const bool dear = use == SwitchUse::fewest ? users == 0 : users > 0;
    if (use != SwitchUse::any && dear) price += weights.switch_weight * time_s_[at(edge)];
  }
  return price;
}

/// Over what data of `origin` may cross.
void Ways::measure_distances(Rank origin) {
  std::vector<double>& distance = distances_s_[at(origin)];
  if (!distance.empty()) return;
  std::vector<double> cost = time_s_;
  for (std::size_t e = 0; e < cost.size(); ++e) {
    if (!logical_.permitted(origin, network_.edges()[e])) cost[e] = kUnconnected;
  }
  CheapestPaths paths(network_);
  paths.run(origin, cost);
  for (Rank rank = 0; rank < network_.world_size(); ++rank) {
    distance.push_back(paths.distance(rank));
  }
}

/// A tree grown by the edge that costs least, delay included; or the path that does.
std::vector<int> Ways::grow(const Item& item, const RoutingWeights& weights) {
  measure_distances(item.origin);
  const std::vector<double>& distance = distances_s_[at(item.origin)];
  const bool path = item.destination >= 0;
  struct Entry {
    double key;
    int edge;
    double cost;       // of a path so far
    double arrival_s;  // at its end
    bool operator>(const Entry& other) const {
      return std::tie(key, edge) > std::tie(other.key, other.edge);
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<int> via(at(network_.world_size()), -1);
  std::vector<int> order;
  const auto leave = [&](Rank rank, double cost, double arrival_s) {
    for (const int e : network_.out(rank)) {
      const Edge& edge = network_.edges()[at(e)];
      if (edge.dst == item.origin || via[at(edge.dst)] >= 0) continue;
      if (!logical_.permitted(item.origin, edge)) continue;
      const double shortest = distance[at(edge.src)] + time_s_[at(e)];
      if (weights.detour >= 0 && shortest > distance[at(edge.dst)] * (1 + weights.detour) * kSame) {
        continue;
      }
      const double there_s = arrival_s + time_s_[at(e)];
      const double so_far = (path ? cost : 0) + price(e, weights);
      queue.push({so_far + weights.hurry * there_s, e, so_far, there_s});
    }
  };
  leave(item.origin, 0, 0);
  while (!queue.empty()) {
    const Entry entry = queue.top();
    queue.pop();
    const Rank rank = network_.edges()[at(entry.edge)].dst;
    if (via[at(rank)] >= 0) continue;
    via[at(rank)] = entry.edge;
    order.push_back(entry.edge);
    if (rank == item.destination) break;
    leave(rank, entry.cost, entry.arrival_s);
  }
  if (!path) return order;
  std::vector<int> edges;
  for (Rank rank = item.destination; rank != item.origin;) {
    const int e = via[at(rank)];
    edges.push_back(e);
    rank = network_.edges()[at(e)].src;
  }
  std::reverse(edges.begin(), edges.end());
  return edges;
}

/// Until the last rank has the chunk, if nothing is in its way.
double Ways::delay(const Item& item, const std::vector<int>& way) const {
  std::vector<double> arrival_s(at(network_.world_size()), 0);
  double last = 0;
  arrival_s[at(item.origin)] = 0;
  for (const int e : way) {
    const Edge& edge = network_.edges()[at(e)];
    arrival_s[at(edge.dst)] = arrival_s[at(edge.src)] + time_s_[at(e)];
    last = std::max(last, arrival_s[at(edge.dst)]);
  }
  return last;
}

MulticastRouting Ways::find(const RoutingWeights& weights, std::uint64_t seed,
                            const Budget& budget) {
  clear();
  random_.seed(seed);
  std::vector<std::vector<int>> ways(items_.size());
  std::vector<std::vector<int>> best;
  double best_score = kUnconnected;
  std::vector<std::size_t> order(items_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t sweep = 0;
  for (const double sharpness : kWaySharpness) {
    if (!best.empty() && budget.spent()) break;
    reprice(sharpness);
    noise_ = seed == budget.seed ? 0 : kWayNoise[sweep++ % std::size(kWayNoise)];
    for (const std::size_t i : order) {
      change(ways[i], -1);
      ways[i] = grow(items_[i], weights);
      change(ways[i], 1);
    }
    double latest = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      latest = std::max(latest, delay(items_[i], ways[i]));
    }
    const double score = worst() + latest;
    if (score < best_score * (1 - 1e-9)) {
      best_score = score;
      best_load_s_ = worst();
      best = ways;
    }
    shuffle(order, random_);
  }
  return multicast_of(best);
}

MulticastRouting Ways::multicast_of(const std::vector<std::vector<int>>& ways) {
  const int n = network_.world_size();
  MulticastRouting multicast{collective_, num_blocks(collective_.kind, n) * pieces_, {}};
  std::vector<char> used(network_.edges().size(), 0);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    for (int g = 0; g < symmetry_.order(); ++g) {
      const Rank origin = symmetry_.image(g, items_[i].origin);
      int block = 0;
      if (collective_.kind == CollectiveKind::all_gather) block = origin;
      if (items_[i].destination >= 0) {
        block = origin * n + symmetry_.image(g, items_[i].destination);
      }
      for (const int e : ways[i]) {
        const int image = images_[at(e)][at(g)];
        const Edge& edge = network_.edges()[at(image)];
        multicast.hops.push_back({edge.src, edge.dst, block * pieces_ + items_[i].piece});
        used[at(image)] = 1;
      }
    }
  }
  switch_links_ = 0;
  for (std::size_t e = 0; e < used.size(); ++e) {
    if (used[e] != 0 && logical_.use(network_.edges()[e]) != SwitchUse::any) ++switch_links_;
  }
  return multicast;
}

}  // namespace chorus::synth
