#include "moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainer {
namespace {

enum At : std::size_t { up, up_bias, down, down_bias, per_expert };

/// Most rows that one rank's micro-batch may send to one expert.
std::size_t room(const Config& config, std::size_t n) {
  const Model& m = config.model;
  const std::size_t pairs = n * static_cast<std::size_t>(m.top_k);
  if (m.capacity <= 0) return n;
  const double even = static_cast<double>(pairs) / m.experts;
  return std::min(n, static_cast<std::size_t>(std::ceil(m.capacity * even)));
}

std::vector<Param> expert_params(const Config& config, int layer, int first, int count, int rank) {
  const Model& m = config.model;
  const int t = config.layout.tp;
  const int f = m.f();
  const int h = m.width;
  std::vector<Param> params;
  for (int e = first; e < first + count; ++e) {
    const auto name = [&](const char* part) {
      return fmt::format("layer{}.expert{}.{}", layer, e, part);
    };
    params.push_back({.name = name("up.weight"),
                      .rows = f,
                      .cols = h,
                      .row = f / t * rank,
                      .row_count = f / t,
                      .col_count = h,
                      .init = Init::normal,
                      .deviation = 0.02,
                      .decays = true});
    params.push_back({.name = name("up.bias"), .cols = f, .col = f / t * rank, .col_count = f / t});
    params.push_back({.name = name("down.weight"),
                      .rows = h,
                      .cols = f,
                      .row_count = h,
                      .col = f / t * rank,
                      .col_count = f / t,
                      .init = Init::normal,
                      .deviation = 0.02 / std::sqrt(2.0 * m.layers),
                      .decays = true});
    params.push_back({.name = name("down.bias"), .cols = h, .col_count = h});
  }
  return params;
}

}  // namespace

Param gate_param(const Model& model, int layer, int tensor_ranks) {
  return {.name = fmt::format("layer{}.gate", layer),
          .rows = model.experts,
          .cols = model.width,
          .row_count = model.experts,
          .col_count = model.width,
          .init = Init::normal,
          .deviation = 0.02,
          .decays = true,
          .partial = tensor_ranks > 1};
}

template <class R>
Moe<R>::Moe(const Config& config, Ops<R>& ops, Groups& groups, Store<R>& store, Segment<R>& dense,
            MoeScratch<R>& scratch, int layer)
    : config_(config), ops_(ops), groups_(groups), dense_(dense), scratch_(scratch) {
  const Model& m = config.model;
  n_ = static_cast<std::size_t>(config.training.batch) * m.context;
  h_ = static_cast<std::size_t>(m.width);
  f_ = static_cast<std::size_t>(m.f() / config.layout.tp);
  k_ = static_cast<std::size_t>(m.top_k);
  all_ = static_cast<std::size_t>(m.experts);
  ep_ = static_cast<std::size_t>(config.layout.ep);
  here_ = all_ / ep_;
  // A token goes to k different experts, so it comes here at most min(k, experts here) times.
  most_ = ep_ * std::min(n_ * std::min(k_, here_), here_ * room(config, n_));
  gate_ = dense.params.size() - 1;
  const int first = groups.place.ep * static_cast<int>(here_);
  experts_ = store.add(
      fmt::format("layer{}.experts", layer),
      expert_params(config, layer, first, static_cast<int>(here_), groups.place.tp), true, false);
}

template <class R>
MoeSaved<R> Moe<R>::lay_out_saved(Arena& arena) const {
  const auto real = [&](std::size_t count) { return arena.take<R>(count, Use::activations); };
  const auto index = [&](std::size_t count) {
    return arena.take<std::int32_t>(count, Use::activations);
  };
  MoeSaved<R> saved{};
  saved.probabilities = real(n_ * all_);
  saved.weights = real(n_ * k_);
  saved.experts = index(n_ * k_);
  saved.places = index(n_ * k_);
  saved.order = index(most_);
  saved.received = index(all_);
  saved.counts = arena.take<std::size_t>(4 * ep_, Use::activations);
  saved.x = real(most_ * h_);
  saved.f1 = real(most_ * f_);
  saved.act = real(most_ * f_);
  saved.out = real(n_ * k_ * h_);
  return saved;
}

template <class R>
MoeSlopes<R> Moe<R>::lay_out_slopes(Arena& arena) const {
  const auto real = [&](std::size_t count) { return arena.take<R>(count, Use::scratch); };
  return {.dy = real(most_ * h_), .df1 = real(most_ * f_), .dlogits = real(n_ * all_)};
}

