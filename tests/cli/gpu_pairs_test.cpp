// GPUs that lose or change what they tell each other are found, avoided and named: over a fake
// driver of two GPUs whose copies a test may spoil.
#include "cli/gpu_pairs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "chorus/error.hpp"
#include "device/driver/driver.hpp"
#include "device/fake/fake_cuda.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// How a copy between two GPUs goes wrong; within one GPU none does.
enum class Harm { none, lost, zeroes, one_bit, refused, no_access };
Harm harm = Harm::none;
int harmed_runner = -1;  // only copies that this GPU executes; -1: all

int device_now() {
  int device = -1;
  (void)cuda::driver().context_device(&device);
  return device;
}

cuda::Result spoilt_copy(cuda::Address to, cuda::Address from, std::size_t bytes,
                         cuda::StreamHandle stream) {
  const cuda::Api& real = cuda::driver();
  if (harmed_runner >= 0 && device_now() != harmed_runner)
    return real.copy(to, from, bytes, stream);
  switch (harm) {
    case Harm::lost:  // and reported as done
      return cuda::kSuccess;
    case Harm::refused:
      return 217;  // peer access unsupported
    case Harm::zeroes:
      return real.set_bytes(to, 0, bytes, stream);
    case Harm::one_bit: {
      const cuda::Result result = real.copy(to, from, bytes, stream);
      (void)real.stream_synchronize(stream);
      // Only far into a large copy, as where a translation covers some pages and not others.
      if (bytes > (1 << 20)) reinterpret_cast<unsigned char*>(to)[bytes - 3] ^= 0x10;
      return result;
    }
    default:
      return real.copy(to, from, bytes, stream);
  }
}

cuda::Result no_access(int* can, cuda::Device, cuda::Device) {
  *can = 0;
  return cuda::kSuccess;
}

cuda::PeerSurvey survey(Harm what, int runner = -1) {
  harm = what;
  harmed_runner = runner;
  cuda::Api api = cuda::driver();
  api.copy = &spoilt_copy;
  if (what == Harm::no_access) api.can_access_peer = &no_access;
  return cuda::survey_peers(api);
}

/// Two GPUs below one PCIe switch, the fake driver's.
NvmlReport report() {
  NvmlReport report;
  for (unsigned i = 0; i < 2; ++i) {
    NvmlGpu& gpu = report.gpus.emplace_back();
    gpu.address = {0, 3 + i, 0, 0};
    gpu.uuid = i == 0 ? "GPU-41000000-0000-0000-0000-000000000000"
                      : "GPU-42000000-0000-0000-0000-000000000000";
    gpu.peers.resize(2);
    gpu.peers[1 - i] = {Ancestor::one_switch, PeerAccess::ok, PeerAccess::ok};
  }
  return report;
}

Topology joined(const NvmlReport& nvml, std::vector<std::string>& remarks) {
  Box box;
  box.numa_nodes.resize(1);
  box.numa_nodes[0].cores = 1;
  remarks = add_nvml(box, nvml);
  return topology_of(std::move(box));
}

int bridges(const Topology& topology) {
  int count = 0;
  for (const Topology::Node& node : topology.nodes) count += node.kind == NodeKind::pcie_bridge;
  return count;
}

TEST(GpuPairs, SoundOnesAreMeasuredAndUsed) {
  const cuda::PeerSurvey found = survey(Harm::none);
  ASSERT_EQ(found.ways.size(), 2U);
  for (const cuda::PeerWay& way : found.ways) {
    EXPECT_TRUE(way.usable()) << way.fault;
    EXPECT_GT(way.gb_s, 0);
    EXPECT_GT(way.latency_us, 0);
  }
  NvmlReport nvml = report();
  mark_broken(nvml, found);
  EXPECT_EQ(nvml, report());
  std::vector<std::string> remarks;
  EXPECT_EQ(bridges(joined(nvml, remarks)), 1);
  EXPECT_THAT(remarks, IsEmpty());
}

TEST(GpuPairs, DamagedDataIsFoundAvoidedAndNamed) {
  for (const Harm what : {Harm::lost, Harm::zeroes, Harm::one_bit, Harm::refused}) {
    const cuda::PeerSurvey found = survey(what);
    ASSERT_EQ(found.ways.size(), 2U);
    for (const cuda::PeerWay& way : found.ways) EXPECT_FALSE(way.usable());
    EXPECT_THAT(text_of(found), HasSubstr("GPU 0 -> GPU 1: broken, not used"));
    NvmlReport nvml = report();
    mark_broken(nvml, found);
    EXPECT_EQ(nvml_from_json(to_json(nvml), "again"), nvml) << "a record keeps what was found";
    std::vector<std::string> remarks;
    const Topology topology = joined(nvml, remarks);
    EXPECT_EQ(bridges(topology), 0) << "they do not meet at their switch";
    EXPECT_EQ(topology.port_groups.size(), 2U) << "but share the way to memory";
    EXPECT_THAT(remarks, Contains(AllOf(HasSubstr("GPU 0"), HasSubstr("of GPU 1"),
                                        HasSubstr("damaged"), HasSubstr("host"))));
  }
}

TEST(GpuPairs, HarmInOneDirectionOfAccessIsEnough) {
  for (const int runner : {0, 1}) {
    const cuda::PeerSurvey found = survey(Harm::zeroes, runner);
    for (const cuda::PeerWay& way : found.ways) {
      EXPECT_FALSE(way.usable()) << "pushed and pulled are tried both";
      EXPECT_THAT(way.fault, HasSubstr("GPU " + std::to_string(runner)));
    }
  }
}

TEST(GpuPairs, WhatIsNotOfferedIsNoFault) {
  const cuda::PeerSurvey found = survey(Harm::no_access);
  for (const cuda::PeerWay& way : found.ways) {
    EXPECT_FALSE(way.offered);
    EXPECT_EQ(way.fault, "");
  }
  NvmlReport nvml = report();
  mark_broken(nvml, found);
  EXPECT_EQ(nvml, report());
  EXPECT_THAT(text_of(found), HasSubstr("no peer access"));
}

TEST(GpuPairs, StrangersAreLeftAlone) {
  NvmlReport nvml = report();
  nvml.gpus[1].uuid = "GPU-ffffffff-0000-0000-0000-000000000000";
  const NvmlReport before = nvml;
  mark_broken(nvml, survey(Harm::lost));
  EXPECT_EQ(nvml, before);
}

TEST(GpuPairs, NothingStaysAllocated) {
  (void)survey(Harm::none);
  (void)survey(Harm::lost);
  EXPECT_EQ(testing::fake_cuda_allocated(), 0U);
  testing::fake_cuda_fail("cuMemAlloc_v2", 2);
  EXPECT_THROW((void)survey(Harm::none), DeviceError);
  EXPECT_EQ(testing::fake_cuda_allocated(), 0U);
}

}  // namespace
}  // namespace chorus
