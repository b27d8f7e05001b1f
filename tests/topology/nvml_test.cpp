// NVML through a library that answers, refuses and lies as told.
#include "topology/discover/nvml/nvml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "chorus/error.hpp"
#include "tests/base/documented.hpp"
#include "tests/topology/files.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/hw_tree.hpp"
#include "topology/discover/sources.hpp"
#include "topology/fake_nvml.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

using fake::nvml_library;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kMachines[] = {
    "eight-gpus-nvswitch", "eight-gpus-mesh", "two-gpus-pcie", "one-gpu", "mig",
    "four-gpus-nvswitch"};

NvmlReport recorded(const std::string& machine) {
  return nvml_from_json(test::read(test::data("machines/" + machine + "/nvml.json")), machine);
}

/// The box of a recorded machine, without NVML.
Box box(const std::string& machine) {
  return box_of(machine_from_hwloc_xml(test::read(test::data("machines/" + machine + "/hwloc.xml")),
                                       machine));
}

Topology joined(const std::string& machine, const NvmlReport& report,
                std::vector<std::string>* remarks = nullptr) {
  Box found = box(machine);
  std::vector<std::string> said = add_nvml(found, report);
  if (remarks != nullptr) *remarks = std::move(said);
  return topology_of(std::move(found));
}

/// GB/s of the links of a type between any two ranks, or a rank and a switch (-1).
std::map<std::pair<int, int>, double> between_ranks(const Topology& t, const std::string& type) {
  const auto rank = [&](int node) {
    for (int r = 0; r < t.world_size(); ++r) {
      if (t.rank_nodes[r] == node) return r;
    }
    return -1;
  };
  std::map<std::pair<int, int>, double> sums;
  for (const Topology::Link& link : t.links) {
    if (link.type == type) {
      sums[{rank(link.src), rank(link.dst)}] += test::gb_s(link.beta_s_per_byte);
    }
  }
  return sums;
}

class Nvml : public ::testing::Test {
 protected:
  Nvml() { nvml_library() = {}; }
  ~Nvml() override { EXPECT_EQ(nvml_library().running, 0) << "NVML was not shut down"; }
};

TEST(RecordFormat, DocumentedExamplesAreRead) {
  const auto blocks = test::documented_examples(CHORUS_TEST_SOURCE_DIR);
  ASSERT_EQ(blocks.size(), 6U) << "the first four are json_test's";
  const NvmlReport report = nvml_from_json(blocks[4], "formats.md");
  EXPECT_EQ(report.gpus.size(), 2U);
  EXPECT_EQ(nvml_from_json(to_json(report), "again"), report);
  const HostRecord host = host_from_json(blocks[5], "formats.md");
  EXPECT_EQ(host.interfaces.size(), 1U);
  EXPECT_EQ(host_from_json(to_json(host), "again"), host);
}

TEST_F(Nvml, ItsAnswersAreWhatARecordHolds) {
  for (const char* machine : kMachines) {
    NvmlReport expected = recorded(machine);
    nvml_library().machine = expected;
    expected.lost.clear();
    EXPECT_EQ(nvml_report(), expected) << machine;
    EXPECT_EQ(to_json(nvml_from_json(to_json(expected), "again")), to_json(expected));
  }
}

TEST_F(Nvml, RecordsAreWrittenAsTheyWereRead) {
  for (const char* machine : kMachines) {
    EXPECT_EQ(to_json(recorded(machine)),
              test::read(test::data(std::string("machines/") + machine + "/nvml.json")));
  }
}

TEST_F(Nvml, AnyOneCallThatFailsCostsOnlyWhatItTells) {
  const char* kOptional[] = {"nvmlSystemGetDriverVersion",
                             "nvmlDeviceGetName",
                             "nvmlDeviceGetUUID",
                             "nvmlDeviceGetMemoryInfo",
                             "nvmlDeviceGetCudaComputeCapability",
                             "nvmlDeviceGetMaxPcieLinkGeneration",
                             "nvmlDeviceGetMaxPcieLinkWidth",
                             "nvmlDeviceGetCurrPcieLinkWidth",
                             "nvmlDeviceGetMemoryAffinity",
                             "nvmlDeviceGetMigMode",
                             "nvmlDeviceGetMaxMigDeviceCount",
                             "nvmlDeviceGetNvLinkState",
                             "nvmlDeviceGetNvLinkVersion",
                             "nvmlDeviceGetNvLinkRemotePciInfo_v2",
                             "nvmlDeviceGetNvLinkRemoteDeviceType",
                             "nvmlDeviceGetFieldValues",
                             "nvmlDeviceGetTopologyCommonAncestor",
                             "nvmlDeviceGetP2PStatus"};
  for (const bool lie : {false, true}) {
    for (const char* function : kOptional) {
      for (const char* machine : kMachines) {
        nvml_library() = {};
        nvml_library().machine = recorded(machine);
        if (lie) {
          nvml_library().lies[function] = true;
        } else {
          nvml_library().fails[function] = 3;
        }
        const NvmlReport report = nvml_report();
        ASSERT_EQ(report.gpus.size(), recorded(machine).gpus.size()) << function;
        EXPECT_EQ(contradiction(report), "") << function;
        EXPECT_EQ(nvml_from_json(to_json(report), function), report);
        const Topology t = joined(machine, report);
        EXPECT_EQ(test::unsound(t), "") << function << ", " << machine;
        EXPECT_TRUE(test::connected(t)) << function << ", " << machine;
        EXPECT_EQ(t.world_size(), static_cast<int>(report.gpus.size())) << function;
      }
    }
  }
}

