// Claim: what a Topology says of several networks between hosts is found again in the form in which
// a probe would say it, for any drawn cluster, and each is recognized by who has an address in it.
#include "topology/probing/declared_networks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "model/price/cost.hpp"
#include "model/topologies.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::probing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

Topology find(const std::string& name) { return topology_from_name(name); }

/// The switches of one network alone, and what is joined to them.
Topology alone(const Topology& topology, const std::string& suffix) {
  Topology one = topology;
  const auto of_network = [&](int node) {
    const Topology::Node& n = topology.nodes[at(node)];
    if (n.kind != NodeKind::network_switch) return true;
    const auto mark = n.name.find('n');
    return (mark == std::string::npos ? "" : n.name.substr(mark)) == suffix;
  };
  std::erase_if(one.links,
                [&](const auto& link) { return !of_network(link.src) || !of_network(link.dst); });
  return one;
}

/// Every link that some of `flows`, between first ranks of hosts, cross in `topology`.
std::vector<Limit> crossed(const Topology& topology, const Routes& routes,
                           const std::vector<Flow>& flows, const std::vector<Rank>& rank_of) {
  std::map<int, Limit> limits;
  for (std::size_t f = 0; f < flows.size(); ++f) {
    for (const int link : routes.path(rank_of[at(flows[f].src)], rank_of[at(flows[f].dst)])) {
      if (topology.links[at(link)].type == "shm") continue;
      Limit& limit = limits[link];
      limit.bytes_per_s = 1 / topology.links[at(link)].beta_s_per_byte;
      limit.flows.push_back(static_cast<int>(f));
    }
  }
  std::vector<Limit> all;
  for (auto& [link, limit] : limits) all.push_back(std::move(limit));
  return all;
}

/// Whether flows share each network of `declared` as they share the links of the topology.
void expect_same_rates(const Topology& topology, const DeclaredNetworks& declared) {
  std::mt19937 random(7);
  std::map<std::string, Rank> first_rank;
  for (std::size_t h = 0; h < declared.ranks.size(); ++h) {
    first_rank[declared.network.hosts[h]] = declared.ranks[h].front();
  }
  for (std::size_t n = 0; n <= declared.network.further.size(); ++n) {
    const ProbedNetwork& network = n == 0 ? declared.network : declared.network.further[n - 1];
    const auto mark = network.name.find('n');
    const Topology one =
        alone(topology, n == 0 || mark == std::string::npos ? "" : network.name.substr(mark));
    const Routes routes(one);
    std::vector<Rank> rank_of;
    for (const std::string& host : network.hosts) rank_of.push_back(first_rank.at(host));
    const int hosts = static_cast<int>(network.hosts.size());
    for (int experiment = 0; experiment < 20; ++experiment) {
      std::vector<Flow> flows;
      for (int f = 0; f < 1 + experiment / 2; ++f) {
        const int src = static_cast<int>(random() % static_cast<unsigned>(hosts));
        const int step = 1 + static_cast<int>(random() % static_cast<unsigned>(hosts - 1));
        flows.push_back({src, (src + step) % hosts});
      }
      const auto expected = fair_rates(crossed(one, routes, flows, rank_of), flows.size());
      const auto found = fair_rates(network.tree, flows);
      for (std::size_t f = 0; f < flows.size(); ++f) {
        ASSERT_NEAR(found[f], expected[f], 1e-6 * expected[f])
            << network.name << ", flow " << flows[f].src << " to " << flows[f].dst;
      }
    }
  }
}

