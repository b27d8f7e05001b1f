#include "topology/import/import.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <vector>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "tests/topology/files.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover/describe.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

using test::data;
using test::gb_s;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Topology imported(const std::string& name) {
  return topology_from_text(test::read(data("topology/" + name)), name);
}

std::string refusal(const std::string& text) {
  try {
    (void)topology_from_text(text, "here");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

/// A sample with one piece of text replaced by another.
std::string changed(const std::string& name, const std::string& from, const std::string& to) {
  std::string text = test::read(data("topology/" + name));
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// GB/s from one named node to another over links of `type`; 0 if there are none.
double between(const Topology& t, const std::string& src, const std::string& dst,
               const std::string& type) {
  double sum = 0;
  for (const Topology::Link& link : t.links) {
    if (t.nodes[link.src].name == src && t.nodes[link.dst].name == dst && link.type == type) {
      sum += gb_s(link.beta_s_per_byte);
    }
  }
  return sum;
}

TEST(Import, SamplesReadAsExpected) {
  set_log_level(LogLevel::error);
  for (const char* name : {"nccl-pairs.xml", "nccl-nvswitch.xml", "rccl-ring.xml",
                           "nccl-partial.xml", "nvidia-smi-nvswitch.txt", "nvidia-smi-dgx1.txt"}) {
    const Topology t = imported(name);
    EXPECT_EQ(test::unsound(t), "") << name;
    EXPECT_TRUE(test::connected(t)) << name;
    test::expect_text(describe(t), data("topology/" + std::string(name) + ".expected"));
  }
}

TEST(NcclXml, NvlinksCountByTheRateOfTheirArchitecture) {
  const Topology t = imported("nccl-pairs.xml");
  EXPECT_EQ(t.world_size(), 3);
  EXPECT_NEAR(between(t, "gpu0", "gpu1", "nvlink"), 50, 1e-9);
  EXPECT_NEAR(between(t, "gpu2", "gpu0", "nvlink"), 25, 1e-9);
  EXPECT_NEAR(between(t, "gpu0", "pcie0", "pcie"), 12, 1e-9);
  EXPECT_NEAR(between(t, "gpu1", "pcie0", "pcie"), 6, 1e-9);
  EXPECT_NEAR(between(t, "gpu2", "numa1", "pcie"), 6, 1e-9);  // generation 2
  EXPECT_NEAR(between(t, "mlx5_0", "network", "infiniband"), 12.5, 1e-9);
  EXPECT_NEAR(between(t, "eth0", "network", "ethernet"), 1.25, 1e-9);
  EXPECT_NEAR(between(t, "numa0", "numa1", "socket"), 10, 1e-9);
}

TEST(NcclXml, VisibleAndInvisibleSwitchesAreOne) {
  const Topology t = imported("nccl-nvswitch.xml");
  EXPECT_NEAR(between(t, "gpu0", "nvswitch", "nvlink"), 450, 1e-9);
  EXPECT_NEAR(between(t, "nvswitch", "gpu1", "nvlink"), 450, 1e-9);
  EXPECT_NEAR(between(t, "gpu0", "numa0", "c2c"), 223.56, 1e-9);
}

TEST(NcclXml, RcclsLinksAreRead) {
  const Topology t = imported("rccl-ring.xml");
  EXPECT_NEAR(between(t, "gpu0", "gpu1", "xgmi"), 200, 1e-9);
}

TEST(NcclXml, MistakesAreNamedWithTheirLine) {
  const std::string sample = "nccl-pairs.xml";
  EXPECT_THAT(refusal(changed(sample, "0000:11:00.0\" class", "bogus\" class")),
              AllOf(HasSubstr("here:5:"), HasSubstr("bogus")));
  EXPECT_THAT(refusal(changed(sample, "version=\"1\"", "version=\"3\"")),
              AllOf(HasSubstr("here:2:"), HasSubstr("version 3")));
  EXPECT_THAT(refusal(changed(sample, "count=\"2\"", "count=\"-2\"")), HasSubstr("count=\"-2\""));
  EXPECT_THAT(refusal(changed(sample, "count=\"2\"", "count=\"3\"")), HasSubstr("make their"));
  EXPECT_THAT(refusal(changed(sample, "8 GT/s", "fast")), HasSubstr("fast"));
  EXPECT_THAT(refusal(changed(sample, "8 GT/s", "1e300 GT/s")), HasSubstr("no PCIe speed"));
  EXPECT_THAT(refusal(changed(sample, "0000:12:00.0\" class", "0000:11:00.0\" class")),
              HasSubstr("two <pci>"));
  EXPECT_THAT(refusal(changed(sample, "speed=\"100000\"", "speed=\"99999999999999999999\"")),
              HasSubstr("whole number"));
  EXPECT_THAT(refusal(changed(sample, "numaid=\"1\"", "numaid=\"0\"")), HasSubstr("two <cpu>"));
  EXPECT_THAT(refusal(changed(sample, "</system>", "")), HasSubstr("truncated"));
  EXPECT_THAT(refusal("<system version=\"1\"/>"), HasSubstr("no <cpu>"));
}

TEST(NcclXml, WhatIsUnknownIsLeftOutWithAWarning) {
  set_log_level(LogLevel::warn);
  ::testing::internal::CaptureStderr();
  const Topology t = imported("nccl-partial.xml");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(t.world_size(), 2);
  EXPECT_THAT(log, HasSubstr("nccl-partial.xml:9: <gizmo>"));
  EXPECT_THAT(log, HasSubstr("0000:00:1e.0 has no class"));
}

TEST(NvidiaSmi, ManyEqualNvlinksMeanASwitch) {
  const Topology t = imported("nvidia-smi-nvswitch.txt");
  EXPECT_EQ(t.world_size(), 4);
  EXPECT_NEAR(between(t, "gpu3", "nvswitch", "nvlink"), 450, 1e-9);
  EXPECT_GT(between(t, "gpu2", "pcie1", "pcie"), 0);  // PIX with mlx5_3
  EXPECT_GT(between(t, "mlx5_3", "network", "infiniband"), 0);
}

TEST(NvidiaSmi, FewNvlinksAreCables) {
  const Topology t = imported("nvidia-smi-dgx1.txt");
  const Topology catalogued = topology_from_name("dgx1");
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      const std::string src = "gpu" + std::to_string(a);
      const std::string dst = "gpu" + std::to_string(b);
      EXPECT_NEAR(between(t, src, dst, "nvlink"), between(catalogued, src, dst, "nvlink"), 1e-9);
    }
  }
}

TEST(NvidiaSmi, MistakesAreNamedWithTheirLine) {
  const std::string sample = "nvidia-smi-dgx1.txt";
  EXPECT_THAT(refusal(changed(sample, "GPU3\tNV2", "GPU3\tNV1")), HasSubstr("disagree"));
  EXPECT_THAT(refusal(changed(sample, "GPU3\tNV2", "GPU3\tNVX")),
              AllOf(HasSubstr("here:5:"), HasSubstr("NVX")));
  EXPECT_THAT(refusal(changed(sample, "GPU3\tNV2", "GPU4\tNV2")), HasSubstr("row GPU4 where GPU3"));
  const std::string whole = test::read(data("topology/" + sample));
  EXPECT_THAT(refusal(whole.substr(0, whole.find("GPU5\tSYS"))), HasSubstr("after 5 of 8 rows"));
  EXPECT_THAT(refusal(whole.substr(0, whole.find("GPU5\tSYS") + 12)), HasSubstr("row GPU5 has"));
}

TEST(HwlocXml, TheRecordedMachineIsRead) {
  const Topology t =
      topology_from_text(test::read(data("machines/four-gpus/hwloc.xml")), "four-gpus.xml");
  EXPECT_EQ(t.world_size(), 4);
  EXPECT_NEAR(between(t, "gpu0", "gpu1", "nvlink"), 100, 1e-9);
  EXPECT_NEAR(between(t, "gpu0", "gpu2", "nvlink"), 0, 1e-9);
}

TEST(HwlocXml, OtherVersionsAreRefusedByName) {
  std::string text = test::read(data("machines/virtual/hwloc.xml"));
  text.replace(text.find("version=\"2.0\""), 13, "version=\"9.0\"");
  EXPECT_THAT(refusal(text), AllOf(HasSubstr("here:3:"), HasSubstr("version 9.0")));
  EXPECT_THAT(refusal("<topology version=\"2.0\"></topology>"), HasSubstr("no <object>"));
  EXPECT_THAT(refusal(test::read(data("machines/virtual/hwloc.xml")).substr(0, 900)),
              HasSubstr("truncated"));
}

/// A <cpu> with these <pci> in it, in NCCL's XML.
std::string nccl_xml(const std::string& devices) {
  return R"(<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64">)" + devices +
         "</cpu></system>";
}

