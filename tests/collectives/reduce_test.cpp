// Every kernel of every instruction set gives the reference's bits.
#include "collectives/reduce.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "collectives/kernels.hpp"

namespace chorus {
namespace {

using detail::InstructionSet;
using detail::Kernels;

constexpr DataType kLastType = static_cast<DataType>(kNumDataTypes - 1);

std::vector<DataType> all_types() {
  std::vector<DataType> types;
  for (int i = 0; i < kNumDataTypes; ++i) types.push_back(static_cast<DataType>(i));
  EXPECT_EQ(types.back(), kLastType);
  return types;
}

bool is_nan(const std::uint8_t* element, DataType type) {
  const auto as = [element](auto narrow) {
    std::memcpy(static_cast<void*>(&narrow), element, sizeof(narrow));
    return std::isnan(static_cast<double>(static_cast<float>(narrow)));
  };
  switch (type) {
    case DataType::float16:
      return as(Float16());
    case DataType::bfloat16:
      return as(BFloat16());
    case DataType::float8_e4m3:
      return as(Float8E4M3());
    case DataType::float8_e5m2:
      return as(Float8E5M2());
    case DataType::float32:
      return as(0.0F);
    case DataType::float64: {
      double value = 0;
      std::memcpy(&value, element, sizeof(value));
      return std::isnan(value);
    }
    default:
      return false;
  }
}

/// First element in which two results differ, -1 if none; any NaN equals any other.
long first_difference(const std::uint8_t* a, const std::uint8_t* b, std::size_t count,
                      DataType type) {
  const std::size_t size = size_of(type);
  if (std::memcmp(a, b, count * size) == 0) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * size, b + i * size, size) == 0) continue;
    if (!is_nan(a + i * size, type) || !is_nan(b + i * size, type)) return static_cast<long>(i);
  }
  return -1;
}

/// Random bits: for floats that is every exponent, NaN, infinity and subnormal. Where that would
/// leave little but NaN and infinity, three elements in four are ordinary numbers.
void fill(std::vector<std::uint8_t>& bytes, DataType type, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  std::normal_distribution<float> ordinary(0, 3);
  const std::size_t size = size_of(type);
  const auto put = [&](std::size_t at, auto value) {
    std::memcpy(bytes.data() + at, &value, size);
  };
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    if (random() % 4 == 0) continue;
    const float value = ordinary(random);
    if (type == DataType::float16) put(at, Float16(value).bits);
    if (type == DataType::bfloat16) put(at, BFloat16(value).bits);
    if (type == DataType::float32) put(at, value);
    if (type == DataType::float64) put(at, static_cast<double>(value) * 1.00000001);
    if (type == DataType::float8_e4m3) put(at, Float8E4M3(value).bits);
    if (type == DataType::float8_e5m2) put(at, Float8E5M2(value).bits);
  }
}

class EveryInstructionSet : public testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    kernels_ = detail::kernels_for(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this machine or build lacks it";
  }

  const Kernels* kernels_ = nullptr;
};

std::string set_name(const testing::TestParamInfo<InstructionSet>& set) {
  return set.param == InstructionSet::avx512 ? "avx512"
         : set.param == InstructionSet::avx2 ? "avx2"
                                             : "baseline";
}

INSTANTIATE_TEST_SUITE_P(Reduce, EveryInstructionSet,
                         testing::Values(InstructionSet::baseline, InstructionSet::avx2,
                                         InstructionSet::avx512),
                         set_name);

/// k sources of `count` elements, each `shift` bytes off alignment, with bytes behind that nobody
/// may touch.
class Fixture {
 public:
  static constexpr std::uint8_t kGuard = 0xA5;

  Fixture(DataType type, std::size_t k, std::size_t count, std::size_t shift)
      : type_(type), count_(count), shift_(shift), size_(count * size_of(type)) {
    for (std::size_t i = 0; i < k; ++i) {
      std::vector<std::uint8_t> bytes(size_);
      fill(bytes, type, static_cast<std::uint32_t>(i * 31 + count));
      originals_.push_back(std::move(bytes));
    }
  }

  std::vector<std::uint8_t> reference(ReduceOp op, int divisor) const {
    std::vector<std::uint8_t> out(size_ + 1);
    std::vector<const void*> sources;
    for (const auto& original : originals_) sources.push_back(original.data());
    fold_reference(out.data(), sources, count_, type_, op, divisor);
    return out;
  }

