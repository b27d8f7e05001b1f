#include "perf/report/data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace chorus::perf {
namespace {

constexpr std::size_t kCount = 5000;  // more than two tiles, and no multiple of one

/// One element as a double, whatever its type.
double value_at(const std::vector<std::byte>& buffer, DataType type, std::size_t i) {
  const auto as = [&]<class T>(T) {
    T value{};
    std::memcpy(&value, buffer.data() + i * sizeof(T), sizeof(T));
    if constexpr (requires { value.bits; }) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  };
  switch (type) {
    case DataType::int8:
      return as(std::int8_t{});
    case DataType::uint8:
      return as(std::uint8_t{});
    case DataType::int16:
      return as(std::int16_t{});
    case DataType::uint16:
      return as(std::uint16_t{});
    case DataType::int32:
      return as(std::int32_t{});
    case DataType::uint32:
      return as(std::uint32_t{});
    case DataType::int64:
      return as(std::int64_t{});
    case DataType::uint64:
      return as(std::uint64_t{});
    case DataType::float16:
      return as(Float16{});
    case DataType::bfloat16:
      return as(BFloat16{});
    case DataType::float32:
      return as(float{});
    case DataType::float64:
      return as(double{});
    case DataType::float8_e4m3:
      return as(Float8E4M3{});
    case DataType::float8_e5m2:
      return as(Float8E5M2{});
  }
  return NAN;
}

void store(std::vector<std::byte>& buffer, DataType type, std::size_t i, double value) {
  const auto as = [&]<class T>(T) {
    T narrow{};
    if constexpr (requires { narrow.bits; }) {
      narrow = T(static_cast<float>(value));
    } else {
      narrow = static_cast<T>(value);
    }
    std::memcpy(buffer.data() + i * sizeof(T), &narrow, sizeof(T));
  };
  switch (type) {
    case DataType::int8:
      return as(std::int8_t{});
    case DataType::uint8:
      return as(std::uint8_t{});
    case DataType::int16:
      return as(std::int16_t{});
    case DataType::uint16:
      return as(std::uint16_t{});
    case DataType::int32:
      return as(std::int32_t{});
    case DataType::uint32:
      return as(std::uint32_t{});
    case DataType::int64:
      return as(std::int64_t{});
    case DataType::uint64:
      return as(std::uint64_t{});
    case DataType::float16:
      return as(Float16{});
    case DataType::bfloat16:
      return as(BFloat16{});
    case DataType::float32:
      return as(float{});
    case DataType::float64:
      return as(double{});
    case DataType::float8_e4m3:
      return as(Float8E4M3{});
    case DataType::float8_e5m2:
      return as(Float8E5M2{});
  }
}

double combined(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::prod:
      return a * b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return static_cast<double>(static_cast<std::uint64_t>(a) & static_cast<std::uint64_t>(b));
    case ReduceOp::bor:
      return static_cast<double>(static_cast<std::uint64_t>(a) | static_cast<std::uint64_t>(b));
    case ReduceOp::bxor:
      return static_cast<double>(static_cast<std::uint64_t>(a) ^ static_cast<std::uint64_t>(b));
  }
  return NAN;
}

std::vector<std::byte> input_of(const Pattern& pattern, int rank) {
  std::vector<std::byte> buffer(kCount * size_of(pattern.type));
  fill(buffer.data(), pattern, rank, 100, kCount);
  return buffer;
}

/// Folds all ranks' inputs in `type`, rounding after every fold, from the last rank to the first:
/// an order that no library uses. Exactness in any order is what makes the check valid.
std::vector<std::byte> folded(const Pattern& pattern) {
  std::vector<std::byte> result = input_of(pattern, pattern.world_size - 1);
  for (int rank = pattern.world_size - 2; rank >= 0; --rank) {
    const std::vector<std::byte> next = input_of(pattern, rank);
    for (std::size_t i = 0; i < kCount; ++i) {
      store(
          result, pattern.type, i,
          combined(pattern.op, value_at(result, pattern.type, i), value_at(next, pattern.type, i)));
    }
  }
  if (pattern.op == ReduceOp::avg) {
    for (std::size_t i = 0; i < kCount; ++i) {
      store(result, pattern.type, i, value_at(result, pattern.type, i) / pattern.world_size);
    }
  }
  return result;
}

std::vector<Pattern> every_pattern() {
  std::vector<Pattern> patterns;
  for (int type = 0; type < kNumDataTypes; ++type) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      for (const int n : {2, 3, 4, 8, 9}) {
        const Pattern pattern{.type = static_cast<DataType>(type),
                              .op = static_cast<ReduceOp>(op),
                              .reduced = true,
                              .world_size = n,
                              .seed = 7};
        if (why_uncheckable(pattern).empty()) patterns.push_back(pattern);
      }
    }
  }
  return patterns;
}

