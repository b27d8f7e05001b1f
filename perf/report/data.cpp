#include "perf/report/data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.hpp"

namespace chorus::perf {
namespace {

constexpr std::uint32_t kPoisonByte = 0xA5;
/// At most five ranks contribute a 2 (RankValue).
constexpr std::uint32_t kLargestProduct = 1U << 5;

/// Integers 0 … exact_limit are representable, and so are all their partial sums up to it.
std::uint32_t exact_limit(DataType type) {
  switch (type) {
    case DataType::int8:
      return 127;
    case DataType::uint8:
      return 255;
    case DataType::int16:
      return 32767;
    case DataType::uint16:
      return 65535;
    case DataType::float16:
      return 1U << 11;
    case DataType::bfloat16:
      return 1U << 8;
    case DataType::float8_e4m3:
      return 1U << 4;
    case DataType::float8_e5m2:
      return 1U << 3;
    default:
      return 1U << 24;
  }
}

/// 16 hashed bits. One multiply-xor chain (constants of xxHash and lowbias32), so that compilers
/// vectorise the loops over index.
inline std::uint32_t hash16(std::uint32_t base, std::size_t index) {
  std::uint32_t x = static_cast<std::uint32_t>(index) * 0x9E3779B1U + base;
  x ^= x >> 15;
  x *= 0x2C1B3C6DU;
  x ^= x >> 12;
  x *= 0x297A2D39U;
  return x >> 16;
}
std::uint32_t base_of(std::uint32_t seed, int rank) {
  return seed * 0xC2B2AE3DU + static_cast<std::uint32_t>(rank + 1) * 0x85EBCA77U;
}
/// [0, 65536) → [0, values)
inline std::uint32_t scaled(std::uint32_t h, std::uint32_t values) { return (h * values) >> 16; }

/// How many different values (from 0 up) one rank may use.
std::uint32_t value_count(const Pattern& p) {
  const std::uint32_t limit = std::min<std::uint32_t>(exact_limit(p.type), 65535);
  const auto n = static_cast<std::uint32_t>(p.world_size);
  if (!p.reduced || p.op == ReduceOp::min || p.op == ReduceOp::max || is_bitwise(p.op))
    return limit;
  if (p.op == ReduceOp::sum) return limit / n + 1;
  if (p.op == ReduceOp::avg) return limit < n * (n - 1) ? 0 : (limit - n * (n - 1)) / n + 1;
  return 2;  // prod
}

/// The value of one rank at one index.
///
/// prod: 1 or 2, and 2 only where (index's hash + rank) is a multiple of `stride`, so that at most
/// five ranks contribute a 2 to one element. avg: a value common to all ranks plus twice a
/// permutation of 0 … n−1, so that the sum is a multiple of n.
struct RankValue {
  RankValue(const Pattern& p, int rank)
      : pattern(p),
        values(value_count(p)),
        own(base_of(p.seed, rank)),
        common(base_of(p.seed, -1)),
        r(static_cast<std::uint32_t>(rank)),
        n(static_cast<std::uint32_t>(p.world_size)),
        stride(std::max(1U, (n + 3) / 4)) {}

  Pattern pattern;
  std::uint32_t values, own, common, r, n, stride;

  [[nodiscard]] std::uint32_t plain(std::size_t i) const { return scaled(hash16(own, i), values); }
  [[nodiscard]] std::uint32_t prod(std::size_t i) const {
    const bool active = (hash16(common, i) + r) % stride == 0;
    return active ? 1 + (hash16(own, i) >> 15) : 1;
  }
  [[nodiscard]] std::uint32_t avg(std::size_t i) const {
    const std::uint32_t h = hash16(common, i);
    return scaled(h, values) + 2 * ((h + r) % n);
  }
};

/// out[i − first] = the value of one rank at i.
void rank_values(const Pattern& p, int rank, std::size_t first, std::span<std::uint32_t> out) {
  const RankValue value(p, rank);
  if (p.reduced && p.op == ReduceOp::prod) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value.prod(first + i);
  } else if (p.reduced && p.op == ReduceOp::avg) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value.avg(first + i);
  } else {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value.plain(first + i);
  }
}

/// out[i − first] = the reduction of all ranks' values at i.
void reduced_values(const Pattern& p, std::size_t first, std::span<std::uint32_t> out,
                    std::span<std::uint32_t> scratch) {
  rank_values(p, 0, first, out);
  for (int rank = 1; rank < p.world_size; ++rank) {
    rank_values(p, rank, first, scratch);
    for (std::size_t i = 0; i < out.size(); ++i) {
      switch (p.op) {
        case ReduceOp::sum:
        case ReduceOp::avg:
          out[i] += scratch[i];
          break;
        case ReduceOp::prod:
          out[i] *= scratch[i];
          break;
        case ReduceOp::min:
          out[i] = std::min(out[i], scratch[i]);
          break;
        case ReduceOp::max:
          out[i] = std::max(out[i], scratch[i]);
          break;
        case ReduceOp::band:
          out[i] &= scratch[i];
          break;
        case ReduceOp::bor:
          out[i] |= scratch[i];
          break;
        case ReduceOp::bxor:
          out[i] ^= scratch[i];
          break;
      }
    }
  }
  if (p.op == ReduceOp::avg) {
    for (std::uint32_t& value : out) value /= static_cast<std::uint32_t>(p.world_size);
  }
}

