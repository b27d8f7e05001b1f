#include "model/moe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainer {
namespace {

enum ExpertAt : std::size_t { up, up_bias, down, down_bias, per_expert };

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
  chunks_ = std::min(here_, static_cast<std::size_t>(config.layout.expert_chunks));
  // A token goes to k different experts, so it comes here at most min(k, experts here) times. The
  // ranks that share experts may have unequal batches.
  most_ = 0;
  const int leader = groups.place.dp - groups.place.ep;
  for (int r = leader; r < leader + config.layout.ep; ++r) {
    const std::size_t theirs =
        static_cast<std::size_t>(config.of_replica(r).training.batch) * m.context;
    most_ += std::min(theirs * std::min(k_, here_), here_ * room(config, theirs));
  }
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
    return arena.take_both<std::int32_t>(count, Use::activations);
  };
  MoeSaved<R> saved{};
  saved.probabilities = real(n_ * all_);
  saved.weights = real(n_ * k_);
  saved.experts = index(n_ * k_);
  saved.places = index(n_ * k_);
  saved.order = index(most_);
  saved.received = arena.take_host<std::int32_t>(all_, Use::activations);
  saved.counts = arena.take_host<std::size_t>(chunks_ * 4 * ep_, Use::activations);
  saved.x = real(most_ * h_);
  saved.f1 = real(most_ * f_);
  saved.act = real(most_ * f_);
  saved.out = real(n_ * k_ * h_);
  return saved;
}

template <class R>
MoeActivationGradients<R> Moe<R>::lay_out_activation_gradients(Arena& arena) const {
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
              .totals = arena.take_host<std::int32_t>(3 * all_, Use::scratch),
              .lift = arena.take_both<double>(all_, Use::scratch),
              .balance = arena.take<double>(1, Use::scratch)};
}

/// Picks the experts of each token by probability and, on the host, the row of each pair in what is
/// sent, which is ordered by expert, then token.
template <class R>
void Moe<R>::route(const MoeSaved<R>& saved) {
  std::int32_t* wanted = scratch_.totals;
  std::fill_n(wanted, all_, 0);
  ops_.top_k(saved.experts.device, saved.weights, saved.probabilities, static_cast<int>(n_),
             static_cast<int>(all_), static_cast<int>(k_));
  ops_.download(saved.experts, n_ * k_);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) ++wanted[saved.experts.host[pair]];
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
    const auto e = static_cast<std::size_t>(saved.experts.host[pair]);
    saved.places.host[pair] = left[e]-- > 0 ? next[e]++ : -1;
    dropped_ += saved.places.host[pair] < 0 ? 1 : 0;
  }
  ops_.upload(saved.places, n_ * k_);
  for (std::size_t e = 0; e < all_; ++e) scratch_.totals[e] = std::min(wanted[e], limit);
}

/// Tells every expert how many rows come from whom, and orders what arrives by expert.
template <class R>
void Moe<R>::exchange_counts(const MoeSaved<R>& saved) {
  if (ep_ == 1) {
    std::copy_n(scratch_.totals, all_, saved.received);
  } else {
    groups_.expert.wait(
        groups_.expert.all_to_all(scratch_.totals, saved.received, here_, On::host));
  }
  std::size_t sent_at = 0;
  for (std::size_t r = 0; r < ep_; ++r) {
    for (std::size_t e = 0; e < here_; ++e) {
      const Part part = part_of(saved, chunk_of(e));
      if (e == 0 || chunk_of(e) != chunk_of(e - 1)) {
        part.sent[r] = 0;
        part.sent_at[r] = sent_at;
      }
      const auto rows = static_cast<std::size_t>(scratch_.totals[r * here_ + e]);
      part.sent[r] += rows * h_;
      sent_at += rows * h_;
    }
  }
  std::size_t row = 0;
  for (std::size_t c = 0; c < chunks_; ++c) order_chunk(saved, c, row);
  if (ep_ > 1) ops_.upload(saved.order, row);
}

