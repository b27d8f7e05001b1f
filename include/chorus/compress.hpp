// Communication-efficient sums: compressors with error feedback over all_gather. Header only, on
// the public API.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus::compress {

/// Turns a vector of floats into fewer bytes and back.
class Compressor {
 public:
  virtual ~Compressor() = default;

  /// Bytes of what encode() writes for `count` values, at most: the same on every rank.
  [[nodiscard]] virtual std::size_t bytes(std::size_t count) const = 0;

  /// Whether payloads may be shorter, by what the values are.
  [[nodiscard]] virtual bool varies() const { return false; }
  /// The bytes of `payload` [bytes(n)] that hold everything: its first.
  [[nodiscard]] virtual std::size_t used(std::span<const std::byte> payload) const {
    return payload.size();
  }

  /// payload [bytes(values.size())]; where payloads vary, only used() of it is written. `seed`
  /// drives random rounding; the same input and seed give the same bytes.
  virtual void encode(std::span<const float> values, std::uint64_t seed,
                      std::span<std::byte> payload) const = 0;

  /// sum [count] += factor · what `payload`, whole or its used() bytes, decodes to.
  virtual void add(std::span<const std::byte> payload, float factor,
                   std::span<float> sum) const = 0;
};

namespace detail {
/// Uniform in [0, 1) by position (SplitMix64's finalizer).
inline float uniform(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24F;
}
template <class T>
void put(std::span<std::byte> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <class T>
T get(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Of `places`, the k whose values are largest in magnitude (ties: the first), in order.
inline void keep_largest(std::span<const float> values, std::vector<std::uint32_t>& places,
                         std::size_t k) {
  if (places.size() <= k) return;
  const auto larger = [&](std::uint32_t a, std::uint32_t b) {
    const float x = std::abs(values[a]);
    const float y = std::abs(values[b]);
    return x > y || (x == y && a < b);
  };
  const auto end = places.begin() + static_cast<std::ptrdiff_t>(k);
  std::nth_element(places.begin(), end - 1, places.end(), larger);
  places.resize(k);
  std::sort(places.begin(), places.end());
}
/// Places and values in turn, 4 bytes each.
inline void put_pairs(std::span<std::byte> payload, std::span<const float> values,
                      std::span<const std::uint32_t> places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    put(payload, 8 * i, places[i]);
    put(payload, 8 * i + 4, values[places[i]]);
  }
}
inline void add_pairs(std::span<const std::byte> payload, float factor, std::span<float> sum) {
  for (std::size_t i = 0; i < payload.size() / 8; ++i) {
    const auto place = get<std::uint32_t>(payload, 8 * i);
    if (place < sum.size()) sum[place] += factor * get<float>(payload, 8 * i + 4);
  }
}
}  // namespace detail

/// QSGD (Alistarh et al., 2017) with 8 bits per value: in each block of 512, |x| over the largest
/// is rounded up or down to one of `levels` steps at random, so that the mean is x. Unbiased; the
/// error of a value is at most largest / levels, its variance at most (largest / levels)² / 4.
class Qsgd final : public Compressor {
 public:
  /// levels in [1, 127]
  explicit Qsgd(int levels = 127) : levels_(std::clamp(levels, 1, 127)) {}

  [[nodiscard]] std::size_t bytes(std::size_t count) const override {
    return blocks(count) * sizeof(float) + count;
  }
  void encode(std::span<const float> values, std::uint64_t seed,
              std::span<std::byte> payload) const override {
    const std::size_t codes = blocks(values.size()) * sizeof(float);
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const std::size_t end = std::min(values.size(), begin + kBlock);
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      detail::put(payload, begin / kBlock * sizeof(float), largest);
      const float scale = largest > 0 ? static_cast<float>(levels_) / largest : 0;
      for (std::size_t i = begin; i < end; ++i) {
        const float steps = std::floor(std::abs(values[i]) * scale + detail::uniform(seed, i));
        const float bounded = std::min(steps, static_cast<float>(levels_));
        detail::put(payload, codes + i,
                    static_cast<std::int8_t>(values[i] < 0 ? -bounded : bounded));
      }
    }
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    const std::size_t codes = blocks(sum.size()) * sizeof(float);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto step =
          detail::get<float>(payload, i / kBlock * sizeof(float)) / static_cast<float>(levels_);
      sum[i] += factor * step * static_cast<float>(detail::get<std::int8_t>(payload, codes + i));
    }
  }

 private:
  static constexpr std::size_t kBlock = 512;
  static std::size_t blocks(std::size_t count) { return (count + kBlock - 1) / kBlock; }
  int levels_;
};

