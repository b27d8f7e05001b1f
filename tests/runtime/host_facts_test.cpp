// What ranks tell each other about their machines.
#include "runtime/host/host_facts.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "chorus/error.hpp"
#include "runtime/host/assumed_topology.hpp"
#include "runtime/host/host_probe.hpp"
#include "tests/runtime/drawn_rates.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;
using Said = std::vector<std::vector<std::byte>>;

/// `hosts` of `each` ranks, dealt out by turns; the ranks of each host may run on these units.
std::vector<Member> dealt(int hosts, int each, const std::vector<std::vector<int>>& units) {
  std::vector<Member> members;
  for (Rank r = 0; r < hosts * each; ++r) {
    members.push_back({.world_rank = r,
                       .host = fmt::format("host{}", r % hosts),
                       .neighbor = r % hosts,
                       .units = units[static_cast<std::size_t>(r / hosts)]});
  }
  return members;
}

void learn_all(std::vector<Member>& members, const Said& said) {
  learn(members, std::vector<std::span<const std::byte>>(said.begin(), said.end()));
}

class HostFacts : public ::testing::Test {
 protected:
  HostFacts() {
    std::filesystem::create_directories(folder_);
    options_.probe_cache = folder_;
    options_.host_probe = folder_ + "/rates.json";
    std::ofstream(options_.host_probe) << to_json(rates_);
  }
  ~HostFacts() override { std::filesystem::remove_all(folder_); }

  /// Of this machine, as each of the members would tell it.
  [[nodiscard]] Said said_by(const std::vector<Member>& members) const {
    Said said;
    for (Rank r = 0; r < static_cast<Rank>(members.size()); ++r) {
      said.push_back(machine_facts(members, r, "127.0.0.1", options_));
    }
    return said;
  }

  std::string folder_ = fmt::format("{}chorus-facts-{}", ::testing::TempDir(), ::getpid());
  HostRates rates_ = drawn_rates(11, 4);
  Options options_;
};

TEST_F(HostFacts, FirstsOfHostsTellAllWhatTheyFound) {
  const int unit = usable_cores().front();
  const std::vector<Member> before = dealt(2, 2, {{unit}, usable_cores()});
  const Said said = said_by(before);
  EXPECT_FALSE(said[0].empty());
  EXPECT_FALSE(said[1].empty()) << "first of the second host";
  EXPECT_TRUE(said[2].empty());
  EXPECT_TRUE(said[3].empty());
  std::vector<Member> members = before;
  learn_all(members, said);
  const DiscoveredHost host = find_discovered_host("auto", folder_, usable_cores());
  for (std::size_t r = 0; r < members.size(); ++r) {
    EXPECT_EQ(*members[r].rates, rates_) << r;
    EXPECT_EQ(members[r].place, place_of(host, members[r].units)) << r;
    EXPECT_EQ(members[r].adapter_numa, -1) << "the loopback is beside no NUMA node";
  }
}

// A container that sees other units than the one that discovered, or a machine that hwloc cannot
// read: right results all the same, of ranks that are nowhere.
TEST_F(HostFacts, UnitsThatNobodyListsAreNowhere) {
  std::vector<Member> members = dealt(1, 2, {{4'000}, {4'001}});
  learn_all(members, said_by(members));
  for (const Member& member : members) EXPECT_EQ(member.place, CpuPlace{});
  EXPECT_EQ(assumed_topology(members, true).world_size(), 2);
  EXPECT_EQ(levels_of(members), (std::vector<int>{2, 1}));
}

TEST_F(HostFacts, HostsMayDiffer) {
  std::vector<Member> members;
  for (Rank r = 0; r < 6; ++r) {
    members.push_back({.world_rank = r,
                       .host = r < 4 ? "large" : "small",
                       .neighbor = r < 4 ? 0 : 4,
                       .place = {.core = r, .cache = r / 2, .numa = r / 2, .package = r / 2}});
    if (r < 4) members.back().rates = std::make_shared<const HostRates>(rates_);
  }
  const Topology topology = assumed_topology(members, true);
  EXPECT_EQ(topology.world_size(), 6);
  const auto inside_hosts = [&](Provenance provenance) {
    return std::ranges::count_if(topology.links, [&](const Topology::Link& link) {
      return link.type == "shm" && link.provenance == provenance;
    });
  };
  EXPECT_EQ(inside_hosts(Provenance::measured), 4 * 4)
      << "each of four ranks to its NUMA node and its host, and back";
  EXPECT_GT(inside_hosts(Provenance::table), 0) << "nobody measured the small one";
  EXPECT_TRUE(levels_of(members).empty());
}

TEST_F(HostFacts, RubbishIsRefusedWithItsRank) {
  const std::vector<Member> members = dealt(2, 2, {usable_cores(), usable_cores()});
  const Said good = said_by(members);
  for (std::size_t keep = 1; keep < good[1].size(); keep += 1 + good[1].size() / 50) {
    Said said = good;
    said[1].resize(keep);
    std::vector<Member> learning = members;
    try {
      learn_all(learning, said);
      ADD_FAILURE() << keep << " of " << good[1].size() << " bytes";
    } catch (const BootstrapError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  }
  Said said = good;
  said[0].push_back(std::byte{7});
  std::vector<Member> learning = members;
  EXPECT_THROW(learn_all(learning, said), BootstrapError);
}

}  // namespace
}  // namespace chorus::testing
