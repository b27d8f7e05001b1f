// The reduction kernels. Included once by each kernels_*.cpp, which is compiled with the flags of
// its instruction set, defines HWY_COMPILE_ONLY_STATIC and names the result by CHORUS_KERNELS.
//
// What is compiled here may use instructions that the machine lacks, so nothing may be emitted
// that the linker could merge with a copy of another file: all code is in an unnamed namespace,
// and no inline function of the standard library or of Chorus is called. A test looks at the
// symbols.
#include <hwy/highway.h>

#include "collectives/kernels.hpp"
#include "collectives/operations-inl.hpp"

namespace chorus::detail {
namespace {

/// Bytes of a vector: what is loaded, folded and stored at a time.
constexpr std::size_t kUnit = hn::MaxLanes(Tag<Byte>());

/// Any alignment.
template <class T>
HWY_INLINE Vector<T> load(const Byte* from) {
  return hn::BitCast(Tag<T>(), hn::LoadU(Tag<Byte>(), from));
}
template <class T>
HWY_INLINE void store(Byte* to, Vector<T> value) {
  hn::StoreU(hn::BitCast(Tag<Byte>(), value), Tag<Byte>(), to);
}

// Formats ---------------------------------------------------------------------------------------
// A format turns a unit of memory into kParts vectors of Lane, in which folding happens, and back.

template <class T>
struct Plain {
  using Lane = T;
  static constexpr int kParts = 1;
  static HWY_INLINE void decode(const Byte* from, Vector<T>* parts) { parts[0] = load<T>(from); }
  static HWY_INLINE void encode(const Vector<T>* parts, Byte* to) { store<T>(to, parts[0]); }
};

using Bits = Vector<std::int32_t>;  // signed, because SSE and AVX2 compare nothing else
constexpr Tag<std::int32_t> kBits;
constexpr Tag<float> kFloat;
constexpr int kSignBit = static_cast<int>(0x8000'0000U);
constexpr int kInfinityBits = 0x7F80'0000;

/// 2^exponent.
constexpr int power_bits(int exponent) { return (exponent + 127) << 23; }

/// A float of the given fields in the low bits of 32-bit lanes, to and from float; the twin of
/// narrow() and widen() in src/base/types.cpp. kTop is the magnitude of the first encoding that is
/// no finite value.
template <int kExponent, int kMantissa, int kTop>
struct Small {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kRebias = 127 - kBias;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kSignAt = kExponent + kMantissa;

  static HWY_INLINE Vector<float> widen(Bits small) {
    const Bits magnitude = hn::And(small, hn::Set(kBits, (1 << kSignAt) - 1));
    const Bits sign = hn::And(hn::ShiftLeft<31 - kSignAt>(small), hn::Set(kBits, kSignBit));
    Bits value = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(kBits, kRebias << 23));
    const auto subnormal =
        hn::Mul(hn::ConvertTo(kFloat, magnitude),
                hn::BitCast(kFloat, hn::Set(kBits, power_bits(1 - kBias - kMantissa))));
    value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(kBits, 1 << kMantissa)),
                           hn::BitCast(kBits, subnormal), value);
    // Infinity and NaN: the mantissa of NaN is kept where there is one, else made.
    const Bits special = hn::Or(hn::ShiftLeft<kShift>(magnitude), hn::Set(kBits, kInfinityBits));
    value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(kBits, kTop)), value, special);
    return hn::BitCast(kFloat, hn::Or(value, sign));
  }

  /// `infinite` and `nan` are the encodings of those, `largest` what all greater values become.
  static HWY_INLINE Bits narrow(Vector<float> value, int largest, int infinite, int nan) {
    const Bits bits = hn::BitCast(kBits, value);
    const Bits magnitude = hn::And(bits, hn::Set(kBits, 0x7FFF'FFFF));
    const Bits odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(kBits, 1));
    const Bits rounding = hn::Add(odd, hn::Set(kBits, (1 << (kShift - 1)) - 1));
    const Bits normal = hn::Sub(hn::ShiftRight<kShift>(hn::Add(magnitude, rounding)),
                                hn::Set(kBits, kRebias << kMantissa));
    // Below the smallest normal number: adding 2^23 quanta makes the addition round to quanta.
    const Bits quanta = hn::Set(kBits, power_bits(1 - kBias - kMantissa + 23));
    const auto shifted = hn::Add(hn::BitCast(kFloat, magnitude), hn::BitCast(kFloat, quanta));
    const Bits subnormal = hn::Sub(hn::BitCast(kBits, shifted), quanta);

    Bits result =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(kBits, (kRebias + 1) << 23)), subnormal, normal);
    result = hn::Min(result, hn::Set(kBits, largest));
    const Bits infinity = hn::Set(kBits, kInfinityBits);
    result = hn::IfThenElse(hn::Eq(magnitude, infinity), hn::Set(kBits, infinite), result);
    result = hn::IfThenElse(hn::Gt(magnitude, infinity), hn::Set(kBits, nan), result);
    const Bits sign = hn::ShiftRight<31 - kSignAt>(hn::And(bits, hn::Set(kBits, kSignBit)));
    return hn::Or(result, hn::And(sign, hn::Set(kBits, 1 << kSignAt)));
  }
};