/// Blocks of 512 values in 8 bits: each is rounded to the nearest of 127 steps of its block's
/// largest magnitude, on either side of zero. Biased, but the error of a value is at most largest /
/// 254 and equal inputs give equal bytes: for weights (ZeRO++'s qwZ), and for gradients that are
/// summed in float32 (qgZ).
class Nearest8 final : public Compressor {
 public:
  [[nodiscard]] std::size_t bytes(std::size_t count) const override {
    return blocks(count) * sizeof(float) + count;
  }
  void encode(std::span<const float> values, std::uint64_t /*seed*/,
              std::span<std::byte> payload) const override {
    auto* const codes =
        reinterpret_cast<std::int8_t*>(payload.data()) + blocks(values.size()) * sizeof(float);
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const std::size_t end = std::min(values.size(), begin + kBlock);
      float largest = 0;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      detail::put(payload, begin / kBlock * sizeof(float), largest / 127);
      const float scale = largest > 0 ? 127 / largest : 0;
      for (std::size_t i = begin; i < end; ++i) {
        codes[i] = static_cast<std::int8_t>(std::nearbyint(values[i] * scale));
      }
    }
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    const auto* const codes =
        reinterpret_cast<const std::int8_t*>(payload.data()) + blocks(sum.size()) * sizeof(float);
    for (std::size_t begin = 0; begin < sum.size(); begin += kBlock) {
      const std::size_t end = std::min(sum.size(), begin + kBlock);
      const float step = factor * detail::get<float>(payload, begin / kBlock * sizeof(float));
      for (std::size_t i = begin; i < end; ++i) sum[i] += step * static_cast<float>(codes[i]);
    }
  }

 private:
  static constexpr std::size_t kBlock = 512;
  static std::size_t blocks(std::size_t count) { return (count + kBlock - 1) / kBlock; }
};

/// 1-bit SGD (Seide et al., 2014): the sign of each value, and per block of 512 the mean of the
/// values of either sign. Contractive: ‖C(x) − x‖² ≤ ‖x‖²; needs error feedback.
class OneBit final : public Compressor {
 public:
  [[nodiscard]] std::size_t bytes(std::size_t count) const override {
    return blocks(count) * 2 * sizeof(float) + (count + 7) / 8;
  }
  void encode(std::span<const float> values, std::uint64_t /*seed*/,
              std::span<std::byte> payload) const override {
    const std::size_t signs = blocks(values.size()) * 2 * sizeof(float);
    std::fill(payload.begin() + static_cast<std::ptrdiff_t>(signs), payload.end(), std::byte{0});
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const std::size_t end = std::min(values.size(), begin + kBlock);
      float sums[2] = {0, 0};
      float counts[2] = {0, 0};
      for (std::size_t i = begin; i < end; ++i) {
        const bool negative = values[i] < 0;
        sums[negative] += values[i];
        counts[negative] += 1;
        if (negative) payload[signs + i / 8] |= std::byte(1U << (i % 8));
      }
      for (std::size_t side = 0; side < 2; ++side) {
        detail::put(payload, (begin / kBlock * 2 + side) * sizeof(float),
                    counts[side] > 0 ? sums[side] / counts[side] : 0.0F);
      }
    }
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    const std::size_t signs = blocks(sum.size()) * 2 * sizeof(float);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto bit = static_cast<std::size_t>(payload[signs + i / 8] >> (i % 8)) & 1U;
      sum[i] += factor * detail::get<float>(payload, (i / kBlock * 2 + bit) * sizeof(float));
    }
  }

 private:
  static constexpr std::size_t kBlock = 512;
  static std::size_t blocks(std::size_t count) { return (count + kBlock - 1) / kBlock; }
};

