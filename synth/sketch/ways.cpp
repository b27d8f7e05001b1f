#include "synth/sketch/ways.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"
#include "model/schedule/contract.hpp"
#include "synth/routing/paths.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr double kUnconnected = std::numeric_limits<double>::infinity();
// Prices get steeper from sweep to sweep.
constexpr double kWaySharpness[] = {1, 2, 4, 8, 16, 32, 64, 16, 32, 64, 128, 32};
constexpr std::size_t kRisingSweeps = 7;
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
      permitted_(at(network_.world_size())) {
  for (const Edge& edge : network_.edges()) {
    time_s_.push_back(edge.alpha_s + chunk_bytes * edge.beta_s_per_byte);
    first_use_.push_back(uses_.size());
    for (const int r : edge.resources) {
      const Resource& resource = network_.resources()[at(r)];
      uses_.push_back({r, resource.message_s + chunk_bytes * resource.beta_s_per_byte});
    }
    std::vector<int>& images = images_.emplace_back();
    for (int g = 0; g < symmetry_.order(); ++g) {
      const auto image = network_.edge(symmetry_.image(g, edge.src), symmetry_.image(g, edge.dst));
      CHORUS_CHECK(image.has_value(), "a symmetry maps the logical topology onto itself");
      images.push_back(*image);
    }
  }
  first_use_.push_back(uses_.size());
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
      for (const Use& use : uses_of(image)) {
        double& load_s = load_s_[at(use.resource)];
        load_s += by * use.weight_s;
        price_[at(use.resource)] = std::exp(sharpness_ * (load_s / scale_s_ - 1));
      }
    }
  }
}

void Ways::reprice(double sharpness) {
  sharpness_ = sharpness;
  scale_s_ = worst();
  if (scale_s_ <= 0) {  // nobody has a way yet: as if all links were loaded alike
    double heaviest = 1e-300;
    for (const Use& use : uses_) heaviest = std::max(heaviest, use.weight_s);
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
  double price = 0;
  for (const Use& use : uses_of(edge)) price += use.weight_s * price_[at(use.resource)];
  if (noise_ > 0) price *= 1 + noise_ * static_cast<double>(random_() >> 11) * 0x1p-53;
  if (weights.switch_weight > 0) {
    const SwitchUse use = logical_.use(network_.edges()[at(edge)]);
    const int users = users_[at(edge)];
    const bool dear = use == SwitchUse::fewest ? users == 0 : users > 0;
    if (use != SwitchUse::any && dear) price += weights.switch_weight * time_s_[at(edge)];
  }
  return price;
}

/// Over which edges data of `origin` may go out of each rank.
const std::vector<std::vector<int>>& Ways::permitted(Rank origin, double detour) {
  if (detour != detour_) {
    detour_ = detour;
    for (std::vector<std::vector<int>>& out : permitted_) out.clear();
  }
  std::vector<std::vector<int>>& out = permitted_[at(origin)];
  if (!out.empty()) return out;
  std::vector<double> cost = time_s_;
  for (std::size_t e = 0; e < cost.size(); ++e) {
    if (!logical_.permitted(origin, network_.edges()[e])) cost[e] = kUnconnected;
  }
  CheapestPaths paths(network_);
  paths.run(origin, cost);
  out.resize(at(network_.world_size()));
  for (std::size_t e = 0; e < cost.size(); ++e) {
    const Edge& edge = network_.edges()[e];
    if (cost[e] == kUnconnected || edge.dst == origin) continue;
    const double shortest_s = paths.distance(edge.src) + cost[e];
    if (detour >= 0 && shortest_s > paths.distance(edge.dst) * (1 + detour) * kSame) continue;
    out[at(edge.src)].push_back(static_cast<int>(e));
  }
  return out;
}

/// A tree grown by the edge that costs least, delay included; or the path that does, which stays
/// `before` where none costs less.
std::vector<int> Ways::grow(const Item& item, const RoutingWeights& weights,
                            const std::vector<int>& before) {
  const std::vector<std::vector<int>>& permitted_out = permitted(item.origin, weights.detour);
  const bool path = item.destination >= 0;
  reached_.assign(at(network_.world_size()), {});
  std::vector<int> order;
  heap_.clear();
  double most = kUnconnected;  // what a path must cost less than
  if (path && !before.empty()) {
    most = 0;
    for (const int e : before) most += price(e, weights) + weights.hurry * time_s_[at(e)];
  }
  const auto leave = [&](Rank rank, double cost, double arrival_s) {
    count_work(permitted_out[at(rank)].size(), 16);
    for (const int e : permitted_out[at(rank)]) {
      const Rank dst = network_.edges()[at(e)].dst;
      Reached& there = reached_[at(dst)];
      if (there.done) continue;
      const double there_s = arrival_s + time_s_[at(e)];
      const double least = (path ? cost : 0) + weights.hurry * there_s;
      if (least > there.key || least >= most) continue;
      const double so_far = (path ? cost : 0) + price(e, weights);
      const double key = so_far + weights.hurry * there_s;
      if (key >= most || std::tie(key, e) >= std::tie(there.key, there.via)) continue;
      there = {key, e, so_far, there_s, false};
      if (dst == item.destination) most = key;
      heap_.emplace_back(key, e);
      std::ranges::push_heap(heap_, std::greater<>());
    }
  };
  leave(item.origin, 0, 0);
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>());
    const int e = heap_.back().second;
    heap_.pop_back();
    const Rank rank = network_.edges()[at(e)].dst;
    Reached& here = reached_[at(rank)];
    if (here.done || here.via != e) continue;
    here.done = true;
    order.push_back(e);
    if (rank == item.destination) break;
    leave(rank, here.cost, here.arrival_s);
  }
  if (!path) return order;
  if (!reached_[at(item.destination)].done) return before;
  std::vector<int> edges;
  for (Rank rank = item.destination; rank != item.origin;) {
    const int e = reached_[at(rank)].via;
    edges.push_back(e);
    rank = network_.edges()[at(e)].src;
  }
  std::ranges::reverse(edges);
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

MulticastRouting Ways::find(const RoutingWeights& weights, std::uint64_t seed, const Budget& budget,
                            double give_up_s) {
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
    if (sweep == kRisingSweeps && best_load_s_ > give_up_s) break;
    reprice(sharpness);
    noise_ = seed == budget.seed ? 0 : kWayNoise[sweep % std::size(kWayNoise)];
    ++sweep;
    for (const std::size_t i : order) {
      change(ways[i], -1);
      ways[i] = grow(items_[i], weights, ways[i]);
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