  /// Folds into source `alias`, or into memory of its own where that is k. What went wrong, or "".
  std::string check(const Kernels& kernels, ReduceOp op, int divisor, std::size_t alias,
                    const std::vector<std::uint8_t>& expected) const {
    std::vector<std::vector<std::uint8_t>> memory;
    for (const auto& original : originals_) memory.push_back(placed(original));
    memory.push_back(placed(std::vector<std::uint8_t>(size_)));
    std::vector<const void*> sources;
    for (std::size_t i = 0; i < originals_.size(); ++i)
      sources.push_back(memory[i].data() + shift_);
    std::uint8_t* const out = memory[alias].data() + shift_;
    detail::fold_with(kernels, out, sources.data(), sources.size(), count_, type_, op, divisor);

    const std::string what =
        fmt::format("{} {} / {}, {} sources, count {}, shift {}, alias {}", name_of(type_),
                    name_of(op), divisor, originals_.size(), count_, shift_, alias);
    const long wrong = first_difference(out, expected.data(), count_, type_);
    if (wrong >= 0) return fmt::format("{}: element {} differs", what, wrong);
    for (std::size_t i = 0; i < originals_.size(); ++i) {
      if (i != alias && memory[i] != placed(originals_[i])) return what + ": a source was changed";
    }
    for (std::size_t i = 0; i < memory[alias].size(); ++i) {
      if ((i < shift_ || i >= shift_ + size_) && memory[alias][i] != kGuard) {
        return what + ": wrote outside its memory";
      }
    }
    return {};
  }

 private:
  std::vector<std::uint8_t> placed(const std::vector<std::uint8_t>& bytes) const {
    std::vector<std::uint8_t> result(size_ + shift_ + 70, kGuard);
    std::copy(bytes.begin(), bytes.end(), result.begin() + static_cast<std::ptrdiff_t>(shift_));
    return result;
  }

  DataType type_;
  std::size_t count_;
  std::size_t shift_;
  std::size_t size_;
  std::vector<std::vector<std::uint8_t>> originals_;
};

TEST_P(EveryInstructionSet, FoldsEveryTypeAndOperationLikeTheReference) {
  for (const DataType type : all_types()) {
    for (std::size_t k = 1; k <= 9; ++k) {
      for (const std::size_t count : {0, 1, 3, 17, 64, 1021}) {
        for (const std::size_t shift : {0, 1, 4}) {
          const Fixture fixture(type, k, count, shift);
          for (int op = 0; op < kNumReduceOps; ++op) {
            const auto reduce = static_cast<ReduceOp>(op);
            if (!applies(reduce, type)) continue;
            const int divisor = reduce == ReduceOp::avg ? static_cast<int>(k) : 1;
            const auto expected = fixture.reference(reduce, divisor);
            for (std::size_t alias = 0; alias <= k; ++alias) {
              const std::string fault = fixture.check(*kernels_, reduce, divisor, alias, expected);
              ASSERT_EQ(fault, "");
            }
          }
        }
      }
    }
  }
}

TEST_P(EveryInstructionSet, DividesByAnyWorldSize) {
  for (const DataType type : all_types()) {
    for (const int divisor : {2, 3, 7, 8, 100, 127, 1024, 4097}) {
      for (const std::size_t k : {1U, 2U, 3U}) {
        const Fixture fixture(type, k, 300, 0);
        const auto expected = fixture.reference(ReduceOp::avg, divisor);
        ASSERT_EQ(fixture.check(*kernels_, ReduceOp::avg, divisor, 0, expected), "");
      }
    }
  }
}

