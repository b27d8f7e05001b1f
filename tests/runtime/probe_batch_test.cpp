// Claim: what rank 0 asks of the hosts that probe arrives as it was, nothing else is believed, and
// flows last as long as the slowest of their bottlenecks needs.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "chorus/error.hpp"
#include "runtime/probing/batch.hpp"

namespace chorus {
namespace {

using probing::Flow;
using Kind = ProbeQuestion::Kind;

constexpr std::uint32_t kNetworks = 3;

std::vector<std::byte> written(const ProbeBatch& batch) {
  BlobWriter blob;
  write(blob, batch);
  const auto view = blob.view();
  return {view.begin(), view.end()};
}

ProbeBatch drawn(std::minstd_rand& random, int hosts) {
  ProbeBatch batch(random() % 6);
  for (ProbeQuestion& question : batch) {
    question.kind = static_cast<Kind>(random() % 3);
    question.ms = static_cast<std::uint32_t>(random() % (ProbeQuestion::kLongestMs + 1));
    question.network = static_cast<std::uint32_t>(random() % (kNetworks + 1));
    for (auto flows = random() % 9; flows > 0; --flows) {
      const int src = static_cast<int>(random() % static_cast<unsigned>(hosts));
      question.flows.push_back({src, (src + 1) % hosts});
    }
  }
  return batch;
}

TEST(ProbeBatch, ArrivesAsItWasAndNoShorter) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::minstd_rand random(seed);
    const int hosts = 2 + static_cast<int>(seed % 15);
    const ProbeBatch batch = drawn(random, hosts);
    const auto bytes = written(batch);
    const ProbeBatch read = read_batch(bytes, static_cast<std::uint32_t>(hosts), kNetworks);
    ASSERT_EQ(read.size(), batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(read[i].kind, batch[i].kind);
      EXPECT_EQ(read[i].ms, batch[i].ms);
      EXPECT_EQ(read[i].network, batch[i].network);
      EXPECT_EQ(read[i].flows, batch[i].flows);
    }
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_THROW((void)read_batch(std::span(bytes).first(cut), 16, kNetworks), BootstrapError)
          << cut;
    }
  }
}

TEST(ProbeBatch, WhatNoRankZeroAsksIsRefused) {
  const auto refuses = [](const ProbeQuestion& question, std::uint32_t hosts) {
    EXPECT_THROW((void)read_batch(written({question}), hosts, kNetworks), BootstrapError);
  };
  refuses({.kind = static_cast<Kind>(3), .flows = {{0, 1}}}, 2);
  refuses({.flows = {{0, 1}}, .ms = ProbeQuestion::kLongestMs + 1}, 2);
  refuses({.flows = {{0, 1}}, .network = kNetworks + 1}, 2);
  refuses({.flows = {{0, 2}}}, 2);
  refuses({.flows = {{-1, 0}}}, 2);
  refuses({.flows = {{1, 1}}}, 2);
  std::vector<std::byte> more = written({});
  const std::uint32_t count = 0xffffffff;
  std::memcpy(more.data(), &count, sizeof count);
  EXPECT_THROW((void)read_batch(more, 2, kNetworks), BootstrapError);
  more = written({});
  more.push_back(std::byte{});
  EXPECT_THROW((void)read_batch(more, 2, kNetworks), BootstrapError);
}

TEST(ProbeDuration, GrowsAsABottleneckIsSlowerWithinLimits) {
  const std::vector<Flow> pair = {{0, 1}, {1, 0}};
  const auto of = [&](double rate) {
    return duration_ms(pair, {.out = {rate, 250e6}, .in = {250e6, 250e6}});
  };
  EXPECT_EQ(of(250e6), ProbeQuestion::kShortestMs);
  EXPECT_EQ(of(10e6), ProbeQuestion::kLongestMs);
  EXPECT_EQ(of(0), ProbeQuestion::kLongestMs);
  std::uint32_t before = ProbeQuestion::kLongestMs;
  for (double rate = 5e6; rate < 1e9; rate *= 1.3) {
    EXPECT_LE(of(rate), before) << rate;
    before = of(rate);
    if (before < ProbeQuestion::kLongestMs && before > ProbeQuestion::kShortestMs) {
      EXPECT_NEAR(before * 1e-3 * rate, 2 << 20, 1e-3 * rate) << "2 MiB, but for the last ms";
    }
  }
}

// A fan to eight peers of 10 MB/s each measures one cable, of 80; behind a trunk of 30 MB/s, that.
TEST(ProbeDuration, CountsFlowsThatShareALimitTogether) {
  std::vector<Flow> fan;
  for (int peer = 1; peer <= 8; ++peer) fan.push_back({0, peer});
  probing::HostTree known{.out = std::vector<double>(10, 10e6),
                          .in = std::vector<double>(10, 10e6)};
  known.out[0] = known.in[0] = 80e6;
  EXPECT_EQ(duration_ms(fan, known), ProbeQuestion::kShortestMs);
  known.groups.push_back({{0, 9}, 30e6, 30e6});
  EXPECT_EQ(duration_ms(fan, known), static_cast<std::uint32_t>((2 << 20) / 30e3));
  for (Flow& flow : fan) std::swap(flow.src, flow.dst);
  EXPECT_EQ(duration_ms(fan, known), static_cast<std::uint32_t>((2 << 20) / 30e3));
}

}  // namespace
}  // namespace chorus
