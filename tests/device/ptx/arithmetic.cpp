// Arithmetic on the lanes of a warp.
#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "execution.hpp"
#include "values.hpp"

namespace ptx {
namespace {

template <class T>
T quotient(T a, T b) {
  if constexpr (!kInteger<T>) {
    return a / b;
  } else {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
    }
    return static_cast<T>(a / b);
  }
}
template <class T>
T remainder(T a, T b) {
  if constexpr (!kInteger<T>) {
    return a;
  } else {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
  }
}
__extension__ using Wide = __int128;
__extension__ using WideUnsigned = unsigned __int128;

template <class T>
T high_product(T a, T b) {
  if constexpr (!kInteger<T>) {
    return a * b;
  } else if constexpr (sizeof(T) == 8) {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(static_cast<Wide>(a) * b >> 64);
    } else {
      return static_cast<T>(static_cast<WideUnsigned>(a) * b >> 64);
    }
  } else {
    return static_cast<T>((static_cast<std::int64_t>(a) * static_cast<std::int64_t>(b)) >>
                          (8 * sizeof(T)));
  }
}

/// Unsigned integers wrap; those of C++ that are narrower than int would not.
template <class T, class F>
T wrapped(T a, T b, F&& f) {
  if constexpr (kInteger<T>) {
    return static_cast<T>(f(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
  } else {
    return f(a, b);
  }
}

/// Calls f(compares) with how two values of type T compare.
template <class T, class F>
void with_comparison(Compare how, F&& f) {
  const auto unordered = [](T a, T b) {
    if constexpr (kInteger<T>) return false;
    return std::isnan(a) || std::isnan(b);
  };
  switch (how) {
    case Compare::eq:
      return f([](T a, T b) { return a == b; });
    case Compare::ne:
      return f([&](T a, T b) { return !unordered(a, b) && a != b; });
    case Compare::lt:
      return f([](T a, T b) { return a < b; });
    case Compare::le:
      return f([](T a, T b) { return a <= b; });
    case Compare::gt:
      return f([](T a, T b) { return a > b; });
    case Compare::ge:
      return f([](T a, T b) { return a >= b; });
    case Compare::equ:
      return f([&](T a, T b) { return unordered(a, b) || a == b; });
    case Compare::neu:
      return f([&](T a, T b) { return unordered(a, b) || a != b; });
    case Compare::ltu:
      return f([&](T a, T b) { return unordered(a, b) || a < b; });
    case Compare::leu:
      return f([&](T a, T b) { return unordered(a, b) || a <= b; });
    case Compare::gtu:
      return f([&](T a, T b) { return unordered(a, b) || a > b; });
    case Compare::geu:
      return f([&](T a, T b) { return unordered(a, b) || a >= b; });
    case Compare::num:
      return f([&](T a, T b) { return !unordered(a, b); });
    case Compare::nan:
      return f([&](T a, T b) { return unordered(a, b); });
  }
}

std::uint64_t permuted(std::uint64_t low, std::uint64_t high, std::uint64_t select) {
  const std::uint64_t bytes = (low & 0xffffffff) | high << 32;
  std::uint64_t result = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint64_t which = select >> (4 * i) & 15;
    std::uint64_t byte = bytes >> (8 * (which & 7)) & 255;
    if ((which & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

std::uint64_t inserted(std::uint64_t field, std::uint64_t into, std::uint64_t position,
                       std::uint64_t length, std::uint64_t width) {
  position &= 255;
  length &= 255;
  if (position >= width) return into;
  const std::uint64_t mask = length >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << length) - 1;
  return (into & ~(mask << position)) | (field & mask) << position;
}

std::uint64_t extracted(std::uint64_t value, std::uint64_t position, std::uint64_t length,
                        Type type) {
  position &= 255;
  length &= 255;
  if (length == 0 || position >= 64) return 0;
  const std::uint64_t mask = length >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << length) - 1;
  std::uint64_t field = value >> position & mask;
  if (is_signed(type) && length < 64 && (field >> (length - 1) & 1) != 0) field |= ~mask;
  return field;
}

std::uint64_t looked_up(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t table) {
  std::uint64_t result = 0;
  for (std::uint32_t k = 0; k < 8; ++k) {
    if ((table >> k & 1) == 0) continue;
    result |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
  }
  return result;
}

}  // namespace

void Execution::predicate(const Instruction& one) const {
  const auto a = [&] { return condition(one.in[0]); };
  const auto b = [&] { return condition(one.in[1]); };
  switch (one.op) {
    case Op::pred_and:
      return set_condition(one.out[0], a() & b());
    case Op::pred_or:
      return set_condition(one.out[0], a() | b());
    case Op::pred_xor:
      return set_condition(one.out[0], a() ^ b());
    case Op::pred_not:
      return set_condition(one.out[0], ~a());
    case Op::pred_mov:
      return set_condition(one.out[0], a());
    default:
      break;
  }
  const Lanes& x = in(one.in[0]);
  const Lanes& y = in(one.in[1]);
  std::uint32_t bits = 0;
  with_type(one.type, [&](auto t) {
    using T = decltype(t);
    with_comparison<T>(one.compare, [&](auto compares) {
      each([&](std::uint32_t l) {
        bits |= (compares(from_bits<T>(x[l]), from_bits<T>(y[l])) ? 1U : 0U) << l;
      });
    });
  });
  if (one.combine == '&') bits &= condition(one.in[2]);
  if (one.combine == '|') bits |= condition(one.in[2]);
  if (one.combine == '^') bits ^= condition(one.in[2]);
  set_condition(one.out[0], bits);
}

namespace {

/// Applies `f` to operands of type T.
template <class T, class F>
void unary(const Execution& on, const Instruction& one, F&& f) {
  const Lanes& a = on.in(one.in[0]);
  Lanes& d = on.out(one.out[0]);
  on.each([&](std::uint32_t l) { d[l] = to_bits(static_cast<T>(f(from_bits<T>(a[l])))); });
}
template <class T, class F>
void binary(const Execution& on, const Instruction& one, F&& f) {
  const Lanes& a = on.in(one.in[0]);
  const Lanes& b = on.in(one.in[1]);
  Lanes& d = on.out(one.out[0]);
  on.each([&](std::uint32_t l) {
    d[l] = to_bits(static_cast<T>(f(from_bits<T>(a[l]), from_bits<T>(b[l]))));
  });
}
template <class T, class F>
void bits(const Execution& on, const Instruction& one, F&& f) {
  const Lanes& a = on.in(one.in[0]);
  const Lanes& b = on.in(one.in[1]);
  Lanes& d = on.out(one.out[0]);
  on.each([&](std::uint32_t l) { d[l] = static_cast<std::make_unsigned_t<T>>(f(a[l], b[l])); });
}

template <class T>
void typed(const Execution& on, const Instruction& one) {
  constexpr std::uint64_t kBits = 8 * sizeof(T);
  switch (one.op) {
    case Op::add:
      return binary<T>(
          on, one, [](T a, T b) { return wrapped(a, b, [](auto x, auto y) { return x + y; }); });
    case Op::sub:
      return binary<T>(
          on, one, [](T a, T b) { return wrapped(a, b, [](auto x, auto y) { return x - y; }); });
    case Op::mul:
      return binary<T>(
          on, one, [](T a, T b) { return wrapped(a, b, [](auto x, auto y) { return x * y; }); });
    case Op::mul_high:
      return binary<T>(on, one, [](T a, T b) { return high_product(a, b); });
    case Op::div:
      return binary<T>(on, one, [](T a, T b) { return quotient(a, b); });
    case Op::rem:
      return binary<T>(on, one, [](T a, T b) { return remainder(a, b); });
    case Op::min:
      return binary<T>(on, one, [](T a, T b) {
        if constexpr (!kInteger<T>) return std::fmin(a, b);
        return b < a ? b : a;
      });
    case Op::max:
      return binary<T>(on, one, [](T a, T b) {
        if constexpr (!kInteger<T>) return std::fmax(a, b);
        return a < b ? b : a;
      });
    case Op::neg:
      return unary<T>(on, one, [](T a) {
        if constexpr (!kInteger<T>) return -a;
        return static_cast<T>(0 - static_cast<std::uint64_t>(a));
      });
    case Op::abs:
      return unary<T>(on, one, [](T a) {
        if constexpr (!kInteger<T>) return std::fabs(a);
        return a < T{0} ? static_cast<T>(0 - static_cast<std::uint64_t>(a)) : a;
      });
    default:
      break;
  }
  if constexpr (kInteger<T>) {
    switch (one.op) {
      case Op::shl:
        return bits<T>(on, one, [](std::uint64_t a, std::uint64_t b) {
          b &= 0xffffffff;
          return b >= kBits ? 0 : a << b;
        });
      case Op::shr:
        return bits<T>(on, one, [](std::uint64_t a, std::uint64_t b) {
          b &= 0xffffffff;
          if (std::is_unsigned_v<T> && b >= kBits) return std::uint64_t{0};
          return to_bits(static_cast<T>(static_cast<T>(a) >> std::min(b, kBits - 1)));
        });
      case Op::bit_and:
        return bits<T>(on, one, [](std::uint64_t a, std::uint64_t b) { return a & b; });
      case Op::bit_or:
        return bits<T>(on, one, [](std::uint64_t a, std::uint64_t b) { return a | b; });
      case Op::bit_xor:
        return bits<T>(on, one, [](std::uint64_t a, std::uint64_t b) { return a ^ b; });
      case Op::bit_not:
        return unary<T>(on, one, [](T a) { return static_cast<T>(~a); });
      case Op::popc:
        return unary<T>(on, one, [](T a) { return static_cast<T>(std::popcount(to_bits(a))); });
      case Op::clz:
        return unary<T>(on, one, [](T a) {
          return static_cast<T>(std::countl_zero(to_bits(a)) - (64 - static_cast<int>(kBits)));
        });
      default:
        break;
    }
  }
  throw std::runtime_error("PTX: an operation on a type that this does not know");
}

}  // namespace

void Execution::arithmetic(const Instruction& one) const {
  const Lanes& a = in(one.in[0]);
  const Lanes& b = in(one.in[1]);
  const Lanes& c = one.op == Op::selp ? a : in(one.in[2]);  // of selp it is a predicate
  const auto set = [&](auto&& f) {
    Lanes& d = out(one.out[0]);
    const std::uint64_t mask = size_of(one.type) == 8
                                   ? ~std::uint64_t{0}
                                   : (std::uint64_t{1} << 8 * size_of(one.type)) - 1;
    each([&](std::uint32_t l) { d[l] = f(l) & mask; });
  };
  const auto signed_or_not = [&](std::uint64_t bits) -> std::uint64_t {
    if (one.type == Type::s32)
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(bits)));
    if (one.type == Type::s16)
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int16_t>(bits)));
    return bits & (size_of(one.type) == 4   ? 0xffffffff
                   : size_of(one.type) == 2 ? 0xffff
                                            : ~std::uint64_t{0});
  };
  switch (one.op) {
    case Op::mul_wide:
    case Op::mad_wide: {
      Lanes& d = out(one.out[0]);
      const std::uint64_t mask = size_of(one.type) == 2 ? 0xffffffff : ~std::uint64_t{0};
      return each([&](std::uint32_t l) {
        std::uint64_t product = signed_or_not(a[l]) * signed_or_not(b[l]);
        if (one.op == Op::mad_wide) product += c[l];
        d[l] = product & mask;
      });
    }
    case Op::mad:
      return set([&](std::uint32_t l) { return a[l] * b[l] + c[l]; });
    case Op::fma:
      return set([&](std::uint32_t l) {
        if (one.type == Type::f64) {
          return to_bits(
              std::fma(from_bits<double>(a[l]), from_bits<double>(b[l]), from_bits<double>(c[l])));
        }
        return to_bits(
            std::fma(from_bits<float>(a[l]), from_bits<float>(b[l]), from_bits<float>(c[l])));
      });
    case Op::selp: {
      const std::uint32_t chosen = condition(one.in[2]);
      return set([&](std::uint32_t l) { return (chosen >> l & 1) != 0 ? a[l] : b[l]; });
    }
    case Op::prmt:
      return set([&](std::uint32_t l) { return permuted(a[l], b[l], c[l]); });
    case Op::bfi:
      return set([&](std::uint32_t l) {
        return inserted(a[l], b[l], c[l], in(one.in[3])[l], 8 * size_of(one.type));
      });
    case Op::bfe:
      return set(
          [&](std::uint32_t l) { return extracted(signed_or_not(a[l]), b[l], c[l], one.type); });
    case Op::lop3:
      return set([&](std::uint32_t l) { return looked_up(a[l], b[l], c[l], in(one.in[3])[l]); });
    default:
      with_type(one.type, [&](auto t) { typed<decltype(t)>(*this, one); });
  }
}

}  // namespace ptx
