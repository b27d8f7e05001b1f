// What a communicator takes its members' wiring to be.
#include "runtime/host/assumed_topology.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "collectives/algorithms.hpp"
#include "model/price/cost.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus {
namespace {

// One rank in each of `hosts` containers of one machine.
std::vector<Member> containers(int hosts, int cores) {
  std::vector<Member> members;
  for (int h = 0; h < hosts; ++h) {
    members.push_back({.world_rank = h,
                       .host = "container" + std::to_string(h),
                       .host_cores = cores,
                       .neighbor = 0,
                       .machine_cores = cores,
                       .oversubscribed = hosts > cores});
  }
  return members;
}

double alpha_s(const char* name, const Topology& topology) {
  const Schedule schedule = algorithm(name).make(
      {.kind = CollectiveKind::all_reduce, .world_size = topology.world_size(), .levels = {}});
  return cost(schedule, topology, Routes(topology)).alpha_s;
}

TEST(ShareCores, MessagesOfContainersTakeCoresThatTheyShare) {
  const Topology apart = find_topology("pairs");
  Topology together = apart;
  share_cores(together, containers(4, 2));

  ASSERT_EQ(together.port_groups.size(), apart.port_groups.size() + 1);
  const Topology::PortGroup& cores = together.port_groups.back();
  EXPECT_EQ(cores.links.size(), 8U) << "both directions of each host's cable, not the trunk's";
  EXPECT_DOUBLE_EQ(cores.message_s, loopback_of(assumed_host_rates()).message_s / 2);
  EXPECT_LT(together.links[0].alpha_s, apart.links[0].alpha_s) << "core time counts once";

  EXPECT_LT(alpha_s("one_shot", apart), alpha_s("binomial_tree", apart)) << "one step beats four";
  EXPECT_GT(alpha_s("one_shot", together), alpha_s("binomial_tree", together))
      << "12 messages, at both ends, cost more of two cores than 6 do";
}

TEST(ShareCores, LeavesMachinesWithCoresEnoughAlone) {
  Topology topology = find_topology("pairs");
  share_cores(topology, containers(4, 4));
  EXPECT_EQ(topology, find_topology("pairs"));
}

TEST(ShareCores, LeavesRanksOfOneHostToTheTopologyThatCountsThem) {
  std::vector<Member> members = containers(4, 2);
  for (Member& member : members) member.host = "one";
  const Topology assumed = assumed_topology(members, true);
  Topology topology = assumed;
  share_cores(topology, members);
  EXPECT_EQ(topology, assumed);
}

TEST(ShareCores, CountsEachMachineByItself) {
  std::vector<Member> members = containers(4, 1);
  for (Rank r = 2; r < 4; ++r) {
    members[static_cast<std::size_t>(r)].neighbor = 2;
    members[static_cast<std::size_t>(r)].oversubscribed = false;
  }
  Topology topology = find_topology("homo");
  share_cores(topology, members);
  ASSERT_EQ(topology.port_groups.size(), find_topology("homo").port_groups.size() + 1);
  EXPECT_EQ(topology.port_groups.back().links.size(), 4U)
      << "ranks 0 and 1 alone are oversubscribed";
}

}  // namespace
}  // namespace chorus
