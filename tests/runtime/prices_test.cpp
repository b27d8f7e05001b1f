// What a call is predicted to cost on a host, for any host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "collectives/algorithms.hpp"
#include "model/bounds.hpp"
#include "model/contract.hpp"
#include "runtime/selection.hpp"
#include "tests/runtime/drawn_rates.hpp"
#include "topology/sources.hpp"

namespace chorus::testing {
namespace {

constexpr double kSizes[] = {0, 1, 8, 700, 4096, 65'536, 1e6, 3e7, 1e9, 1e12};

struct Host {
  JobShape shape;
  Topology topology;
  SharedMachine machine;

  explicit Host(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    HostRates rates = drawn_rates(seed);
    if (random() % 3 == 0) {
      for (HostRates::Sample& sample : rates.pairs[0].samples) sample.kernel_s = 0;
    }
    const int ranks = 2 + static_cast<int>(random() % 7);
    shape = {.ranks_per_host = ranks,
             .cores_per_host = 1 + static_cast<int>(random() % (2 * static_cast<unsigned>(ranks))),
             .rates = {rates}};
    topology = job_topology(shape);
    machine = {.cores = shape.cores_per_host, .rates = rates};
  }
  [[nodiscard]] Considered consider(CollectiveKind kind) const {
    return chorus::consider(kind, topology, Routes(topology), {shape.ranks_per_host, 1}, {},
                            &machine);
  }
};

class Prices : public ::testing::TestWithParam<CollectiveKind> {};

TEST_P(Prices, LieNeverBelowTheLimit) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Host host(seed);
    JobShape shape = host.shape;
    shape.for_limits = true;
    const Bound bound = lower_bound(job_topology(shape), {.kind = GetParam()});
    const Considered considered = host.consider(GetParam());
    for (const Candidate& candidate : considered.candidates) {
      if (!candidate.why_not.empty()) continue;
      for (const double size : kSizes) {
        EXPECT_GE(candidate.price.seconds(size), bound.seconds(size) * (1 - 1e-9))
            << fmt::format("seed {}, {} of {} bytes, {} ranks on {} cores", seed, candidate.name,
                           size, host.shape.ranks_per_host, host.shape.cores_per_host);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 600);
}

// Whatever the shape of prices: at every size the cheapest one runs.
TEST_P(Prices, ChooseTheCheapestAtEverySize) {
  int several = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Considered considered = Host(seed).consider(GetParam());
    ASSERT_FALSE(considered.entries.empty());
    EXPECT_EQ(considered.entries.front().min_bytes, 0U);
    for (std::size_t i = 1; i < considered.entries.size(); ++i) {
      EXPECT_EQ(considered.entries[i].min_bytes, considered.entries[i - 1].max_bytes + 1);
      EXPECT_NE(considered.entries[i].schedule.name, considered.entries[i - 1].schedule.name);
    }
    several += considered.entries.size() > 1 ? 1 : 0;
    for (double size = 1; size < 1e12; size = std::floor(size * 1.9 + 1)) {
      const auto entry = std::ranges::find_if(considered.entries, [&](const PlanEntry& e) {
        return size >= static_cast<double>(e.min_bytes) && size <= static_cast<double>(e.max_bytes);
      });
      ASSERT_NE(entry, considered.entries.end()) << size;
      double least = std::numeric_limits<double>::infinity();
      for (const Candidate& candidate : considered.candidates) {
        if (candidate.why_not.empty()) least = std::min(least, candidate.price.seconds(size));
      }
      EXPECT_LE(predicted_s(considered, *entry, size), least * (1 + 1e-6))
          << fmt::format("seed {}, {} bytes", seed, size);
    }
  }
  if (GetParam() == CollectiveKind::all_reduce) {
    EXPECT_GT(several, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(, Prices,
                         ::testing::Values(CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                           CollectiveKind::reduce_scatter,
                                           CollectiveKind::all_to_all, CollectiveKind::broadcast,
                                           CollectiveKind::reduce, CollectiveKind::gather,
                                           CollectiveKind::scatter),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

}  // namespace
}  // namespace chorus::testing