TEST(DeclaredNetworks, ShareAsTheirLinksDo) {
  int several = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    for (const char* more : {"", ",ranks=3", ",hosts=9,switches=5,cables=3"}) {
      const std::string name = "random-lan:" + std::to_string(seed) + more;
      SCOPED_TRACE(name);
      const Topology topology = find(name);
      const auto declared = declared_networks(topology);
      const bool one = std::ranges::none_of(topology.nodes, [](const Topology::Node& node) {
        return node.name.starts_with("switch0n");
      });
      ASSERT_EQ(declared.has_value(), !one);
      if (one) continue;
      ++several;
      expect_same_rates(topology, *declared);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(several, 60);
}

int add_part(Topology& topology, int host, const std::string& name, NodeKind kind) {
  const int node = test::add_node(topology, topology.nodes[at(host)].name + "/" + name, kind);
  topology.nodes.back().parent = host;
  return node;
}

/// Hosts a, b and c at two switches, one network each; c has no cable into the second.
Topology three(bool adapters) {
  Topology topology;
  for (const char* name : {"a", "b", "c"}) {
    topology.rank_nodes.push_back(test::add_node(topology, name, NodeKind::host));
  }
  const int first = test::add_node(topology, "first", NodeKind::network_switch);
  const int second = test::add_node(topology, "second", NodeKind::network_switch);
  const auto cable = [&](int host, int to, const std::string& interface, double gb_s) {
    if (!adapters) return test::join(topology, host, to, gb_s, 1e-5);
    const int nic = add_part(topology, host, interface, NodeKind::nic);
    test::join(topology, host, nic, gb_s / 2, 0);
    test::join(topology, nic, to, gb_s, 1e-5);
  };
  for (const int host : {0, 1, 2}) cable(host, first, "eth2", 0.1);
  for (const int host : {0, 1}) cable(host, second, "eth1", 0.2);
  return topology;
}

TEST(DeclaredNetworks, CablesAreNoFasterThanTheirAdapters) {
  const auto declared = declared_networks(three(true));
  ASSERT_TRUE(declared);
  EXPECT_THAT(declared->network.hosts, ElementsAre("a", "b", "c"));
  EXPECT_NEAR(declared->network.tree.out[2], 0.05e9, 1);
  ASSERT_EQ(declared->network.further.size(), 1U);
  EXPECT_THAT(declared->network.further[0].hosts, ElementsAre("a", "b"));
  EXPECT_NEAR(declared->network.further[0].tree.in[1], 0.1e9, 1);
  EXPECT_THAT(declared->adapters[0], ElementsAre("eth2", "eth2", "eth2"));
  EXPECT_EQ(declared->network.provenance, Provenance::declared);
}

TEST(DeclaredNetworks, WhatAProbeCannotSayIsNone) {
  const Topology good = three(false);
  ASSERT_TRUE(declared_networks(good));
  const auto spoiled = [&](auto change) {
    Topology topology = good;
    change(topology);
    return declared_networks(topology).has_value();
  };
  EXPECT_FALSE(spoiled([](Topology& t) { test::join(t, 0, 2, 0.1, 0); })) << "host to host";
  EXPECT_FALSE(spoiled([](Topology& t) { test::join(t, 3, 4, 0.1, 0); })) << "one network";
  EXPECT_FALSE(spoiled([](Topology& t) {
    const int third = test::add_node(t, "third", NodeKind::network_switch);
    test::join(t, 3, third, 0.1, 0);
    test::join(t, 0, third, 0.1, 0);
  })) << "two cables into one network";
  EXPECT_FALSE(spoiled([](Topology& t) {
    const int x = test::add_node(t, "x", NodeKind::network_switch);
    const int y = test::add_node(t, "y", NodeKind::network_switch);
    test::join(t, 3, x, 0.1, 0);
    test::join(t, x, y, 0.1, 0);
    test::join(t, y, 3, 0.1, 0);
  })) << "switches in a ring";
  EXPECT_FALSE(spoiled([](Topology& t) { add_part(t, 0, "gpu", NodeKind::gpu); }));
  EXPECT_FALSE(spoiled([](Topology& t) { test::add_port_group(t, "both", {0, 2}, 0.1); }));
  EXPECT_FALSE(spoiled([](Topology& t) { t.links.erase(t.links.begin()); })) << "one way";
  EXPECT_FALSE(spoiled([](Topology& t) {
    test::add_node(t, "d", NodeKind::host);
    t.rank_nodes.push_back(static_cast<int>(t.nodes.size()) - 1);
  })) << "a host in none";
}

double rate(const Topology& topology, Rank src, Rank dst) {
  const Routes routes(topology);
  double beta = 0;
  for (const int link : routes.path(src, dst)) {
    beta = std::max(beta, topology.links[at(link)].beta_s_per_byte);
  }
  return 1 / beta;
}

TEST(JoinedNetworks, CarryBetweenTwoHostsWhatEachDoes) {
  const Topology joined = with_joined_networks(three(false));
  EXPECT_NEAR(rate(joined, 0, 1), 0.3e9, 1);
  EXPECT_NEAR(rate(joined, 0, 2), 0.1e9, 1);
  EXPECT_NEAR(rate(with_joined_networks(three(true)), 0, 1), 0.15e9, 1) << "half, by the adapters";
  const Topology one = find("random-lan:1");
  EXPECT_EQ(with_joined_networks(one), one);
}

TEST(JoinedNetworks, TakeAdaptersThatAreLinkedToEachOtherForOne) {
  Topology topology = three(true);
  test::join(topology, 5, 8, 0.1, 0);  // both of a
  ASSERT_EQ(topology.nodes[5].parent, topology.nodes[8].parent);
  EXPECT_NEAR(rate(with_joined_networks(topology), 0, 1), 0.15e9, 1);
}

TEST(JoinedNetworks, AreAsFarApartAsTheirSwitches) {
  Topology topology = three(false);
  int before = 3;  // the first switch; behind it two without hosts, and c anew
  for (const char* name : {"x", "y"}) {
    const int next = test::add_node(topology, name, NodeKind::network_switch);
    test::join(topology, before, next, 0.1, 1e-3);
    before = next;
  }
  std::erase_if(topology.links, [](const auto& link) { return link.src == 2 || link.dst == 2; });
  test::join(topology, 2, before, 0.1, 1e-5);
  const Topology joined = with_joined_networks(topology);
  EXPECT_NEAR(Routes(joined).alpha_s(0, 2), Routes(topology).alpha_s(0, 2), 1e-5);
}

TEST(JoinedNetworks, LeaveWhatIsInsideHosts) {
  const Topology topology = find("random-lan:13,ranks=3");
  const Topology joined = with_joined_networks(topology);
  ASSERT_EQ(joined.world_size(), topology.world_size());
  EXPECT_EQ(joined.name, topology.name);
  for (Rank rank = 0; rank < joined.world_size(); ++rank) {
    const Topology::Node& node = joined.nodes[at(joined.rank_nodes[at(rank)])];
    EXPECT_EQ(node.name, topology.nodes[at(topology.rank_nodes[at(rank)])].name);
    EXPECT_EQ(joined.nodes[at(node.parent)].kind, NodeKind::host);
  }
  EXPECT_DOUBLE_EQ(rate(joined, 0, 1), rate(topology, 0, 1));
  EXPECT_GT(rate(joined, 0, 9), 1.05 * rate(topology, 0, 9)) << "by two networks";
}

/// Names of the networks, the one of all hosts first.
std::vector<std::string> names_of(const std::optional<ProbedNetwork>& network) {
  std::vector<std::string> names;
  if (!network) return names;
  names.push_back(network->name);
  for (const ProbedNetwork& further : network->further) names.push_back(further.name);
  return names;
}

TEST(DeclaredNetworks, AreRecognizedByTheirHosts) {
  const auto declared = declared_networks(three(false));
  ASSERT_TRUE(declared);
  // By number c comes first; the second network lacks it.
  const std::vector<int> hosts = {1, 2, 0};
  const std::vector<std::string> names = {"node7", "node8", "node9"};
  const HostNetwork all{.name = "", .hosts = {0, 1, 2}, .interfaces = {"x", "x", "x"}};
  const HostNetwork right{.name = "10.1.0.0/16", .hosts = {1, 2}, .interfaces = {"y", "y"}};
  const HostNetwork other{.name = "10.2.0.0/16", .hosts = {0, 2}, .interfaces = {"z", "z"}};
  const auto found = with_addresses(*declared, hosts, names, {all, other, right});
  EXPECT_THAT(names_of(found), ElementsAre("", "10.1.0.0/16"));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->hosts, ElementsAre("node7", "node8", "node9"));
  EXPECT_THAT(found->further[0].hosts, ElementsAre("node8", "node9"));
  EXPECT_NEAR(found->further[0].tree.out[0], 0.2e9, 1);
  EXPECT_THAT(names_of(with_addresses(*declared, hosts, names, {all, other})), IsEmpty());
  EXPECT_THAT(names_of(with_addresses(*declared, hosts, names, {})), IsEmpty());
}