/// The k = share · count values of largest magnitude, with their places (ties: the first).
/// Contractive: ‖C(x) − x‖² ≤ (1 − k/d)·‖x‖² (Stich et al., 2018); needs error feedback.
class TopK final : public Compressor {
 public:
  /// share in (0, 1]
  explicit TopK(double share = 0.01) : share_(std::clamp(share, 1e-9, 1.0)) {}

  [[nodiscard]] std::size_t kept(std::size_t count) const {
    return std::min(count, std::max<std::size_t>(
                               1, static_cast<std::size_t>(share_ * static_cast<double>(count))));
  }
  [[nodiscard]] std::size_t bytes(std::size_t count) const override { return 8 * kept(count); }
  void encode(std::span<const float> values, std::uint64_t /*seed*/,
              std::span<std::byte> payload) const override {
    std::vector<std::uint32_t> places(values.size());
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint32_t>(i);
    detail::keep_largest(values, places, kept(values.size()));
    detail::put_pairs(payload, values, places);
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    detail::add_pairs(payload, factor, sum);
  }

 private:
  double share_;
};

/// The values of at least a threshold in magnitude, with their places (Strom, 2015; Aji & Heafield,
/// 2017), but no more than a share of all: of more, the largest. Contractive: ‖C(x) − x‖² < ‖x‖²
/// where anything is sent; needs error feedback, by which what stays below the threshold grows
/// until it passes. Payloads vary: 4 bytes for their number, 8 for each.
class Threshold final : public Compressor {
 public:
  /// threshold of at least 0, most in (0, 1]
  explicit Threshold(float threshold, double most = 1.0)
      : threshold_(std::max(0.0F, threshold)), most_(most) {}

  [[nodiscard]] std::size_t bytes(std::size_t count) const override {
    return 4 + most_.bytes(count);
  }
  [[nodiscard]] bool varies() const override { return true; }
  [[nodiscard]] std::size_t used(std::span<const std::byte> payload) const override {
    return 4 + 8 * number(payload);
  }
  void encode(std::span<const float> values, std::uint64_t /*seed*/,
              std::span<std::byte> payload) const override {
    std::vector<std::uint32_t> places;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::abs(values[i]) >= threshold_) places.push_back(static_cast<std::uint32_t>(i));
    }
    detail::keep_largest(values, places, most_.kept(values.size()));
    detail::put(payload, 0, static_cast<std::uint32_t>(places.size()));
    detail::put_pairs(payload.subspan(4), values, places);
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    detail::add_pairs(payload.subspan(4, 8 * number(payload)), factor, sum);
  }

 private:
  /// Of pairs; of a payload from elsewhere no more than it holds.
  static std::size_t number(std::span<const std::byte> payload) {
    return std::min<std::size_t>(detail::get<std::uint32_t>(payload, 0), (payload.size() - 4) / 8);
  }
  float threshold_;
  TopK most_;
};

/// NEOLITHIC's way to send (Huang et al., 2022: fast compressed communication): what a compressor
/// loses is compressed again, `rounds` times over, and all payloads go at once. Contractive with
/// (1 − δ)^rounds where `how` is with 1 − δ; unbiased where `how` is, with a variance of at most
/// ω^rounds where `how` has ω. The paper takes gradients of as many micro-batches per step.
class Neolithic final : public Compressor {
 public:
  /// rounds of at least 1
  Neolithic(std::unique_ptr<Compressor> how, int rounds)
      : how_(std::move(how)), rounds_(static_cast<std::size_t>(std::max(1, rounds))) {}