template <class R>
void Moe<R>::lay_out_scratch(Arena& arena) {
  const auto real = [&](std::size_t count) { return arena.take<R>(count, Use::scratch); };
  scratch_ = {.sent = real(n_ * k_ * h_),
              .arrived = real(most_ * h_),
              .answers = real(most_ * h_),
              .dweights = real(n_ * k_),
              .totals = arena.take<std::int32_t>(3 * all_, Use::scratch)};
}

/// Picks the experts of each token by probability (ties: the lower number) and the row of each pair
/// in what is sent, which is ordered by expert, then token.
template <class R>
void Moe<R>::route(const MoeSaved<R>& saved) {
  std::int32_t* wanted = scratch_.totals;
  std::fill_n(wanted, all_, 0);
  for (std::size_t i = 0; i < n_; ++i) {
    const R* p = saved.probabilities + i * all_;
    std::int32_t* chosen = saved.experts + i * k_;
    R sum = R(0);
    for (std::size_t j = 0; j < k_; ++j) {
      std::int32_t best = -1;
      for (std::int32_t e = 0; e < static_cast<std::int32_t>(all_); ++e) {
        if (std::find(chosen, chosen + j, e) != chosen + j) continue;
        if (best < 0 || p[e] > p[best]) best = e;
      }
      chosen[j] = best;
      saved.weights[i * k_ + j] = p[best];
      sum += p[best];
      ++wanted[best];
    }
    for (std::size_t j = 0; j < k_ && k_ > 1; ++j) saved.weights[i * k_ + j] /= sum;
  }
  const auto limit = static_cast<std::int32_t>(room(config_, n_));
  std::int32_t* next = scratch_.totals + all_;
  std::int32_t* left = scratch_.totals + 2 * all_;
  std::int32_t row = 0;
  for (std::size_t e = 0; e < all_; ++e) {
    next[e] = row;
    left[e] = std::min(wanted[e], limit);
    row += left[e];
  }
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) {
    const auto e = static_cast<std::size_t>(saved.experts[pair]);
    saved.places[pair] = left[e]-- > 0 ? next[e]++ : -1;
    dropped_ += saved.places[pair] < 0 ? 1 : 0;
  }
  for (std::size_t e = 0; e < all_; ++e) scratch_.totals[e] = std::min(wanted[e], limit);
}

/// Tells every expert how many rows come from whom, and orders what arrives by expert.
template <class R>
void Moe<R>::exchange_counts(const MoeSaved<R>& saved) {
  if (ep_ == 1) {
    std::copy_n(scratch_.totals, all_, saved.received);
  } else {
    groups_.expert.wait(groups_.expert.all_to_all(scratch_.totals, saved.received, here_));
  }
  std::size_t* sent = saved.counts;
  std::size_t* arrived = saved.counts + 2 * ep_;
  std::size_t sent_at = 0;
  std::size_t arrived_at = 0;
  for (std::size_t r = 0; r < ep_; ++r) {
    std::size_t out = 0;
    std::size_t in = 0;
    for (std::size_t e = 0; e < here_; ++e) {
      out += static_cast<std::size_t>(scratch_.totals[r * here_ + e]);
      in += static_cast<std::size_t>(saved.received[r * here_ + e]);
    }
    sent[r] = out * h_;
    sent[ep_ + r] = sent_at;
    arrived[r] = in * h_;
    arrived[ep_ + r] = arrived_at;
    sent_at += out * h_;
    arrived_at += in * h_;
  }
  std::size_t row = 0;
  for (std::size_t e = 0; e < here_; ++e) {
    for (std::size_t r = 0; r < ep_; ++r) {
      std::size_t from = arrived[ep_ + r] / h_;
      for (std::size_t before = 0; before < e; ++before) {
        from += static_cast<std::size_t>(saved.received[r * here_ + before]);
      }
      for (std::int32_t i = 0; i < saved.received[r * here_ + e]; ++i) {
        saved.order[row++] = static_cast<std::int32_t>(from++);
      }
    }
  }
}

template <class R>
void Moe<R>::scatter(const MoeSaved<R>& saved, const R* rows, R* sorted) {
  const std::span<const std::size_t> counts(saved.counts, 4 * ep_);
  if (ep_ == 1) {
    ops_.copy(sorted, rows, counts[0]);
    return;
  }
  groups_.expert.wait(groups_.expert.all_to_all_v(
      rows, counts.subspan(0, ep_), counts.subspan(ep_, ep_), scratch_.arrived,
      counts.subspan(2 * ep_, ep_), counts.subspan(3 * ep_, ep_)));
  const std::size_t all = (counts[3 * ep_ - 1] + counts[4 * ep_ - 1]) / h_;
  ops_.gather_rows(sorted, scratch_.arrived, saved.order, all, static_cast<int>(h_));
}

