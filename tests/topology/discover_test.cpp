#include "topology/discover/discover.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "chorus/error.hpp"
#include "tests/topology/files.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover/describe.hpp"
#include "topology/discover/linux_net.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

using test::data;
using ::testing::HasSubstr;

std::optional<PciAddress> address(const std::string& text) { return PciAddress::parse(text); }

Topology recorded(const std::string& name) {
  return topology_from_record(data("machines/" + name).string());
}

TEST(Discovery, RecordedMachinesReadAsExpected) {
  const struct {
    const char* name;
    int ranks;
  } kMachines[] = {{"two-sockets", 4},
                   {"four-gpus", 4},
                   {"four-gpus-nvswitch", 4},
                   {"virtual", 4},
                   {"eight-gpus-nvswitch", 8},
                   {"eight-gpus-mesh", 8},
                   {"two-gpus-pcie", 2},
                   {"one-gpu", 1},
                   {"mig", 2}};
  for (const auto& machine : kMachines) {
    const Topology t = recorded(machine.name);
    EXPECT_EQ(test::unsound(t), "") << machine.name;
    EXPECT_TRUE(test::connected(t)) << machine.name;
    EXPECT_EQ(t.world_size(), machine.ranks) << machine.name;
    test::expect_text(describe(t), data(std::string("machines/") + machine.name + "/expected.txt"));
  }
}

TEST(Discovery, ADisplayControllerIsNoGpu) {
  const Topology t = recorded("four-gpus");  // holds a VGA device of a BMC
  for (const Topology::Node& node : t.nodes) {
    EXPECT_EQ(node.detail.find("00:1f.0"), std::string::npos) << node.name;
  }
}

TEST(Discovery, SyntheticMachinesHaveARankPerCore) {
  const struct {
    const char* description;
    int ranks;
    int numa_nodes;
  } kMachines[] = {{"pu:1", 1, 1},
                   {"core:4 pu:2", 4, 1},
                   {"package:2 numa:1 l3:2 core:3 pu:1", 12, 2},
                   {"numa:4 core:2 pu:1", 8, 4},
                   {"package:2 numa:2 l2:1 core:1 pu:1", 4, 4}};
  for (const auto& machine : kMachines) {
    const Topology t = topology_from_synthetic(machine.description);
    EXPECT_EQ(test::unsound(t), "") << machine.description;
    EXPECT_TRUE(test::connected(t)) << machine.description;
    EXPECT_EQ(t.world_size(), machine.ranks) << machine.description;
    int numa_nodes = 0;
    for (const Topology::Node& node : t.nodes) numa_nodes += node.kind == NodeKind::numa ? 1 : 0;
    EXPECT_EQ(numa_nodes, machine.numa_nodes) << machine.description;
  }
}

TEST(Discovery, BadSyntheticStringsAreRefused) {
  for (const char* text :
       {"", "nonsense", "core:0 pu:0", "core:100000 pu:100000", "pu:99999999999999999999999",
        "numa:-1 pu:1", "core:2 pu:2)", "core:0xffffffff pu:1"}) {
    EXPECT_THROW((void)topology_from_synthetic(text), InputError) << text;
  }
}

TEST(Discovery, ThisMachineIsSoundAndConnected) {
  const Topology t = discover();
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_TRUE(test::connected(t));
  EXPECT_GE(t.world_size(), 1);
  EXPECT_EQ(t, discover());
}