/// Where rows of a chunk arrive: by sender, then expert; and which of them each row sorted by
/// expert, then sender, is. Rows of earlier chunks: `row`.
template <class R>
void Moe<R>::order_chunk(const MoeSaved<R>& saved, std::size_t chunk, std::size_t& row) const {
  const Part part = part_of(saved, chunk);
  const auto rows_of = [&](std::size_t r, std::size_t e) {
    return static_cast<std::size_t>(saved.received[r * here_ + e]);
  };
  const std::size_t first = first_of(chunk);
  const std::size_t last = first_of(chunk + 1);
  std::size_t at = row;
  for (std::size_t r = 0; r < ep_; ++r) {
    part.arrived_at[r] = at * h_;
    for (std::size_t e = first; e < last; ++e) at += rows_of(r, e);
    part.arrived[r] = at * h_ - part.arrived_at[r];
  }
  for (std::size_t e = first; e < last; ++e) {
    for (std::size_t r = 0; r < ep_; ++r) {
      std::size_t from = part.arrived_at[r] / h_;
      for (std::size_t before = first; before < e; ++before) from += rows_of(r, before);
      for (std::size_t i = 0; i < rows_of(r, e); ++i) {
        saved.order.host[row++] = static_cast<std::int32_t>(from++);
      }
    }
  }
}

/// rows [n · k, h] in the order of places → scratch, in the order of senders, on the experts'
/// ranks.
template <class R>
Pending Moe<R>::send_rows(const MoeSaved<R>& saved, std::size_t chunk, const R* rows) {
  if (ep_ == 1) return {};
  const Part part = part_of(saved, chunk);
  return groups_.expert.all_to_all_v(rows, part.sent, part.sent_at, scratch_.arrived, part.arrived,
                                     part.arrived_at);
}

/// The way back of answers [·, h] sorted by expert.
template <class R>
Pending Moe<R>::return_rows(const MoeSaved<R>& saved, std::size_t chunk, const R* sorted, R* rows) {
  const Part part = part_of(saved, chunk);
  const auto [begin, count] = sorted_rows(part);
  if (ep_ == 1) {
    ops_.copy(rows + begin * h_, sorted + begin * h_, count * h_);
    return {};
  }
  ops_.scatter_rows(scratch_.arrived, sorted + begin * h_, saved.order.device + begin, count,
                    static_cast<int>(h_));
  return groups_.expert.all_to_all_v(static_cast<const R*>(scratch_.arrived), part.arrived,
                                     part.arrived_at, rows, part.sent, part.sent_at);
}

template <class R>
std::pair<std::size_t, std::size_t> Moe<R>::sorted_rows(const Part& part) const {
  const std::size_t begin = part.arrived_at[0] / h_;
  return {begin, (part.arrived_at[ep_ - 1] + part.arrived[ep_ - 1]) / h_ - begin};
}

/// Sends rows [n · k, h] to their experts' ranks, where they become sorted [·, h] and visit(expert,
/// first row, rows) makes `answers` of them, sorted alike; these come back as `back`. While the
/// experts of one chunk work, the rows of the next and the answers of the one before travel.
template <class R>
template <class Visit>
void Moe<R>::exchange(const MoeSaved<R>& saved, const R* rows, R* sorted, const R* answers, R* back,
                      Visit visit) {
  Pending arriving = send_rows(saved, 0, rows);
  Pending leaving;
  for (std::size_t c = 0; c < chunks_; ++c) {
    const Pending mine = arriving;
    if (c + 1 < chunks_) arriving = send_rows(saved, c + 1, rows);
    groups_.expert.wait(mine);
    const auto [begin, count] = sorted_rows(part_of(saved, c));
    if (ep_ == 1) {
      ops_.copy(sorted + begin * h_, rows + begin * h_, count * h_);
    } else {
      ops_.gather_rows(sorted + begin * h_, scratch_.arrived, saved.order.device + begin, count,
                       static_cast<int>(h_));
    }
    for_each_expert(saved, first_of(c), first_of(c + 1), visit);
    groups_.expert.wait(leaving);
    leaving = return_rows(saved, c, answers, back);
  }
  groups_.expert.wait(leaving);
}