/// Every pair of encodings of a type of one or two bytes, as far as a million goes.
TEST_P(EveryInstructionSet, AddsEveryPairOfFp8AndRoundsEveryHalf) {
  for (const DataType type : {DataType::float8_e4m3, DataType::float8_e5m2}) {
    std::vector<std::uint8_t> a(65536);
    std::vector<std::uint8_t> b(65536);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::uint8_t>(i);
      b[i] = static_cast<std::uint8_t>(i >> 8);
    }
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      const void* const sources[] = {a.data(), b.data()};
      std::vector<std::uint8_t> out(a.size());
      std::vector<std::uint8_t> expected(a.size());
      detail::fold_with(*kernels_, out.data(), sources, 2, a.size(), type, op, 1);
      fold_reference(expected.data(), sources, a.size(), type, op);
      ASSERT_EQ(first_difference(out.data(), expected.data(), a.size(), type), -1)
          << name_of(type) << ' ' << name_of(op);
    }
  }
  for (const DataType type : {DataType::float16, DataType::bfloat16}) {
    // Thirds and the like of every encoding hit every way of rounding.
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const void* const sources[] = {all.data()};
    for (const int divisor : {2, 3, 5, 1000, 65536}) {
      std::vector<std::uint16_t> out(all.size());
      std::vector<std::uint16_t> expected(all.size());
      detail::fold_with(*kernels_, out.data(), sources, 1, all.size(), type, ReduceOp::avg,
                        divisor);
      fold_reference(expected.data(), sources, all.size(), type, ReduceOp::avg, divisor);
      ASSERT_EQ(
          first_difference(reinterpret_cast<std::uint8_t*>(out.data()),
                           reinterpret_cast<std::uint8_t*>(expected.data()), all.size(), type),
          -1)
          << name_of(type) << " / " << divisor;
    }
  }
}

template <class T>
std::vector<T> scaled(const Kernels& kernels, const std::vector<T>& in, double factor) {
  std::vector<T> out(in.size());
  detail::scale_with(kernels, out.data(), in.data(), in.size(), kDataType<T>, factor);
  std::vector<T> in_place = in;
  detail::scale_with(kernels, in_place.data(), in_place.data(), in.size(), kDataType<T>, factor);
  EXPECT_EQ(in_place, out);
  return out;
}

TEST_P(EveryInstructionSet, ScalesIntegersTowardsZeroAndSaturates) {
  EXPECT_THAT(scaled<std::int32_t>(*kernels_, {7, -7, 0, 1'000'000'000, -1'000'000'000}, 2.5),
              testing::ElementsAre(17, -17, 0, std::numeric_limits<std::int32_t>::max(),
                                   std::numeric_limits<std::int32_t>::min()));
  EXPECT_THAT(scaled<std::uint8_t>(*kernels_, {7, 200, 0}, 1.5), testing::ElementsAre(10, 255, 0));
  EXPECT_THAT(scaled<std::uint8_t>(*kernels_, {7, 200, 0}, -1.5), testing::Each(0));
  EXPECT_THAT(scaled<std::int64_t>(*kernels_, {5, -5, 1LL << 62}, 4.0),
              testing::ElementsAre(20, -20, std::numeric_limits<std::int64_t>::max()));
  EXPECT_THAT(scaled<std::uint64_t>(*kernels_, {3, 1ULL << 63}, 2.0),
              testing::ElementsAre(6U, std::numeric_limits<std::uint64_t>::max()));
  EXPECT_THAT(scaled<std::int16_t>(*kernels_, {1, -1}, std::nan("")), testing::Each(0));
  EXPECT_THAT(scaled<std::int8_t>(*kernels_, {100, -100}, 1e30), testing::ElementsAre(127, -128));
}

template <class T>
void check_scaled_floats(const Kernels& kernels) {
  std::mt19937 random(7);
  std::normal_distribution<float> ordinary(0, 10);
  for (const double factor : {1.0, 0.5, 1.0 / 3, -7.25}) {
    std::vector<T> in;
    for (int i = 0; i < 1003; ++i) in.push_back(T(ordinary(random)));
    const std::vector<T> out = scaled(kernels, in, factor);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const T expected = sizeof(T) < 4 ? T(static_cast<float>(in[i]) * static_cast<float>(factor))
                                       : T(static_cast<double>(in[i]) * factor);
      ASSERT_EQ(out[i], expected) << name_of(kDataType<T>) << " * " << factor << ", " << i;
    }
  }
}

TEST_P(EveryInstructionSet, ScalesFloatsAndRounds) {
  check_scaled_floats<float>(*kernels_);
  check_scaled_floats<double>(*kernels_);
}

template <class T>
void check_scaled_narrow(const Kernels& kernels) {
  std::vector<T> in(256);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = T(static_cast<float>(i) * 0.37F - 40);
  for (const double factor : {0.5, 1.0 / 3, -7.25}) {
    const std::vector<T> out = scaled(kernels, in, factor);
    for (std::size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], T(static_cast<float>(in[i]) * static_cast<float>(factor)))
          << name_of(kDataType<T>) << " * " << factor << ", " << i;
    }
  }
}