/// A /sys of our own.
class FakeSys : public ::testing::Test {
 protected:
  FakeSys() {
    std::string pattern = (std::filesystem::temp_directory_path() / "chorus-sys-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~FakeSys() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void interface(const std::string& name, const std::string& type, const std::string& state) {
    put("class/net/" + name + "/type", type);
    put("class/net/" + name + "/operstate", state);
  }
  void device(const std::string& link, const std::string& pci) {
    std::filesystem::create_directories(root_ / "devices/pci0000:00" / pci);
    std::filesystem::create_directory_symlink(root_ / "devices/pci0000:00" / pci, root_ / link);
  }

  std::filesystem::path root_;
};

TEST_F(FakeSys, InterfacesComeWithTheirSpeedsAndAdapters) {
  interface("chorus0", "1", "up");
  put("class/net/chorus0/speed", "25000");
  device("class/net/chorus0/device", "0000:3b:00.1");
  interface("chorus1", "1", "down");
  put("class/net/chorus1/speed", "-1");
  device("class/net/chorus1/device", "0000:3b:00.0");
  interface("chorus-veth", "1", "up");
  interface("chorus-dummy", "1", "down");
  interface("chorus-bridge", "1", "up");
  put("class/net/chorus-bridge/bridge/ageing_time", "30000");
  interface("lo", "772", "unknown");
  put("class/infiniband/mlx9_0/ports/1/link_layer", "InfiniBand");
  put("class/infiniband/mlx9_0/ports/1/state", "4: ACTIVE");
  put("class/infiniband/mlx9_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  device("class/infiniband/mlx9_0/device", "0000:5e:00.0");
  interface("ib9", "32", "up");

  const std::vector<NetInterface> found = linux_interfaces(root_.string());
  ASSERT_EQ(found.size(),
            4U);  // no loopback, no idle virtual one, no bridge, no second face of mlx9_0
  EXPECT_EQ(found[0].port.name, "mlx9_0");
  EXPECT_EQ(found[0].port.type, "infiniband");
  EXPECT_DOUBLE_EQ(found[0].port.gb_s, 25);
  EXPECT_EQ(found[0].pci, address("0000:5e:00.0"));
  EXPECT_EQ(found[1].port.name, "chorus-veth");
  EXPECT_TRUE(found[1].port.is_virtual);
  EXPECT_EQ(found[2].port.name, "chorus0");
  EXPECT_DOUBLE_EQ(found[2].port.gb_s, 3.125);
  EXPECT_EQ(found[2].pci, address("0000:3b:00.1"));
  EXPECT_FALSE(found[3].port.connected);
  EXPECT_DOUBLE_EQ(found[3].port.gb_s, 0);
}

TEST_F(FakeSys, AnInterfaceSaysWhichRdmaAdapterDrivesItAndByWhichGid) {
  interface("chorus0", "1", "up");
  device("class/net/chorus0/device", "0000:3b:00.1");
  const std::string mlx = "class/infiniband/mlx9_0/ports/1/";
  put(mlx + "link_layer", "Ethernet");
  put(mlx + "state", "4: ACTIVE");
  put(mlx + "rate", "100 Gb/sec (4X EDR)");
  put(mlx + "gid_attrs/ndevs/0", "chorus0");
  put(mlx + "gid_attrs/types/0", "IB/RoCE v1");
  put(mlx + "gids/0", "fe80:0000:0000:0000:688c:08ff:fedb:2bb1");
  put(mlx + "gid_attrs/types/1", "RoCE v2");
  put(mlx + "gids/1", "fe80:0000:0000:0000:688c:08ff:fedb:2bb1");
  put(mlx + "gid_attrs/types/3", "RoCE v2");
  put(mlx + "gids/3", "0000:0000:0000:0000:0000:ffff:0a4d:00fe");
  device("class/infiniband/mlx9_0/device", "0000:3b:00.1");
  interface("chorus-veth", "1", "up");
  put("class/infiniband/rxe9/parent", "chorus-veth");
  put("class/infiniband/rxe9/ports/1/link_layer", "Ethernet");
  put("class/infiniband/rxe9/ports/1/state", "1: DOWN");
  put("class/infiniband/rxe9/ports/1/rate", "2.5 Gb/sec (1X SDR)");

  const std::vector<NetInterface> found = linux_interfaces(root_.string());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].port.type, "ethernet") << "Soft-RoCE is no faster";
  EXPECT_DOUBLE_EQ(found[0].port.gb_s, 0);
  EXPECT_NE(found[0].port.detail.find("Soft-RoCE rxe9 port 1 (down)"), std::string::npos)
      << found[0].port.detail;
  EXPECT_EQ(found[1].port.type, "roce");
  EXPECT_DOUBLE_EQ(found[1].port.gb_s, 12.5);
  EXPECT_NE(found[1].port.detail.find("RDMA mlx9_0 port 1 (GID 3 10.77.0.254, RoCE v2)"),
            std::string::npos)
      << found[1].port.detail;
}

TEST_F(FakeSys, AMachineWithoutInterfacesIsNoError) {
  EXPECT_TRUE(linux_interfaces(root_.string()).empty());
}

TEST(PciAddresses, AreReadInEverySpelling) {
  const PciAddress expected{0, 0x3b, 0, 0};
  EXPECT_EQ(address("0000:3b:00.0"), expected);
  EXPECT_EQ(address("00000000:3B:00.0"), expected);
  EXPECT_EQ(address("3b:00.0"), expected);
  EXPECT_EQ(address("ffff:ff:01.0"), (PciAddress{0xffff, 0xff, 1, 0}));
  for (const char* bad : {"", "3b", "3b:00", "3b:00.", "x:00.0", "0000:3b:00.0 ", "0000:3b:00:0",
                          "123456789:3b:00.0", "::.", "1:2:3:4.5"}) {
    EXPECT_EQ(address(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace chorus
