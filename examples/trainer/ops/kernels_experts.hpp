// Kernels of mixtures of experts (kernels.hpp says how).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/row_math.hpp"

namespace trainer::kernel {

template <class R>
struct TopK {
  std::int32_t* experts;
  R* weights;
  const R* probabilities;
  int E, k;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const auto at = i * static_cast<std::size_t>(k);
    row::choose(experts + at, weights + at, probabilities + i * static_cast<std::size_t>(E), E, k);
  }
};

template <class R>
struct SpreadPairs {
  R* y;
  const R* x;
  const std::int32_t* places;
  std::size_t k, h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::int32_t place = places[i / h];
    if (place >= 0) y[static_cast<std::size_t>(place) * h + i % h] = x[i / h / k * h + i % h];
  }
};

template <class R>
struct GatherPairs {
  R* x;
  const R* y;
  const std::int32_t* places;
  const R* weights;
  std::size_t k, h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    for (std::size_t pair = i / h * k; pair < i / h * k + k; ++pair) {
      if (places[pair] < 0) continue;
      const R from = y[static_cast<std::size_t>(places[pair]) * h + i % h];
      x[i] += weights == nullptr ? from : weights[pair] * from;
    }
  }
};

template <class R>
struct PairSlopes {
  R *grads, *dy;
  const R *dx, *answers;
  const std::int32_t* places;
  const R* weights;
  std::size_t k, h;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t pair) const {
    const std::int32_t place = places[pair];
    R mine = R(0);
    if (place >= 0) {
      const std::size_t at = static_cast<std::size_t>(place) * h;
      for (std::size_t j = team.rank(); j < h; j += team.size()) {
        const R d = dx[pair / k * h + j];
        mine += d * answers[at + j];
        dy[at + j] = weights[pair] * d;
      }
    }
    mine = team.sum(mine);
    if (team.rank() == 0) grads[pair] = mine;
  }
};

/// balances [n]: of each row.
template <class R>
struct GateSlope {
  R* dlogits;
  double* balances;
  const R* probabilities;
  const std::int32_t* experts;
  const R *weights, *grads;
  const double* lift;
  bool lifts;
  int E, k;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const auto row = i * static_cast<std::size_t>(E);
    const auto pair = i * static_cast<std::size_t>(k);
    double sum = 0;
    for (int e = 0; e < E; ++e) sum += lift[e] * static_cast<double>(probabilities[row + e]);
    balances[i] = sum;
    row::gate_backward(dlogits + row, probabilities + row, experts + pair, weights + pair,
                       grads + pair, lift, lifts, E, k);
  }
};

}  // namespace trainer::kernel
