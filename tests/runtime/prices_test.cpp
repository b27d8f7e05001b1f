// What a call is predicted to cost on a host, for any host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "collectives/algorithms.hpp"
#include "model/bounds/bounds.hpp"
#include "model/program/direct.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "runtime/selection/selection.hpp"
#include "tests/runtime/drawn_rates.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::testing {
namespace {

constexpr double kSizes[] = {0, 1, 8, 700, 4096, 65'536, 1e6, 3e7, 1e9, 1e12};

struct Host {
  JobShape shape;
  Topology topology;
  SharedMachine machine;

  explicit Host(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    HostRates rates = drawn_rates(seed, 1 + static_cast<int>(random() % 4));
    if (random() % 3 == 0) {
      for (HostRates::Pair& pair : rates.pairs) {
        for (HostRates::Sample& sample : pair.samples) sample.kernel_s = 0;
      }
    }
    const int ranks = 2 + static_cast<int>(random() % 7);
    shape = {.ranks_per_host = ranks,
             .cores_per_host = 1 + static_cast<int>(random() % (2 * static_cast<unsigned>(ranks))),
             .rates = {rates},
             .places = {drawn_places(seed, ranks)}};
    topology = job_topology(shape);
    machine = {.cores = shape.cores_per_host, .rates = rates, .places = shape.places[0]};
  }
  [[nodiscard]] Considered consider(CollectiveKind kind) const {
    return chorus::consider(kind, topology, Routes(topology), levels_inside(machine.places), {},
                            {.shared = &machine});
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

// Of what only moves, ranks copy to each other, and to themselves, no less if it comes as messages;
// large, so that the first tile, which nobody reads while it is staged, does not count.
TEST_P(Prices, OfLargeMessagesAreNotBelowThoseOfTheSameScheduleWithoutThem) {
  if (is_combining(GetParam())) GTEST_SKIP() << "folds straight from inputs move less";
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Host host(seed);
    for (const Algorithm& algorithm : algorithms()) {
      const AlgorithmInput input{.kind = GetParam(), .world_size = host.shape.ranks_per_host};
      if (algorithm.why_not(input)) continue;
      const Schedule schedule = algorithm.make(input);
      const auto forms = direct(schedule);
      if (!forms) continue;
      const Price without = direct_price(*forms, host.machine);
      const Price with = message_price(schedule, without.seconds(0), host.machine);
      for (const double size : {3e7, 1e9, 1e12}) {
        EXPECT_GE(with.seconds(size), without.seconds(size) * (1 - 1e-3))
            << fmt::format("seed {}, {} of {} bytes, {} ranks on {} cores", seed, algorithm.name,
                           size, host.shape.ranks_per_host, host.shape.cores_per_host);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 200);
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

// What latency takes of a call: all of an empty one, next to nothing of one that is large enough.
TEST_P(Prices, TellLatencyFromBytes) {
  const Options options;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Host host(seed);
    Selection selection(host.topology, levels_inside(host.machine.places), options, {},
                        {.shared = &host.machine});
    EXPECT_DOUBLE_EQ(selection.latency_share(GetParam(), 0), 1) << seed;
    for (const double size : kSizes) {
      const double share = selection.latency_share(GetParam(), static_cast<std::uint64_t>(size));
      EXPECT_GE(share, 0) << fmt::format("seed {}, {} bytes", seed, size);
      EXPECT_LE(share, 1) << fmt::format("seed {}, {} bytes", seed, size);
    }
    EXPECT_LT(selection.latency_share(GetParam(), 1'000'000'000'000), 0.001) << seed;
  }
}

/// Packages of some cores with a common cache each, a rank bound to every core, in order. What lies
/// in another package takes `times` as long.
struct Packages {
  int packages;
  int cores;
  HostRates rates = assumed_host_rates();
  std::vector<CpuPlace> places = {};

  Packages(int num_packages, int cores_of_each, double times)
      : packages(num_packages), cores(cores_of_each) {
    rates.machine = "drawn";
    rates.pairs[0].distance = "cache";
    HostRates::Pair far = rates.pairs[0];
    far.distance = "packages";
    far.line_s *= times;
    for (HostRates::Sample& sample : far.samples) {
      sample.stage_s *= times;
      sample.fetch_s *= times;
    }
    rates.pairs.push_back(far);
    for (int core = 0; core < ranks(); ++core) {
      places.push_back(
          {.core = core, .cache = core / cores, .numa = core / cores, .package = core / cores});
    }
  }
  [[nodiscard]] int ranks() const { return packages * cores; }
  [[nodiscard]] Topology topology() const {
    return job_topology({.ranks_per_host = ranks(),
                         .cores_per_host = ranks(),
                         .rates = {rates},
                         .places = {places}});
  }
  /// How often the data of a whole call crosses between packages.
  [[nodiscard]] double crossing(const Schedule& schedule) const {
    double chunks = 0;
    for (const Step& step : expanded(schedule).steps) {
      for (const Transfer& t : step) chunks += t.src / cores != t.dst / cores ? 1 : 0;
    }
    return chunks / schedule.num_chunks;
  }
};

// Of two and eight packages: what crosses between them crosses once, where that is dear, and the
// simulation of both says that it pays.
TEST(ManyCores, LargeReductionsFollowThePackages) {
  constexpr double kBytes = 16 << 20;
  for (const auto& [packages, cores] : {std::pair(2, 8), std::pair(8, 4), std::pair(8, 8)}) {
    const Packages host(packages, cores, 12);
    const Topology topology = host.topology();
    const Routes routes(topology);
    const SharedMachine machine{.cores = host.ranks(), .rates = host.rates, .places = host.places};
    const std::vector<int> levels = levels_inside(host.places);
    ASSERT_EQ(levels, (std::vector<int>{cores, packages}));
    const Considered considered =
        consider(CollectiveKind::all_reduce, topology, routes, levels, {}, {.shared = &machine});
    const auto entry = std::ranges::find_if(considered.entries, [](const PlanEntry& e) {
      return kBytes <= static_cast<double>(e.max_bytes);
    });
    ASSERT_NE(entry, considered.entries.end());
    const Schedule flat =
        algorithm("two_shot")
            .make({.kind = CollectiveKind::all_reduce, .world_size = host.ranks(), .levels = {}});
    EXPECT_LT(host.crossing(entry->schedule), host.crossing(flat) / 2)
        << entry->schedule.name << " on " << packages << " packages of " << cores;
    EXPECT_LT(simulate(expanded(entry->schedule), topology, routes, kBytes).seconds,
              simulate(flat, topology, routes, kBytes).seconds)
        << entry->schedule.name << " on " << packages << " packages of " << cores;
  }
}

// Where all cores are as near to each other, nothing is gained by a detour: up to the ranks of a
// small host every byte goes straight.
TEST(ManyCores, OfOnePackageGoStraight) {
  for (const int cores : {2, 4, 8}) {
    const Packages host(1, cores, 1);
    const SharedMachine machine{.cores = cores, .rates = host.rates, .places = host.places};
    const Topology topology = host.topology();
    const Considered considered = consider(CollectiveKind::all_reduce, topology, Routes(topology),
                                           levels_inside(host.places), {}, {.shared = &machine});
    for (const PlanEntry& entry : considered.entries) {
      EXPECT_TRUE(direct(entry.schedule)) << entry.schedule.name << " on " << cores << " cores";
    }
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