template <class R>
void Moe<R>::collect(const MoeSaved<R>& saved, const R* sorted, R* rows) {
  const std::span<const std::size_t> counts(saved.counts, 4 * ep_);
  if (ep_ == 1) {
    ops_.copy(rows, sorted, counts[0]);
    return;
  }
  const std::size_t all = (counts[3 * ep_ - 1] + counts[4 * ep_ - 1]) / h_;
  ops_.scatter_rows(scratch_.arrived, sorted, saved.order, all, static_cast<int>(h_));
  groups_.expert.wait(groups_.expert.all_to_all_v(
      static_cast<const R*>(scratch_.arrived), counts.subspan(2 * ep_, ep_),
      counts.subspan(3 * ep_, ep_), rows, counts.subspan(0, ep_), counts.subspan(ep_, ep_)));
}

template <class R>
template <class Visit>
void Moe<R>::for_each_expert(const MoeSaved<R>& saved, Visit visit) const {
  std::size_t row = 0;
  for (std::size_t e = 0; e < here_; ++e) {
    std::size_t rows = 0;
    for (std::size_t r = 0; r < ep_; ++r) {
      rows += static_cast<std::size_t>(saved.received[r * here_ + e]);
    }
    visit(e * per_expert, row, static_cast<int>(rows));
    row += rows;
  }
}

template <class R>
void Moe<R>::forward(const MoeSaved<R>& saved, const R* in, R* out) {
  const int h = static_cast<int>(h_);
  const int f = static_cast<int>(f_);
  ops_.gemm(Op::as_is, Op::transposed, static_cast<int>(n_), static_cast<int>(all_), h, in, h,
            dense_.value(gate_), h, R(0), saved.probabilities, static_cast<int>(all_));
  ops_.softmax_rows(saved.probabilities, static_cast<int>(n_), static_cast<int>(all_));
  route(saved);
  exchange_counts(saved);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) {
    if (saved.places[pair] < 0) continue;
    ops_.copy(scratch_.sent + static_cast<std::size_t>(saved.places[pair]) * h_,
              in + pair / k_ * h_, h_);
  }
  scatter(saved, scratch_.sent, saved.x);
  for_each_expert(saved, [&](std::size_t p, std::size_t row, int rows) {
    R* f1 = saved.f1 + row * f_;
    R* act = saved.act + row * f_;
    R* y = scratch_.answers + row * h_;
    ops_.gemm(Op::as_is, Op::transposed, rows, f, h, saved.x + row * h_, h, experts_->value(p + up),
              h, R(0), f1, f);
    ops_.add_bias(f1, experts_->value(p + up_bias), rows, f);
    ops_.gelu(act, f1, static_cast<std::size_t>(rows) * f_);
    ops_.gemm(Op::as_is, Op::transposed, rows, h, f, act, f, experts_->value(p + down), f, R(0), y,
              h);
    // Tensor-parallel ranks add their answers: the bias must come once.
    if (groups_.place.tp == 0) ops_.add_bias(y, experts_->value(p + down_bias), rows, h);
  });
  collect(saved, scratch_.answers, saved.out);
  ops_.zero(out, n_ * h_);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) {
    if (saved.places[pair] < 0) continue;
    ops_.add_scaled(out + pair / k_ * h_,
                    saved.out + static_cast<std::size_t>(saved.places[pair]) * h_,
                    saved.weights[pair], h_);
  }
}