  [[nodiscard]] std::size_t bytes(std::size_t count) const override {
    return rounds_ * how_->bytes(count);
  }
  void encode(std::span<const float> values, std::uint64_t seed,
              std::span<std::byte> payload) const override {
    std::vector<float> left(values.begin(), values.end());
    const std::size_t size = how_->bytes(values.size());
    for (std::size_t r = 0; r < rounds_; ++r) {
      const auto round = payload.subspan(r * size, size);
      how_->encode(left, seed + r * 0xd1342543de82ef95ULL, round);
      how_->add(round, -1.0F, left);
    }
  }
  void add(std::span<const std::byte> payload, float factor, std::span<float> sum) const override {
    const std::size_t size = how_->bytes(sum.size());
    for (std::size_t r = 0; r < rounds_; ++r) {
      how_->add(payload.subspan(r * size, size), factor, sum);
    }
  }

 private:
  std::unique_ptr<Compressor> how_;
  std::size_t rounds_;
};

/// encode() with error feedback (Karimireddy et al., 2019): values [n] += error, and error becomes
/// what the payload does not hold. An empty `error`: without.
inline void encode_with_feedback(const Compressor& how, std::span<float> values,
                                 std::span<float> error, std::uint64_t seed,
                                 std::span<std::byte> payload) {
  for (std::size_t i = 0; i < error.size(); ++i) values[i] += error[i];
  how.encode(values, seed, payload);
  if (error.empty()) return;
  std::copy(values.begin(), values.end(), error.begin());
  how.add(payload, -1.0F, error);
}

/// EF21 (Richtárik et al., 2021): ranks send compressed differences to an estimate of their vector
/// that everybody can follow, so what a compressor loses of a vector that settles goes to zero.
/// values [n] becomes what is to be sent; `estimate` [n] of this rank moves by what the payload
/// holds.
inline void encode_difference(const Compressor& how, std::span<float> values,
                              std::span<float> estimate, std::uint64_t seed,
                              std::span<std::byte> payload) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= estimate[i];
  how.encode(values, seed, payload);
  how.add(payload, 1.0F, estimate);
}

/// PowerSGD (Vogels et al., 2019): a matrix M [rows, cols] summed over ranks as P·Qᵀ of low rank,
/// by one step of power iteration from the last Q:
///
///   P = Σ M·Q, orthonormalized; Q = Σ Mᵀ·P; result P·Qᵀ
///
/// Two all_reduces of rank·(rows + cols) floats in place of rows·cols. What the sum loses is the
/// sum of what each rank loses, M − P·(Mᵀ·P)ᵀ: its error to add to the next M.
class PowerSgd {
 public:
  PowerSgd(std::size_t rows, std::size_t cols, std::size_t rank)
      : rows_(rows), cols_(cols), rank_(std::min({rank, rows, cols})) {}

  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] std::size_t p_count() const { return rows_ * rank_; }
  [[nodiscard]] std::size_t q_count() const { return cols_ * rank_; }

  /// q [cols, rank] to begin with, the same on every rank that gives the same seed.
  void start(std::span<float> q, std::uint64_t seed) const {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = detail::uniform(seed, i) - 0.5F;
  }
  /// p [rows, rank] = M·q, to be summed over ranks.
  void left(std::span<const float> matrix, std::span<const float> q, std::span<float> p) const {
    std::fill(p.begin(), p.end(), 0.0F);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        for (std::size_t k = 0; k < rank_; ++k) {
          p[i * rank_ + k] += matrix[i * cols_ + j] * q[j * rank_ + k];
        }
      }
    }
  }
  /// The summed p, made orthonormal by columns (Gram and Schmidt, twice): alike on all ranks.
  void orthonormalize(std::span<float> p) const {
    for (std::size_t k = 0; k < rank_; ++k) {
      for (int twice = 0; twice < 2; ++twice) {
        for (std::size_t before = 0; before < k; ++before) {
          const double along = dot(p, k, before);
          for (std::size_t i = 0; i < rows_; ++i) {
            p[i * rank_ + k] -= static_cast<float>(along) * p[i * rank_ + before];
          }
        }
        const double norm = std::sqrt(dot(p, k, k));
        const auto scale = static_cast<float>(norm > 1e-20 ? 1 / norm : 0);
        for (std::size_t i = 0; i < rows_; ++i) p[i * rank_ + k] *= scale;
      }
    }
  }
  /// q [cols, rank] = Mᵀ·p, to be summed over ranks.
  void right(std::span<const float> matrix, std::span<const float> p, std::span<float> q) const {
    std::fill(q.begin(), q.end(), 0.0F);
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        for (std::size_t k = 0; k < rank_; ++k) {
          q[j * rank_ + k] += matrix[i * cols_ + j] * p[i * rank_ + k];
        }
      }
    }
  }
  /// matrix += factor · P·Qᵀ
  void add_product(std::span<const float> p, std::span<const float> q, float factor,
                   std::span<float> matrix) const {
    for (std::size_t i = 0; i < rows_; ++i) {
      for (std::size_t j = 0; j < cols_; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < rank_; ++k) sum += p[i * rank_ + k] * q[j * rank_ + k];
        matrix[i * cols_ + j] += factor * sum;
      }
    }
  }

 private:
  [[nodiscard]] double dot(std::span<const float> p, std::size_t a, std::size_t b) const {
    double sum = 0;
    for (std::size_t i = 0; i < rows_; ++i) sum += double(p[i * rank_ + a]) * p[i * rank_ + b];
    return sum;
  }
  std::size_t rows_, cols_, rank_;
};

