#include "model/layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trainer {

template <class R>
LayerContext<R>::LayerContext(const Config& settings, Ops<R>& operations, Groups& axes,
                              Store<R>& parameters)
    : config(settings), ops(operations), groups(axes), store(parameters) {
  n = config.training.batch * config.model.context;
  t = config.layout.tp;
  s = config.layout.sequence_parallel ? n / t : n;
  h = config.model.width;
}

template <class R>
void LayerContext<R>::lay_out(Arena& arena) {
  const auto whole = static_cast<std::size_t>(n) * h;
  partial = arena.take<R>(whole, Use::scratch);
  full = arena.take<R>(whole, Use::scratch);
  inner = arena.take<R>(whole / t, Use::scratch);
}

template <class R>
const R* LayerContext<R>::gathered(const R* rows, R* into) {
  if (!config.layout.sequence_parallel || t == 1) return rows;
  groups.tensor.wait(groups.tensor.all_gather(rows, into, static_cast<std::size_t>(s) * h));
  return into;
}

template <class R>
Pending LayerContext<R>::reduce(R* rows) {
  const auto count = static_cast<std::size_t>(s) * h;
  if (!config.layout.sequence_parallel) return groups.tensor.all_reduce(rows, count);
  if (t == 1) {
    ops.copy(rows, partial, count);
    return {};
  }
  return groups.tensor.reduce_scatter(partial, rows, count);
}

template <class R>
void LayerContext<R>::linear(R* y, const R* x, const R* weight, const R* bias, int rows, int in,
                             int out) {
  ops.gemm(Op::as_is, Op::transposed, rows, out, in, x, in, weight, in, R(0), y, out);
  if (bias != nullptr) ops.add_bias(y, bias, rows, out);
}

template <class R>
void LayerContext<R>::linear_gradients(R* weight, R* bias, const R* dy, const R* x, int rows,
                                       int in, int out) {
  ops.gemm(Op::transposed, Op::as_is, out, in, rows, dy, out, x, in, R(1), weight, in);
  ops.add_column_sums(bias, dy, rows, out);
}

namespace {

enum LayerAt : std::size_t {
  gain1,
  bias1,
  w_qkv,
  b_qkv,
  w_out,
  b_out,
  gain2,
  bias2,
  w_up,
  b_up,
  w_down,
  b_down,
};

/// Deviations as in GPT-2: 0.02, and less where a matrix adds to the residual stream.
std::vector<Param> layer_params(const Config& config, int index, int rank) {
  const Model& m = config.model;
  const int t = config.layout.tp;
  const int h = m.width;
  const int f = m.f();
  const bool sharded = config.layout.sequence_parallel;
  const double residual = 0.02 / std::sqrt(2.0 * m.layers);
  const auto name = [&](const char* part) { return fmt::format("layer{}.{}", index, part); };
  const auto vector = [&](const char* part, Init init, bool partial) {
    return Param{.name = name(part), .cols = h, .col_count = h, .init = init, .partial = partial};
  };
  const auto split_rows = [&](const char* part, int rows, int cols, Init init) {
    return Param{.name = name(part),
                 .rows = rows,
                 .cols = cols,
                 .row = rows / t * rank,
                 .row_count = rows / t,
                 .col_count = cols,
                 .init = init,
                 .deviation = 0.02,
                 .decays = init == Init::normal};
  };
  const auto split_cols = [&](const char* part, int rows, int cols) {
    return Param{.name = name(part),
                 .rows = rows,
                 .cols = cols,
                 .row_count = rows,
                 .col = cols / t * rank,
                 .col_count = cols / t,
                 .init = Init::normal,
                 .deviation = residual,
                 .decays = true};
  };
  const auto split_bias = [&](const char* part, int cols) {
    return Param{.name = name(part), .cols = cols, .col = cols / t * rank, .col_count = cols / t};
  };
  // Rows of qkv are ordered by head (query, key, value of head 0, of head 1, …), so that a slice of
  // heads is one block.
  std::vector<Param> params{vector("norm1.gain", Init::ones, sharded),
                            vector("norm1.bias", Init::zeros, sharded),
                            split_rows("qkv.weight", 3 * h, h, Init::normal),
                            split_bias("qkv.bias", 3 * h),
                            split_cols("out.weight", h, h),
                            vector("out.bias", Init::zeros, false),
                            vector("norm2.gain", Init::ones, sharded),
                            vector("norm2.bias", Init::zeros, sharded)};
  if (m.experts > 0) return params;
  params.push_back(split_rows("up.weight", f, h, Init::normal));
  params.push_back(split_bias("up.bias", f));
  params.push_back(split_cols("down.weight", h, f));
  params.push_back(vector("down.bias", Init::zeros, false));
  return params;
}

}  // namespace

