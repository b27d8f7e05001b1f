// The kernels of the cuda backend, as functions that g++ compiles for the host and nvcc for GPUs.
//
// Two sorts. Most compute one element: operator()(i). Those that need a whole row compute it by a
// team of threads: operator()(team, row), with team.rank() of team.size(), and team.sum() and
// team.largest(), which give every thread the result over all of them and wait for all. Threads of
// a team share the columns rank, rank + size, … and write no element that another one reads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "ops/bfloat16.hpp"
#include "ops/kernels_attention.hpp"
#include "ops/kernels_exchange.hpp"
#include "ops/kernels_experts.hpp"

namespace trainer {

namespace kernel {

template <class R>
TRAINER_BOTH R gelu_share(R x) {
  const R u = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
  return R(1) / (R(1) + std::exp(R(-2) * u));
}

template <class R>
struct AddBias {
  R* y;
  const R* bias;
  std::size_t h;
  TRAINER_BOTH void operator()(std::size_t i) const { y[i] += bias[i % h]; }
};

template <class R>
struct Add {
  R* y;
  const R* x;
  TRAINER_BOTH void operator()(std::size_t i) const { y[i] += x[i]; }
};

template <class R>
struct Gelu {
  R* y;
  const R* x;
  TRAINER_BOTH void operator()(std::size_t i) const { y[i] = x[i] * gelu_share(x[i]); }
};

template <class R>
struct GeluBackward {
  R* d;
  const R* x;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const R s = gelu_share(x[i]);
    const R du = R(0.7978845608028654) * (R(1) + R(3 * 0.044715) * x[i] * x[i]);
    d[i] *= s + x[i] * R(2) * s * (R(1) - s) * du;
  }
};

/// A matrix [rows, cols] out of wider rows, in bfloat16.
template <class R>
struct Round {
  Bfloat16* y;
  const R* x;
  std::size_t cols, ld;
  TRAINER_BOTH void operator()(std::size_t i) const { store(y[i], x[i / cols * ld + i % cols]); }
};

/// parts [·, h]: column sums of x [n, h], `per` rows each.
template <class R>
struct ColumnParts {
  R* parts;
  const R* x;
  std::size_t n, h, per;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::size_t end = i / h * per + per < n ? i / h * per + per : n;
    R sum = R(0);
    for (std::size_t row = i / h * per; row < end; ++row) sum += x[row * h + i % h];
    parts[i] = sum;
  }
};

/// The same of what layer normalization's gain and bias have for gradients.
template <class R>
struct NormParts {
  R *gains, *biases;
  const R *dy, *x, *mean, *scale;
  std::size_t n, h, per;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::size_t end = i / h * per + per < n ? i / h * per + per : n;
    R gain = R(0);
    R bias = R(0);
    for (std::size_t row = i / h * per; row < end; ++row) {
      const R d = dy[row * h + i % h];
      gain += d * ((x[row * h + i % h] - mean[row]) * scale[row]);
      bias += d;
    }
    gains[i] = gain;
    biases[i] = bias;
  }
};

/// sums [h] += the column sums of parts [count, h]
template <class R>
struct AddParts {
  R* sums;
  const R* parts;
  std::size_t count, h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    R sum = R(0);
    for (std::size_t p = 0; p < count; ++p) sum += parts[p * h + i];
    sums[i] += sum;
  }
};

template <class R>
struct Norm {
  R *y, *mean, *scale;
  const R *x, *gain, *bias;
  std::size_t h;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    const R* from = x + row * h;
    R sum = R(0);
    for (std::size_t i = team.rank(); i < h; i += team.size()) sum += from[i];
    const R middle = team.sum(sum) / R(h);
    R square = R(0);
    for (std::size_t i = team.rank(); i < h; i += team.size()) {
      square += (from[i] - middle) * (from[i] - middle);
    }
    const R inverse = R(1) / std::sqrt(team.sum(square) / R(h) + R(1e-5));
    for (std::size_t i = team.rank(); i < h; i += team.size()) {
      y[row * h + i] = (from[i] - middle) * inverse * gain[i] + bias[i];
    }
    if (team.rank() != 0) return;
    mean[row] = middle;
    scale[row] = inverse;
  }
};