/// Replaces `matrix` by the sum over ranks of what PowerSGD keeps of it; `q` [q_count()] is kept
/// between calls, and so is `error` [rows · cols] (empty: without feedback). All ranks end with the
/// same bits.
inline void all_reduce(Communicator& ranks, const PowerSgd& how, std::span<float> matrix,
                       std::span<float> q, std::span<float> error) {
  std::vector<float> p(how.p_count());
  for (std::size_t i = 0; i < error.size(); ++i) matrix[i] += error[i];
  how.left(matrix, q, p);
  ranks.all_reduce<float>(p);
  how.orthonormalize(p);
  how.right(matrix, p, q);
  std::copy_n(matrix.begin(), error.size(), error.begin());
  if (!error.empty()) how.add_product(p, q, -1.0F, error);
  ranks.all_reduce<float>(q);
  std::fill(matrix.begin(), matrix.end(), 0.0F);
  how.add_product(p, q, 1.0F, matrix);
}

/// Replaces `values` by the sum over ranks of what each compressed. Every rank sends
/// (world_size − 1) · bytes(n), or where payloads vary as much of the longest, whose length takes a
/// call before; contributions are added in the order of ranks, so all ranks end with the same bits.
inline void all_reduce(Communicator& ranks, const Compressor& how, std::span<float> values,
                       std::span<float> error, std::uint64_t seed) {
  std::vector<std::uint8_t> mine(how.bytes(values.size()));
  encode_with_feedback(how, values, error, seed, std::as_writable_bytes(std::span(mine)));
  if (how.varies()) {
    std::uint64_t longest = how.used(std::as_bytes(std::span(mine)));
    ranks.all_reduce<std::uint64_t>(std::span(&longest, 1), ReduceOp::max);
    mine.resize(longest);
  }
  const std::size_t size = mine.size();
  const auto n = static_cast<std::size_t>(ranks.world_size());
  std::vector<std::uint8_t> all(n * size);
  const auto block = [&](std::size_t r) { return std::span(all).subspan(r * size, size); };
  ranks.all_gather<std::uint8_t>(mine, all);
  std::fill(values.begin(), values.end(), 0.0F);
  for (std::size_t r = 0; r < n; ++r) how.add(std::as_bytes(block(r)), 1.0F, values);
}

}  // namespace chorus::compress
