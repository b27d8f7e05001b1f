#include "model/bounds/partitions.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include "model/bounds/network.hpp"
#include "topologies.hpp"

namespace chorus::bounds {
namespace {

struct Drawn {
  Topology topology;
  std::vector<double> carried;  // by link
};

/// `terminals` GPUs and some switches, joined at random; what the links carry is whole.
Drawn draw(std::mt19937& random, int terminals, int switches) {
  Drawn drawn{test::gpus(terminals), {}};
  for (int i = 0; i < switches; ++i) {
    test::add_node(drawn.topology, "switch" + std::to_string(i), NodeKind::gpu_switch);
  }
  const int nodes = terminals + switches;
  for (int src = 0; src < nodes; ++src) {
    for (int dst = 0; dst < nodes; ++dst) {
      if (src == dst || random() % 2 == 0) continue;
      test::add_link(drawn.topology, src, dst, 10);
      drawn.carried.push_back(static_cast<double>(1 + random() % 9));
    }
  }
  return drawn;
}

/// What enters the parts (or leaves them), less what their messages ask for.
double excess(const Network& network, const Drawn& drawn, const Partition& partition, double rate,
              bool leaving) {
  double sum = -partition.messages() * rate;
  for (const int arc : partition.arcs(network, leaving)) {
    sum += drawn.carried[static_cast<std::size_t>(arc)];
  }
  return sum;
}

/// The least excess of all partitions, by trying them: node after node into every part that there
/// is, into a new one, or (a switch) into none.
double least_excess(const Network& network, const Drawn& drawn, double rate, bool leaving,
                    Partition partition = {}) {
  const std::size_t node = partition.part_of.size();
  if (node == drawn.topology.nodes.size()) {
    return partition.parts < 2 ? 0 : excess(network, drawn, partition, rate, leaving);
  }
  const bool terminal = network.is_terminal(static_cast<int>(node));
  double least = 0;
  for (int part = terminal ? 0 : -1; part < partition.parts + (terminal ? 1 : 0); ++part) {
    Partition next = partition;
    next.part_of.push_back(part);
    next.parts = std::max(partition.parts, part + 1);
    least = std::min(least, least_excess(network, drawn, rate, leaving, std::move(next)));
  }
  return least;
}

TEST(Partitions, ThatAreWantingMostAreFoundWithoutTryingAll) {
  std::mt19937 random(5);
  int found = 0;
  int none = 0;
  for (int i = 0; i < 60; ++i) {
    const Drawn drawn = draw(random, 2 + i % 5, 0);
    const Network network(drawn.topology, Direction::forward);
    for (const double rate : {2.0, 5.0, 9.0, 14.0}) {
      for (const bool leaving : {true, false}) {
        const auto wanting = wanting_partition(network, drawn.carried, rate, leaving);
        const double least = least_excess(network, drawn, rate, leaving);
        ASSERT_NEAR(wanting ? excess(network, drawn, *wanting, rate, leaving) : 0, least, 1e-6)
            << "wiring " << i << ", rate " << rate;
        ++(wanting ? found : none);
      }
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(none, 50);
}

TEST(Partitions, OfNetworksWithSwitchesAreWantingToo) {
  std::mt19937 random(6);
  int found = 0;
  int missed = 0;
  for (int i = 0; i < 60; ++i) {
    const Drawn drawn = draw(random, 2 + i % 4, 1 + i % 2);
    const Network network(drawn.topology, Direction::forward);
    for (const double rate : {2.0, 5.0, 9.0}) {
      for (const bool leaving : {true, false}) {
        const auto wanting = wanting_partition(network, drawn.carried, rate, leaving);
        const double least = least_excess(network, drawn, rate, leaving);
        if (!wanting) {
          missed += least < -1e-6 ? 1 : 0;  // a switch had to be in two parts
          continue;
        }
        const double lacks = excess(network, drawn, *wanting, rate, leaving);
        EXPECT_LT(lacks, 0);
        EXPECT_GE(lacks, least - 1e-6);
        found += lacks < least + 1e-6 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_LT(missed, found / 10);
}

}  // namespace
}  // namespace chorus::bounds