TEST_P(EveryInstructionSet, ScalesNarrowFloatsInFloat) {
  check_scaled_narrow<Float16>(*kernels_);
  check_scaled_narrow<BFloat16>(*kernels_);
  check_scaled_narrow<Float8E4M3>(*kernels_);
  check_scaled_narrow<Float8E5M2>(*kernels_);
}

/// Folds `num_sources` sources into places at odd addresses, `in_place`: one of them is a source.
void check_outs(DataType type, int num_sources, std::size_t count, std::size_t num_cached,
                std::size_t num_streamed, bool in_place) {
  constexpr std::size_t kGuard = 64;
  constexpr std::uint8_t kUntouched = 0xA5;
  SCOPED_TRACE(fmt::format("{}, {} sources, {} elements, {} cached, {} streamed, in place: {}",
                           name_of(type), num_sources, count, num_cached, num_streamed, in_place));
  const std::size_t bytes = count * size_of(type);
  std::vector<std::vector<std::uint8_t>> inputs(static_cast<std::size_t>(num_sources));
  std::vector<const void*> sources;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].resize(bytes);
    fill(inputs[i], type, static_cast<std::uint32_t>(i));
    sources.push_back(inputs[i].data());
  }
  const int divisor = num_sources % 2 == 1 ? num_sources : 1;
  std::vector<std::uint8_t> want(bytes);
  fold_reference(want.data(), sources, count, type, ReduceOp::avg, divisor);

  std::vector<std::vector<std::uint8_t>> outputs(num_cached + num_streamed);
  std::vector<void*> places;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].assign(bytes + 2 * kGuard, kUntouched);
    places.push_back(outputs[i].data() + kGuard + (i * 7) % 16);
  }
  std::size_t own = outputs.size();
  if (in_place) {
    own = outputs.size() - 1;
    std::memcpy(places[own], sources[0], bytes);
    sources[0] = places[own];
  }
  const std::span<void* const> all = places;
  fold({.cached = all.first(num_cached), .streamed = all.subspan(num_cached)}, sources, count, type,
       ReduceOp::avg, divisor);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto* const got = static_cast<const std::uint8_t*>(places[i]);
    EXPECT_EQ(first_difference(got, want.data(), count, type), -1) << "place " << i;
    EXPECT_EQ(got[-1], kUntouched) << "before place " << i;
    EXPECT_EQ(got[bytes], kUntouched) << "behind place " << i;
  }
}

TEST(Reduce, FoldsIntoSeveralPlacesThroughTheCachesAndPastThem) {
  for (const DataType type : {DataType::int8, DataType::bfloat16, DataType::float32}) {
    for (const int num_sources : {1, 2, 3, 65}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{20'001}}) {
        if (num_sources > 3 && count > 37) continue;  // they are folded in one go
        for (std::size_t cached = 0; cached <= 2; ++cached) {
          for (std::size_t streamed = cached == 0 ? 1 : 0; streamed <= 3; ++streamed) {
            check_outs(type, num_sources, count, cached, streamed, false);
            check_outs(type, num_sources, count, cached, streamed, true);
          }
        }
      }
    }
  }
}

TEST(Reduce, HalfTypesRoundOncePerFold) {
  // 2048 + 1 + 1 in float16 alone would stay 2048; rounded once it is 2050.
  const Float16 big(2048);
  const Float16 one(1);
  const void* const sources[] = {&big, &one, &one};
  Float16 out;
  fold(&out, sources, 1, DataType::float16, ReduceOp::sum);
  EXPECT_EQ(static_cast<float>(out), 2050.0F);
}

TEST(Reduce, IntegerAverageTruncatesTowardsZero) {
  const std::int32_t a[] = {-7, 7, 1};
  const std::int32_t b[] = {0, 0, -2};
  const void* const sources[] = {a, b};
  std::int32_t out[3];
  fold(out, sources, 3, DataType::int32, ReduceOp::avg, 2);
  EXPECT_THAT(out, testing::ElementsAre(-3, 3, 0));
}

TEST(Reduce, SaysWhichInstructionSetItUses) {
  EXPECT_THAT(reduce_instruction_set(), testing::AnyOf("avx512", "avx2", "baseline"));
  if (detail::kernels_for(InstructionSet::avx512) != nullptr) {
    EXPECT_EQ(reduce_instruction_set(), "avx512");
  }
}

}  // namespace
}  // namespace chorus