/// Bits of the integers 0 … exact_limit in a narrow float type, and on to the largest product,
/// which is a power of two and so exact too.
template <class Narrow>
std::vector<decltype(Narrow::bits)> narrow_table(DataType type) {
  std::vector<decltype(Narrow::bits)> table(std::max(exact_limit(type), kLargestProduct) + 1);
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = Narrow(static_cast<float>(i)).bits;
  }
  return table;
}

/// Calls body(encode), where encode(small integer) is its bit pattern in `type`.
template <class Body>
void with_encoder(DataType type, Body body) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
      return body([](std::uint32_t v) { return static_cast<std::uint8_t>(v); });
    case DataType::int16:
    case DataType::uint16:
      return body([](std::uint32_t v) { return static_cast<std::uint16_t>(v); });
    case DataType::int32:
    case DataType::uint32:
      return body([](std::uint32_t v) { return v; });
    case DataType::int64:
    case DataType::uint64:
      return body([](std::uint32_t v) { return std::uint64_t{v}; });
    case DataType::float32:
      return body([](std::uint32_t v) {
        return std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(v)));
      });
    case DataType::float64:
      return body([](std::uint32_t v) {
        return std::bit_cast<std::uint64_t>(static_cast<double>(static_cast<std::int32_t>(v)));
      });
    case DataType::float16:
      return body([t = narrow_table<Float16>(type)](std::uint32_t v) { return t[v]; });
    case DataType::bfloat16:
      return body([t = narrow_table<BFloat16>(type)](std::uint32_t v) { return t[v]; });
    case DataType::float8_e4m3:
      return body([t = narrow_table<Float8E4M3>(type)](std::uint32_t v) { return t[v]; });
    case DataType::float8_e5m2:
      return body([t = narrow_table<Float8E5M2>(type)](std::uint32_t v) { return t[v]; });
  }
}

/// Values are made a tile at a time: small enough for the first-level cache.
constexpr std::size_t kTile = 2048;

template <class MakeValues>
Mismatches compare(const void* buffer, DataType type, std::size_t count, MakeValues make) {
  Mismatches result;
  std::vector<std::uint32_t> values(kTile);
  with_encoder(type, [&](const auto& encode) {
    using Bits = decltype(encode(0U));
    std::vector<Bits> actual(kTile);
    for (std::size_t done = 0; done < count; done += kTile) {
      const std::size_t n = std::min(kTile, count - done);
      make(done, std::span(values).first(n));
      // The user's buffer has the type's alignment at best; a copy makes reading it well defined.
      std::memcpy(actual.data(), static_cast<const std::byte*>(buffer) + done * sizeof(Bits),
                  n * sizeof(Bits));
      std::uint32_t wrong = 0;
      for (std::size_t i = 0; i < n; ++i) wrong += actual[i] != encode(values[i]) ? 1U : 0U;
      if (wrong != 0 && result.wrong == 0) {
        std::size_t i = 0;
        while (actual[i] == encode(values[i])) ++i;
        result.first_wrong = done + i;
      }
      result.wrong += wrong;
    }
  });
  return result;
}

}  // namespace

std::string why_uncheckable(const Pattern& pattern) {
  if (pattern.reduced && !applies(pattern.op, pattern.type)) {
    return fmt::format("{} combines the bits of integers, and {} is not an integer type",
                       name_of(pattern.op), name_of(pattern.type));
  }
  if (value_count(pattern) >= 2) return {};
  return fmt::format("{} over {} ranks has no exact test data in {}; choose a wider type",
                     name_of(pattern.op), pattern.world_size, name_of(pattern.type));
}

void fill(void* buffer, const Pattern& pattern, int rank, std::size_t first, std::size_t count) {
  std::vector<std::uint32_t> values(kTile);
  with_encoder(pattern.type, [&](const auto& encode) {
    using Bits = decltype(encode(0U));
    std::vector<Bits> encoded(kTile);
    for (std::size_t done = 0; done < count; done += kTile) {
      const std::size_t n = std::min(kTile, count - done);
      rank_values(pattern, rank, first + done, std::span(values).first(n));
      for (std::size_t i = 0; i < n; ++i) encoded[i] = encode(values[i]);
      std::memcpy(static_cast<std::byte*>(buffer) + done * sizeof(Bits), encoded.data(),
                  n * sizeof(Bits));
    }
  });
}

void poison(void* buffer, std::size_t bytes) {
  if (bytes != 0) std::memset(buffer, kPoisonByte, bytes);
}

Mismatches compare_to_rank(const void* buffer, const Pattern& pattern, int rank, std::size_t first,
                           std::size_t count) {
  return compare(buffer, pattern.type, count,
                 [&](std::size_t done, std::span<std::uint32_t> values) {
                   rank_values(pattern, rank, first + done, values);
                 });
}

Mismatches compare_to_reduction(const void* buffer, const Pattern& pattern, std::size_t first,
                                std::size_t count) {
  CHORUS_CHECK(pattern.reduced, "the pattern is made for a reduction");
  std::vector<std::uint32_t> scratch(kTile);
  return compare(
      buffer, pattern.type, count, [&](std::size_t done, std::span<std::uint32_t> values) {
        reduced_values(pattern, first + done, values, std::span(scratch).first(values.size()));
      });
}

}  // namespace chorus::perf