template <class R>
template <class Visit>
void Moe<R>::for_each_expert(const MoeSaved<R>& saved, std::size_t first, std::size_t last,
                             Visit visit) const {
  std::size_t row = 0;
  for (std::size_t e = 0; e < last; ++e) {
    std::size_t rows = 0;
    for (std::size_t r = 0; r < ep_; ++r) {
      rows += static_cast<std::size_t>(saved.received[r * here_ + e]);
    }
    if (e >= first) visit(e * per_expert, row, static_cast<int>(rows));
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
  const int n = static_cast<int>(n_);
  const int k = static_cast<int>(k_);
  ops_.spread_pairs(scratch_.sent, in, saved.places.device, n, k, h);
  const auto work = [&](std::size_t p, std::size_t row, int rows) {
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
  };
  exchange(saved, scratch_.sent, saved.x, scratch_.answers, saved.out, work);
  ops_.zero(out, n_ * h_);
  ops_.gather_pairs(out, saved.out, saved.places.device, saved.weights, n, k, h);
}

template <class R>
void Moe<R>::backward(const MoeSaved<R>& saved, const MoeActivationGradients<R>& grads, const R* dy,
                      R* dx) {
  const int h = static_cast<int>(h_);
  const int f = static_cast<int>(f_);
  const int n = static_cast<int>(n_);
  const int k = static_cast<int>(k_);
  ops_.pair_slopes(scratch_.dweights, scratch_.sent, dy, saved.out, saved.places.device,
                   saved.weights, n, k, h);
  const auto work = [&](std::size_t p, std::size_t row, int rows) {
    R* df1 = grads.df1 + row * f_;
    ops_.gemm(Op::as_is, Op::as_is, rows, f, h, grads.dy + row * h_, h, experts_->value(p + down),
              f, R(0), df1, f);
    ops_.gelu_backward(df1, saved.f1 + row * f_, static_cast<std::size_t>(rows) * f_);
    ops_.gemm(Op::as_is, Op::as_is, rows, h, f, df1, f, experts_->value(p + up), h, R(0),
              scratch_.answers + row * h_, h);
  };
  exchange(saved, scratch_.sent, grads.dy, scratch_.answers, scratch_.sent, work);
  ops_.gather_pairs(dx, scratch_.sent, saved.places.device, nullptr, n, k, h);
  gate_activation_gradients(saved, scratch_.dweights, grads.dlogits);
  const int experts = static_cast<int>(all_);
  ops_.gemm(Op::as_is, Op::as_is, static_cast<int>(n_), h, experts, grads.dlogits, experts,
            dense_.value(gate_), h, R(1), dx, h);
}

/// Through the choice's weights and the softmax; and the load-balancing loss E · Σ_e f_e · P_e of
/// Switch (Fedus et al., 2022, eq. 4), f_e the share of pairs that want e, P_e its mean
/// probability.
template <class R>
void Moe<R>::gate_activation_gradients(const MoeSaved<R>& saved, const R* dweights, R* dlogits) {
  std::int32_t* wanted = scratch_.totals;
  std::fill_n(wanted, all_, 0);
  for (std::size_t pair = 0; pair < n_ * k_; ++pair) ++wanted[saved.experts.host[pair]];
  // A replica with more of the batch counts for more.
  const double micro_batches = static_cast<double>(config_.sequences()) / config_.training.batch *
                               config_.layout.micro_batches;
  const double scale = config_.training.scale();
  const double experts = static_cast<double>(all_);
  const double strength = config_.model.balance_loss * experts /
                          (static_cast<double>(n_) * static_cast<double>(k_)) / micro_batches /
                          static_cast<double>(n_);
  for (std::size_t e = 0; e < all_; ++e) scratch_.lift.host[e] = scale * strength * wanted[e];
  ops_.upload(scratch_.lift, all_);
  ops_.gate_backward(dlogits, scratch_.balance, saved.probabilities, saved.experts.device,
                     saved.weights, dweights, scratch_.lift.device, groups_.place.tp == 0,
                     static_cast<int>(n_), static_cast<int>(all_), static_cast<int>(k_));
}

template <class R>
void Moe<R>::weights(const MoeSaved<R>& saved, const MoeActivationGradients<R>& grads,
                     const R* in) {
  const int h = static_cast<int>(h_);
  const int f = static_cast<int>(f_);
  const int experts = static_cast<int>(all_);
  ops_.gemm(Op::transposed, Op::as_is, experts, h, static_cast<int>(n_), grads.dlogits, experts, in,
            h, R(1), dense_.gradient(gate_), h);
  for_each_expert(saved, 0, here_, [&](std::size_t p, std::size_t row, int rows) {
    const R* dy = grads.dy + row * h_;
    const R* df1 = grads.df1 + row * f_;
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
  // Its gradients were of the scaled loss.
  const double sum = ops_.value(scratch_.balance) / config_.training.scale();
  ops_.zero_sum(scratch_.balance);
  return sum;
}
template <class R>
std::uint64_t Moe<R>::take_dropped() {
  return std::exchange(dropped_, std::uint64_t{0});
}

template class Moe<float>;
template class Moe<double>;

}  // namespace trainer
