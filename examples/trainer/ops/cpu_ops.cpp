// The cpu backend of Ops: products on one thread, and vector loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "chorus/compress.hpp"
#include "chorus/error.hpp"
#include "ops/cpu_math.hpp"
#include "ops/kernels_exchange.hpp"
#include "ops/ops.hpp"
#include "ops/row_math.hpp"

namespace trainer {
namespace {

using chorus::compress::Nearest8;

[[noreturn]] void only_float() {
  throw chorus::InputError("values and gradients can be quantized in float32 only");
}

constexpr int kQueryTile = 64;

template <class R>
class CpuOps final : public Ops<R> {
 public:
  CpuOps(int context, Precision precision)
      : bfloat16_(precision == Precision::bfloat16),
        scores_(static_cast<std::size_t>(kQueryTile) * context),
        slopes_(static_cast<std::size_t>(kQueryTile) * context) {
    if (bfloat16_ && !std::is_same_v<R, float>) {
      throw chorus::InputError("bfloat16 is for training in float32");
    }
  }

  void gemm(Op a, Op b, int m, int n, int k, const R* A, int lda, const R* B, int ldb, R beta, R* C,
            int ldc) override {
    if (m == 0 || n == 0) return;
    if (k == 0 && beta == R(1)) return;
    multiply(a, b, m, n, k, R(1), A, lda, B, ldb, beta, C, ldc);
    this->idle();
  }

  void add_bias(R* y, const R* bias, int n, int h) override {
    for (int i = 0; i < n; ++i) add(y + std::size_t(i) * h, bias, static_cast<std::size_t>(h));
  }
  void add_column_sums(R* sums, const R* x, int n, int h) override {
    // The sum of this call is made apart and added once: the same additions as when replicas
    // compute one call each and their results are reduced.
    column_.assign(static_cast<std::size_t>(h), R(0));
    for (int i = 0; i < n; ++i) add(column_.data(), x + std::size_t(i) * h, column_.size());
    add(sums, column_.data(), column_.size());
  }
  void add(R* y, const R* x, std::size_t n) override {
    for (std::size_t i = 0; i < n; ++i) y[i] += x[i];
  }
  void gather_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) override {
    for (std::size_t i = 0; i < n; ++i) std::copy_n(x + std::size_t(order[i]) * h, h, y + i * h);
  }
  void scatter_rows(R* y, const R* x, const std::int32_t* order, std::size_t n, int h) override {
    for (std::size_t i = 0; i < n; ++i) std::copy_n(x + i * h, h, y + std::size_t(order[i]) * h);
  }
  void softmax_rows(R* x, int n, int v) override {
    const auto width = static_cast<std::size_t>(v);
    for (int i = 0; i < n; ++i, x += v) {
      const R most = cpu::largest(x, width);
      for (std::size_t j = 0; j < width; ++j) x[j] = cpu::exponential(x[j] - most);
      const R sum = cpu::sum_of<R>(width, [&](std::size_t j) { return x[j]; });
      for (std::size_t j = 0; j < width; ++j) x[j] /= sum;
    }
  }
  void copy(R* y, const R* x, std::size_t n) override { std::copy_n(x, n, y); }
  void zero(R* y, std::size_t n) override { std::fill_n(y, n, R(0)); }
  void zero_sum(double* sum) override { *sum = 0; }

  [[nodiscard]] bool apart() const override { return false; }
  [[nodiscard]] int logit_rows() const override { return 256; }
  void to_device(void* to, const void* from, std::size_t size_bytes) override {
    if (to != from) std::memcpy(to, from, size_bytes);
  }
  void to_host(void* to, const void* from, std::size_t size_bytes) override {
    to_device(to, from, size_bytes);
  }