template <class R>
Layer<R>::Layer(LayerContext<R>& shop, int index) : context_(shop) {
  const Config& config = shop.config;
  std::vector<Param> params = layer_params(config, index, shop.groups.place.tp);
  if (config.model.experts > 0) params.push_back(gate_param(config.model, index, config.layout.tp));
  dense_ = shop.store.add(fmt::format("layer{}", index), params, false, false);
  if (config.model.experts > 0) {
    moe_ = std::make_unique<Moe<R>>(config, shop.ops, shop.groups, shop.store, *dense_, shop.moe,
                                    index);
  }
}

template <class R>
Saved<R> Layer<R>::lay_out_saved(Arena& arena, const Saved<R>* shared, bool own_input) const {
  const auto s = static_cast<std::size_t>(context_.s);
  const auto n = static_cast<std::size_t>(context_.n);
  const Model& model = context_.config.model;
  const std::size_t h = static_cast<std::size_t>(context_.h);
  const std::size_t t = static_cast<std::size_t>(context_.t);
  const std::size_t f = model.experts > 0 ? 0 : static_cast<std::size_t>(model.f()) / t;
  const Recompute recompute = context_.config.layout.recompute;
  const auto take = [&](std::size_t count, R* made_anew, bool again) {
    return shared != nullptr && again ? made_anew : arena.take<R>(count, Use::activations);
  };
  const bool all = recompute == Recompute::full;
  const bool some = recompute != Recompute::none;
  const Saved<R> none{};
  const Saved<R>& from = shared != nullptr ? *shared : none;
  Saved<R> saved{};
  if (own_input) saved.x = arena.take<R>(s * h, Use::activations);
  saved.mean1 = take(s, from.mean1, all);
  saved.scale1 = take(s, from.scale1, all);
  saved.a1 = take(s * h, from.a1, some);
  saved.qkv = take(n * 3 * h / t, from.qkv, all);
  saved.attended = take(n * h / t, from.attended, all);
  saved.lse = take(n * static_cast<std::size_t>(model.heads) / t, from.lse, all);
  saved.x2 = take(s * h, from.x2, all);
  saved.mean2 = take(s, from.mean2, all);
  saved.scale2 = take(s, from.scale2, all);
  saved.a2 = take(s * h, from.a2, some);
  saved.f1 = take(n * f, from.f1, all);
  saved.act = take(n * f, from.act, some);
  if (moe_) saved.moe = shared != nullptr && all ? from.moe : moe_->lay_out_saved(arena);
  return saved;
}

template <class R>
ActivationGradients<R> Layer<R>::lay_out_activation_gradients(Arena& arena) const {
  const auto s = static_cast<std::size_t>(context_.s) * context_.h;
  const auto n = static_cast<std::size_t>(context_.n);
  const auto t = static_cast<std::size_t>(context_.t);
  const Model& model = context_.config.model;
  const bool sharded = context_.config.layout.sequence_parallel;
  const auto take = [&](std::size_t count) { return arena.take<R>(count, Use::scratch); };
  ActivationGradients<R> grads{};
  grads.full_dy = sharded ? take(n * context_.h) : nullptr;
  grads.df1 = model.experts > 0 ? nullptr : take(n * static_cast<std::size_t>(model.f()) / t);
  grads.da2 = take(s);
  grads.dx2 = take(n * context_.h);
  grads.dqkv = take(n * 3 * context_.h / t);
  grads.da1 = take(s);
  if (moe_) grads.moe = moe_->lay_out_activation_gradients(arena);
  return grads;
}

template <class R>
void Layer<R>::acquire() {
  context_.store.acquire(*dense_);
  if (moe_) context_.store.acquire(*moe_->segment());
}
template <class R>
void Layer<R>::prefetch() {
  context_.prefetch(dense_);
  if (moe_) context_.prefetch(moe_->segment());
}
template <class R>
void Layer<R>::release() {
  context_.store.release(*dense_);
  if (moe_) context_.store.release(*moe_->segment());
}

