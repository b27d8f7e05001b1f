// Every reader keeps its promises on its samples, on what once broke them, and on mutations of both
// that are the same in every run. CHORUS_TEST_MUTATIONS: how many of each sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/mutate.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/samples.hpp"

namespace chorus::fuzz {
namespace {

constexpr std::size_t kMutations = 200;
/// Of larger samples fewer, so that the whole takes seconds.
constexpr std::size_t kMutatedBytes = 400'000;

std::size_t mutations_of(const std::string& sample) {
  const char* asked = std::getenv("CHORUS_TEST_MUTATIONS");
  if (asked != nullptr) return std::strtoull(asked, nullptr, 10);
  return std::clamp<std::size_t>(kMutatedBytes / (sample.size() + 1), 2, kMutations);
}

/// Where the input can be had again after a crash.
void keep(const std::string& input) {
  if (const char* path = std::getenv("CHORUS_TEST_KEEP")) {
    std::ofstream(path, std::ios::binary) << input;
  }
}

class Mutations : public testing::TestWithParam<std::string_view> {
 protected:
  static const Reader& reader() {
    for (const Reader& each : readers()) {
      if (each.name == GetParam()) return each;
    }
    throw std::out_of_range("no such reader");
  }
};

TEST_P(Mutations, BreakNoPromise) {
  std::size_t count = 0;
  for (const std::string& sample : reader().samples()) {
    ASSERT_EQ(finding(reader(), sample), "") << sample;
    Random random(1);
    const std::size_t most = mutations_of(sample);
    std::string input = sample;
    for (std::size_t i = 0; i < most; ++i, ++count) {
      // Changes pile up for a while: what is far from a sample is met, too.
      input = mutated(reader(), i % 4 == 0 ? sample : input, random);
      keep(input);
      ASSERT_EQ(finding(reader(), input), "") << input;
    }
  }
  ASSERT_GT(count, 0U);
  RecordProperty("mutations", static_cast<int>(count));
}

TEST_P(Mutations, WhatOnceBrokeOneBreaksItNoMore) {
  for (const std::string& input : regressions(reader().name)) {
    EXPECT_EQ(finding(reader(), input), "") << input;
  }
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Reader& reader : readers()) all.push_back(reader.name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Readers, Mutations, testing::ValuesIn(names()),
                         [](const auto& reader) { return std::string(reader.param); });

}  // namespace
}  // namespace chorus::fuzz
