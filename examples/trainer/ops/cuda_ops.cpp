#include "ops/cuda_ops.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "chorus/error.hpp"

namespace trainer {
namespace {

/// Queries whose scores exist at the same time.
constexpr int kQueryTile = 256;
/// Into so many parts column sums are cut: enough that a GPU is busy, few enough to be added.
constexpr std::size_t kColumnParts = 128;
/// Elements whose squares one team adds.
constexpr std::size_t kSquares = 1U << 14U;

/// Memory of the device that grows.
class Scratch {
 public:
  explicit Scratch(Gpu* gpu) : gpu_(gpu) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ != nullptr) gpu_->release(memory_);
  }
  template <class T>
  T* of(std::size_t count) {
    if (count * sizeof(T) > size_bytes_) {
      if (memory_ != nullptr) {
        gpu_->finish();  // earlier work may still use it
        gpu_->release(memory_);
      }
      memory_ = nullptr;
      size_bytes_ = count * sizeof(T) + count * sizeof(T) / 4;
      memory_ = gpu_->allocate(size_bytes_);
    }
    return static_cast<T*>(memory_);
  }

 private:
  Gpu* gpu_;
  void* memory_ = nullptr;
  std::size_t size_bytes_ = 0;
};

template <class R>
class CudaOps final : public Ops<R> {
 public:
  CudaOps(Gpu* gpu, Precision precision)
      : gpu_(gpu),
        bfloat16_(precision == Precision::bfloat16),
        left_(gpu),
        right_(gpu),
        parts_(gpu),
        numbers_(gpu),
        indices_(gpu),
        heads_(gpu),
        head_slopes_(gpu),
        scores_(gpu),
        score_slopes_(gpu),
        weights_(gpu),
        weight_slopes_(gpu) {
    if (bfloat16_ && !std::is_same_v<R, float>) {
      throw chorus::InputError("bfloat16 is for training in float32");
    }
  }

  [[nodiscard]] bool apart() const override { return true; }
  [[nodiscard]] int logit_rows() const override { return 4096; }
  void to_device(void* to, const void* from, std::size_t size_bytes) override {
    gpu_->copy(to, from, size_bytes);
  }
  void to_host(void* to, const void* from, std::size_t size_bytes) override {
    gpu_->copy(to, from, size_bytes);
  }

  void gemm(Op a, Op b, int m, int n, int k, const R* A, int lda, const R* B, int ldb, R beta, R* C,
            int ldc) override {
    if (m == 0 || n == 0 || (k == 0 && beta == R(1))) return;
    const bool ta = a == Op::transposed;
    const bool tb = b == Op::transposed;
    Gemm how{.a_transposed = ta, .b_transposed = tb, .m = m, .n = n, .k = k};
    how.A = A;
    how.lda = lda;
    how.B = B;
    how.ldb = ldb;
    how.C = C;
    how.ldc = ldc;
    how.beta = static_cast<double>(beta);
    if (bfloat16_) {
      how.A = rounded(left_, A, ta ? k : m, ta ? m : k, lda);
      how.B = rounded(right_, B, tb ? n : k, tb ? k : n, ldb);
      how.lda = ta ? m : k;
      how.ldb = tb ? k : n;
      how.bfloat16 = true;
    }
    product(how);
  }

  void add_bias(R* y, const R* bias, int n, int h) override {
    launch(kernel::AddBias<R>{y, bias, size(h)}, size(n) * size(h));
  }
  void add_column_sums(R* sums, const R* x, int n, int h) override {
    const auto [per, count] = parts_of(n);
    R* const parts = parts_.of<R>(count * size(h));
    launch(kernel::ColumnParts<R>{parts, x, size(n), size(h), per}, count * size(h));
    launch(kernel::AddParts<R>{sums, parts, count, size(h)}, size(h));
  }
  void add(R* y, const R* x, std::size_t n) override { launch(kernel::Add<R>{y, x}, n); }
  void copy(R* y, const R* x, std::size_t n) override {
    if (y != x && n > 0) gpu_->copy(y, x, n * sizeof(R));
  }
  void zero(R* y, std::size_t n) override { gpu_->zero(y, n * sizeof(R)); }
  void zero_sum(double* sum) override { gpu_->zero(sum, sizeof *sum); }