template <class R>
void Layer<R>::forward(const Saved<R>& saved, R* y) {
  LayerContext<R>& w = context_;
  const Model& model = w.config.model;
  const Segment<R>& p = *dense_;
  const auto rows = static_cast<std::size_t>(w.s) * w.h;
  w.ops.layer_norm(saved.a1, saved.mean1, saved.scale1, saved.x, p.value(gain1), p.value(bias1),
                   w.s, w.h);
  const R* in = w.gathered(saved.a1, w.full);
  w.linear(saved.qkv, in, p.value(w_qkv), p.value(b_qkv), w.n, w.h, 3 * w.h / w.t);
  w.ops.attention(saved.attended, saved.lse, saved.qkv, w.config.training.batch, model.context,
                  model.heads / w.t, model.head_width());
  w.linear(w.partial_for(saved.x2), saved.attended, p.value(w_out), nullptr, w.n, w.h / w.t, w.h);
  w.groups.tensor.wait(w.reduce(saved.x2));
  w.ops.add(saved.x2, saved.x, rows);
  w.ops.add_bias(saved.x2, p.value(b_out), w.s, w.h);
  w.ops.layer_norm(saved.a2, saved.mean2, saved.scale2, saved.x2, p.value(gain2), p.value(bias2),
                   w.s, w.h);
  feed_forward(saved, y);
  w.ops.add(y, saved.x2, rows);
}

template <class R>
void Layer<R>::feed_forward(const Saved<R>& saved, R* y) {
  LayerContext<R>& w = context_;
  const Segment<R>& p = *dense_;
  const R* in = w.gathered(saved.a2, w.full);
  if (moe_) {
    moe_->forward(saved.moe, in, w.partial_for(y));
    w.groups.tensor.wait(w.reduce(y));
    return;
  }
  const int f = w.config.model.f() / w.t;
  w.linear(saved.f1, in, p.value(w_up), p.value(b_up), w.n, w.h, f);
  w.ops.gelu(saved.act, saved.f1, static_cast<std::size_t>(w.n) * f);
  w.linear(w.partial_for(y), saved.act, p.value(w_down), nullptr, w.n, f, w.h);
  w.groups.tensor.wait(w.reduce(y));
  w.ops.add_bias(y, p.value(b_down), w.s, w.h);
}

/// Makes anew what selective recomputation did not keep.
template <class R>
void Layer<R>::restore(const Saved<R>& saved) {
  LayerContext<R>& w = context_;
  if (w.config.layout.recompute != Recompute::selective) return;
  const Segment<R>& p = *dense_;
  w.ops.layer_norm(saved.a1, saved.mean1, saved.scale1, saved.x, p.value(gain1), p.value(bias1),
                   w.s, w.h);
  w.ops.layer_norm(saved.a2, saved.mean2, saved.scale2, saved.x2, p.value(gain2), p.value(bias2),
                   w.s, w.h);
  if (!moe_) {
    w.ops.gelu(saved.act, saved.f1, static_cast<std::size_t>(w.n) * w.config.model.f() / w.t);
  }
}

