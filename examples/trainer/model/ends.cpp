// The model's two ends: embedding, and output with the loss.
#include <algorithm>

#include "model/layer.hpp"

namespace trainer {
namespace {

Param token_matrix(const Config& config, const char* name, int rank) {
  const Model& m = config.model;
  const int rows = m.vocab / config.layout.tp;
  return {.name = name,
          .rows = m.vocab,
          .cols = m.width,
          .row = rows * rank,
          .row_count = rows,
          .col_count = m.width,
          .init = Init::normal,
          .deviation = 0.02,
          .decays = true};
}

}  // namespace

template <class R>
Embedding<R>::Embedding(LayerContext<R>& shop) : context_(shop) {
  const Model& m = shop.config.model;
  tokens_ = shop.store.add("tokens", {token_matrix(shop.config, "tokens", shop.groups.place.tp)},
                           false, true);
  tokens_->tied = m.tied && shop.config.layout.pp > 1;
  positions_ = shop.store.add("positions",
                              {{.name = "positions",
                                .rows = m.context,
                                .cols = m.width,
                                .row_count = m.context,
                                .col_count = m.width,
                                .init = Init::normal,
                                .deviation = 0.01,
                                .decays = true,
                                .partial = shop.config.layout.sequence_parallel}},
                              false, true);
}

template <class R>
void Embedding<R>::forward(const Both<std::int32_t>& tokens, R* x) {
  LayerContext<R>& w = context_;
  hold();
  const Param& table = tokens_->params[0];
  w.ops.embed(w.partial_for(x), tokens.device, tokens_->value(0), table.row, table.row_count, w.n,
              w.h);
  w.groups.tensor.wait(w.reduce(x));
  w.ops.add_positions(x, positions_->value(0), w.s < w.n ? w.s * w.groups.place.tp : 0,
                      w.config.model.context, w.s, w.h);
  let_go();
}

template <class R>
void Embedding<R>::prefetch() {
  context_.prefetch(tokens_);
  context_.prefetch(positions_);
}
template <class R>
void Embedding<R>::hold() {
  context_.store.acquire(*tokens_);
  context_.store.acquire(*positions_);
}
template <class R>
void Embedding<R>::let_go() {
  context_.store.release(*tokens_);
  context_.store.release(*positions_);
}

template <class R>
void Embedding<R>::backward(const Both<std::int32_t>& tokens, const R* dx, bool last) {
  LayerContext<R>& w = context_;
  w.store.acquire_gradients(*tokens_);
  w.store.acquire_gradients(*positions_);
  w.ops.add_positions_backward(positions_->gradient(0), dx, w.s < w.n ? w.s * w.groups.place.tp : 0,
                               w.config.model.context, w.s, w.h);
  const Param& table = tokens_->params[0];
  w.ops.embed_backward(tokens_->gradient(0), tokens, w.gathered(dx, w.full), table.row,
                       table.row_count, w.n, w.h);
  w.release_gradients(*tokens_, last);
  w.release_gradients(*positions_, last);
}

template <class R>
Head<R>::Head(LayerContext<R>& shop, Segment<R>* shared)
    : context_(shop), matrix_(shared), shared_(shared != nullptr) {
  const Config& config = shop.config;
  const int h = config.model.width;
  const bool partial = config.layout.sequence_parallel;
  norm_ = shop.store.add(
      "final",
      {{.name = "final.gain", .cols = h, .col_count = h, .init = Init::ones, .partial = partial},
       {.name = "final.bias", .cols = h, .col_count = h, .partial = partial}},
      false, true);
  if (shared_) return;
  const bool tied = config.model.tied;
  matrix_ = shop.store.add("output",
                           {token_matrix(config, tied ? "tokens" : "output", shop.groups.place.tp)},
                           false, true);
  matrix_->tied = tied;
  matrix_->counted = !tied;
}

template <class R>
void Head<R>::lay_out(Arena& arena) {
  const LayerContext<R>& w = context_;
  const auto rows = static_cast<std::size_t>(w.s);
  const auto take = [&](std::size_t count) { return arena.take<R>(count, Use::scratch); };
  normal_ = take(rows * w.h);
  slope_ = take(rows * w.h);
  mean_ = take(rows);
  scale_ = take(rows);
  const auto at_once = static_cast<std::size_t>(logit_rows());
  logits_ = take(at_once * static_cast<std::size_t>(w.config.model.vocab / w.t));
  most_ = take(at_once);
  sums_ = take(2 * at_once);
  loss_ = arena.take<double>(1, Use::scratch);
}

/// Vocabulary-parallel cross entropy: two sums over ranks of a few numbers per token.
template <class R>
void Head<R>::rows(int begin, int count, const R* in, const std::int32_t* targets, bool train) {
  LayerContext<R>& w = context_;
  const Param& p = matrix_->params[0];
  const int v = p.row_count;
  const R* x = in + static_cast<std::size_t>(begin) * w.h;
  w.linear(logits_, x, matrix_->value(0), nullptr, count, w.h, v);
  w.ops.row_max(most_, logits_, count, v);
  w.groups.tensor.wait(
      w.groups.tensor.all_reduce(most_, static_cast<std::size_t>(count), chorus::ReduceOp::max));
  w.ops.exp_rows(logits_, sums_, most_, targets + begin, p.row, count, v);
  w.groups.tensor.wait(w.groups.tensor.all_reduce(sums_, 2 * static_cast<std::size_t>(count)));
  const double tokens = static_cast<double>(w.config.sequences()) * w.config.model.context *
                        w.config.layout.micro_batches;
  const R share = R(w.config.training.scale() / tokens);
  w.ops.loss_rows(loss_, logits_, sums_, targets + begin, p.row, share, count, v);
  if (!train) return;
  R* dx = w.partial_for(slope_) + static_cast<std::size_t>(begin) * w.h;
  w.ops.gemm(Op::as_is, Op::as_is, count, w.h, v, logits_, v, matrix_->value(0), w.h, R(0), dx,
             w.h);
  w.ops.gemm(Op::transposed, Op::as_is, v, w.h, count, logits_, v, x, w.h, R(1),
             matrix_->gradient(0), w.h);
}

template <class R>
double Head<R>::run(const R* x, const std::int32_t* targets, R* dx, bool last) {
  LayerContext<R>& w = context_;
  const bool train = dx != nullptr;
  hold();
  if (train) {
    w.store.acquire_gradients(*norm_);
    w.store.acquire_gradients(*matrix_);
  }
  w.ops.layer_norm(normal_, mean_, scale_, x, norm_->value(0), norm_->value(1), w.s, w.h);
  const R* in = w.gathered(normal_, w.full);
  w.ops.zero_sum(loss_);
  const int at_once = logit_rows();
  for (int begin = 0; begin < w.n; begin += at_once) {
    rows(begin, std::min(at_once, w.n - begin), in, targets, train);
  }
  if (train) {
    w.groups.tensor.wait(w.reduce(slope_));
    w.ops.zero(dx, static_cast<std::size_t>(w.s) * w.h);
    w.ops.layer_norm_dx(dx, slope_, x, mean_, scale_, norm_->value(0), w.s, w.h);
    w.ops.layer_norm_dw(norm_->gradient(0), norm_->gradient(1), slope_, x, mean_, scale_, w.s, w.h);
    w.release_gradients(*norm_, last);
    // A shared matrix is complete when the embedding has added its part.
    if (!shared_) w.release_gradients(*matrix_, last);
  }
  let_go();
  return w.ops.value(loss_);
}

template <class R>
void Head<R>::prefetch() {
  context_.prefetch(norm_);
  context_.prefetch(matrix_);
}
template <class R>
void Head<R>::hold() {
  context_.store.acquire(*norm_);
  context_.store.acquire(*matrix_);
}
template <class R>
void Head<R>::let_go() {
  context_.store.release(*norm_);
  context_.store.release(*matrix_);
}

template class Embedding<float>;
template class Embedding<double>;
template class Head<float>;
template class Head<double>;

}  // namespace trainer
