#include "synth/routing/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr double kMet = 1.001;        // times the bound: nothing more to be gained
constexpr double kBetter = 1 - 1e-9;  // relative: less than this is no gain
constexpr double kAlphaBreaksTies = 1e-4;
constexpr double kAlphaDecides = 1e6;
constexpr double kUseBreaksTies = 0.02;
constexpr std::size_t kKnownWays = 16;  // per demand
// Prices get steeper from sweep to sweep, then steep and less steep ones alternate.
constexpr double kSharpness[] = {1, 1, 3, 6, 12, 24, 48, 96, 192};
constexpr double kAlternating[] = {6, 12, 24, 48, 96, 192, 400};
// Prices are blurred in some sweeps, so that of ways that cost the same now one, now another is
// taken.
constexpr double kNoise[] = {0.02, 0, 0.1, 0.5, 0.02};
constexpr std::size_t kRouterPatience = 40;  // sweeps without a gain
constexpr int kTidySweeps = 4;

}  // namespace

Router::Router(const Network& network, std::vector<Demand> demands, double block_bytes,
               Budget budget)
    : network_(network),
      demands_(std::move(demands)),
      block_bytes_(block_bytes),
      budget_(std::move(budget)),
      random_(budget_.seed),
      cheapest_(network),
      known_(demands_.size()),
      edge_cost_(network.edges().size()) {
  for (std::size_t i = 0; i < demands_.size(); ++i) {
    if (i == 0 || demands_[i].src != demands_[i - 1].src) sources_.push_back(i);
  }
  sources_.push_back(demands_.size());
  set_costs(Loads(network, 1, block_bytes, kAlphaDecides, kUseBreaksTies));
  for (std::size_t i = 0; i + 1 < sources_.size() && connected_; ++i) {
    explore(sources_[i], sources_[i + 1]);
    connected_ = connected_ && !budget_.spent();
  }
}