  void layer_norm(R* y, R* mean, R* scale, const R* x, const R* gain, const R* bias, int n,
                  int h) override {
    launch(kernel::Norm<R>{y, mean, scale, x, gain, bias, size(h)}, size(n));
  }
  void layer_norm_dx(R* dx, const R* dy, const R* x, const R* mean, const R* scale, const R* gain,
                     int n, int h) override {
    launch(kernel::NormSlope<R>{dx, dy, x, mean, scale, gain, size(h)}, size(n));
  }
  void layer_norm_dw(R* dgain, R* dbias, const R* dy, const R* x, const R* mean, const R* scale,
                     int n, int h) override {
    const auto [per, count] = parts_of(n);
    R* const gains = parts_.of<R>(2 * count * size(h));
    R* const biases = gains + count * size(h);
    launch(kernel::NormParts<R>{gains, biases, dy, x, mean, scale, size(n), size(h), per},
           count * size(h));
    launch(kernel::AddParts<R>{dgain, gains, count, size(h)}, size(h));
    launch(kernel::AddParts<R>{dbias, biases, count, size(h)}, size(h));
  }

  void mix(R* y, double own, const R* x, double weight, std::size_t n) override {
    launch(kernel::Mix<R>{y, x, own, weight}, n);
  }
  void pack(std::uint8_t* to, const R* x, std::size_t n) override {
    const std::size_t blocks = kernel::packed_blocks(n);
    launch(kernel::Pack<R>{to, x, n, blocks}, blocks);
  }
  void add_packed(R* sum, const std::uint8_t* from, std::size_t n) override {
    launch(kernel::AddPacked<R>{sum, from, kernel::packed_blocks(n)}, n);
  }

  void gelu(R* y, const R* x, std::size_t n) override { launch(kernel::Gelu<R>{y, x}, n); }
  void gelu_backward(R* d, const R* x, std::size_t n) override {
    launch(kernel::GeluBackward<R>{d, x}, n);
  }

  void attention(R* out, R* lse, const R* qkv, int batch, int T, int heads, int hd) override {
    if (bfloat16_) {
      attend<Bfloat16>(out, lse, qkv, {batch, T, heads, hd});
    } else {
      attend<R>(out, lse, qkv, {batch, T, heads, hd});
    }
  }
  void attention_backward(R* dqkv, const R* dout, const R* out, const R* lse, const R* qkv,
                          int batch, int T, int heads, int hd) override {
    if (bfloat16_) {
      attend_backward<Bfloat16>(dqkv, dout, out, lse, qkv, {batch, T, heads, hd});
    } else {
      attend_backward<R>(dqkv, dout, out, lse, qkv, {batch, T, heads, hd});
    }
  }