template <class R>
void Layer<R>::backward(const Saved<R>& saved, ActivationGradients<R>& grads, const R* dy, R* dx,
                        bool weights, bool last) {
  LayerContext<R>& w = context_;
  const Model& model = w.config.model;
  const Segment<R>& p = *dense_;
  const auto rows = static_cast<std::size_t>(w.s) * w.h;
  const int f = model.f() / w.t;
  if (weights) {
    restore(saved);
    w.store.acquire_gradients(*dense_);
    if (moe_) w.store.acquire_gradients(*moe_->segment());
  }
  w.ops.copy(dx, dy, rows);
  grads.dy = w.gathered(dy, grads.full_dy);
  if (moe_) {
    w.ops.zero(w.partial_for(grads.da2), static_cast<std::size_t>(w.n) * w.h);
    moe_->backward(saved.moe, grads.moe, grads.dy, w.partial_for(grads.da2));
  } else {
    w.ops.gemm(Op::as_is, Op::as_is, w.n, f, w.h, grads.dy, w.h, p.value(w_down), f, R(0),
               grads.df1, f);
    w.ops.gelu_backward(grads.df1, saved.f1, static_cast<std::size_t>(w.n) * f);
    w.ops.gemm(Op::as_is, Op::as_is, w.n, w.h, f, grads.df1, f, p.value(w_up), w.h, R(0),
               w.partial_for(grads.da2), w.h);
  }
  Pending sum = w.reduce(grads.da2);
  if (weights) feed_forward_gradients(saved, grads);
  w.groups.flights.wait(sum);
  w.ops.layer_norm_dx(dx, grads.da2, saved.x2, saved.mean2, saved.scale2, p.value(gain2), w.s, w.h);
  if (w.gathered(dx, grads.dx2) == dx) w.ops.copy(grads.dx2, dx, rows);
  w.ops.gemm(Op::as_is, Op::as_is, w.n, w.h / w.t, w.h, grads.dx2, w.h, p.value(w_out), w.h / w.t,
             R(0), w.inner, w.h / w.t);
  w.ops.attention_backward(grads.dqkv, w.inner, saved.attended, saved.lse, saved.qkv,
                           w.config.training.batch, model.context, model.heads / w.t,
                           model.head_width());
  w.ops.gemm(Op::as_is, Op::as_is, w.n, w.h, 3 * w.h / w.t, grads.dqkv, 3 * w.h / w.t,
             p.value(w_qkv), w.h, R(0), w.partial_for(grads.da1), w.h);
  sum = w.reduce(grads.da1);
  if (weights) attention_gradients(saved, grads);
  w.groups.flights.wait(sum);
  w.ops.layer_norm_dx(dx, grads.da1, saved.x, saved.mean1, saved.scale1, p.value(gain1), w.s, w.h);
  if (!weights) return;
  norm_gradients(saved, grads);
  w.release_gradients(*dense_, last);
  if (moe_) w.release_gradients(*moe_->segment(), last);
}

template <class R>
void Layer<R>::weights(const Saved<R>& saved, const ActivationGradients<R>& grads, bool last) {
  Store<R>& store = context_.store;
  restore(saved);
  store.acquire_gradients(*dense_);
  if (moe_) store.acquire_gradients(*moe_->segment());
  feed_forward_gradients(saved, grads);
  attention_gradients(saved, grads);
  norm_gradients(saved, grads);
  context_.release_gradients(*dense_, last);
  if (moe_) context_.release_gradients(*moe_->segment(), last);
}

template <class R>
void Layer<R>::feed_forward_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads) {
  LayerContext<R>& w = context_;
  const Segment<R>& p = *dense_;
  const R* in = w.gathered(saved.a2, w.full);
  if (moe_) {
    moe_->weights(saved.moe, grads.moe, in);
    return;
  }
  const int f = w.config.model.f() / w.t;
  w.linear_gradients(p.gradient(w_down), p.gradient(b_down), grads.dy, saved.act, w.n, f, w.h);
  w.linear_gradients(p.gradient(w_up), p.gradient(b_up), grads.df1, in, w.n, w.h, f);
}

template <class R>
void Layer<R>::attention_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads) {
  LayerContext<R>& w = context_;
  const Segment<R>& p = *dense_;
  w.linear_gradients(p.gradient(w_out), p.gradient(b_out), grads.dx2, saved.attended, w.n,
                     w.h / w.t, w.h);
  const R* in = w.gathered(saved.a1, w.full);
  w.linear_gradients(p.gradient(w_qkv), p.gradient(b_qkv), grads.dqkv, in, w.n, w.h, 3 * w.h / w.t);
}

template <class R>
void Layer<R>::norm_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads) {
  LayerContext<R>& w = context_;
  const Segment<R>& p = *dense_;
  w.ops.layer_norm_dw(p.gradient(gain1), p.gradient(bias1), grads.da1, saved.x, saved.mean1,
                      saved.scale1, w.s, w.h);
  w.ops.layer_norm_dw(p.gradient(gain2), p.gradient(bias2), grads.da2, saved.x2, saved.mean2,
                      saved.scale2, w.s, w.h);
}

template struct LayerContext<float>;
template struct LayerContext<double>;
template class Layer<float>;
template class Layer<double>;

}  // namespace trainer