  void top_k(std::int32_t* experts, R* weights, const R* probabilities, int n, int E,
             int k) override {
    for (int i = 0; i < n; ++i, experts += k, weights += k, probabilities += E) {
      row::choose(experts, weights, probabilities, E, k);
    }
  }
  void spread_pairs(R* y, const R* x, const std::int32_t* places, int n, int k, int h) override {
    for (int pair = 0; pair < n * k; ++pair) {
      if (places[pair] < 0) continue;
      std::copy_n(x + std::size_t(pair / k) * h, h, y + std::size_t(places[pair]) * h);
    }
  }
  void gather_pairs(R* x, const R* y, const std::int32_t* places, const R* weights, int n, int k,
                    int h) override {
    for (int pair = 0; pair < n * k; ++pair) {
      if (places[pair] < 0) continue;
      R* to = x + std::size_t(pair / k) * h;
      const R* from = y + std::size_t(places[pair]) * h;
      if (weights == nullptr) {
        add(to, from, static_cast<std::size_t>(h));
      } else {
        for (int j = 0; j < h; ++j) to[j] += weights[pair] * from[j];
      }
    }
  }
  void pair_slopes(R* grads, R* dy, const R* dx, const R* answers, const std::int32_t* places,
                   const R* weights, int n, int k, int h) override {
    for (int pair = 0; pair < n * k; ++pair) {
      grads[pair] = R(0);
      if (places[pair] < 0) continue;
      const std::size_t at = std::size_t(places[pair]) * h;
      const R* d = dx + std::size_t(pair / k) * h;
      grads[pair] = cpu::sum_of<R>(static_cast<std::size_t>(h),
                                   [&](std::size_t j) { return d[j] * answers[at + j]; });
      for (int j = 0; j < h; ++j) dy[at + j] = weights[pair] * d[j];
    }
  }
  void gate_backward(R* dlogits, double* balance, const R* probabilities,
                     const std::int32_t* experts, const R* weights, const R* grads,
                     const double* lift, bool lifts, int n, int E, int k) override {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      const R* p = probabilities + std::size_t(i) * E;
      for (int e = 0; e < E; ++e) sum += lift[e] * static_cast<double>(p[e]);
      row::gate_backward(dlogits + std::size_t(i) * E, p, experts + std::size_t(i) * k,
                         weights + std::size_t(i) * k, grads + std::size_t(i) * k, lift, lifts, E,
                         k);
    }
    *balance += sum;
  }

  void layer_norm(R* y, R* mean, R* scale, const R* x, const R* gain, const R* bias, int n,
                  int h) override {
    const auto width = static_cast<std::size_t>(h);
    for (int row = 0; row < n; ++row, x += h, y += h) {
      const R middle = cpu::sum_of<R>(width, [&](std::size_t i) { return x[i]; }) / R(h);
      const R variance =
          cpu::sum_of<R>(width, [&](std::size_t i) { return (x[i] - middle) * (x[i] - middle); }) /
          R(h);
      const R inverse = R(1) / std::sqrt(variance + R(1e-5));
      for (std::size_t i = 0; i < width; ++i) y[i] = (x[i] - middle) * inverse * gain[i] + bias[i];
      mean[row] = middle;
      scale[row] = inverse;
    }
  }
  void layer_norm_dx(R* dx, const R* dy, const R* x, const R* mean, const R* scale, const R* gain,
                     int n, int h) override {
    const auto width = static_cast<std::size_t>(h);
    for (int row = 0; row < n; ++row, x += h, dy += h, dx += h) {
      const R middle = mean[row];
      const R inverse = scale[row];
      const R sum = cpu::sum_of<R>(width, [&](std::size_t i) { return dy[i] * gain[i]; }) / R(h);
      const R tilt =
          cpu::sum_of<R>(
              width, [&](std::size_t i) { return dy[i] * gain[i] * ((x[i] - middle) * inverse); }) /
          R(h);
      for (std::size_t i = 0; i < width; ++i) {
        dx[i] += inverse * (dy[i] * gain[i] - sum - (x[i] - middle) * inverse * tilt);
      }
    }
  }
  void layer_norm_dw(R* dgain, R* dbias, const R* dy, const R* x, const R* mean, const R* scale,
                     int n, int h) override {
    const auto width = static_cast<std::size_t>(h);
    column_.assign(width * 2, R(0));
    R* gains = column_.data();
    R* biases = gains + width;
    for (int row = 0; row < n; ++row, x += h, dy += h) {
      for (std::size_t i = 0; i < width; ++i) {
        gains[i] += dy[i] * ((x[i] - mean[row]) * scale[row]);
        biases[i] += dy[i];
      }
    }
    add(dgain, gains, width);
    add(dbias, biases, width);
  }

