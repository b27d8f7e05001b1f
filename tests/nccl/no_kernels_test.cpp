// Where this library cannot use the GPUs: calls on their memory go to the other library, if there
// is one, or are refused by name; everything else works. In a process of its own: kernels that were
// loaded once stay.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/fake/fake_cuda.hpp"
#include "ranks.hpp"

namespace chorus::testing {
namespace {

struct Gpu {
  explicit Gpu(int device) : context(device), current(context.get()), stream(cuda::make_stream()) {
    EXPECT_OK(ncclMemAlloc(reinterpret_cast<void**>(&memory), 4 * sizeof(float)));
  }
  ~Gpu() { EXPECT_OK(ncclMemFree(memory)); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  [[nodiscard]] cudaStream_t handle() const { return reinterpret_cast<cudaStream_t>(stream.get()); }

  cuda::PrimaryContext context;
  cuda::Current current;
  cuda::Stream stream;
  float* memory = nullptr;
};

/// All ranks of a communicator whose GPU calls `judge` sees; host memory works in any case.
void run_without(int ranks, const std::function<void(ncclComm_t, const Gpu&)>& judge) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  run_threads(ranks, [&](int rank) {
    const Gpu gpu(rank % kFakeDevices);
    ncclComm_t comm = nullptr;
    ASSERT_OK(ncclCommInitRank(&comm, ranks, id, rank));
    judge(comm, gpu);
    float host = 1;
    EXPECT_OK(ncclAllReduce(&host, &host, 1, ncclFloat, ncclSum, comm, nullptr));
    EXPECT_EQ(host, static_cast<float>(ranks));
    EXPECT_OK(ncclCommDestroy(comm));
  });
}

void expect_77(ncclComm_t comm, const Gpu& gpu) {  // the other library's sum
  EXPECT_OK(ncclAllReduce(gpu.memory, gpu.memory, 4, ncclFloat, ncclSum, comm, gpu.handle()));
  EXPECT_EQ(*gpu.memory, 77);  // the fake driver's memory is the host's
}

TEST(NoKernels, TheOtherLibraryServesOrTheCallIsRefused) {
  fake_cuda_compute_capability(70);
  run_without(2, [](ncclComm_t comm, const Gpu& gpu) {
    EXPECT_REFUSED(ncclAllReduce(gpu.memory, gpu.memory, 4, ncclFloat, ncclSum, comm, gpu.handle()),
                   ncclInvalidUsage, "kernels");
  });
  ::setenv("CHORUS_NCCL_FALLBACK_LIBRARY", CHORUS_TEST_FAKE_NCCL, 1);
  run_without(2, expect_77);
  ::unsetenv("CHORUS_NCCL_FALLBACK_LIBRARY");
  fake_cuda_compute_capability(0);
}

// One rank's GPU cannot be used for want of memory: all ranks learn of it, and of the remedy.
TEST(NoKernels, AFailureWhileItIsMadeLeavesTheOtherLibrary) {
  ::setenv("CHORUS_NCCL_FALLBACK_LIBRARY", CHORUS_TEST_FAKE_NCCL, 1);
  fake_cuda_fail("cuMemsetD8Async", 2);
  run_without(2, expect_77);
  fake_cuda_fail("cuMemsetD8Async", 2, 0);
  ::unsetenv("CHORUS_NCCL_FALLBACK_LIBRARY");
}

// A job's whole communicator may be there for its parts alone.
TEST(NoKernels, TooManyRanksForGpusStillMakeACommunicator) {
  constexpr int kRanks = 130;
  ::setenv("CHORUS_SLOT_BYTES", "4096", 1);
  ::setenv("CHORUS_NCCL_FALLBACK_LIBRARY", CHORUS_TEST_FAKE_NCCL, 1);
  run_without(kRanks, [](ncclComm_t comm, const Gpu& gpu) {
    expect_77(comm, gpu);
    int rank = 0;
    EXPECT_OK(ncclCommUserRank(comm, &rank));
    ncclComm_t part = nullptr;
    EXPECT_OK(ncclCommSplit(comm, rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, rank, &part, nullptr));
    if (rank >= 2) return;
    *gpu.memory = 1;
    ncclRedOp_t op;  // pre-multiplied sums are never given away
    float factor = 3;
    EXPECT_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, part));
    EXPECT_OK(ncclAllReduce(gpu.memory, gpu.memory, 1, ncclFloat, op, part, gpu.handle()));
    EXPECT_EQ(cuda::driver().stream_synchronize(gpu.stream.get()), cuda::kSuccess);
    EXPECT_EQ(*gpu.memory, 6);
    EXPECT_OK(ncclRedOpDestroy(op, part));
    EXPECT_OK(ncclCommDestroy(part));
  });
  ::unsetenv("CHORUS_NCCL_FALLBACK_LIBRARY");
  ::unsetenv("CHORUS_SLOT_BYTES");
}

}  // namespace
}  // namespace chorus::testing
