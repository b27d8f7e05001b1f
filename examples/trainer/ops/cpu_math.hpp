// Loops that the compiler turns into vector code, with the order of additions fixed by hand so that
// every build gives the same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace trainer::cpu {

inline double exponential(double x) { return std::exp(x); }

/// eˣ to 2 units in the last place: 2ⁿ · p(r), r = x − n·ln 2, p of degree 6 (Cephes' expf). Inputs
/// are clamped to ±87, so the result is neither 0 nor infinite; NaN stays NaN.
inline float exponential(float x) {
  const float bounded = x < -87.0F ? -87.0F : (x > 87.0F ? 87.0F : x);
  const float shifted = bounded * 1.44269504F + 12582912.0F;  // rounds to the nearest integer
  const float n = shifted - 12582912.0F;
  const float r = (bounded - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto bits = std::bit_cast<std::int32_t>(shifted) << 23;
  return p * std::bit_cast<float>(bits + 0x3f800000);
}

inline constexpr std::size_t kLanes = 16;

/// Σ term(i), in 16 interleaved sums that are added pairwise at the end.
template <class Sum, class Term>
inline Sum sum_of(std::size_t n, Term term) {
  Sum lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (std::size_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class R>
inline R largest(const R* x, std::size_t n) {
  R lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<R>::infinity());
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = lanes[lane] > x[i + lane] ? lanes[lane] : x[i + lane];
    }
  }
  for (; i < n; ++i) lanes[0] = lanes[0] > x[i] ? lanes[0] : x[i];
  return *std::max_element(lanes, lanes + kLanes);
}

/// gelu(x) = x·s, s = 1/(1 + e^(−2u)), u = √(2/π)·(x + 0.044715·x³): the tanh form.
template <class R>
inline R gelu_share(R x) {
  const R u = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
  return R(1) / (R(1) + exponential(R(-2) * u));
}

template <class R>
inline R gelu_slope(R x) {
  const R s = gelu_share(x);
  const R du = R(0.7978845608028654) * (R(1) + R(3 * 0.044715) * x * x);
  return s + x * R(2) * s * (R(1) - s) * du;
}

}  // namespace trainer::cpu