/// Part j is the j-th 16 bits of each 32-bit lane: no lane changes place.
struct SmallFloat16 {
  using Lane = float;
  static constexpr int kParts = 2;
  using Half = Small<5, 10, 0x7C00>;

  static HWY_INLINE void decode(const Byte* from, Vector<float>* parts) {
    const Bits pair = load<std::int32_t>(from);
    parts[0] = Half::widen(pair);
    parts[1] = Half::widen(hn::ShiftRight<16>(pair));
  }
  static HWY_INLINE void encode(const Vector<float>* parts, Byte* to) {
    const Bits low = Half::narrow(parts[0], 0x7C00, 0x7C00, 0x7E00);
    const Bits high = Half::narrow(parts[1], 0x7C00, 0x7C00, 0x7E00);
    store<std::int32_t>(to, hn::Or(low, hn::ShiftLeft<16>(high)));
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// By the instructions of F16C. Part j is the j-th half of the unit.
struct HardwareFloat16 {
  using Lane = float;
  static constexpr int kParts = 2;
  using Half = hn::Rebind<hwy::float16_t, Tag<float>>;
  using Words = hn::Rebind<std::uint16_t, Tag<float>>;
  using Bytes = hn::Repartition<Byte, Words>;

  static HWY_INLINE void decode(const Byte* from, Vector<float>* parts) {
    for (int i = 0; i < kParts; ++i) {
      const auto half = hn::BitCast(Half(), hn::LoadU(Bytes(), from + i * kUnit / 2));
      parts[i] = hn::PromoteTo(kFloat, half);
    }
  }
  static HWY_INLINE void encode(const Vector<float>* parts, Byte* to) {
    for (int i = 0; i < kParts; ++i) {
      const auto half = hn::BitCast(Bytes(), hn::DemoteTo(Half(), parts[i]));
      hn::StoreU(half, Bytes(), to + i * kUnit / 2);
    }
  }
};
using Float16Format = HardwareFloat16;
#else
using Float16Format = SmallFloat16;
#endif

struct BFloat16Format {
  using Lane = float;
  static constexpr int kParts = 2;

  static HWY_INLINE void decode(const Byte* from, Vector<float>* parts) {
    const Bits pair = load<std::int32_t>(from);
    parts[0] = hn::BitCast(kFloat, hn::ShiftLeft<16>(pair));
    parts[1] = hn::BitCast(kFloat, hn::And(pair, high_half()));
  }
  static HWY_INLINE void encode(const Vector<float>* parts, Byte* to) {
    const Tag<std::uint32_t> unsigned_bits;
    const auto low = hn::ShiftRight<16>(hn::BitCast(unsigned_bits, rounded(parts[0])));
    store<std::int32_t>(to,
                        hn::Or(hn::BitCast(kBits, low), hn::And(rounded(parts[1]), high_half())));
  }

 private:
  static HWY_INLINE Bits high_half() { return hn::Set(kBits, static_cast<int>(0xFFFF'0000U)); }
  /// The result in the high half; the low half is left over.
  static HWY_INLINE Bits rounded(Vector<float> value) {
    const Bits bits = hn::BitCast(kBits, value);
    const Bits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBits, 1));
    const Bits up = hn::Add(bits, hn::Add(odd, hn::Set(kBits, 0x7FFF)));
    const Bits quiet = hn::Or(bits, hn::Set(kBits, 0x0040'0000));
    return hn::IfThenElse(hn::RebindMask(kBits, hn::IsNaN(value)), quiet, up);
  }
};

/// kTop: see Small. The largest finite value is one below it.
template <int kExponent, int kMantissa, int kTop, int kInfinite, int kNan>
struct Float8Format {
  using Lane = float;
  static constexpr int kParts = 4;
  using Quarter = Small<kExponent, kMantissa, kTop>;

  static HWY_INLINE void decode(const Byte* from, Vector<float>* parts) {
    const Bits four = load<std::int32_t>(from);
    parts[0] = Quarter::widen(four);
    parts[1] = Quarter::widen(hn::ShiftRight<8>(four));
    parts[2] = Quarter::widen(hn::ShiftRight<16>(four));
    parts[3] = Quarter::widen(hn::ShiftRight<24>(four));
  }
  static HWY_INLINE void encode(const Vector<float>* parts, Byte* to) {
    const Bits low = hn::Or(narrow(parts[0]), hn::ShiftLeft<8>(narrow(parts[1])));
    const Bits high = hn::Or(narrow(parts[2]), hn::ShiftLeft<8>(narrow(parts[3])));
    store<std::int32_t>(to, hn::Or(low, hn::ShiftLeft<16>(high)));
  }

 private:
  static HWY_INLINE Bits narrow(Vector<float> value) {
    return Quarter::narrow(value, kTop - 1, kInfinite, kNan);
  }
};
using E4M3Format = Float8Format<4, 3, 0x7F, 0x7E, 0x7F>;
using E5M2Format = Float8Format<5, 2, 0x7C, 0x7C, 0x7E>;

// Loops -----------------------------------------------------------------------------------------

/// What follows the fold: nothing, or for floats a division. Dividing by a power of two is a
/// multiplication, which is as exact and several times faster.
template <class T>
struct Finish {
  enum { nothing, multiply, divide } how = nothing;
  T by = 1;

  explicit Finish(double divisor) {
    if (divisor == 1) return;
    const double reciprocal = 1 / divisor;
    std::uint64_t bits = 0;
    __builtin_memcpy(&bits, &reciprocal, sizeof(bits));
    const bool exact = (bits << 12) == 0;
    how = exact ? multiply : divide;
    by = static_cast<T>(exact ? reciprocal : divisor);
  }

  HWY_INLINE Vector<T> apply(Vector<T> value) const {
    if constexpr (hwy::IsFloat<T>()) {
      if (how == multiply) return hn::Mul(value, hn::Set(Tag<T>(), by));
      if (how == divide) return hn::Div(value, hn::Set(Tag<T>(), by));
    }
    return value;
  }
};

/// kUnits units of every source at `at`, all held in registers.
template <int kUnits, class Format, class Op, class Done>
HWY_INLINE void fold_units(Byte* out, const Byte* const* sources, std::size_t num_sources,
                           std::size_t at, const Done& done) {
  constexpr int kParts = Format::kParts;
  using T = typename Format::Lane;
  Vector<T> folded[kUnits * kParts];
  Vector<T> next[kUnits * kParts];
  for (int unit = 0; unit < kUnits; ++unit) {
    Format::decode(sources[0] + at + unit * kUnit, folded + unit * kParts);
  }
  for (std::size_t i = 1; i < num_sources; ++i) {
    const Byte* const from = sources[i] + at;
    for (int unit = 0; unit < kUnits; ++unit) {
      Format::decode(from + unit * kUnit, next + unit * kParts);
    }
    for (int part = 0; part < kUnits * kParts; ++part) {
      folded[part] = Op::template apply<T>(folded[part], next[part]);
    }
  }
  for (int part = 0; part < kUnits * kParts; ++part) folded[part] = done.apply(folded[part]);
  for (int unit = 0; unit < kUnits; ++unit) {
    Format::encode(folded + unit * kParts, out + at + unit * kUnit);
  }
}

/// Fewer bytes than a unit, by way of a whole one.
template <class Format, class Op, class Done>
HWY_NOINLINE void fold_rest(Byte* out, const Byte* const* sources, std::size_t num_sources,
                            std::size_t at, std::size_t size, const Done& done) {
  using T = typename Format::Lane;
  HWY_ALIGN Byte unit[kUnit] = {};
  Vector<T> folded[Format::kParts];
  Vector<T> next[Format::kParts];
  for (std::size_t i = 0; i < num_sources; ++i) {
    __builtin_memcpy(unit, sources[i] + at, size);
    Format::decode(unit, next);
    for (int part = 0; part < Format::kParts; ++part) {
      folded[part] = i == 0 ? next[part] : Op::template apply<T>(folded[part], next[part]);
    }
  }
  for (int part = 0; part < Format::kParts; ++part) folded[part] = done.apply(folded[part]);
  Format::encode(folded, unit);
  __builtin_memcpy(out + at, unit, size);
}

/// Bytes before `out` reaches the alignment of a unit, if elements can reach it at all and the
/// work is long enough to repay it: stores that straddle cache lines halve the speed in L1.
HWY_INLINE std::size_t bytes_to_alignment(const Byte* out, std::size_t size,
                                          std::size_t element_bytes) {
  const std::size_t ahead = -reinterpret_cast<std::uintptr_t>(out) % kUnit;
  return size < 16 * kUnit || ahead % element_bytes != 0 ? 0 : ahead;
}

/// Several units per turn, so that counting costs nothing and loads run ahead of stores.
template <class Format, class Op, class Done>
HWY_INLINE void fold_all(const FoldArguments& a, const Byte* const* sources,
                         std::size_t num_sources, const Done& done) {
  constexpr int kUnits = 4 / Format::kParts;
  constexpr std::size_t kElement = sizeof(typename Format::Lane) / Format::kParts;
  Byte* const out = a.out;
  const std::size_t size = a.size_bytes;
  std::size_t at = bytes_to_alignment(out, size, kElement);
  if (at != 0) fold_rest<Format, Op>(out, sources, num_sources, 0, at, done);
  for (; at + kUnits * kUnit <= size; at += kUnits * kUnit) {
    fold_units<kUnits, Format, Op>(out, sources, num_sources, at, done);
  }
  for (; at + kUnit <= size; at += kUnit) {
    fold_units<1, Format, Op>(out, sources, num_sources, at, done);
  }
  if (at < size) fold_rest<Format, Op>(out, sources, num_sources, at, size - at, done);
}

struct NothingMore {
  template <class V>
  HWY_INLINE V apply(V value) const {
    return value;
  }
};

/// The frequent case: one more contribution is added to what is there.
template <class Format, class Op>
void fold_pair(const FoldArguments& a) {
  const Byte* const pair[] = {a.sources[0], a.sources[1]};
  fold_all<Format, Op>(a, pair, 2, NothingMore());
}

template <class Format, class Op>
void fold_any(const FoldArguments& a) {
  fold_all<Format, Op>(a, a.sources, a.num_sources, Finish<typename Format::Lane>(a.divisor));
}

template <class Format, class Op>
void fold_by(const FoldArguments& a) {
  if (a.num_sources == 2 && a.divisor == 1) {
    fold_pair<Format, Op>(a);
  } else {
    fold_any<Format, Op>(a);
  }
}

/// kWrapping has the sums and products, which do not ask for the sign.
template <class Format, class Wrapping = Format>
FoldFunction fold_format(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return fold_by<Wrapping, Sum>;
    case ReduceOp::prod:
      return fold_by<Wrapping, Product>;
    case ReduceOp::min:
      return fold_by<Format, Extreme<true>>;
    case ReduceOp::max:
      return fold_by<Format, Extreme<false>>;
    case ReduceOp::band:  // bits do not ask for the type
      return fold_by<Plain<Byte>, Bitwise<ReduceOp::band>>;
    case ReduceOp::bor:
      return fold_by<Plain<Byte>, Bitwise<ReduceOp::bor>>;
    case ReduceOp::bxor:
      return fold_by<Plain<Byte>, Bitwise<ReduceOp::bxor>>;
  }
  return nullptr;
}

FoldFunction fold_for(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::int8:
      return fold_format<Plain<std::int8_t>, Plain<std::uint8_t>>(op);
    case DataType::uint8:
      return fold_format<Plain<std::uint8_t>>(op);
    case DataType::int16:
      return fold_format<Plain<std::int16_t>, Plain<std::uint16_t>>(op);
    case DataType::uint16:
      return fold_format<Plain<std::uint16_t>>(op);
    case DataType::int32:
      return fold_format<Plain<std::int32_t>, Plain<std::uint32_t>>(op);
    case DataType::uint32:
      return fold_format<Plain<std::uint32_t>>(op);
    case DataType::int64:
      return fold_format<Plain<std::int64_t>, Plain<std::uint64_t>>(op);
    case DataType::uint64:
      return fold_format<Plain<std::uint64_t>>(op);
    case DataType::float16:
      return fold_format<Float16Format>(op);
    case DataType::bfloat16:
      return fold_format<BFloat16Format>(op);
    case DataType::float32:
      return fold_format<Plain<float>>(op);
    case DataType::float64:
      return fold_format<Plain<double>>(op);
    case DataType::float8_e4m3:
      return fold_format<E4M3Format>(op);
    case DataType::float8_e5m2:
      return fold_format<E5M2Format>(op);
  }
  return nullptr;
}

// Scaling ---------------------------------------------------------------------------------------

template <class Format>
void scale_small(const ScaleArguments& a) {
  // One source and one multiplication.
  struct Factor {
    float by;
    HWY_INLINE Vector<float> apply(Vector<float> value) const {
      return hn::Mul(value, hn::Set(kFloat, by));
    }
  };
  const FoldArguments arguments{a.out, &a.in, 1, a.size_bytes, a.type, ReduceOp::sum, 1};
  fold_all<Format, Sum>(arguments, &a.in, 1, Factor{static_cast<float>(a.factor)});
}

/// `one` of an element; in and out may be unaligned and the same.
template <class T, class One>
HWY_INLINE void scale_each(const ScaleArguments& a, One one) {
  for (std::size_t at = 0; at + sizeof(T) <= a.size_bytes; at += sizeof(T)) {
    T value;
    __builtin_memcpy(&value, a.in + at, sizeof(T));
    value = one(value);
    __builtin_memcpy(a.out + at, &value, sizeof(T));
  }
}

template <class T>
void scale_float(const ScaleArguments& a) {
  const double factor = a.factor;
  scale_each<T>(a,
                [factor](T value) { return static_cast<T>(static_cast<double>(value) * factor); });
}

/// Towards zero; what lies beyond the type becomes its limit, NaN becomes 0.
template <class T>
void scale_integer(const ScaleArguments& a) {
  const double factor = a.factor;
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  constexpr int kValueBits = 8 * static_cast<int>(sizeof(T)) - (kSigned ? 1 : 0);
  constexpr double kBeyond = 2.0 * static_cast<double>(1ULL << (kValueBits - 1));
  constexpr T kLargest = static_cast<T>(~0ULL >> (64 - kValueBits));
  constexpr T kSmallest = static_cast<T>(kSigned ? -static_cast<long long>(kLargest) - 1 : 0);
  scale_each<T>(a, [factor](T value) {
    const double product = static_cast<double>(value) * factor;
    if (product >= kBeyond) return kLargest;
    if (product <= static_cast<double>(kSmallest)) return kSmallest;
    return product == product ? static_cast<T>(product) : T{0};
  });
}

void scale_type(const ScaleArguments& a) {
  switch (a.type) {
    case DataType::int8:
      return scale_integer<std::int8_t>(a);
    case DataType::uint8:
      return scale_integer<std::uint8_t>(a);
    case DataType::int16:
      return scale_integer<std::int16_t>(a);
    case DataType::uint16:
      return scale_integer<std::uint16_t>(a);
    case DataType::int32:
      return scale_integer<std::int32_t>(a);
    case DataType::uint32:
      return scale_integer<std::uint32_t>(a);
    case DataType::int64:
      return scale_integer<std::int64_t>(a);
    case DataType::uint64:
      return scale_integer<std::uint64_t>(a);
    case DataType::float16:
      return scale_small<Float16Format>(a);
    case DataType::bfloat16:
      return scale_small<BFloat16Format>(a);
    case DataType::float32:
      return scale_float<float>(a);
    case DataType::float64:
      return scale_float<double>(a);
    case DataType::float8_e4m3:
      return scale_small<E4M3Format>(a);
    case DataType::float8_e5m2:
      return scale_small<E5M2Format>(a);
  }
}

}  // namespace

const Kernels CHORUS_KERNELS{CHORUS_KERNELS_SET, fold_for, scale_type};

}  // namespace chorus::detail
