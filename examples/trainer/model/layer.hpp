// One transformer layer and the model's two ends, forward and backward, on this rank's slice.
//
// Letters as in config.hpp; t tensor-parallel ranks; n = B · T tokens of a micro-batch; s = n, or
// n / t rows between the blocks under sequence parallelism.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/moe.hpp"
#include "model/params.hpp"

namespace trainer {

/// What all layers of a rank share.
template <class R>
struct LayerContext {
  LayerContext(const Config& settings, Ops<R>& operations, Groups& axes, Store<R>& parameters);
  void lay_out(Arena& arena);
  void release_gradients(Segment<R>& segment, bool last) {
    if (closes) store.release_gradients(segment, last);
  }
  void prefetch(Segment<R>* segment) {
    if (config.layout.overlap) store.prefetch(segment);
  }

  /// `rows` [s, h] of all tensor-parallel ranks → [n, h]: `into`, or `rows` itself where nothing is
  /// sharded.
  const R* gathered(const R* rows, R* into);
  /// Where a partial product [n, h] is made that reduce() turns into `rows` [s, h].
  R* partial_for(R* rows) { return config.layout.sequence_parallel ? partial : rows; }
  /// Starts adding the partial products of all tensor-parallel ranks.
  Pending reduce(R* rows);
  void linear(R* y, const R* x, const R* weight, const R* bias, int rows, int in, int out);
  /// weight [out, in] += dyᵀ x; bias [out] += column sums of dy
  void linear_gradients(R* weight, R* bias, const R* dy, const R* x, int rows, int in, int out);

  const Config& config;
  Ops<R>& ops;
  Groups& groups;
  Store<R>& store;
  /// Whether gradients are complete when this has added its part: false for a first half.
  bool closes = true;
  int n = 0, s = 0, h = 0, t = 1;
  R* partial = nullptr;  ///< [n, h]
  R* full = nullptr;     ///< [n, h] gathered input
  R* inner = nullptr;    ///< [n, h/t]
  MoeScratch<R> moe;
};

/// What the backward pass of a layer needs of the forward pass.
template <class R>
struct Saved {
  R *x, *mean1, *scale1, *a1, *qkv, *attended, *lse, *x2, *mean2, *scale2, *a2, *f1, *act;
  MoeSaved<R> moe;
};

/// What the weight gradients of a layer need of the backward pass.
template <class R>
struct ActivationGradients {
  R *full_dy, *df1, *da2, *dx2, *dqkv, *da1;
  const R* dy;  ///< [n, h]: full_dy, or the incoming gradient itself
  MoeActivationGradients<R> moe;
};

template <class R>
class Layer {
 public:
  Layer(LayerContext<R>& shop, int index);

  /// Memory for one micro-batch. Under recomputation, what is made anew comes from `shared`.
  /// Without `own_input`, x is for the caller to set.
  Saved<R> lay_out_saved(Arena& arena, const Saved<R>* shared, bool own_input = true) const;
  ActivationGradients<R> lay_out_activation_gradients(Arena& arena) const;
  /// Memory that all layers of the rank share; called on one of them.
  void lay_out_scratch(Arena& arena) const {
    if (moe_) moe_->lay_out_scratch(arena);
  }

  /// saved.x [s, h] → y [s, h]
  void forward(const Saved<R>& saved, R* y);
  /// dy [s, h] → dx [s, h]. With `weights`, also their gradients, while sums over ranks travel.
  void backward(const Saved<R>& saved, ActivationGradients<R>& grads, const R* dy, R* dx,
                bool weights, bool last);
  /// The gradients of the weights, after a backward() without them.
  void weights(const Saved<R>& saved, const ActivationGradients<R>& grads, bool last);

  void acquire();
  /// The layer whose turn comes next.
  void prefetch();
  void release();
  /// Σ over micro-batches of the load-balancing loss since the last call.
  double take_balance_loss() { return moe_ ? moe_->take_balance_loss() : 0; }
  std::uint64_t take_dropped() { return moe_ ? moe_->take_dropped() : 0; }

 private:
  void feed_forward(const Saved<R>& saved, R* y);
  void restore(const Saved<R>& saved);
  void feed_forward_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads);
  void attention_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads);
  void norm_gradients(const Saved<R>& saved, const ActivationGradients<R>& grads);

  LayerContext<R>& context_;
  Segment<R>* dense_;
  std::unique_ptr<Moe<R>> moe_;
};

/// Token and position embedding: where the pipeline begins.
template <class R>
class Embedding {
 public:
  explicit Embedding(LayerContext<R>& shop);
  /// tokens [n] → x [s, h]
  void forward(const Both<std::int32_t>& tokens, R* x);
  void backward(const Both<std::int32_t>& tokens, const R* dx, bool last);

  [[nodiscard]] Segment<R>* tokens() const { return tokens_; }
  void prefetch();
  /// Keeps the values between the halves of a micro-batch.
  void hold();
  void let_go();

 private:
  LayerContext<R>& context_;
  Segment<R>* tokens_;
  Segment<R>* positions_;
};

/// Final normalization, output matrix and loss: where the pipeline ends.
template <class R>
class Head {
 public:
  /// `shared`: the embedding's matrix where both ends are on this rank and tied.
  Head(LayerContext<R>& shop, Segment<R>* shared);
  void lay_out(Arena& arena);

  /// x [s, h], targets [n] → the loss summed over tokens (the same on all tensor-parallel ranks).
  /// With `dx` [s, h], also the gradient of the mean over the step's tokens, and of the weights:
  /// logits live for a few rows at a time only.
  double run(const R* x, const std::int32_t* targets, R* dx, bool last);
  void prefetch();
  void hold();
  void let_go();

 private:
  void rows(int begin, int count, const R* in, const std::int32_t* targets, bool train);
  [[nodiscard]] int logit_rows() const { return std::min(context_.ops.logit_rows(), context_.n); }

  LayerContext<R>& context_;
  Segment<R>* norm_;
  Segment<R>* matrix_;
  bool shared_;
  R *normal_ = nullptr, *mean_ = nullptr, *scale_ = nullptr, *slope_ = nullptr;
  R *logits_ = nullptr, *most_ = nullptr, *sums_ = nullptr;
  double* loss_ = nullptr;
};

}  // namespace trainer