template <class R>
void Moe<R>::backward(const MoeSaved<R>& saved, const MoeSlopes<R>& slopes, const R* dy, R* dx) {
  const int h = static_cast<int>(h_);
  const int f = static_cast<int>(f_);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) {
    scratch_.dweights[pair] = R(0);
    if (saved.places[pair] < 0) continue;
    const std::size_t at = static_cast<std::size_t>(saved.places[pair]) * h_;
    const R* d = dy + pair / k_ * h_;
    scratch_.dweights[pair] = ops_.dot(d, saved.out + at, h_);
    ops_.zero(scratch_.sent + at, h_);
    ops_.add_scaled(scratch_.sent + at, d, saved.weights[pair], h_);
  }
  scatter(saved, scratch_.sent, slopes.dy);
  for_each_expert(saved, [&](std::size_t p, std::size_t row, int rows) {
    R* df1 = slopes.df1 + row * f_;
    ops_.gemm(Op::as_is, Op::as_is, rows, f, h, slopes.dy + row * h_, h, experts_->value(p + down),
              f, R(0), df1, f);
    ops_.gelu_backward(df1, saved.f1 + row * f_, static_cast<std::size_t>(rows) * f_);
    ops_.gemm(Op::as_is, Op::as_is, rows, h, f, df1, f, experts_->value(p + up), h, R(0),
              scratch_.answers + row * h_, h);
  });
  collect(saved, scratch_.answers, scratch_.sent);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) {
    if (saved.places[pair] < 0) continue;
    ops_.add(dx + pair / k_ * h_, scratch_.sent + static_cast<std::size_t>(saved.places[pair]) * h_,
             h_);
  }
  gate_slopes(saved, scratch_.dweights, slopes.dlogits);
  const int experts = static_cast<int>(all_);
  ops_.gemm(Op::as_is, Op::as_is, static_cast<int>(n_), h, experts, slopes.dlogits, experts,
            dense_.value(gate_), h, R(1), dx, h);
}

/// Through the choice's weights and the softmax; and the load-balancing loss E · Σ_e f_e · P_e of
/// Switch (Fedus et al., 2022, eq. 4), f_e the share of pairs that want e, P_e its mean
/// probability.
template <class R>
void Moe<R>::gate_slopes(const MoeSaved<R>& saved, const R* dweights, R* dlogits) {
  std::int32_t* wanted = scratch_.totals;
  std::fill_n(wanted, all_, 0);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) ++wanted[saved.experts[pair]];
  const double micro_batches = config_.layout.dp * config_.layout.micro_batches;
  const double experts = static_cast<double>(all_);
  const double strength = config_.model.balance_loss * experts /
                          (static_cast<double>(n_) * static_cast<double>(k_)) / micro_batches /
                          static_cast<double>(n_);
  double balance = 0;
  for (std::size_t i = 0; i < n_; ++i) {
    const R* p = saved.probabilities + i * all_;
    R* d = dlogits + i * all_;
    for (std::size_t e = 0; e < all_; ++e) {
      balance += strength * wanted[e] * static_cast<double>(p[e]);
      d[e] = groups_.place.tp == 0 ? R(strength * wanted[e]) : R(0);
    }
    R sum = R(1);
    R mean = R(0);
    if (k_ > 1) {
      sum = R(0);
      for (std::size_t j = 0; j < k_; ++j) {
        sum += p[saved.experts[i * k_ + j]];
        mean += dweights[i * k_ + j] * saved.weights[i * k_ + j];
      }
    }
    for (std::size_t j = 0; j < k_; ++j) {
      d[saved.experts[i * k_ + j]] += (dweights[i * k_ + j] - mean) / sum;
    }
    R tilt = R(0);
    for (std::size_t e = 0; e < all_; ++e) tilt += d[e] * p[e];
    for (std::size_t e = 0; e < all_; ++e) d[e] = p[e] * (d[e] - tilt);
  }
  balance_loss_ += balance;
}

template <class R>
void Moe<R>::weights(const MoeSaved<R>& saved, const MoeSlopes<R>& slopes, const R* in) {
  const int h = static_cast<int>(h_);
  const int f = static_cast<int>(f_);
  const int experts = static_cast<int>(all_);
  ops_.gemm(Op::transposed, Op::as_is, experts, h, static_cast<int>(n_), slopes.dlogits, experts,
            in, h, R(1), dense_.gradient(gate_), h);
  for_each_expert(saved, [&](std::size_t p, std::size_t row, int rows) {
    const R* dy = slopes.dy + row * h_;
    const R* df1 = slopes.df1 + row * f_;
    ops_.gemm(Op::transposed, Op::as_is, h, f, rows, dy, h, saved.act + row * f_, f, R(1),
              experts_->gradient(p + down), f);
    ops_.add_column_sums(experts_->gradient(p + down_bias), dy, rows, h);
    ops_.gemm(Op::transposed, Op::as_is, f, h, rows, df1, f, saved.x + row * h_, h, R(1),
              experts_->gradient(p + up), h);
    ops_.add_column_sums(experts_->gradient(p + up_bias), df1, rows, f);
  });
}

template <class R>
double Moe<R>::take_balance_loss() {
  return std::exchange(balance_loss_, 0.0);
}
template <class R>
std::uint64_t Moe<R>::take_dropped() {
  return std::exchange(dropped_, std::uint64_t{0});
}

template class Moe<float>;
template class Moe<double>;

}  // namespace trainer