  void gelu(R* y, const R* x, std::size_t n) override {
    for (std::size_t i = 0; i < n; ++i) y[i] = x[i] * cpu::gelu_share(x[i]);
    this->idle();
  }
  void gelu_backward(R* d, const R* x, std::size_t n) override {
    for (std::size_t i = 0; i < n; ++i) d[i] *= cpu::gelu_slope(x[i]);
    this->idle();
  }

  void attention(R* out, R* lse, const R* qkv, int batch, int T, int heads, int hd) override {
    for (int b = 0; b < batch; ++b) {
      for (int head = 0; head < heads; ++head) {
        const std::size_t row = std::size_t(b) * T;
        attend(out + row * heads * hd + head * hd, lse + (std::size_t(b) * heads + head) * T,
               qkv + row * heads * 3 * hd + head * 3 * hd, T, heads, hd);
        this->idle();
      }
    }
  }
  void attention_backward(R* dqkv, const R* dout, const R* out, const R* lse, const R* qkv,
                          int batch, int T, int heads, int hd) override {
    zero(dqkv, std::size_t(batch) * T * heads * 3 * hd);
    for (int b = 0; b < batch; ++b) {
      for (int head = 0; head < heads; ++head) {
        const std::size_t row = std::size_t(b) * T;
        const std::size_t at = row * heads * hd + head * hd;
        attend_backward(dqkv + at * 3, dout + at, out + at,
                        lse + (std::size_t(b) * heads + head) * T, qkv + at * 3, T, heads, hd);
        this->idle();
      }
    }
  }

  void embed(R* x, const std::int32_t* ids, const R* table, int first, int rows, int n,
             int h) override {
    for (int i = 0; i < n; ++i, x += h) {
      const int row = ids[i] - first;
      if (row >= 0 && row < rows) {
        std::copy_n(table + std::size_t(row) * h, h, x);
      } else {
        std::fill_n(x, h, R(0));
      }
    }
  }
  void embed_backward(R* dtable, const Both<std::int32_t>& both, const R* dx, int first, int rows,
                      int n, int h) override {
    const std::int32_t* const ids = both.host;
    // Row by row of the table, each summed apart and added once (as in add_column_sums).
    by_id_.resize(static_cast<std::size_t>(n));
    std::iota(by_id_.begin(), by_id_.end(), 0);
    std::ranges::sort(by_id_,
                      [&](int a, int b) { return std::pair(ids[a], a) < std::pair(ids[b], b); });
    column_.resize(static_cast<std::size_t>(h));
    for (std::size_t i = 0; i < by_id_.size();) {
      const std::int32_t id = ids[by_id_[i]];
      zero(column_.data(), column_.size());
      for (; i < by_id_.size() && ids[by_id_[i]] == id; ++i) {
        add(column_.data(), dx + std::size_t(by_id_[i]) * h, column_.size());
      }
      if (id < first || id >= first + rows) continue;
      add(dtable + std::size_t(id - first) * h, column_.data(), column_.size());
    }
  }
  void add_positions(R* x, const R* table, int begin, int T, int n, int h) override {
    for (int i = 0; i < n; ++i) {
      add(x + std::size_t(i) * h, table + std::size_t((begin + i) % T) * h,
          static_cast<std::size_t>(h));
    }
  }
  void add_positions_backward(R* dtable, const R* dx, int begin, int T, int n, int h) override {
    column_.resize(static_cast<std::size_t>(h));
    for (int i = 0; i < std::min(n, T); ++i) {
      zero(column_.data(), column_.size());
      for (int row = i; row < n; row += T) {
        add(column_.data(), dx + std::size_t(row) * h, column_.size());
      }
      add(dtable + std::size_t((begin + i) % T) * h, column_.data(), column_.size());
    }
  }

  void row_max(R* most, const R* logits, int n, int v) override {
    for (int i = 0; i < n; ++i) {
      most[i] = cpu::largest(logits + std::size_t(i) * v, static_cast<std::size_t>(v));
    }
  }
  void exp_rows(R* logits, R* sums, const R* most, const std::int32_t* targets, int first, int n,
                int v) override {
    for (int i = 0; i < n; ++i, logits += v) {
      const int target = targets[i] - first;
      sums[n + i] = target >= 0 && target < v ? logits[target] - most[i] : R(0);
      for (int j = 0; j < v; ++j) logits[j] = cpu::exponential(logits[j] - most[i]);
      sums[i] =
          cpu::sum_of<R>(static_cast<std::size_t>(v), [&](std::size_t j) { return logits[j]; });
    }
  }
  void loss_rows(double* total, R* logits, const R* sums, const std::int32_t* targets, int first,
                 R scale, int n, int v) override {
    double loss = 0;
    for (int i = 0; i < n; ++i, logits += v) {
      loss += std::log(static_cast<double>(sums[i])) - static_cast<double>(sums[n + i]);
      const R factor = scale / sums[i];
      for (int j = 0; j < v; ++j) logits[j] *= factor;
      const int target = targets[i] - first;
      if (target >= 0 && target < v) logits[target] -= scale;
    }
    *total += loss;
  }

