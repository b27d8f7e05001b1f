// The operations that the trainer needs of a device.
//
// All matrices are row-major. The trainer sees memory as pointers that only a backend follows, so a
// backend may keep it wherever it computes. R is the type of computation: float to train, double
// where gradients are checked against differences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ops/arena.hpp"
#include "ops/products.hpp"

namespace trainer {

struct AdamW {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  double scale;  ///< multiplies the gradient: clipping
  int step;      ///< 1-based, for the correction of the moments
};

template <class R>
class Ops {
 public:
  virtual ~Ops() = default;

  /// Called between pieces of work, some thousand times a second: communication moves here.
  std::function<void()> idle = [] {};

  /// Whether the host cannot follow this backend's pointers.
  [[nodiscard]] virtual bool apart() const = 0;
  /// Rows of logits that should exist at the same time.
  [[nodiscard]] virtual int logit_rows() const = 0;
  /// From the host's memory, which may change as soon as this returns; nothing where both are one.
  virtual void to_device(void* to, const void* from, std::size_t size_bytes) = 0;
  /// Returns when it is there.
  virtual void to_host(void* to, const void* from, std::size_t size_bytes) = 0;
  template <class T>
  void upload(const Both<T>& both, std::size_t count) {
    to_device(both.device, both.host, count * sizeof(T));
  }
  template <class T>
  void download(const Both<T>& both, std::size_t count) {
    to_host(both.host, both.device, count * sizeof(T));
  }
  /// What lies at `at` when all work so far is done.
  [[nodiscard]] double value(const double* at) {
    double x = 0;
    to_host(&x, at, sizeof x);
    return x;
  }

  /// C [m, n] = op(A) · op(B) + beta · C; lda, ldb, ldc: elements from row to row.
  virtual void gemm(Op a, Op b, int m, int n, int k, const R* A, int lda, const R* B, int ldb,
                    R beta, R* C, int ldc) = 0;

  /// y [n, h] += bias [h]
  virtual void add_bias(R* y, const R* bias, int n, int h) = 0;
  /// sums [h] += column sums of x [n, h]
  virtual void add_column_sums(R* sums, const R* x, int n, int h) = 0;
  /// y [n] += x [n]
  virtual void add(R* y, const R* x, std::size_t n) = 0;
  virtual void copy(R* y, const R* x, std::size_t n) = 0;
  virtual void zero(R* y, std::size_t n) = 0;
  virtual void zero_sum(double* sum) = 0;

  /// y [n, h] = normalized x · gain + bias; mean, scale [n] are kept for the backward pass.
  virtual void layer_norm(R* y, R* mean, R* scale, const R* x, const R* gain, const R* bias, int n,
                          int h) = 0;
  /// dx [n, h] += the gradient through the normalization.
  virtual void layer_norm_dx(R* dx, const R* dy, const R* x, const R* mean, const R* scale,
                             const R* gain, int n, int h) = 0;
  /// dgain, dbias [h] += theirs.
  virtual void layer_norm_dw(R* dgain, R* dbias, const R* dy, const R* x, const R* mean,
                             const R* scale, int n, int h) = 0;

  /// y [n] = gelu(x), the tanh form.
  virtual void gelu(R* y, const R* x, std::size_t n) = 0;
  /// d [n] = gelu'(x) · d
  virtual void gelu_backward(R* d, const R* x, std::size_t n) = 0;

  /// Causal attention. qkv [batch · T, heads · 3 · hd]: per head query, key, value side by side.
  /// out [batch · T, heads · hd]; lse [batch · heads · T] is kept for the backward pass. Memory
  /// beyond that does not grow with T².
  virtual void attention(R* out, R* lse, const R* qkv, int batch, int T, int heads, int hd) = 0;
  virtual void attention_backward(R* dqkv, const R* dout, const R* out, const R* lse, const R* qkv,
                                  int batch, int T, int heads, int hd) = 0;