TEST_F(Nvml, NvlinksWithoutAVersionCountWithTheSpeedThatIsTold) {
  nvml_library().machine = recorded("eight-gpus-mesh");
  nvml_library().fails["nvmlDeviceGetNvLinkVersion"] = 3;
  const auto links = between_ranks(joined("eight-gpus-mesh", nvml_report()), "nvlink");
  EXPECT_NEAR(links.at({0, 1}), 25, 1);
  EXPECT_NEAR(links.at({0, 3}), 50, 2);
}

TEST_F(Nvml, ALinkThatRunsSlowerThanItsGenerationCountsAsSlow) {
  NvmlReport report = recorded("eight-gpus-mesh");
  report.gpus[0].links[0].mb_s = 20000;
  EXPECT_NEAR(between_ranks(joined("eight-gpus-mesh", report), "nvlink").at({0, 1}), 20, 1e-9);
}

TEST_F(Nvml, ALostGpuIsNamedAndLeftOut) {
  nvml_library().machine = recorded("eight-gpus-nvswitch");
  nvml_library().lost[5] = 15;
  const NvmlReport report = nvml_report();
  ASSERT_EQ(report.gpus.size(), 7U);
  ASSERT_THAT(report.lost, ::testing::SizeIs(1));
  EXPECT_THAT(report.lost[0], AllOf(HasSubstr("GPU 5"), HasSubstr("GPU is lost")));
  const Topology t = joined("eight-gpus-nvswitch", report);
  EXPECT_EQ(t.world_size(), 7) << "hwloc still sees it; nobody can use it";
}

TEST_F(Nvml, NoDriverIsSilentAndABrokenOneIsNamed) {
  nvml_library().fails["nvmlInit_v2"] = 9;  // driver not loaded
  EXPECT_EQ(nvml_report(), NvmlReport());
  nvml_library().fails["nvmlInit_v2"] = 4;
  const NvmlReport report = nvml_report();
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_THAT(report.lost, Contains(HasSubstr("Insufficient Permissions")));
  nvml_library() = {};
  nvml_library().fails["nvmlDeviceGetCount_v2"] = 999;
  EXPECT_THAT(nvml_report().lost, Contains(HasSubstr("counted")));
}

TEST_F(Nvml, ALibraryThatLiesAboutItsDevicesIsNotBelieved) {
  nvml_library().machine = recorded("two-gpus-pcie");
  nvml_library().lies["nvmlDeviceGetCount_v2"] = true;  // four thousand million
  NvmlReport report = nvml_report();
  EXPECT_EQ(report.gpus.size(), 2U);
  EXPECT_FALSE(report.lost.empty());
  nvml_library().lies = {{"nvmlDeviceGetPciInfo_v3", true}};
  report = nvml_report();
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.lost.size(), 2U);
  nvml_library().lies.clear();
  nvml_library().machine.gpus[1].address = nvml_library().machine.gpus[0].address;
  report = nvml_report();
  EXPECT_EQ(report.gpus.size(), 1U);
  EXPECT_THAT(report.lost, Contains(HasSubstr("two")));
}

TEST_F(Nvml, ASwitchedMachineIsWhatTheCatalogHasOfIt) {
  const Topology t = joined("eight-gpus-nvswitch", recorded("eight-gpus-nvswitch"));
  EXPECT_EQ(between_ranks(t, "nvlink"), between_ranks(topology_from_name("dgx-h100"), "nvlink"));
}

TEST_F(Nvml, AGpuAtRestStillHasItsWholePcieLink) {
  const Topology t = joined("eight-gpus-nvswitch", recorded("eight-gpus-nvswitch"));
  const Topology without = topology_of(box("eight-gpus-nvswitch"));
  const auto slowest = [](const Topology& of) {
    double least = 1e9;
    for (const Topology::Link& link : of.links) {
      const bool gpu = of.nodes[link.src].kind == NodeKind::gpu;
      if (gpu && link.type == "pcie") least = std::min(least, test::gb_s(link.beta_s_per_byte));
    }
    return least;
  };
  EXPECT_LT(slowest(without), 4) << "the record was made at rest";
  EXPECT_NEAR(slowest(t), 48, 0.1);
}

