// Kernels of attention: between its products, a tile of queries at a time (kernels.hpp says how).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ops/bfloat16.hpp"

namespace trainer::kernel {

/// Where element i of rows of `parts` · `heads` · hd lies in SplitHeads' result.
struct PlaceOfHeads {
  std::size_t parts, T, heads, hd, part_stride;
  TRAINER_BOTH std::size_t operator()(std::size_t i) const {
    const std::size_t row = i / (heads * parts * hd);
    const std::size_t col = i % (heads * parts * hd);
    const std::size_t head = col / (parts * hd);
    const std::size_t line = (row / T * heads + head) * T + row % T;
    return col % (parts * hd) / hd * part_stride + line * hd + col % hd;
  }
};

/// Rows of `parts` · `heads` · hd, per head `parts` pieces, become [parts][batch · heads][T][hd].
template <class R, class F>
struct SplitHeads {
  F* y;
  const R* x;
  PlaceOfHeads place;
  TRAINER_BOTH void operator()(std::size_t i) const { store(y[place(i)], x[i]); }
};
/// The way back.
template <class R>
struct MergeHeads {
  R* y;
  const R* x;
  PlaceOfHeads place;
  TRAINER_BOTH void operator()(std::size_t i) const { y[i] = x[place(i)]; }
};

/// Scores of the queries [begin, begin + rows) of all heads against keys [0, keys), scores [heads ·
/// batch · rows, keys]: become the weights of those that a query may see, p, which may lie in the
/// same place.
template <class R, class F>
struct AttentionWeights {
  F* p;
  R *scores, *lse;
  std::size_t begin, rows, keys, T;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    R* s = scores + row * keys;
    const std::size_t query = begin + row % rows;
    R most = -R(INFINITY);
    for (std::size_t j = team.rank(); j <= query; j += team.size()) {
      most = most > s[j] ? most : s[j];
    }
    most = team.largest(most);
    R sum = R(0);
    for (std::size_t j = team.rank(); j <= query; j += team.size()) {
      s[j] = std::exp(s[j] - most);
      sum += s[j];
    }
    sum = team.sum(sum);
    for (std::size_t j = team.rank(); j < keys; j += team.size()) {
      store(p[row * keys + j], j <= query ? s[j] / sum : R(0));
    }
    if (team.rank() == 0) lse[row / rows * T + query] = most + std::log(sum);
  }
};

/// Of the same queries: the weights again, and from the gradients of the weights those of the
/// scores.
template <class R, class F>
struct AttentionSlopes {
  F *p, *ds;
  const R *scores, *dp, *lse, *delta;
  std::size_t begin, rows, keys, T;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::size_t row = i / keys;
    const std::size_t query = begin + row % rows;
    const std::size_t line = row / rows * T + query;
    const bool seen = i % keys <= query;
    const R weight = seen ? std::exp(scores[i] - lse[line]) : R(0);
    const R slope = seen ? weight * (dp[i] - delta[line]) : R(0);
    store(p[i], weight);
    store(ds[i], slope);
  }
};

/// delta [batch · heads · T] = rows of dout · out, both [batch · T, heads · hd].
template <class R>
struct HeadDots {
  R* delta;
  const R *dout, *out;
  std::size_t T, heads, hd;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::size_t head = i / T % heads;
    const std::size_t at = ((i / T / heads * T + i % T) * heads + head) * hd;
    R sum = R(0);
    for (std::size_t j = 0; j < hd; ++j) sum += dout[at + j] * out[at + j];
    delta[i] = sum;
  }
};

}  // namespace trainer::kernel
