// What the reduction kernels combine two vectors by. Under the rules of kernels-inl.hpp, which
// includes it.
#include <hwy/highway.h>

#include <cstdint>

#include "chorus/types.hpp"

namespace chorus::detail {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Byte = std::uint8_t;
template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

struct Sum {
  template <class T>
  static HWY_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class T>
  static HWY_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    if constexpr (sizeof(T) == 1) {
      // No machine multiplies bytes: as 16-bit numbers, the low bytes and then the high ones.
      const Tag<std::uint16_t> d16;
      const auto a16 = hn::BitCast(d16, a);
      const auto b16 = hn::BitCast(d16, b);
      const auto low = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00FF));
      const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(Tag<T>(), hn::Or(low, high));
    } else {
      return hn::Mul(a, b);
    }
  }
};

/// kSmaller: minimum, else maximum. A NaN on either side is the result.
template <bool kSmaller>
struct Extreme {
  template <class T>
  static HWY_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    if constexpr (hwy::IsFloat<T>()) {
      const auto first = kSmaller ? hn::Lt(a, b) : hn::Lt(b, a);
      return hn::IfThenElse(hn::Or(first, hn::IsNaN(a)), a, b);
    } else {
      return kSmaller ? hn::Min(a, b) : hn::Max(a, b);
    }
  }
};

template <ReduceOp kOp>
struct Bitwise {
  template <class T>
  static HWY_INLINE Vector<T> apply(Vector<T> a, Vector<T> b) {
    if constexpr (kOp == ReduceOp::band) return hn::And(a, b);
    if constexpr (kOp == ReduceOp::bor) return hn::Or(a, b);
    if constexpr (kOp == ReduceOp::bxor) return hn::Xor(a, b);
  }
};

}  // namespace
}  // namespace chorus::detail
