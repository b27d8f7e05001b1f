// GPUs that this build has no kernels for. In a process of its own: kernels stay where they are
// loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device/kernels.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DeviceKernels, AGpuOrADriverThatTheyAreNotForIsNamed) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver has the GPU that it has";
  fake_cuda_compute_capability(70);
  EXPECT_THAT(device::why_refused(cuda::kNoBinaryForGpu, 1),
              AllOf(HasSubstr("GPU 1 has compute capability 7.0"),
                    HasSubstr("CHORUS_CUDA_ARCHITECTURES=70")));
  fake_cuda_compute_capability(0);
  for (const cuda::Result result : {cuda::kUnsupportedPtx, cuda::kInvalidImage}) {
    EXPECT_THAT(device::why_refused(result, 0),
                AllOf(HasSubstr("is for CUDA 13.0"), HasSubstr("update it")));
  }
  EXPECT_THAT(device::why_refused(2, 0), HasSubstr("out of memory"));
}

TEST(DeviceKernels, WhereTheyCannotBeLoadedNothingStays) {
  if (!fake_cuda()) GTEST_SKIP() << "a true driver does not fail on command";
  for (const int device : {0, 1}) {
    const auto reason = [device] { return DeviceCommunicator::why_not(device).value_or("none"); };
    fake_cuda_compute_capability(70);
    const std::string by_gpu = reason();
    fake_cuda_compute_capability(0);
    fake_cuda_fail("cuModuleLoadData", 2);
    const std::string by_memory = reason();
    const bool has = device::has_kernels();
    EXPECT_THAT(by_gpu, HasSubstr(has ? "compute capability 7.0" : "without nvcc"));
    EXPECT_THAT(by_memory, HasSubstr(has ? "out of memory" : "without nvcc"));
    EXPECT_EQ(DeviceCommunicator::why_not(device), std::nullopt);
  }
}

}  // namespace
}  // namespace chorus::testing
