// Joining on simulated connections: the real coordinator and relays, with more ranks than a machine
// holds; what docs/bootstrap.md promises of bytes, connections and time.
#include <gtest/gtest.h>

#include <algorithm>

#include "perf/startup/simulation.hpp"
#include "runtime/control/coordinator/end.hpp"
#include "runtime/control/relay.hpp"

namespace chorus {
namespace {

using perf::JoinFormula;
using perf::simulate_join;
using perf::SimulatedJob;
using perf::SimulatedJoin;

void expect_near(double simulated, double formula, double share, const char* what, int ranks) {
  EXPECT_NEAR(simulated, formula, share * formula) << what << " of " << ranks << " ranks";
}

TEST(JoinSimulation, SpendsWhatTheFormulasSay) {
  for (const int ranks : {8, 64, 72, 512, 4096}) {
    const SimulatedJob job{.ranks = ranks};
    const SimulatedJoin join = simulate_join(job);
    const JoinFormula formula = join_formula(job);
    EXPECT_EQ(join.wrong, 0u);
    expect_near(static_cast<double>(join.coordinator_frames),
                static_cast<double>(formula.coordinator_frames), 0.05, "frames", ranks);
    expect_near(join.coordinator_bytes_in, formula.coordinator_bytes_in, 0.25, "bytes in", ranks);
    if (ranks >= 64) {
      expect_near(join.coordinator_bytes_out, formula.coordinator_bytes_out, 0.2, "bytes out",
                  ranks);
    }
    EXPECT_LE(join.coordinator_connections, formula.coordinator_connections);
    EXPECT_LE(join.exchanged_s, formula.exchanged_s) << "the formula is of work done one by one";
  }
}

TEST(JoinSimulation, IsTheSameEachTime) {
  const SimulatedJoin once = simulate_join({.ranks = 512});
  const SimulatedJoin again = simulate_join({.ranks = 512});
  EXPECT_EQ(once.exchanged_s, again.exchanged_s);
  EXPECT_EQ(once.coordinator_bytes_out, again.coordinator_bytes_out);
}

// n² bytes to all, and as many connections as ranks: why there are relays.
TEST(JoinSimulation, WithoutRelaysTheCoordinatorSendsTheTableToEachRank) {
  const SimulatedJoin direct = simulate_join({.ranks = 512, .by_relay = false});
  const SimulatedJoin relayed = simulate_join({.ranks = 512});
  EXPECT_EQ(direct.wrong + relayed.wrong, 0u);
  EXPECT_EQ(direct.coordinator_connections, 512u);
  EXPECT_NEAR(direct.coordinator_bytes_out / relayed.coordinator_bytes_out, 8, 0.8);
  EXPECT_LT(relayed.exchanged_s, direct.exchanged_s);
}

TEST(JoinSimulation, NoProcessHasMoreThanAThousandConnections) {
  for (const int ranks_per_host : {8, 128}) {
    const SimulatedJob job{.ranks = 16384, .ranks_per_host = ranks_per_host};
    const SimulatedJoin join = simulate_join(job);
    EXPECT_EQ(join.wrong, 0u);
    EXPECT_LE(join.most_connections, 1024u);
    EXPECT_LE(join.exchanged_s, 30);
    EXPECT_GE(join.depth, 1 + (join.hosts > static_cast<int>(CoordinatorEnd::kRelays) ? 1 : 0));
  }
}

}  // namespace
}  // namespace chorus
