#include "synth/routing/loads.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus::synth {
namespace {

/// Of what goes over a cap, against what keeps below it.
constexpr double kPriceOfExcess = 1e9;

double steep(double exponent) { return std::exp(std::min(exponent, 300.0)); }

}  // namespace

Loads::Loads(const Network& network, int pieces, double piece_bytes, double alpha_weight,
             double use_weight, double lane_weight)
    : network_(network),
      count_(network.resources().size(), 0),
      price_(network.resources().size(), 0),
      lanes_(network.edges().size()),
      pieces_(pieces),
      use_weight_(use_weight),
      lane_weight_(lane_weight) {
  for (const Resource& resource : network.resources()) {
    const double message = piece_bytes > 0 ? resource.message_s / piece_bytes : 0;
    weight_.push_back((resource.beta_s_per_byte + message) / pieces);
  }
  double longest = 0;
  for (const Edge& edge : network.edges()) longest = std::max(longest, edge.alpha_s);
  for (const Edge& edge : network.edges()) {
    // Edges that nothing limits and that take no time still are hops.
    alpha_price_.push_back(alpha_weight * (longest > 0 ? edge.alpha_s / longest : 1) + 1e-9);
  }
}

void Loads::change(const Path& path, int by) {
  for (const int edge : path) {
    count_work(network_.edges()[at(edge)].resources.size(), 60);
    for (const int resource : network_.edges()[at(edge)].resources) {
      count_[at(resource)] += by;
      reprice_one(resource);
    }
    lanes_[at(edge)].pieces += by;
    if (lane_weight_ > 0) reprice_lane(edge);
  }
}

void Loads::reprice(double sharpness, double scale) {
  capped_ = false;
  sharpness_ = sharpness;
  scale_ = scale;
  for (std::size_t i = 0; i < price_.size(); ++i) reprice_one(static_cast<int>(i));
  if (lane_weight_ > 0) weigh_lanes();
}

void Loads::cap(double most) {
  capped_ = true;
  scale_ = most;
  for (std::size_t i = 0; i < price_.size(); ++i) reprice_one(static_cast<int>(i));
  if (lane_weight_ > 0) weigh_lanes();
}

/// By how many lanes are in use now.
void Loads::weigh_lanes() {
  std::vector<int> sharing(count_.size(), 0);
  for (std::size_t edge = 0; edge < lanes_.size(); ++edge) {
    if (lanes_[edge].pieces == 0) continue;
    for (const int resource : network_.edges()[edge].resources) ++sharing[at(resource)];
  }
  for (std::size_t edge = 0; edge < lanes_.size(); ++edge) {
    double& weight = lanes_[edge].weight;
    weight = 0;
    for (const int resource : network_.edges()[edge].resources) {
      weight = std::max(weight, lane_weight_ * sharing[at(resource)] * weight_[at(resource)]);
    }
    reprice_lane(static_cast<int>(edge));
  }
}

/// Of one piece more, which adds `step` of the scale to what `pieces` make.
double Loads::price_of(double step, int pieces) const {
  if (capped_) return (step * (pieces + 1) > 1 + 1e-9 ? kPriceOfExcess : 1) * step;
  return steep(sharpness_ * (step * pieces - 1)) * std::expm1(std::min(sharpness_ * step, 300.0));
}

void Loads::reprice_lane(int edge) {
  Lane& lane = lanes_[at(edge)];
  lane.price = price_of(lane.weight / scale_, lane.pieces);
}

void Loads::reprice_one(int resource) {
  const double step = weight_[at(resource)] / scale_;
  price_[at(resource)] = price_of(step, count_[at(resource)]);
  if (!capped_) price_[at(resource)] += use_weight_ * sharpness_ * step;
}

double Loads::price(int edge) const {
  double sum = alpha_price_[at(edge)] + lanes_[at(edge)].price;
  count_work(2 + network_.edges()[at(edge)].resources.size(), 3);
  for (const int resource : network_.edges()[at(edge)].resources) sum += price_[at(resource)];
  return sum;
}

double Loads::price(const Path& path) const {
  double sum = 0;
  for (const int edge : path) sum += price(edge);
  return sum;
}

double Loads::worst() const {
  double worst = 0;
  for (std::size_t i = 0; i < count_.size(); ++i) worst = std::max(worst, weight_[i] * count_[i]);
  for (const Lane& lane : lanes_) worst = std::max(worst, lane.weight * lane.pieces);
  return worst;
}

double Loads::total() const {
  double total = 0;
  for (std::size_t i = 0; i < count_.size(); ++i) total += weight_[i] * count_[i];
  return total;
}

double Loads::dual_prices(double sharpness, std::vector<double>& edge_cost) const {
  const double scale = worst();
  double sum = 0;
  std::vector<double> dual(weight_.size());
  for (std::size_t i = 0; i < dual.size(); ++i) {
    if (count_[i] == 0 || weight_[i] <= 0) continue;
    // Across a cut that is full all resources cost the same per byte.
    dual[i] = steep(sharpness * (weight_[i] * count_[i] / scale - 1)) / (weight_[i] * pieces_);
    sum += dual[i];
  }
  edge_cost.assign(network_.edges().size(), 0);
  for (std::size_t edge = 0; edge < edge_cost.size(); ++edge) {
    for (const int resource : network_.edges()[edge].resources) {
      edge_cost[edge] += dual[at(resource)] * weight_[at(resource)] * pieces_;
    }
  }
  return sum;
}

}  // namespace chorus::synth
