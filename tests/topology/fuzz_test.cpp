// Damaged input of every format either imports as something sound or is refused as InputError.
#include "tests/base/fuzz.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "tests/topology/files.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/hw_tree.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/import.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

using Importer = Topology (*)(std::string_view text, std::string_view where);

constexpr std::string_view kWords[] = {"99999999999", "-1",    "0",    "1e999", "nan", "0xffffffff",
                                       "\"",          "<pci>", "&lt;", "<!-- ", "]]>", "NV4096"};

void fuzz(Importer import, const std::vector<std::string>& samples, double share) {
  set_log_level(LogLevel::error);
  std::mt19937 random(20240607);
  const auto end = test::fuzz_end(share);
  int imported = 0;
  int refused = 0;
  do {
    const std::string text = test::mutated(samples[random() % samples.size()], kWords,
                                           samples[random() % samples.size()], random);
    try {
      const std::string fault = test::unsound(import(text, "fuzz"));
      ASSERT_EQ(fault, "") << text;
      ++imported;
    } catch (const InputError& error) {
      ASSERT_FALSE(std::string(error.what()).empty());
      ++refused;
    }
  } while (imported + refused <= 10 || std::chrono::steady_clock::now() < end);
  ::testing::Test::RecordProperty("imported", imported);
  ::testing::Test::RecordProperty("refused", refused);
}

std::string sample(const std::string& name) { return test::read(test::data(name)); }

TEST(Fuzz, NcclXml) {
  fuzz(topology_from_text,
       {sample("topology/nccl-pairs.xml"), sample("topology/nccl-nvswitch.xml"),
        sample("topology/rccl-ring.xml"), sample("topology/nccl-partial.xml")},
       0.3);
}

TEST(Fuzz, HwlocXml) {
  fuzz(topology_from_text,
       {sample("machines/two-sockets/hwloc.xml"), sample("machines/four-gpus/hwloc.xml"),
        sample("machines/virtual/hwloc.xml")},
       0.4);
}

/// The answers of NVML as `text`, on a machine whose devices they may or may not be.
Topology with_nvml(std::string_view text, std::string_view where) {
  static const HwMachine kMachine =
      machine_from_hwloc_xml(sample("machines/eight-gpus-mesh/hwloc.xml"), "fuzz");
  const NvmlReport report = nvml_from_json(text, where);
  EXPECT_EQ(nvml_from_json(to_json(report), where), report);
  Box box = box_of(kMachine);
  (void)add_nvml(box, report);
  return topology_of(std::move(box));
}

TEST(Fuzz, AnswersOfNvml) {
  fuzz(
      with_nvml,
      {sample("machines/eight-gpus-mesh/nvml.json"), sample("machines/mig/nvml.json"),
       sample("machines/two-gpus-pcie/nvml.json"), sample("machines/four-gpus-nvswitch/nvml.json")},
      0.3);
}

Topology with_host(std::string_view text, std::string_view where) {
  static const HwMachine kMachine =
      machine_from_hwloc_xml(sample("machines/four-gpus/hwloc.xml"), "fuzz");
  const HostRecord host = host_from_json(text, where);
  Box box = box_of(kMachine);
  add_interfaces(box, host.interfaces);
  return topology_of(std::move(box));
}

TEST(Fuzz, RecordsOfHosts) {
  fuzz(with_host,
       {sample("machines/four-gpus/host.json"), sample("machines/two-sockets/host.json")}, 0.15);
}

TEST(Fuzz, NvidiaSmi) {
  fuzz(topology_from_nvidia_smi,
       {sample("topology/nvidia-smi-nvswitch.txt"), sample("topology/nvidia-smi-dgx1.txt")}, 0.15);
}

TEST(Fuzz, Names) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) names.emplace_back(entry.name);
  names.emplace_back("2*dgx-h100,rails=yes,nic=50,nic-alpha=2");
  names.emplace_back("fat-tree:2x2x2,over=2,rate=10,alpha=0.5");
  fuzz([](std::string_view text, std::string_view) { return topology_from_name(text); }, names,
       0.15);
}

}  // namespace
}  // namespace chorus
