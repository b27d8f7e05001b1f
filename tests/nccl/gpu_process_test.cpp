// GPU memory of ranks that are processes: over the driver's fake, whose kernels are twins.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/fake/fake_cuda.hpp"
#include "processes.hpp"

namespace chorus::testing {
namespace {

constexpr std::size_t kCount = 100'000;  // floats: a call that is large enough

/// A rank's communicator, and what it does with memory of its GPU.
class Rank {
 public:
  Rank(const ncclUniqueId& id, int rank, int ranks)
      : context_(0), current_(context_.get()), stream_(cuda::make_stream()), ranks_(ranks) {
    EXPECT_OK(ncclCommInitRank(&comm, ranks, id, rank));
  }
  ~Rank() { EXPECT_OK(ncclCommDestroy(comm)); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Sums ones at `data` over all ranks. How often the driver was called.
  int sum(void* data) {
    const auto at = reinterpret_cast<cuda::Address>(data);
    std::vector<float> values(kCount, 1.0F);
    const cuda::Api& api = cuda::driver();
    EXPECT_EQ(api.copy_to_device(at, values.data(), kCount * 4, stream_.get()), cuda::kSuccess);
    wait();
    const int before = fake_cuda_calls();
    EXPECT_OK(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm,
                            reinterpret_cast<cudaStream_t>(stream_.get())));
    const int calls = fake_cuda_calls() - before;
    EXPECT_EQ(api.copy_to_host(values.data(), at, kCount * 4, stream_.get()), cuda::kSuccess);
    wait();
    EXPECT_EQ(values, std::vector<float>(kCount, static_cast<float>(ranks_)));
    return calls;
  }
  /// The same until it goes directly on all ranks, or so often.
  bool becomes_direct(void* data, int most) {
    for (int i = 0; i < most; ++i) {
      sum(data);
      int direct = fake_cuda_last_launch().direct ? 1 : 0;
      EXPECT_OK(ncclAllReduce(&direct, &direct, 1, ncclInt, ncclMin, comm, nullptr));
      if (direct != 0) return true;
    }
    return false;
  }
  void wait() const { EXPECT_EQ(cuda::driver().stream_synchronize(stream_.get()), cuda::kSuccess); }

  ncclComm_t comm = nullptr;

 private:
  cuda::PrimaryContext context_;
  cuda::Current current_;
  cuda::Stream stream_;
  int ranks_;
};

void expect_all_well(const std::vector<int>& statuses) {
  for (std::size_t r = 0; r < statuses.size(); ++r) EXPECT_EQ(statuses[r], 0) << "rank " << r;
}

TEST(GpuProcesses, MemoryOfNcclMemAllocIsReachedByTheOthers) {
  expect_all_well(run_processes(3, [](const ncclUniqueId& id, int rank) {
    Rank mine(id, rank, 3);
    const std::size_t before = fake_cuda_allocated();
    void* data = nullptr;
    ASSERT_OK(ncclMemAlloc(&data, kCount * sizeof(float)));
    // Some ranks announce it, others let calls find it.
    void* handle = nullptr;
    if (rank == 0) {
      ASSERT_OK(ncclCommRegister(mine.comm, data, kCount * sizeof(float), &handle));
    }
    EXPECT_TRUE(mine.becomes_direct(data, 10'000));
    EXPECT_LE(mine.sum(data), 4) << "calls of the driver";
    if (rank == 0) {
      ASSERT_OK(ncclCommDeregister(mine.comm, handle));
    }
    EXPECT_TRUE(mine.becomes_direct(data, 1)) << "it is ncclMemAlloc's memory still";
    // It is freed when the others have let go of it, without anybody waiting.
    ASSERT_OK(ncclMemFree(data));
    for (int i = 0; i < 60'000 && fake_cuda_allocated() > before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(fake_cuda_allocated(), before);
    EXPECT_EQ(fake_cuda_frees_of_mapped(), 0);
    // What comes after it, perhaps where it was, begins anew.
    ASSERT_OK(ncclMemAlloc(&data, kCount * sizeof(float)));
    EXPECT_TRUE(mine.becomes_direct(data, 10'000));
  }));
}

TEST(GpuProcesses, MemoryThatItsOwnerMayFreeIsNot) {
  expect_all_well(run_processes(2, [](const ncclUniqueId& id, int rank) {
    Rank mine(id, rank, 2);
    const cuda::Memory memory = cuda::allocate(kCount * sizeof(float));
    // Addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const data = reinterpret_cast<void*>(memory.get());
    EXPECT_LE(mine.sum(data), 20) << "the first call of its shape";
    EXPECT_EQ(mine.sum(data), 5) << "whose memory it is, is asked";
    void* handle = nullptr;
    ASSERT_OK(ncclCommRegister(mine.comm, data, kCount * sizeof(float), &handle));
    EXPECT_FALSE(mine.becomes_direct(data, 20));
    EXPECT_EQ(mine.sum(data), 4) << "it was told whose memory it is";
    ASSERT_OK(ncclCommDeregister(mine.comm, handle));
  }));
}

}  // namespace
}  // namespace chorus::testing
