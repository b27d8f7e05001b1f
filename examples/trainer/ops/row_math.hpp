// What happens to one token in a mixture of experts: the same code in every backend, since the
// choice of an expert must not depend on who computes it.
#pragma once

#include <cstdint>

#include "ops/portable.hpp"

namespace trainer::row {

/// chosen [k]: the most probable of E experts, the lower number of equals; weights [k]: their
/// probabilities, over their sum where k > 1.
template <class R>
TRAINER_BOTH void choose(std::int32_t* chosen, R* weights, const R* probabilities, int E, int k) {
  R sum = R(0);
  for (int j = 0; j < k; ++j) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < E; ++e) {
      bool taken = false;
      for (int before = 0; before < j; ++before) taken = taken || chosen[before] == e;
      if (taken) continue;
      if (best < 0 || probabilities[e] > probabilities[best]) best = e;
    }
    chosen[j] = best;
    weights[j] = probabilities[best];
    sum += weights[j];
  }
  for (int j = 0; j < k && k > 1; ++j) weights[j] /= sum;
}

/// d [E]: the slope of the gate's logits, given those of the k weights of the chosen and, where
/// `lifts`, lift[e] of each probability.
template <class R>
TRAINER_BOTH void gate_backward(R* d, const R* probabilities, const std::int32_t* chosen,
                                const R* weights, const R* grads, const double* lift, bool lifts,
                                int E, int k) {
  for (int e = 0; e < E; ++e) d[e] = lifts ? R(lift[e]) : R(0);
  R sum = R(1);
  R mean = R(0);
  if (k > 1) {
    sum = R(0);
    for (int j = 0; j < k; ++j) {
      sum += probabilities[chosen[j]];
      mean += grads[j] * weights[j];
    }
  }
  for (int j = 0; j < k; ++j) d[chosen[j]] += (grads[j] - mean) / sum;
  R tilt = R(0);
  for (int e = 0; e < E; ++e) tilt += d[e] * probabilities[e];
  for (int e = 0; e < E; ++e) d[e] = probabilities[e] * (d[e] - tilt);
}

}  // namespace trainer::row
