// Every algorithm and collective over RDMA gives the reference result, and the adapters' own
// counters say that the bytes went over them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "adapters.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/reference.hpp"
#include "runtime/world.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

class RdmaWorldTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_rdma({})) GTEST_SKIP() << "no rdma: " << *reason;
  }
  [[nodiscard]] static World world() {
    World world{.size = GetParam(), .ranks = Ranks::processes};
    world.options.transports = "rdma";
    world.options.slot_bytes = 1024;  // small data crosses many slots
    world.options.timeout_ms = 120'000;
    world.options.flight_dir.clear();
    world.timeout_s = 240;
    return world;
  }
};

void run_every_algorithm(Communicator& comm) {
  const int n = comm.world_size();
  int turn = 0;
  for (const Algorithm& algorithm : algorithms()) {
    for (int k = 0; k <= static_cast<int>(CollectiveKind::scatter); ++k) {
      AlgorithmInput input{.kind = static_cast<CollectiveKind>(k), .world_size = n, .levels = {}};
      if (algorithm.name.find("hier") != std::string_view::npos) input.levels = {2, n / 2};
      if (algorithm.why_not(input)) continue;
      comm.use({.world_size = n,
                .entries = {{.max_bytes = UINT64_MAX, .schedule = algorithm.make(input)}}});
      for (const std::size_t count : {1, 37, 1501}) {
        run_case(comm, {.kind = static_cast<Call::Kind>(k),
                        .type = turn % 2 == 0 ? DataType::float32 : DataType::int8,
                        .op = turn % 3 == 0 ? ReduceOp::max : ReduceOp::sum,
                        .count = count,
                        .root = turn % 2 == 0 ? 0 : n - 1,
                        .in_place = turn % 3 == 0});
        ++turn;
      }
    }
  }
}

TEST_P(RdmaWorldTest, EveryAlgorithmGivesTheReferenceResultOverTheAdapters) {
  const auto before = counters("sent_pkts");
  expect_all_well(run_world(world(), run_every_algorithm));
  const auto after = counters("sent_pkts");
  // Small puts take the first rail of their pair of ranks, so two ranks use one adapter alone.
  std::uint64_t packets = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    packets += after[i] - before[i];
    if (GetParam() > 2) {
      EXPECT_GT(after[i], before[i] + 100) << adapters()[i];
    }
  }
  EXPECT_GT(packets, 1000u);
}

TEST_P(RdmaWorldTest, LargeDataIsStripedOverAllAdapters) {
  World large = world();
  large.options.slot_bytes = 128 * 1024;
  const auto before = counters("sent_pkts");
  expect_all_well(run_world(large, [](Communicator& comm) {
    for (const std::size_t count : {100'000, 300'001}) {
      run_case(comm, {.kind = Call::Kind::all_reduce, .type = DataType::float32, .count = count});
    }
  }));
  const auto after = counters("sent_pkts");
  // Packets of at most 4096 bytes: 1.6 MB of data cross each rank's rails in every direction.
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_GT(after[i], before[i] + 1'600'000 / 4096 / after.size()) << adapters()[i];
  }
}

TEST_P(RdmaWorldTest, RanksMayEachHaveAnotherAdapter) {
  const std::vector<std::string> all = adapters();
  World apart = world();
  apart.options.slot_bytes = 64 * 1024;
  const auto outcomes = run_ranks(apart, [&](const UniqueId& id, Rank rank) {
    Options options = apart.options;
    options.rdma_hca = "=" + all[static_cast<std::size_t>(rank) % all.size()];
    auto comm = Communicator::join(id, rank, apart.size, options);
    run_case(comm, {.kind = Call::Kind::all_reduce, .type = DataType::float32, .count = 50'000});
    run_case(comm, {.kind = Call::Kind::all_to_all, .type = DataType::int32, .count = 300});
  });
  expect_all_well(outcomes);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RdmaWorldTest, ::testing::Values(2, 4, 8));

}  // namespace
}  // namespace chorus::testing