bool Router::large() const { return demands_.size() > 20'000; }

void Router::set_costs(const Loads& loads) {
  for (std::size_t edge = 0; edge < edge_cost_.size(); ++edge) {
    edge_cost_[edge] = loads.price(static_cast<int>(edge));
  }
}

/// Adds the cheapest ways of the demands [first, last), which have one source, to the known ones.
void Router::explore(std::size_t first, std::size_t last) {
  cheapest_.run(demands_[first].src, edge_cost_);
  for (std::size_t i = first; i < last; ++i) {
    if (!cheapest_.reached(demands_[i].dst)) {
      connected_ = false;
      return;
    }
    std::vector<Path>& known = known_[i];
    Path path = cheapest_.path(demands_[i].dst);
    if (std::find(known.begin(), known.end(), path) != known.end()) continue;
    // The first is the shortest and stays; of the others one makes room.
    if (known.size() < kKnownWays) {
      known.push_back(std::move(path));
    } else {
      known[1 + random_() % (kKnownWays - 1)] = std::move(path);
    }
  }
}

/// Takes every piece of a demand from its way and gives it the one that is cheapest then.
void Router::improve(Routing& routing, Loads& loads, std::size_t demand) {
  for (int piece = 0; piece < routing.pieces; ++piece) {
    Path& path = routing.paths[demand * at(routing.pieces) + at(piece)];
    if (known_[demand].size() == 1 && path == known_[demand].front()) return;
    loads.remove(path);
    // It need not be known any more.
    double best = loads.price(path) * (1 + noise_ * unit(random_()));
    const Path* found = nullptr;
    for (const Path& way : known_[demand]) {
      const double price = loads.price(way) * (1 + noise_ * unit(random_()));
      if (price >= best) continue;
      best = price;
      found = &way;
    }
    if (found != nullptr) path = *found;
    loads.add(path);
  }
}

void Router::sweep(Routing& routing, Loads& loads, bool explores) {
  std::vector<std::size_t> order(sources_.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, random_);
  std::vector<std::size_t> mine;
  // Of many sources each changes the prices little.
  if (explores && large()) set_costs(loads);
  for (const std::size_t source : order) {
    if (explores && !large()) set_costs(loads);
    if (explores) explore(sources_[source], sources_[source + 1]);
    mine.resize(sources_[source + 1] - sources_[source]);
    std::iota(mine.begin(), mine.end(), sources_[source]);
    shuffle(mine, random_);
    count_work(mine.size() * at(routing.pieces), 200);
    for (const std::size_t demand : mine) improve(routing, loads, demand);
    if (budget_.spent()) break;
  }
  routing.load_s = loads.worst();
  routing.total_s = loads.total();
}

void Router::raise_bound(const Loads& loads) {
  if (loads.worst() <= 0) return;
  for (const double sharpness : {30.0, 100.0, 1000.0}) {
    if (budget_.spent()) return;
    const double sum = loads.dual_prices(sharpness, edge_cost_);
    double distances = 0;
    for (std::size_t i = 0; i + 1 < sources_.size(); ++i) {
      cheapest_.run(demands_[sources_[i]].src, edge_cost_);
      for (std::size_t demand = sources_[i]; demand < sources_[i + 1]; ++demand) {
        distances += cheapest_.distance(demands_[demand].dst);
      }
    }
    bound_s_ = std::max(bound_s_, distances / sum);
  }
}

/// All pieces on the shortest known ways.
Routing Router::start(int pieces, Loads& loads, double sharpness) {
  Routing routing{pieces, std::vector<Path>(demands_.size() * at(pieces)), 0, 0};
  for (std::size_t i = 0; i < routing.paths.size(); ++i) {
    routing.paths[i] = known_[i / at(pieces)].front();
    loads.add(routing.paths[i]);
  }
  routing.load_s = loads.worst();
  routing.total_s = loads.total();
  loads.reprice(sharpness, std::max(routing.load_s, 1e-300));
  return routing;
}

Routing Router::shortest(int pieces) {
  Loads loads(network_, pieces, block_bytes_ / pieces, kAlphaDecides, kUseBreaksTies);
  Routing best = start(pieces, loads, kSharpness[0]);
  Routing routing = best;
  for (const double sharpness : kSharpness) {
    if (budget_.spent() || routing.load_s <= 0) break;
    loads.reprice(sharpness, routing.load_s);
    sweep(routing, loads, true);
    if (routing.load_s < best.load_s * kBetter) best = routing;
    if (large()) break;
  }
  return best;
}

Routing Router::balanced(int pieces, double use_weight, double lane_weight) {
  Loads loads(network_, pieces, block_bytes_ / pieces, kAlphaBreaksTies, use_weight, lane_weight);
  Routing best = start(pieces, loads, kSharpness[0]);
  if (best.load_s <= 0) return best;
  Routing routing = best;
  const auto patience =
      std::clamp<std::size_t>(kRouterPatience * 1000 / demands_.size(), 4, kRouterPatience);
  std::size_t idle = 0;
  for (std::size_t i = 0; idle < patience; ++i) {
    if (i == 0 || (i >= 4 && i % 4 == 0)) raise_bound(loads);
    if (best.load_s <= bound_s_ * kMet || budget_.spent()) break;
    const double sharpness =
        i < std::size(kSharpness) ? kSharpness[i] : kAlternating[i % std::size(kAlternating)];
    loads.reprice(sharpness, std::max(best.load_s, bound_s_));
    noise_ = kNoise[i % std::size(kNoise)];
    sweep(routing, loads, !large() || i % 3 == 0);
    noise_ = 0;
    const bool settling = i < std::size(kSharpness);
    const bool gains = routing.load_s < best.load_s * kBetter;
    idle = gains || settling ? std::size_t{0} : idle + 1;
    if (gains || (routing.load_s <= best.load_s && routing.total_s < best.total_s)) best = routing;
    budget_.say(fmt::format("routing in {} piece{}: {:.1f} % of the bound", pieces,
                            pieces == 1 ? "" : "s", 100 * bound_s_ / best.load_s));
  }
  return tidied(std::move(best), lane_weight);
}

/// The same worst load in fewer hops.
Routing Router::tidied(Routing routing, double lane_weight) {
  Loads loads(network_, routing.pieces, block_bytes_ / routing.pieces, kAlphaBreaksTies,
              kUseBreaksTies, lane_weight);
  for (const Path& path : routing.paths) loads.add(path);
  loads.cap(routing.load_s);
  for (int i = 0; i < kTidySweeps && !budget_.spent(); ++i) sweep(routing, loads, i == 0);
  return routing;
}

}  // namespace chorus::synth