template <class R>
struct NormSlope {
  R* dx;
  const R *dy, *x, *mean, *scale, *gain;
  std::size_t h;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    const R middle = mean[row];
    const R inverse = scale[row];
    R sum = R(0);
    R tilt = R(0);
    for (std::size_t i = team.rank(); i < h; i += team.size()) {
      const R d = dy[row * h + i] * gain[i];
      sum += d;
      tilt += d * ((x[row * h + i] - middle) * inverse);
    }
    sum = team.sum(sum) / R(h);
    tilt = team.sum(tilt) / R(h);
    for (std::size_t i = team.rank(); i < h; i += team.size()) {
      const R d = dy[row * h + i] * gain[i];
      dx[row * h + i] += inverse * (d - sum - (x[row * h + i] - middle) * inverse * tilt);
    }
  }
};

template <class R>
struct Embed {
  R* x;
  const std::int32_t* ids;
  const R* table;
  std::int32_t first, rows;
  std::size_t h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::int32_t row = ids[i / h] - first;
    x[i] = row >= 0 && row < rows ? table[static_cast<std::size_t>(row) * h + i % h] : R(0);
  }
};

/// Group g of equal tokens is order[starts[g] … starts[g + 1]), its row of the table into[g].
template <class R>
struct EmbedSlope {
  R* dtable;
  const R* dx;
  const std::int32_t *order, *starts, *into;
  std::size_t h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::size_t g = i / h;
    R sum = R(0);
    for (std::int32_t at = starts[g]; at < starts[g + 1]; ++at) {
      sum += dx[static_cast<std::size_t>(order[at]) * h + i % h];
    }
    dtable[static_cast<std::size_t>(into[g]) * h + i % h] += sum;
  }
};

template <class R>
struct AddPositions {
  R* x;
  const R* table;
  std::size_t begin, T, h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    x[i] += table[(begin + i / h) % T * h + i % h];
  }
};
template <class R>
struct PositionSlope {
  R* dtable;
  const R* dx;
  std::size_t begin, T, n, h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    R sum = R(0);
    for (std::size_t row = i / h; row < n; row += T) sum += dx[row * h + i % h];
    dtable[(begin + i / h) % T * h + i % h] += sum;
  }
};

template <class R>
struct GatherRows {
  R* y;
  const R* x;
  const std::int32_t* order;
  std::size_t h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    y[i] = x[static_cast<std::size_t>(order[i / h]) * h + i % h];
  }
};
template <class R>
struct ScatterRows {
  R* y;
  const R* x;
  const std::int32_t* order;
  std::size_t h;
  TRAINER_BOTH void operator()(std::size_t i) const {
    y[static_cast<std::size_t>(order[i / h]) * h + i % h] = x[i];
  }
};

template <class R>
struct Softmax {
  R* x;
  std::size_t v;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    R* s = x + row * v;
    R most = -R(INFINITY);
    for (std::size_t j = team.rank(); j < v; j += team.size()) most = most > s[j] ? most : s[j];
    most = team.largest(most);
    R sum = R(0);
    for (std::size_t j = team.rank(); j < v; j += team.size()) {
      s[j] = std::exp(s[j] - most);
      sum += s[j];
    }
    sum = team.sum(sum);
    for (std::size_t j = team.rank(); j < v; j += team.size()) s[j] /= sum;
  }
};

template <class R>
struct RowMax {
  R* most;
  const R* logits;
  std::size_t v;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    R top = -R(INFINITY);
    for (std::size_t j = team.rank(); j < v; j += team.size()) {
      top = top > logits[row * v + j] ? top : logits[row * v + j];
    }
    top = team.largest(top);
    if (team.rank() == 0) most[row] = top;
  }
};

template <class R>
struct ExpRows {
  R *logits, *sums;
  const R* most;
  const std::int32_t* targets;
  std::int32_t first;
  std::size_t n, v;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    R* s = logits + row * v;
    const std::int32_t target = targets[row] - first;
    const R top = most[row];
    R sum = R(0);
    R own = R(0);
    for (std::size_t j = team.rank(); j < v; j += team.size()) {
      const R x = s[j] - top;
      if (static_cast<std::int32_t>(j) == target) own = x;
      s[j] = std::exp(x);
      sum += s[j];
    }
    sum = team.sum(sum);
    own = team.sum(own);
    if (team.rank() != 0) return;
    sums[row] = sum;
    sums[n + row] = own;
  }
};