TEST(DeclaredNetworks, OfTheSameHostsAreRecognizedByInterfaces) {
  Topology topology = three(true);
  const int third = test::add_node(topology, "third", NodeKind::network_switch);
  for (const int host : {0, 1}) {
    const int nic = add_part(topology, host, "eth3", NodeKind::nic);
    test::join(topology, host, nic, 0.4, 0);
    test::join(topology, nic, third, 0.4, 1e-5);
  }
  const auto declared = declared_networks(topology);
  ASSERT_TRUE(declared);
  const std::vector<int> hosts = {0, 1, 2};
  const std::vector<std::string> names = {"a", "b", "c"};
  const HostNetwork all{.name = "", .hosts = {0, 1, 2}, .interfaces = {"eth2", "eth2", "eth2"}};
  HostNetwork slow{.name = "10.1.0.0/16", .hosts = {0, 1}, .interfaces = {"eth1", "eth1"}};
  HostNetwork fast{.name = "10.2.0.0/16", .hosts = {0, 1}, .interfaces = {"eth3", "eth3"}};
  EXPECT_THAT(names_of(with_addresses(*declared, hosts, names, {all, fast, slow})),
              ElementsAre("", "10.1.0.0/16", "10.2.0.0/16"));
  slow.interfaces = fast.interfaces = {"ib0", "ib0"};
  EXPECT_THAT(names_of(with_addresses(*declared, hosts, names, {all, fast, slow})),
              ElementsAre("", "10.2.0.0/16", "10.1.0.0/16"))
      << "in the order of interfaces";
}

}  // namespace
}  // namespace chorus::probing