  void mix(R* y, double own, const R* x, double weight, std::size_t n) override {
    kernel::Mix<R> mixed{y, x, own, weight};
    for (std::size_t i = 0; i < n; ++i) mixed(i);
  }
  void pack(std::uint8_t* to, const R* x, std::size_t n) override {
    if constexpr (std::is_same_v<R, float>) {
      const std::size_t bytes = Nearest8().bytes(n);
      Nearest8().encode({x, n}, 0, std::as_writable_bytes(std::span(to, bytes)));
    } else {
      only_float();
    }
  }
  void add_packed(R* sum, const std::uint8_t* from, std::size_t n) override {
    if constexpr (std::is_same_v<R, float>) {
      const std::size_t bytes = Nearest8().bytes(n);
      Nearest8().add(std::as_bytes(std::span(from, bytes)), 1.0F, {sum, n});
    } else {
      only_float();
    }
  }

  void add_squares(double* sum, const R* x, std::size_t n) override {
    *sum += cpu::sum_of<double>(n, [&](std::size_t i) { return double(x[i]) * double(x[i]); });
  }
  void adamw(R* x, R* m, R* v, const R* gradient, std::size_t n, const AdamW& how) override {
    const R b1 = R(how.beta1);
    const R b2 = R(how.beta2);
    const R first = R(1 / (1 - std::pow(how.beta1, how.step)));
    const R second = R(1 / (1 - std::pow(how.beta2, how.step)));
    const R rate = R(how.learning_rate);
    const R keep = R(1 - how.learning_rate * how.weight_decay);
    const R scale = R(how.scale);
    const R epsilon = R(how.epsilon);
    for (std::size_t i = 0; i < n; ++i) {
      const R g = gradient[i] * scale;
      m[i] = b1 * m[i] + (R(1) - b1) * g;
      v[i] = b2 * v[i] + (R(1) - b2) * g * g;
      x[i] = keep * x[i] - rate * (m[i] * first) / (std::sqrt(v[i] * second) + epsilon);
    }
  }

 private:
  /// One head: scores of a tile of queries against all keys up to it, never a T×T matrix.
  void attend(R* out, R* lse, const R* qkv, int T, int heads, int hd) {
    const int ld = heads * 3 * hd;
    const R scale = R(1) / std::sqrt(R(hd));
    for (int begin = 0; begin < T; begin += kQueryTile) {
      const int rows = std::min(kQueryTile, T - begin);
      const int keys = begin + rows;
      R* s = scores_.data();
      multiply(Op::as_is, Op::transposed, rows, keys, hd, scale, qkv + std::size_t(begin) * ld, ld,
               qkv + hd, ld, R(0), s, keys);
      for (int i = 0; i < rows; ++i, s += keys) {
        const auto seen = static_cast<std::size_t>(begin) + static_cast<std::size_t>(i) + 1;
        const R most = cpu::largest(s, seen);
        for (std::size_t j = 0; j < seen; ++j) s[j] = cpu::exponential(s[j] - most);
        const R sum = cpu::sum_of<R>(seen, [&](std::size_t j) { return s[j]; });
        const R inverse = R(1) / sum;
        for (std::size_t j = 0; j < seen; ++j) s[j] *= inverse;
        std::fill(s + seen, s + keys, R(0));
        lse[begin + i] = most + std::log(sum);
      }
      multiply(Op::as_is, Op::as_is, rows, hd, keys, R(1), scores_.data(), keys, qkv + 2 * hd, ld,
               R(0), out + std::size_t(begin) * heads * hd, heads * hd);
    }
  }