  void embed(R* x, const std::int32_t* ids, const R* table, int first, int rows, int n,
             int h) override {
    launch(kernel::Embed<R>{x, ids, table, first, rows, size(h)}, size(n) * size(h));
  }
  void embed_backward(R* dtable, const Both<std::int32_t>& ids, const R* dx, int first, int rows,
                      int n, int h) override {
    // Equal tokens side by side, found on the host, which knows them: no two threads add to one
    // row.
    order_.resize(size(n));
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, [&](std::int32_t i) { return ids.host[i]; });
    starts_.clear();
    into_.clear();
    std::int32_t end = 0;
    for (std::int32_t at = 0; at < n; ++at) {
      const std::int32_t row = ids.host[order_[size(at)]] - first;
      if (row < 0 || row >= rows) continue;
      if (into_.empty() || into_.back() != row) {
        starts_.push_back(at);
        into_.push_back(row);
      }
      end = at + 1;
    }
    if (into_.empty()) return;
    starts_.push_back(end);
    const std::size_t groups = into_.size();
    order_.insert(order_.end(), starts_.begin(), starts_.end());
    order_.insert(order_.end(), into_.begin(), into_.end());
    auto* const lists = indices_.of<std::int32_t>(order_.size());
    gpu_->copy(lists, order_.data(), order_.size() * sizeof(std::int32_t));
    launch(
        kernel::EmbedSlope<R>{dtable, dx, lists, lists + n, lists + size(n) + groups + 1, size(h)},
        groups * size(h));
  }
  void add_positions(R* x, const R* table, int begin, int T, int n, int h) override {
    launch(kernel::AddPositions<R>{x, table, size(begin), size(T), size(h)}, size(n) * size(h));
  }
  void add_positions_backward(R* dtable, const R* dx, int begin, int T, int n, int h) override {
    launch(kernel::PositionSlope<R>{dtable, dx, size(begin), size(T), size(n), size(h)},
           size(std::min(n, T)) * size(h));
  }

  void gather_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) override {
    launch(kernel::GatherRows<R>{y, x, order, size(h)}, n * size(h));
  }
  void scatter_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) override {
    launch(kernel::ScatterRows<R>{y, x, order, size(h)}, n * size(h));
  }
  void softmax_rows(R* x, int n, int v) override {
    launch(kernel::Softmax<R>{x, size(v)}, size(n));
  }

  void top_k(std::int32_t* experts, R* weights, const R* probabilities, int n, int E,
             int k) override {
    launch(kernel::TopK<R>{experts, weights, probabilities, E, k}, size(n));
  }
  void spread_pairs(R* y, const R* x, const std::int32_t* places, int n, int k, int h) override {
    launch(kernel::SpreadPairs<R>{y, x, places, size(k), size(h)}, size(n) * size(k) * size(h));
  }
  void gather_pairs(R* x, const R* y, const std::int32_t* places, const R* weights, int n, int k,
                    int h) override {
    launch(kernel::GatherPairs<R>{x, y, places, weights, size(k), size(h)}, size(n) * size(h));
  }
  void pair_slopes(R* grads, R* dy, const R* dx, const R* answers, const std::int32_t* places,
                   const R* weights, int n, int k, int h) override {
    launch(kernel::PairSlopes<R>{grads, dy, dx, answers, places, weights, size(k), size(h)},
           size(n) * size(k));
  }
  void gate_backward(R* dlogits, double* balance, const R* probabilities,
                     const std::int32_t* experts, const R* weights, const R* grads,
                     const double* lift, bool lifts, int n, int E, int k) override {
    auto* const balances = numbers_.of<double>(size(n));
    launch(kernel::GateSlope<R>{dlogits, balances, probabilities, experts, weights, grads, lift,
                                lifts, E, k},
           size(n));
    launch(kernel::SumInto<R>{balance, balances, size(n)}, 1);
  }

  void row_max(R* most, const R* logits, int n, int v) override {
    launch(kernel::RowMax<R>{most, logits, size(v)}, size(n));
  }
  void exp_rows(R* logits, R* sums, const R* most, const std::int32_t* targets, int first, int n,
                int v) override {
    launch(kernel::ExpRows<R>{logits, sums, most, targets, first, size(n), size(v)}, size(n));
  }
  void loss_rows(double* loss, R* logits, const R* sums, const std::int32_t* targets, int first,
                 R scale, int n, int v) override {
    auto* const losses = numbers_.of<double>(size(n));
    launch(kernel::LossRows<R>{losses, logits, sums, targets, first, scale, size(n), size(v)},
           size(n));
    launch(kernel::SumInto<R>{loss, losses, size(n)}, 1);
  }
  void add_squares(double* sum, const R* x, std::size_t n) override {
    const std::size_t count = (n + kSquares - 1) / kSquares;
    auto* const parts = numbers_.of<double>(count);
    launch(kernel::SquareParts<R>{parts, x, n, kSquares}, count);
    launch(kernel::SumInto<R>{sum, parts, count}, 1);
  }
  void adamw(R* x, R* m, R* v, const R* gradient, std::size_t n, const AdamW& how) override {
    launch(kernel::AdamStep<R>{.x = x,
                               .m = m,
                               .v = v,
                               .gradient = gradient,
                               .beta1 = R(how.beta1),
                               .beta2 = R(how.beta2),
                               .first = R(1 / (1 - std::pow(how.beta1, how.step))),
                               .second = R(1 / (1 - std::pow(how.beta2, how.step))),
                               .rate = R(how.learning_rate),
                               .keep = R(1 - how.learning_rate * how.weight_decay),
                               .scale = R(how.scale),
                               .epsilon = R(how.epsilon)},
           n);
  }

 private:
  struct Shape {
    int batch, T, heads, hd;

    [[nodiscard]] int all() const { return batch * heads; }
    [[nodiscard]] std::size_t piece() const { return size(all()) * size(T) * size(hd); }
  };
  /// One tile of queries.
  struct Tile {
    int begin, rows, keys;
  };

  static std::size_t size(int count) { return static_cast<std::size_t>(count); }
  /// Rows per part and parts of n rows.
  static std::pair<std::size_t, std::size_t> parts_of(int n) {
    const std::size_t per = std::max<std::size_t>(1, (size(n) + kColumnParts - 1) / kColumnParts);
    return {per, (size(n) + per - 1) / per};
  }
  template <class K>
  void launch(const K& what, std::size_t count) {
    if (count > 0) gpu_->launch(Kernel<R>(what), count);
  }
  void product(Gemm how) {
    how.doubles = std::is_same_v<R, double>;
    gpu_->gemm(how);
  }
  const Bfloat16* rounded(Scratch& into, const R* x, int rows, int cols, int ld) {
    auto* const y = into.of<Bfloat16>(size(rows) * size(cols));
    launch(kernel::Round<R>{y, x, size(cols), size(ld)}, size(rows) * size(cols));
    return y;
  }

  /// A product for every head: of pieces [T, hd] and tiles [rows, keys].
  void for_heads(const Shape& s, Gemm how, std::int64_t a, std::int64_t b, std::int64_t c,
                 bool bfloat16) {
    how.batch = s.all();
    how.a_stride = a;
    how.b_stride = b;
    how.c_stride = c;
    how.bfloat16 = bfloat16;
    product(how);
  }
  /// scores [heads · batch, rows, keys] = factor · x's rows of the tile · yᵀ
  template <class F>
  void tile_scores(const Shape& s, const Tile& t, const F* x, const F* y, double factor, R* into) {
    Gemm how{.b_transposed = true, .m = t.rows, .n = t.keys, .k = s.hd};
    how.A = x + size(t.begin) * size(s.hd);
    how.lda = s.hd;
    how.B = y;
    how.ldb = s.hd;
    how.C = into;
    how.ldc = t.keys;
    how.alpha = factor;
    const std::int64_t piece = std::int64_t{s.T} * s.hd;
    for_heads(s, how, piece, piece, std::int64_t{t.rows} * t.keys, std::is_same_v<F, Bfloat16>);
  }
  /// into's rows of the tile = factor · tile · y
  template <class F>
  void tile_rows(const Shape& s, const Tile& t, const F* tile, const F* y, double factor, R* into) {
    Gemm how{.m = t.rows, .n = s.hd, .k = t.keys};
    how.A = tile;
    how.lda = t.keys;
    how.B = y;
    how.ldb = s.hd;
    how.C = into + size(t.begin) * size(s.hd);
    how.ldc = s.hd;
    how.alpha = factor;
    const std::int64_t piece = std::int64_t{s.T} * s.hd;
    for_heads(s, how, std::int64_t{t.rows} * t.keys, piece, piece, std::is_same_v<F, Bfloat16>);
  }
  /// into's rows of the keys += factor · tileᵀ · x's rows of the tile
  template <class F>
  void tile_columns(const Shape& s, const Tile& t, const F* tile, const F* x, double factor,
                    R* into) {
    Gemm how{.a_transposed = true, .m = t.keys, .n = s.hd, .k = t.rows};
    how.A = tile;
    how.lda = t.keys;
    how.B = x + size(t.begin) * size(s.hd);
    how.ldb = s.hd;
    how.C = into;
    how.ldc = s.hd;
    how.alpha = factor;
    how.beta = 1;
    const std::int64_t piece = std::int64_t{s.T} * s.hd;
    for_heads(s, how, std::int64_t{t.rows} * t.keys, piece, piece, std::is_same_v<F, Bfloat16>);
  }
  template <class Visit>
  static void for_each_tile(const Shape& s, Visit visit) {
    for (int begin = 0; begin < s.T; begin += kQueryTile) {
      const int rows = std::min(kQueryTile, s.T - begin);
      visit(Tile{begin, rows, begin + rows});
    }
  }
  static std::size_t tile_size(const Shape& s) {
    return size(s.all()) * size(std::min(kQueryTile, s.T)) * size(s.T);
  }
  static kernel::PlaceOfHeads place(const Shape& s, std::size_t parts) {
    return {parts, size(s.T), size(s.heads), size(s.hd), s.piece()};
  }
  template <class F>
  void split(const Shape& s, F* into, const R* from, std::size_t parts) {
    launch(kernel::SplitHeads<R, F>{into, from, place(s, parts)}, parts * s.piece());
  }
  void merge(const Shape& s, R* into, const R* from, std::size_t parts) {
    launch(kernel::MergeHeads<R>{into, from, place(s, parts)}, parts * s.piece());
  }

  template <class F>
  void attend(R* out, R* lse, const R* qkv, const Shape& s) {
    F* const q = heads_.of<F>(4 * s.piece());
    F* const k = q + s.piece();
    F* const v = k + s.piece();
    R* const answers = head_slopes_.of<R>(3 * s.piece());
    R* const scores = scores_.of<R>(tile_size(s));
    split(s, q, qkv, 3);
    for_each_tile(s, [&](const Tile& t) {
      F* const p = weights_.of<F>(tile_size(s));
      tile_scores(s, t, q, k, 1 / std::sqrt(double(s.hd)), scores);
      launch(kernel::AttentionWeights<R, F>{p, scores, lse, size(t.begin), size(t.rows),
                                            size(t.keys), size(s.T)},
             size(s.all()) * size(t.rows));
      tile_rows(s, t, p, v, 1, answers);
    });
    merge(s, out, answers, 1);
  }

  template <class F>
  void attend_backward(R* dqkv, const R* dout, const R* out, const R* lse, const R* qkv,
                       const Shape& s) {
    const double factor = 1 / std::sqrt(double(s.hd));
    F* const q = heads_.of<F>(4 * s.piece());
    F* const k = q + s.piece();
    F* const v = k + s.piece();
    F* const d = v + s.piece();
    R* const dq = head_slopes_.of<R>(3 * s.piece());
    R* const dk = dq + s.piece();
    R* const dv = dk + s.piece();
    R* const scores = scores_.of<R>(tile_size(s));
    R* const dp = score_slopes_.of<R>(tile_size(s));
    R* const delta = parts_.of<R>(size(s.all()) * size(s.T));
    F* const p = weights_.of<F>(tile_size(s));
    F* const ds = weight_slopes_.of<F>(tile_size(s));
    split(s, q, qkv, 3);
    split(s, d, dout, 1);
    launch(kernel::HeadDots<R>{delta, dout, out, size(s.T), size(s.heads), size(s.hd)},
           size(s.all()) * size(s.T));
    zero(dk, 2 * s.piece());
    for_each_tile(s, [&](const Tile& t) {
      tile_scores(s, t, q, k, factor, scores);
      tile_scores(s, t, d, v, 1, dp);
      launch(kernel::AttentionSlopes<R, F>{p, ds, scores, dp, lse, delta, size(t.begin),
                                           size(t.rows), size(t.keys), size(s.T)},
             size(s.all()) * size(t.rows) * size(t.keys));
      tile_columns(s, t, p, d, 1, dv);
      tile_rows(s, t, ds, k, factor, dq);
      tile_columns(s, t, ds, q, factor, dk);
    });
    merge(s, dqkv, dq, 3);
  }

  Gpu* gpu_;
  bool bfloat16_;
  Scratch left_, right_;  ///< factors in bfloat16
  Scratch parts_;         ///< of column sums; attention's dots
  Scratch numbers_;       ///< doubles to be added
  Scratch indices_;       ///< of equal tokens
  Scratch heads_;         ///< query, key, value and dout by head
  Scratch head_slopes_;   ///< of query, key and value by head; the answers
  Scratch scores_, score_slopes_, weights_, weight_slopes_;  ///< of a tile
  std::vector<std::int32_t> order_, starts_, into_;
};

}  // namespace

template <class R>
std::unique_ptr<Ops<R>> make_cuda_ops(Gpu* gpu, Precision precision) {
  return std::make_unique<CudaOps<R>>(gpu, precision);
}
template std::unique_ptr<Ops<float>> make_cuda_ops<float>(Gpu*, Precision);
template std::unique_ptr<Ops<double>> make_cuda_ops<double>(Gpu*, Precision);

}  // namespace trainer