std::string pci(const std::string& busid, const std::string& inner) {
  return R"(<pci busid="0000:)" + busid + R"(:00.0" class="0x030200">)" + inner + "</pci>";
}

// A GPU that is also a bridge would be a rank without a node, or hide the ranks below it.
TEST(NcclXml, APciDeviceIsABridgeOrOneDevice) {
  const std::string gpu = R"(<gpu dev="0" sm="80"/>)";
  const std::string nic = R"(<nic><net name="mlx5_0" speed="1000"/></nic>)";
  const std::string below = pci("83", gpu);
  for (const std::string& inner : {below + gpu, gpu + below, below + nic, nic + below, gpu + nic,
                                   nic + gpu, gpu + gpu, pci("84", "") + gpu}) {
    EXPECT_THAT(refusal(nccl_xml(pci("81", inner))),
                AllOf(HasSubstr("here:1:"), HasSubstr("give each a <pci> of its own")))
        << inner;
  }
  EXPECT_EQ(topology_from_text(nccl_xml(pci("81", below)), "here").world_size(), 1);
  EXPECT_EQ(refusal(nccl_xml(pci("81", nic + nic) + below)), "accepted");
}

TEST(NcclXml, AnAdapterMayBeNamedLikeAnotherNode) {
  for (const std::string name : {"gpu0", "host", "numa0", "network", "pcie0", "core1"}) {
    const std::string nic = "<nic><net name=\"" + name + "\" speed=\"1000\"/></nic>";
    const Topology t = topology_from_text(
        nccl_xml(pci("81", pci("82", nic) + pci("83", R"(<gpu dev="0" sm="80"/>)"))), "here");
    EXPECT_EQ(malformed(t), std::nullopt) << name;
  }
}