  void attend_backward(R* dqkv, const R* dout, const R* out, const R* lse, const R* qkv, int T,
                       int heads, int hd) {
    const int ld = heads * 3 * hd;
    const int ldo = heads * hd;
    const R scale = R(1) / std::sqrt(R(hd));
    for (int begin = 0; begin < T; begin += kQueryTile) {
      const int rows = std::min(kQueryTile, T - begin);
      const int keys = begin + rows;
      const R* q = qkv + std::size_t(begin) * ld;
      const R* d = dout + std::size_t(begin) * ldo;
      const R* o = out + std::size_t(begin) * ldo;
      multiply(Op::as_is, Op::transposed, rows, keys, hd, scale, q, ld, qkv + hd, ld, R(0),
               scores_.data(), keys);
      multiply(Op::as_is, Op::transposed, rows, keys, hd, R(1), d, ldo, qkv + 2 * hd, ld, R(0),
               slopes_.data(), keys);
      for (int i = 0; i < rows; ++i) {
        const auto seen = static_cast<std::size_t>(begin) + static_cast<std::size_t>(i) + 1;
        R* p = scores_.data() + std::size_t(i) * keys;
        R* ds = slopes_.data() + std::size_t(i) * keys;
        const R delta = cpu::sum_of<R>(static_cast<std::size_t>(hd), [&](std::size_t j) {
          return d[std::size_t(i) * ldo + j] * o[std::size_t(i) * ldo + j];
        });
        const R total = lse[begin + i];
        for (std::size_t j = 0; j < seen; ++j) p[j] = cpu::exponential(p[j] - total);
        for (std::size_t j = 0; j < seen; ++j) ds[j] = p[j] * (ds[j] - delta);
        std::fill(p + seen, p + keys, R(0));
        std::fill(ds + seen, ds + keys, R(0));
      }
      multiply(Op::transposed, Op::as_is, keys, hd, rows, R(1), scores_.data(), keys, d, ldo, R(1),
               dqkv + 2 * hd, ld);
      multiply(Op::as_is, Op::as_is, rows, hd, keys, scale, slopes_.data(), keys, qkv + hd, ld,
               R(0), dqkv + std::size_t(begin) * ld, ld);
      multiply(Op::transposed, Op::as_is, keys, hd, rows, scale, slopes_.data(), keys, q, ld, R(1),
               dqkv + hd, ld);
    }
  }

  /// C = alpha · op(A) · op(B) + beta · C
  void multiply(Op a, Op b, int m, int n, int k, R alpha, const R* A, int lda, const R* B, int ldb,
                R beta, R* C, int ldc) {
    if constexpr (std::is_same_v<R, float>) {
      if (bfloat16_) {
        const bool ta = a == Op::transposed;
        const bool tb = b == Op::transposed;
        const Bfloat16* left = rounded(left_, A, ta ? k : m, ta ? m : k, lda);
        const Bfloat16* right = rounded(right_, B, tb ? n : k, tb ? k : n, ldb);
        products_.multiply(a, b, m, n, k, alpha, left, ta ? m : k, right, tb ? k : n, beta, C, ldc);
        return;
      }
    }
    products_.multiply(a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
  }

  /// x [rows, cols] in bfloat16, without gaps between rows.
  static const Bfloat16* rounded(std::vector<Bfloat16>& into, const float* x, int rows, int cols,
                                 int ld) {
    const auto width = static_cast<std::size_t>(cols);
    const std::size_t count = static_cast<std::size_t>(rows) * width;
    if (into.size() < count) into.resize(count);
    for (int i = 0; i < rows; ++i) {
      const float* from = x + std::size_t(i) * ld;
      Bfloat16* to = into.data() + std::size_t(i) * width;
      for (std::size_t j = 0; j < width; ++j) to[j] = kernel::rounded(from[j]);
    }
    return into.data();
  }

  bool bfloat16_;
  Products products_;
  std::vector<Bfloat16> left_, right_;
  std::vector<R> scores_, slopes_;
  std::vector<R> column_;
  std::vector<int> by_id_;
};

}  // namespace

template <class R>
std::unique_ptr<Ops<R>> make_cpu_ops(int context, Precision precision) {
  return std::make_unique<CpuOps<R>>(context, precision);
}
template std::unique_ptr<Ops<float>> make_cpu_ops<float>(int, Precision);
template std::unique_ptr<Ops<double>> make_cpu_ops<double>(int, Precision);

}  // namespace trainer
