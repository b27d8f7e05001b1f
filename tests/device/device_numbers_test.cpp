// The device's arithmetic gives the bits of the host's: every pattern of the narrow types, every
// type and operation on random words. What is compiled here is what nvcc compiles, but for the
// conversions that have instructions of their own.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "collectives/reduce.hpp"
#include "device/fold.hpp"
#include "device/host_machine.hpp"

namespace chorus::device {
namespace {

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

template <DataType kType, class Host>
void expect_same_conversions() {
  using N = Number<kType>;
  using Bits = typename N::Bits;
  for (std::uint32_t bits = 0; bits < 1U << (8 * sizeof(Bits)); ++bits) {
    Host host;
    host.bits = static_cast<Bits>(bits);
    const auto expected = static_cast<float>(host);
    ASSERT_TRUE(same(N::widen(static_cast<Bits>(bits)), expected)) << bits;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const Bits expected = Host(value).bits;
    const Bits found = N::narrow(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(N::widen(found)) && std::isnan(N::widen(expected)));
    } else {
      ASSERT_EQ(found, expected) << value;
    }
  }
}

TEST(DeviceNumbers, ConvertAsTheHostDoes) {
  expect_same_conversions<DataType::float16, Float16>();
  expect_same_conversions<DataType::bfloat16, BFloat16>();
  expect_same_conversions<DataType::float8_e4m3, Float8E4M3>();
  expect_same_conversions<DataType::float8_e5m2, Float8E5M2>();
}

/// Waits for nothing: there is nothing to wait for.
struct NoWait {
  static bool gave_up(std::uint32_t, std::uint32_t) { return true; }
  static bool mismatch(std::uint32_t) { return true; }
};

/// Finite numbers of moderate size in every type.
std::vector<std::uint8_t> numbers(DataType type, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> data(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const float real = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64;
    const auto put = [&](auto value) {
      std::memcpy(&data[i * sizeof value], static_cast<const void*>(&value), sizeof value);
    };
    switch (type) {
      case DataType::float16:
        put(Float16(real));
        break;
      case DataType::bfloat16:
        put(BFloat16(real));
        break;
      case DataType::float32:
        put(real);
        break;
      case DataType::float64:
        put(static_cast<double>(real));
        break;
      case DataType::float8_e4m3:
        put(Float8E4M3(real));
        break;
      case DataType::float8_e5m2:
        put(Float8E5M2(real));
        break;
      default:
        for (std::size_t b = 0; b < size_of(type); ++b) {
          data[i * size_of(type) + b] = static_cast<std::uint8_t>(random());
        }
    }
  }
  return data;
}

std::uint64_t address(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

TEST(DeviceNumbers, FoldAsTheHostDoes) {
  const auto shared = std::make_unique<BlockShared>();
  HostBlock block(1);
  HostMachine machine(*shared, block, 0, 1);
  NoWait wait;
  for (int t = 0; t < kNumDataTypes; ++t) {
    for (int o = 0; o < kNumReduceOps; ++o) {
      if (is_bitwise(static_cast<ReduceOp>(o))) continue;  // not on GPUs
      for (const std::size_t count : {1U, 7U, 1000U}) {
        for (const std::size_t shift : {0U, 1U}) {  // aligned, and not
          const auto type = static_cast<DataType>(t);
          const auto op = static_cast<ReduceOp>(o);
          const int divisor = op == ReduceOp::avg ? 3 : 1;
          const std::size_t bytes = count * size_of(type);
          alignas(16) static std::uint8_t inputs[3][8192];
          alignas(16) static std::uint8_t result[8192];
          std::vector<const void*> sources;
          FoldJob& job = shared->job;
          job = {};
          for (unsigned s = 0; s < 3; ++s) {
            const auto data = numbers(type, count, s + 1);
            std::memcpy(inputs[s] + shift, data.data(), bytes);
            sources.push_back(inputs[s] + shift);
            job.sources[s] = {address(inputs[s] + shift), 1.0, 0, kLocal, 0, 0};
          }
          std::vector<std::uint8_t> expected(bytes);
          chorus::fold(expected.data(), sources, count, type, op, divisor);
          job.bytes = bytes;
          job.num_sources = 3;
          job.num_targets = 1;
          job.targets[0] = address(result + shift);
          job.divisor = static_cast<std::uint32_t>(divisor);
          job.protocol = Protocol::bulk;
          ASSERT_TRUE(fold(machine, wait, job, type, op));
          ASSERT_EQ(std::memcmp(expected.data(), result + shift, bytes), 0)
              << name_of(type) << ' ' << name_of(op) << ' ' << count;
        }
      }
    }
  }
}

TEST(DeviceNumbers, ScaleAsTheHostDoes) {
  const auto shared = std::make_unique<BlockShared>();
  HostBlock block(1);
  HostMachine machine(*shared, block, 0, 1);
  NoWait wait;
  for (int t = 0; t < kNumDataTypes; ++t) {
    for (const double factor : {0.5, -1.25, 1e6}) {
      const auto type = static_cast<DataType>(t);
      constexpr std::size_t kCount = 500;
      const std::size_t bytes = kCount * size_of(type);
      const auto input = numbers(type, kCount, 5);
      std::vector<std::uint8_t> expected(bytes), result(bytes);
      chorus::scale(expected.data(), input.data(), kCount, type, factor);
      FoldJob& job = shared->job;
      job = {};
      job.sources[0] = {address(input.data()), factor, 0, kLocal, 0, 1};
      job.bytes = bytes;
      job.num_sources = 1;
      job.num_targets = 1;
      job.targets[0] = address(result.data());
      job.divisor = 1;
      job.protocol = Protocol::bulk;
      ASSERT_TRUE(fold(machine, wait, job, type, ReduceOp::sum));
      ASSERT_EQ(expected, result) << name_of(type) << " · " << factor;
    }
  }
}

}  // namespace
}  // namespace chorus::device