std::string described(const Pattern& p) {
  return std::string(name_of(p.type)) + " " + std::string(name_of(p.op)) + " over " +
         std::to_string(p.world_size);
}

TEST(Pattern, GivesExactReductionsInEveryTypeAndOrder) {
  for (const Pattern& pattern : every_pattern()) {
    const std::vector<std::byte> result = folded(pattern);
    EXPECT_EQ(compare_to_reduction(result.data(), pattern, 100, kCount).wrong, 0U)
        << described(pattern);
  }
}

TEST(Pattern, CoversSumsOfAllTypesButTheNarrowestOnManyRanks) {
  for (int type = 0; type < kNumDataTypes; ++type) {
    Pattern pattern{.type = static_cast<DataType>(type), .reduced = true, .world_size = 8};
    EXPECT_EQ(why_uncheckable(pattern), "") << described(pattern);
  }
  const Pattern narrow{.type = DataType::float8_e5m2, .reduced = true, .world_size = 64};
  EXPECT_NE(why_uncheckable(narrow), "");
}

TEST(Pattern, HasBitsOfIntegersAlone) {
  const Pattern integers{
      .type = DataType::int8, .op = ReduceOp::band, .reduced = true, .world_size = 4};
  EXPECT_EQ(why_uncheckable(integers), "");
  const Pattern floats{
      .type = DataType::float64, .op = ReduceOp::band, .reduced = true, .world_size = 4};
  EXPECT_EQ(why_uncheckable(floats),
            "band combines the bits of integers, and float64 is not an integer type");
}

TEST(Pattern, ShowsAShareThatIsMissing) {
  for (Pattern pattern : every_pattern()) {
    // These may not change with one share; sums, products, averages and bxor must somewhere.
    if (pattern.op == ReduceOp::min || pattern.op == ReduceOp::max) continue;
    if (pattern.op == ReduceOp::band || pattern.op == ReduceOp::bor) continue;
    const std::vector<std::byte> good = folded(pattern);
    for (int lost = 0; lost < pattern.world_size; ++lost) {
      const std::vector<std::byte> share = input_of(pattern, lost);
      std::size_t changed = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        const double neutral = pattern.op == ReduceOp::prod ? 1 : 0;
        changed += value_at(share, pattern.type, i) != neutral ? 1 : 0;
      }
      EXPECT_GT(changed, kCount / 50) << described(pattern) << ", rank " << lost;
    }
  }
}

TEST(Pattern, DiffersByRankPositionAndSeed) {
  for (int type = 0; type < kNumDataTypes; ++type) {
    Pattern pattern{.type = static_cast<DataType>(type), .world_size = 4, .seed = 1};
    const std::vector<std::byte> mine = input_of(pattern, 1);
    EXPECT_EQ(compare_to_rank(mine.data(), pattern, 1, 100, kCount).wrong, 0U);
    EXPECT_GT(compare_to_rank(mine.data(), pattern, 2, 100, kCount).wrong, kCount / 2);
    EXPECT_GT(compare_to_rank(mine.data(), pattern, 1, 101, kCount).wrong, kCount / 2);
    pattern.seed = 2;
    EXPECT_GT(compare_to_rank(mine.data(), pattern, 1, 100, kCount).wrong, kCount / 2);
  }
}

TEST(Check, FindsOneWrongElementAndSaysWhere) {
  const Pattern pattern{.reduced = true, .world_size = 3, .seed = 9};
  for (const std::size_t at : {std::size_t{0}, std::size_t{2047}, std::size_t{2048}, kCount - 1}) {
    std::vector<std::byte> result = folded(pattern);
    store(result, pattern.type, at, value_at(result, pattern.type, at) + 1);
    const Mismatches found = compare_to_reduction(result.data(), pattern, 100, kCount);
    EXPECT_EQ(found.wrong, 1U);
    EXPECT_EQ(found.first_wrong, at);
  }
}

TEST(Check, SeesAnOutputThatWasNeverWritten) {
  for (int type = 0; type < kNumDataTypes; ++type) {
    const Pattern pattern{.type = static_cast<DataType>(type), .reduced = true, .world_size = 2};
    std::vector<std::byte> untouched(kCount * size_of(pattern.type));
    poison(untouched.data(), untouched.size());
    EXPECT_GT(compare_to_reduction(untouched.data(), pattern, 0, kCount).wrong, kCount * 9 / 10);
  }
}

}  // namespace
}  // namespace chorus::perf