TEST_F(Nvml, TheCubeMeshIsTheSameFromNvidiaSmisMatrixAndFromTheCatalog) {
  const Topology t = joined("eight-gpus-mesh", recorded("eight-gpus-mesh"));
  const Topology smi = topology_from_nvidia_smi(
      test::read(test::data("topology/nvidia-smi-dgx1.txt")), "nvidia-smi");
  EXPECT_EQ(between_ranks(t, "nvlink"), between_ranks(smi, "nvlink"));
  EXPECT_EQ(between_ranks(t, "nvlink"), between_ranks(topology_from_name("dgx1"), "nvlink"));
}

TEST_F(Nvml, ARecordedDgx2WithItsNvlinksIsWhatTheCatalogHasOfIt) {
  const auto path = test::recordings() / "hwloc/nvidiaDGX2.xml";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << path;
  Box dgx2 = box_of(machine_from_hwloc_xml(test::read(path), "dgx2"));
  NvmlReport report;
  const std::function<void(const PciDevice&)> collect = [&](const PciDevice& device) {
    if (device.kind == PciDevice::Kind::gpu) {
      report.gpus.emplace_back().address = device.address;
      for (unsigned i = 0; i < 6; ++i) {
        const PciAddress to{0, 0xe0 + i, 0, 0};
        report.gpus.back().links.push_back({i, 2, 25781, GpuLink::End::gpu_switch, to});
      }
    }
    for (const PciDevice& child : device.children) collect(child);
  };
  for (const NumaNode& numa : dgx2.numa_nodes) {
    for (const PciDevice& device : numa.devices) collect(device);
  }
  ASSERT_EQ(report.gpus.size(), 16U);
  EXPECT_THAT(add_nvml(dgx2, report), IsEmpty());
  EXPECT_EQ(between_ranks(topology_of(std::move(dgx2)), "nvlink"),
            between_ranks(topology_from_name("dgx2"), "nvlink"));
}

TEST_F(Nvml, ADegradedMachineIsNamed) {
  std::vector<std::string> remarks;
  NvmlReport report = recorded("eight-gpus-mesh");
  (void)joined("eight-gpus-mesh", report, &remarks);
  EXPECT_THAT(remarks, IsEmpty()) << "what a machine of this kind cannot do is no fault";
  report.gpus[2].links.pop_back();  // one to GPU 6
  report.gpus[4].pcie_width = 4;
  const Topology t = joined("eight-gpus-mesh", report, &remarks);
  EXPECT_THAT(remarks, Contains(AllOf(HasSubstr("GPU 2 "), HasSubstr("5 active NVLinks"))));
  EXPECT_THAT(remarks, Contains(AllOf(HasSubstr("GPU 4 "), HasSubstr("4 of 16 PCIe lanes"))));
  EXPECT_THAT(remarks, Contains(HasSubstr("GPU 2 counts 0 NVLinks to GPU 6, which counts 1")));
  EXPECT_EQ(between_ranks(t, "nvlink").count({6, 2}), 0U) << "one end alone is no link";
}

TEST_F(Nvml, GpusThatDoNotReachEachOtherDoNotMeetAtTheirSwitch) {
  NvmlReport report = recorded("two-gpus-pcie");
  std::vector<std::string> remarks;
  const Topology t = joined("two-gpus-pcie", report, &remarks);
  EXPECT_THAT(remarks, Contains(AllOf(HasSubstr("GPU 0"), HasSubstr("of GPU 1"),
                                      HasSubstr("through the host"))));
  const auto bridges = [](const Topology& of) {
    return std::count_if(of.nodes.begin(), of.nodes.end(),
                         [](const auto& node) { return node.kind == NodeKind::pcie_bridge; });
  };
  EXPECT_EQ(bridges(t), 0);
  ASSERT_EQ(t.port_groups.size(), 2U) << "they share the way to memory";
  EXPECT_EQ(t.port_groups[0].links.size(), 2U);
  EXPECT_NEAR(test::gb_s(t.port_groups[0].beta_s_per_byte), 24, 0.1);
  for (NvmlGpu& gpu : report.gpus) {
    for (NvmlPeer& peer : gpu.peers) peer.read = peer.write = PeerAccess::ok;
  }
  const Topology whole = joined("two-gpus-pcie", report, &remarks);
  EXPECT_EQ(bridges(whole), 1);
  EXPECT_THAT(whole.port_groups, IsEmpty());
}

