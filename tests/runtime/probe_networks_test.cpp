// Claim: all ranks see the same networks between hosts in the addresses of these, and none where
// addresses do not say by which cable a path leads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "chorus/error.hpp"
#include "runtime/probing/networks.hpp"

namespace chorus {
namespace {

using probing::HostNetwork;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A host by its addresses, all with prefixes of 24 bits.
std::vector<std::byte> host(const std::vector<std::string>& addresses) {
  std::vector<Rail> rails;
  for (const std::string& address : addresses) {
    rails.push_back(
        {.interface = "eth" + std::to_string(rails.size()), .address = {}, .prefix = 24});
    EXPECT_TRUE(Endpoint::parse(address, rails.back().address)) << address;
  }
  return interfaces_told(rails);
}

std::vector<HostNetwork> networks(const std::vector<std::vector<std::byte>>& hosts) {
  std::vector<std::span<const std::byte>> told;
  for (const auto& each : hosts) told.emplace_back(each);
  return networks_of(told);
}

TEST(ProbeNetworks, AreThoseThatJoinHosts) {
  EXPECT_THAT(networks({host({"10.0.0.1", "10.2.0.1", "10.1.0.1"}),
                        host({"10.0.0.2", "10.1.0.2", "10.3.0.2"}),
                        host({"10.0.0.3", "10.1.0.3", "10.2.0.3"})}),
              ElementsAre(HostNetwork{"", {0, 1, 2}, {"eth0", "eth0", "eth0"}},
                          HostNetwork{"10.2.0.0/24", {0, 2}, {"eth1", "eth2"}},
                          HostNetwork{"10.1.0.0/24", {0, 1, 2}, {"eth2", "eth1", "eth1"}}))
      << "the one of 10.3 leads to nobody";
}

TEST(ProbeNetworks, OneNetworkIsNoneOfSeveral) {
  EXPECT_THAT(networks({host({"10.0.0.1"}), host({"10.0.0.2"})}), IsEmpty());
  EXPECT_THAT(networks({host({"10.0.0.1", "10.1.0.1"}), host({"10.0.0.2"})}), IsEmpty());
}

TEST(ProbeNetworks, WhatLeavesAPathOpenIsNotTaken) {
  EXPECT_THAT(
      networks({host({"10.0.0.1", "10.1.0.1", "10.1.0.5"}), host({"10.0.0.2", "10.1.0.2"})}),
      IsEmpty())
      << "two cables into one network";
  EXPECT_THAT(networks({host({"10.0.0.1", "10.0.0.5"}), host({"10.0.0.2", "10.0.0.6"})}), IsEmpty())
      << "two into that of all";
  EXPECT_THAT(networks({host({"10.0.0.1", "172.17.0.1"}), host({"10.0.0.2", "172.17.0.1"})}),
              IsEmpty())
      << "the private network of each host's guests";
}

TEST(ProbeNetworks, WhatNoHostTellsIsRefused) {
  const std::vector<std::byte> good = host({"10.0.0.1", "10.1.0.1"});
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    const std::vector<std::byte> bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_THROW((void)networks({good, bad}), BootstrapError) << cut;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{});
  EXPECT_THROW((void)networks({good, longer}), BootstrapError);
  EXPECT_THROW((void)networks({good, std::vector<std::byte>(4, std::byte{0xff})}), BootstrapError);
}

TEST(ProbeNetworks, AreNamedByWhatTheirAddressesHaveInCommon) {
  Rail rail{.interface = "eth", .address = {}, .prefix = 20};
  ASSERT_TRUE(Endpoint::parse("10.1.31.7", rail.address));
  EXPECT_EQ(rail.network(), "10.1.16.0/20");
  rail.prefix = 64;
  ASSERT_TRUE(Endpoint::parse("fd00:1:2:3:4::5", rail.address));
  EXPECT_EQ(rail.network(), "fd00:1:2:3::/64");
}

}  // namespace
}  // namespace chorus