TEST(NcclXml, NoLinkIsSlowerThanAnyWiring) {
  std::string text = test::read(data("topology/nccl-pairs.xml"));
  const std::size_t at = text.find("GT/s");
  ASSERT_NE(at, std::string::npos);
  const std::size_t begin = text.rfind('"', at) + 1;
  EXPECT_THAT(refusal(text.replace(begin, at - begin, "1e-300 ")), HasSubstr("is no PCIe speed"));
}

TEST(HwlocXml, ARateThatNoPcieLinkHasIsAnUnknownOne) {
  const std::string text = test::read(data("machines/four-gpus/hwloc.xml"));
  for (const char* rate : {"1e-300", "1e300", "nan", "0"}) {
    std::string wrong = text;
    const std::string begin = "pci_link_speed=\"";
    for (std::size_t at = 0; (at = wrong.find(begin, at)) != std::string::npos;) {
      at += begin.size();
      wrong.replace(at, wrong.find('"', at) - at, rate);
    }
    EXPECT_EQ(malformed(topology_from_text(wrong, "here")), std::nullopt) << rate;
  }
}

TEST(Import, EntityBombsAndOtherTricksAreRefused) {
  EXPECT_THAT(refusal("<!DOCTYPE system [\n<!ENTITY a \"aaaaaaaaaa\">\n<!ENTITY b \"&a;&a;&a;\">\n"
                      "]>\n<system version=\"1\"><cpu>&b;</cpu></system>"),
              AllOf(HasSubstr("here:2:"), HasSubstr("entities")));
  EXPECT_THAT(refusal("<!DOCTYPE topology [ <!ELEMENT topology ANY> ]><topology/>"),
              HasSubstr("DTD of its own"));
  EXPECT_THAT(refusal(std::string("<system>\n\0</system>", 19)), HasSubstr("here:2: a zero byte"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "<pci>";
  for (int i = 0; i < 100000; ++i) deep += "</pci>";
  EXPECT_THAT(refusal(deep), HasSubstr("deep"));
  EXPECT_THAT(refusal("<system>" + std::string(17 << 20, ' ') + "</system>"),
              HasSubstr("larger than"));
  EXPECT_THAT(refusal("GPU0" + std::string(17 << 20, ' ')), HasSubstr("larger than"));
}

TEST(Import, OtherFilesAreToldApart) {
  EXPECT_THAT(refusal("<graphs version=\"1\"></graphs>"), HasSubstr("graph file of NCCL"));
  EXPECT_THAT(refusal("<algo name=\"x\"></algo>"), HasSubstr("schedule in MSCCL XML"));
  EXPECT_THAT(refusal("<html></html>"), HasSubstr("<html> begins no known topology"));
  EXPECT_THAT(refusal("hello"), HasSubstr("no known format"));
  EXPECT_THAT(refusal(" \n"), HasSubstr("empty"));
  EXPECT_THROW((void)topology_from_file("/nowhere/at/all"), InputError);
  EXPECT_THROW((void)topology_from_file("/"), InputError);
}

TEST(Import, RecordingsOfRealMachinesAreRead) {
  const std::map<std::string, int> kRanks = {{"nccl-topology/aws-g5.48xl-topo.xml", 0},
                                             {"nccl-topology/aws-p4d-24xl-topo.xml", 8},
                                             {"nccl-topology/azure-ncv4-topo.xml", 4},
                                             {"nccl-topology/azure-ndv2-topo.xml", 8},
                                             {"nccl-topology/azure-ndv4-topo.xml", 8},
                                             {"nccl-topology/azure-ndv5-topo.xml", 8},
                                             {"hwloc/nvidiaDGX2.xml", 16},
                                             {"hwloc/power8gpudistances.xml", 4}};
  if (!std::filesystem::exists(test::recordings() / "nccl-topology")) {
    GTEST_SKIP() << "no recordings at " << test::recordings() << "; set CHORUS_TEST_DATA";
  }
  set_log_level(LogLevel::error);
  for (const auto& [name, ranks] : kRanks) {
    const Topology t = topology_from_file((test::recordings() / name).string());
    EXPECT_EQ(test::unsound(t), "") << name;
    EXPECT_TRUE(test::connected(t)) << name;
    EXPECT_EQ(t.world_size(), ranks) << name;
  }
  const Topology dgx2 = topology_from_file((test::recordings() / "hwloc/nvidiaDGX2.xml").string());
  EXPECT_NEAR(between(dgx2, "gpu7", "nvswitch", "nvlink"), 150, 1e-9);
  const Topology power =
      topology_from_file((test::recordings() / "hwloc/power8gpudistances.xml").string());
  EXPECT_NEAR(between(power, "gpu0", "numa0", "nvlink"), 40, 1e-9);
  EXPECT_THAT(refusal(test::read(test::recordings() / "nccl-topology/azure-ncv4-graph.xml")),
              HasSubstr("graph file of NCCL"));
}

}  // namespace
}  // namespace chorus