TEST_F(Nvml, NvlinksThatGiveNoAccessAreLeftOut) {
  NvmlReport report = recorded("eight-gpus-nvswitch");
  for (NvmlGpu& gpu : report.gpus) {
    for (NvmlPeer& peer : gpu.peers) peer.read = peer.write = PeerAccess::not_supported;
  }
  std::vector<std::string> remarks;
  const Topology t = joined("eight-gpus-nvswitch", report, &remarks);
  EXPECT_THAT(between_ranks(t, "nvlink"), IsEmpty());
  EXPECT_EQ(remarks.size(), 8U) << "one sentence per GPU";
  EXPECT_TRUE(test::connected(t));
}

TEST_F(Nvml, GpusThatHwlocDoesNotSeeArePlacedByTheirWays) {
  // A machine whose hwloc reads no PCI, as without its plugin or in many containers.
  const Topology t = joined("one-gpu", recorded("eight-gpus-mesh"));
  EXPECT_EQ(t.world_size(), 8);
  EXPECT_TRUE(test::connected(t));
  std::map<std::string, int> below;
  for (const Topology::Node& node : t.nodes) {
    if (node.kind == NodeKind::gpu) ++below[t.nodes[node.parent].name];
  }
  EXPECT_EQ(below,
            (std::map<std::string, int>{{"pcie0", 2}, {"pcie1", 2}, {"pcie2", 2}, {"pcie3", 2}}));
  EXPECT_EQ(between_ranks(t, "nvlink"),
            between_ranks(joined("eight-gpus-mesh", recorded("eight-gpus-mesh")), "nvlink"));
}

TEST_F(Nvml, OtherPeoplesGpusAreNotOurs) {
  NvmlReport report = recorded("eight-gpus-mesh");
  report.gpus.resize(2);  // as in a container that was given two of eight
  for (NvmlGpu& gpu : report.gpus) gpu.peers.resize(2);
  std::vector<std::string> remarks;
  const Topology t = joined("eight-gpus-mesh", report, &remarks);
  EXPECT_EQ(t.world_size(), 2);
  EXPECT_NEAR(between_ranks(t, "nvlink").at({0, 1}), 25, 1e-9);
}

TEST_F(Nvml, ASlicedGpuIsNamedAndHasNoNvlinks) {
  std::vector<std::string> remarks;
  const Topology t = joined("mig", recorded("mig"), &remarks);
  EXPECT_THAT(remarks, Contains(AllOf(HasSubstr("GPU 0"), HasSubstr("MIG"))));
  EXPECT_THAT(t.nodes[t.rank_nodes[0]].detail, HasSubstr("2 x NVIDIA A100-SXM4-80GB MIG 1g.10gb"));
  EXPECT_THAT(between_ranks(t, "nvlink"), IsEmpty());
}

TEST_F(Nvml, RecordsThatContradictThemselvesAreRefused) {
  const std::string good = to_json(recorded("two-gpus-pcie"));
  const std::pair<std::string, std::string> kBad[] = {
      {"0000:04:00.0", "0000:03:00.0"},      // one address, two GPUs
      {"0000:04:00.0", "04"},                // no address
      {"0000:04:00.0", ""},                  // none at all
      {"\"sm\": 86", "\"sm\": -1"},          // out of range
      {"one_switch", "next_door"},           // unknown word
      {"\"version\": 1", "\"version\": 2"},  // of the future
      {"chorus-nvml", "chorus-topology"},    // another format
      {"\"numa\": 0", "\"node\": 0"},        // unknown member
      {"\"nvlinks\": []", "\"mig\": 7"},     // another type
      {"{\"ancestor\": \"unknown\", \"read\": \"unknown\", \"write\": \"unknown\"},", ""}};
  for (const auto& [from, to] : kBad) {
    std::string text = good;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    EXPECT_THROW((void)nvml_from_json(text, "bad"), InputError) << from << " -> " << to;
  }
}

TEST_F(Nvml, DiscoveryAndItsRecordAgree) {
  nvml_library().machine = recorded("eight-gpus-mesh");
  std::string pattern = (std::filesystem::temp_directory_path() / "chorus-record-XXXXXX").string();
  const std::filesystem::path directory = ::mkdtemp(pattern.data());
  record_machine(directory.string(), nvml_report());
  const Topology live = discover();
  nvml_library().machine = {};
  const Topology read = topology_from_record(directory.string());
  std::filesystem::remove_all(directory);
  EXPECT_EQ(live.world_size(), 8) << "this machine has the GPUs that its NVML tells of";
  EXPECT_EQ(read, live);
}

}  // namespace
}  // namespace chorus