  /// x [n, h] = table[id − first] where first ≤ id < first + rows, else 0.
  virtual void embed(R* x, const std::int32_t* ids, const R* table, int first, int rows, int n,
                     int h) = 0;
  virtual void embed_backward(R* dtable, const Both<std::int32_t>& ids, const R* dx, int first,
                              int rows, int n, int h) = 0;
  /// x [n, h] += table[(begin + row) mod T]
  virtual void add_positions(R* x, const R* table, int begin, int T, int n, int h) = 0;
  virtual void add_positions_backward(R* dtable, const R* dx, int begin, int T, int n, int h) = 0;

  /// y [n, h]: row i is x's row order[i] (gather), or row order[i] is x's row i (scatter).
  virtual void gather_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) = 0;
  virtual void scatter_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) = 0;
  /// x [n, v]: each row becomes its softmax.
  virtual void softmax_rows(R* x, int n, int v) = 0;

  // Mixtures of experts: pair i · k + j is row i's j-th expert of E; places [n · k] the row that a
  // pair has among those that travel, or −1.
  /// experts [n · k]: each row's most probable, the lower number of equals; weights [n · k] their
  /// probabilities, over their sum where k > 1.
  virtual void top_k(std::int32_t* experts, R* weights, const R* probabilities, int n, int E,
                     int k) = 0;
  /// y: the row at a pair's place is x's row of the pair.
  virtual void spread_pairs(R* y, const R* x, const std::int32_t* places, int n, int k, int h) = 0;
  /// x [n, h] += Σ over its pairs of weight · the row of y at their place; weights null: all 1.
  virtual void gather_pairs(R* x, const R* y, const std::int32_t* places, const R* weights, int n,
                            int k, int h) = 0;
  /// gradients [n · k]: dx's row · the answer at the pair's place, 0 without one; dy: the row at a
  /// pair's place is its weight · dx's row.
  virtual void pair_slopes(R* grads, R* dy, const R* dx, const R* answers,
                           const std::int32_t* places, const R* weights, int n, int k, int h) = 0;
  /// dlogits [n, E]: through the weights, of gradients [n · k], and the softmax; the probability of
  /// expert e itself has the slope lift[e] where `lifts`. *balance += Σ lift · probabilities.
  virtual void gate_backward(R* dlogits, double* balance, const R* probabilities,
                             const std::int32_t* experts, const R* weights, const R* grads,
                             const double* lift, bool lifts, int n, int E, int k) = 0;

  // The loss over a vocabulary that may be spread over ranks: each holds columns [first, first +
  // v) of logits [n, v].
  /// most [n] = the largest logit here
  virtual void row_max(R* most, const R* logits, int n, int v) = 0;
  /// logits become exp(logit − most); sums[i] their sum, sums[n + i] the logit of the target less
  /// most, where the target is here, else 0.
  virtual void exp_rows(R* logits, R* sums, const R* most, const std::int32_t* targets, int first,
                        int n, int v) = 0;
  /// logits become (logit / sum − [column is the target]) · scale: the gradient. *loss += Σ
  /// log(sum) − target logit over the rows, in double.
  virtual void loss_rows(double* loss, R* logits, const R* sums, const std::int32_t* targets,
                         int first, R scale, int n, int v) = 0;

  // What replicas exchange in place of plain sums.
  /// y [n] = own · y + weight · x, in double.
  virtual void mix(R* y, double own, const R* x, double weight, std::size_t n) = 0;
  /// to: x [n] in 8 bits, Nearest8::bytes(n) of chorus/compress.hpp, laid out as there.
  virtual void pack(std::uint8_t* to, const R* x, std::size_t n) = 0;
  /// sum [n] += what pack() made.
  virtual void add_packed(R* sum, const std::uint8_t* from, std::size_t n) = 0;

  /// *sum += Σ x², in double.
  virtual void add_squares(double* sum, const R* x, std::size_t n) = 0;
  /// One AdamW step on x [n] (Loshchilov & Hutter, 2019), with moments m, v.
  virtual void adamw(R* x, R* m, R* v, const R* gradient, std::size_t n, const AdamW& how) = 0;
};

/// Products on one thread, and loops that the compiler turns into vector code. Scratch memory of
/// attention for sequences of up to `context` tokens is allocated here, once. Throws
/// chorus::InputError for bfloat16 of doubles.
template <class R>
std::unique_ptr<Ops<R>> make_cpu_ops(int context, Precision precision = Precision::full);

}  // namespace trainer
