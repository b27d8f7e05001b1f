// GPUs that this build has no kernels for. In a process of its own: kernels stay where they are
// loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "device/kernels.hpp"
#include "device_rank.hpp"
#include "fake_cuda.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// What a driver that refuses them is told by, for a GPU that has not loaded them before.
std::string reason_of(int device, int result) {
  fake_cuda_fail("cuModuleLoadData", result);
  return DeviceCommunicator::why_not(device).value_or("none");
}

TEST(DeviceKernels, AGpuOrADriverThatTheyAreNotForIsNamedAndNothingStays) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not fail on command";
  for (const int device : {0, 1}) {
    fake_cuda_compute_capability(70);
    const std::string by_gpu = DeviceCommunicator::why_not(device).value_or("none");
    fake_cuda_compute_capability(0);
    const std::string by_driver = reason_of(device, cuda::kUnsupportedPtx);
    const std::string by_memory = reason_of(device, 2);
    if (device::has_kernels()) {
      EXPECT_THAT(by_gpu, AllOf(HasSubstr("compute capability 7.0"),
                                HasSubstr("CHORUS_CUDA_ARCHITECTURES=70"), HasSubstr("CUDA")));
      EXPECT_THAT(by_driver, AllOf(HasSubstr("CUDA 13.0"), HasSubstr("update it")));
      EXPECT_THAT(by_memory, HasSubstr("out of memory"));
    } else {
      for (const std::string& reason : {by_gpu, by_driver, by_memory}) {
        EXPECT_THAT(reason, HasSubstr("without nvcc"));
      }
    }
    EXPECT_EQ(DeviceCommunicator::why_not(device), std::nullopt);
  }
}

}  // namespace
}  // namespace chorus::testing