/// losses [n]: of each row.
template <class R>
struct LossRows {
  double* losses;
  R* logits;
  const R* sums;
  const std::int32_t* targets;
  std::int32_t first;
  R scale;
  std::size_t n, v;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t row) const {
    const std::int32_t target = targets[row] - first;
    const R factor = scale / sums[row];
    for (std::size_t j = team.rank(); j < v; j += team.size()) {
      const R slope = logits[row * v + j] * factor;
      logits[row * v + j] = static_cast<std::int32_t>(j) == target ? slope - scale : slope;
    }
    if (team.rank() != 0) return;
    losses[row] = std::log(static_cast<double>(sums[row])) - static_cast<double>(sums[n + row]);
  }
};

/// *sum += Σ of `count` numbers; one team.
template <class R>
struct SumInto {
  double* sum;
  const double* of;
  std::size_t count;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t) const {
    double mine = 0;
    for (std::size_t i = team.rank(); i < count; i += team.size()) mine += of[i];
    mine = team.sum(mine);
    if (team.rank() == 0) *sum += mine;
  }
};

/// parts: Σ x² over `per` elements each.
template <class R>
struct SquareParts {
  double* parts;
  const R* x;
  std::size_t n, per;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t part) const {
    const std::size_t end = part * per + per < n ? part * per + per : n;
    double mine = 0;
    for (std::size_t i = part * per + team.rank(); i < end; i += team.size()) {
      mine += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    mine = team.sum(mine);
    if (team.rank() == 0) parts[part] = mine;
  }
};

template <class R>
struct AdamStep {
  R *x, *m, *v;
  const R* gradient;
  R beta1, beta2, first, second, rate, keep, scale, epsilon;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const R g = gradient[i] * scale;
    m[i] = beta1 * m[i] + (R(1) - beta1) * g;
    v[i] = beta2 * v[i] + (R(1) - beta2) * g * g;
    x[i] = keep * x[i] - rate * (m[i] * first) / (std::sqrt(v[i] * second) + epsilon);
  }
};

/// A team that is one thread.
struct Alone {
  [[nodiscard]] static constexpr std::size_t rank() { return 0; }
  [[nodiscard]] static constexpr std::size_t size() { return 1; }
  template <class T>
  static T sum(T x) {
    return x;
  }
  template <class T>
  static T largest(T x) {
    return x;
  }
};

/// Whether K computes rows by teams.
template <class K>
inline constexpr bool kByTeam = !std::is_invocable_v<const K&, std::size_t>;

}  // namespace kernel

template <class R>
using Kernel = std::variant<
    kernel::AddBias<R>, kernel::Add<R>, kernel::Gelu<R>, kernel::GeluBackward<R>, kernel::Round<R>,
    kernel::ColumnParts<R>, kernel::NormParts<R>, kernel::AddParts<R>, kernel::Norm<R>,
    kernel::NormSlope<R>, kernel::SplitHeads<R, R>, kernel::SplitHeads<R, Bfloat16>,
    kernel::MergeHeads<R>, kernel::AttentionWeights<R, R>, kernel::AttentionWeights<R, Bfloat16>,
    kernel::AttentionSlopes<R, R>, kernel::AttentionSlopes<R, Bfloat16>, kernel::HeadDots<R>,
    kernel::Embed<R>, kernel::EmbedSlope<R>, kernel::AddPositions<R>, kernel::PositionSlope<R>,
    kernel::GatherRows<R>, kernel::ScatterRows<R>, kernel::Softmax<R>, kernel::RowMax<R>,
    kernel::ExpRows<R>, kernel::LossRows<R>, kernel::SumInto<R>, kernel::SquareParts<R>,
    kernel::AdamStep<R>, kernel::TopK<R>, kernel::SpreadPairs<R>, kernel::GatherPairs<R>,
    kernel::PairSlopes<R>, kernel::GateSlope<R>, kernel::Mix<R>, kernel::Pack<R>,
    kernel::AddPacked<R>>;

}  // namespace trainer
