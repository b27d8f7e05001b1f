// GPU memory goes to kernels on the caller's stream: over the driver's fake, whose kernels are
// twins.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/fake/fake_cuda.hpp"
#include "ranks.hpp"

namespace chorus::testing {
namespace {

/// One rank's GPU, current in its thread, with a stream.
struct Gpu {
  explicit Gpu(int device) : context(device), current(context.get()), stream(cuda::make_stream()) {}

  [[nodiscard]] cudaStream_t handle() const { return reinterpret_cast<cudaStream_t>(stream.get()); }
  void wait() const { ASSERT_EQ(cuda::driver().stream_synchronize(stream.get()), cuda::kSuccess); }
  /// Memory of the GPU with these values.
  template <class T>
  T* memory(const std::vector<T>& values) const {
    void* made = nullptr;
    EXPECT_OK(ncclMemAlloc(&made, values.size() * sizeof(T)));
    EXPECT_EQ(cuda::driver().copy_to_device(reinterpret_cast<cuda::Address>(made), values.data(),
                                            values.size() * sizeof(T), stream.get()),
              cuda::kSuccess);
    wait();
    return static_cast<T*>(made);
  }
  template <class T>
  std::vector<T> read(const T* from, std::size_t count) const {
    std::vector<T> values(count);
    EXPECT_EQ(cuda::driver().copy_to_host(values.data(), reinterpret_cast<cuda::Address>(from),
                                          count * sizeof(T), stream.get()),
              cuda::kSuccess);
    wait();
    return values;
  }

  cuda::PrimaryContext context;
  cuda::Current current;
  cuda::Stream stream;
};

void run_gpus(int ranks, const std::function<void(ncclComm_t, int, const Gpu&)>& body) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  run_threads(ranks, [&](int rank) {
    const Gpu gpu(rank % kFakeDevices);
    ncclComm_t comm = nullptr;
    ASSERT_OK(ncclCommInitRank(&comm, ranks, id, rank));
    int device = -1;
    EXPECT_OK(ncclCommCuDevice(comm, &device));
    EXPECT_EQ(device, rank % kFakeDevices);
    body(comm, rank, gpu);
    gpu.wait();
    EXPECT_OK(ncclCommDestroy(comm));
  });
}

TEST(Gpu, CollectivesRunOnTheStream) {
  run_gpus(2, [](ncclComm_t comm, int rank, const Gpu& gpu) {
    const std::size_t n = 1000;
    float* const x = gpu.memory(std::vector<float>(n, static_cast<float>(rank + 1)));
    float* const y = gpu.memory(std::vector<float>(2 * n, -1.0F));
    ASSERT_OK(ncclAllReduce(x, x, n, ncclFloat, ncclSum, comm, gpu.handle()));
    ASSERT_OK(ncclAllGather(x, y, n, ncclFloat, comm, gpu.handle()));
    EXPECT_EQ(gpu.read(x, n), std::vector<float>(n, 3));
    EXPECT_EQ(gpu.read(y, 2 * n), std::vector<float>(2 * n, 3));
    float factor = static_cast<float>(rank) + 2;
    ncclRedOp_t op;
    ASSERT_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
    ASSERT_OK(ncclAllReduce(x, y, n, ncclFloat, op, comm, gpu.handle()));
    ASSERT_OK(ncclRedOpDestroy(op, comm));
    EXPECT_EQ(gpu.read(y, n), std::vector<float>(n, 3 * 2 + 3 * 3));
    gpu.wait();
    ASSERT_OK(ncclMemFree(x));
    ASSERT_OK(ncclMemFree(y));
    EXPECT_REFUSED(ncclMemFree(x), ncclInvalidArgument, "freed before");
  });
}

TEST(Gpu, GroupsOfMessagesRunOnTheStream) {
  run_gpus(3, [](ncclComm_t comm, int rank, const Gpu& gpu) {
    const int to = (rank + 1) % 3, from = (rank + 2) % 3;
    int* const out = gpu.memory(std::vector<int>(5000, rank));
    int* const in = gpu.memory(std::vector<int>(5000, -1));
    int* const own = gpu.memory(std::vector<int>(10, -1));
    ASSERT_OK(ncclGroupStart());
    ASSERT_OK(ncclSend(out, 5000, ncclInt, to, comm, gpu.handle()));
    ASSERT_OK(ncclRecv(in, 5000, ncclInt, from, comm, gpu.handle()));
    ASSERT_OK(ncclSend(out, 10, ncclInt, rank, comm, gpu.handle()));
    ASSERT_OK(ncclRecv(own, 10, ncclInt, rank, comm, gpu.handle()));
    ASSERT_OK(ncclGroupEnd());
    EXPECT_EQ(gpu.read(in, 5000), std::vector<int>(5000, from));
    EXPECT_EQ(gpu.read(own, 10), std::vector<int>(10, rank));
    for (int* const memory : {out, in, own}) ASSERT_OK(ncclMemFree(memory));
  });
}

TEST(Gpu, MixturesAreRefusedAndHostMemoryStillWorks) {
  run_gpus(2, [](ncclComm_t comm, int rank, const Gpu& gpu) {
    float host[4] = {1, 2, 3, 4};
    float* const x = gpu.memory(std::vector<float>(4, 1.0F));
    EXPECT_REFUSED(ncclAllReduce(x, host, 4, ncclFloat, ncclSum, comm, gpu.handle()),
                   ncclInvalidArgument, "must be of one kind");
    ASSERT_OK(ncclAllReduce(host, host, 4, ncclFloat, ncclSum, comm, gpu.handle()));
    EXPECT_EQ(host[3], 8);
    std::int64_t factor = (std::int64_t{1} << 60) + 1;
    ncclRedOp_t op;
    ASSERT_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclInt64, ncclScalarHostImmediate, comm));
    EXPECT_REFUSED(ncclAllReduce(x, x, 2, ncclInt64, op, comm, gpu.handle()), ncclInvalidArgument,
                   "2^53");
    // Memory of the other rank's GPU.
    if (rank == 0) {
      const cuda::PrimaryContext other(1);
      const cuda::Current current(other.get());
      void* there = nullptr;
      ASSERT_OK(ncclMemAlloc(&there, 64));
      EXPECT_REFUSED(ncclAllReduce(there, there, 4, ncclFloat, ncclSum, comm, gpu.handle()),
                     ncclInvalidArgument, "GPU 1");
      ASSERT_OK(ncclMemFree(there));
    }
    ASSERT_OK(ncclMemFree(x));
  });
}

// The other library is a fake whose sums are all 77.
TEST(Fallback, TakesTheOperationsThatAreListedAndNoOthers) {
  ::setenv("CHORUS_NCCL_FALLBACK_LIBRARY", CHORUS_TEST_FAKE_NCCL, 1);
  ::setenv("CHORUS_NCCL_FALLBACK", "alltoall,allreduce", 1);
  run_gpus(2, [](ncclComm_t comm, int rank, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(100, 1.0F));
    float* const y = gpu.memory(std::vector<float>(200, static_cast<float>(rank)));
    ASSERT_OK(ncclAllReduce(x, x, 100, ncclFloat, ncclSum, comm, gpu.handle()));
    ASSERT_OK(ncclReduce(y, y, 100, ncclFloat, ncclSum, 1, comm, gpu.handle()));
    gpu.wait();
    EXPECT_EQ(gpu.read(x, 100), std::vector<float>(100, 77));
    EXPECT_EQ(gpu.read(y, 100), std::vector<float>(100, static_cast<float>(rank)));  // 0 + 1
    // The fake has none, and the error says who refused.
    EXPECT_REFUSED(ncclAlltoAll(x, y, 100, ncclFloat, comm, gpu.handle()), ncclInvalidUsage,
                   "CHORUS_NCCL_FALLBACK_LIBRARY");
    // Nothing has run, so the communicator is as good as before.
    ASSERT_OK(ncclReduce(y, y, 100, ncclFloat, ncclSum, 0, comm, gpu.handle()));
  });
  // Groups are shared out; host memory is never given away.
  run_gpus(2, [](ncclComm_t comm, int, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(100, 1.0F));
    ASSERT_OK(ncclGroupStart());
    ASSERT_OK(ncclAllReduce(x, x, 50, ncclFloat, ncclSum, comm, gpu.handle()));
    ASSERT_OK(ncclBroadcast(x + 50, x + 50, 50, ncclFloat, 0, comm, gpu.handle()));
    ASSERT_OK(ncclGroupEnd());
    gpu.wait();
    EXPECT_EQ(gpu.read(x, 50), std::vector<float>(50, 77));
    EXPECT_EQ(gpu.read(x + 50, 50), std::vector<float>(50, 1));
    float host = 1;
    ASSERT_OK(ncclAllReduce(&host, &host, 1, ncclFloat, ncclSum, comm, nullptr));
    EXPECT_EQ(host, 2);
  });
  ::setenv("CHORUS_NCCL_FALLBACK_LIBRARY", "/nonesuch/libnccl.so", 1);
  run_threads(1, [](int) {
    const Gpu gpu(0);
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    ASSERT_OK(ncclGetUniqueId(&id));
    EXPECT_REFUSED(ncclCommInitRank(&comm, 1, id, 0), ncclSystemError, "/nonesuch/libnccl.so");
  });
  ::unsetenv("CHORUS_NCCL_FALLBACK_LIBRARY");
  ::unsetenv("CHORUS_NCCL_FALLBACK");
}

TEST(Gpu, AFaultIsAnErrorOfEveryCall) {
  run_gpus(1, [](ncclComm_t comm, int, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(4, 1.0F));
    fake_cuda_fault(0);
    EXPECT_REFUSED(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()),
                   ncclUnhandledCudaError, "ILLEGAL_ADDRESS");
    fake_cuda_heal();
    ASSERT_OK(ncclMemFree(x));
  });
}

TEST(Gpu, ThreadsWithoutAContextMayCall) {
  run_gpus(1, [](ncclComm_t comm, int, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(4, 1.0F));
    std::thread([&] {
      EXPECT_OK(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()));
      EXPECT_OK(ncclMemFree(nullptr));
    }).join();
    EXPECT_EQ(gpu.read(x, 4), std::vector<float>(4, 1));
    std::thread([&] { EXPECT_OK(ncclMemFree(x)); }).join();
  });
}

// The same address is now the GPU's memory and now the host's: no answer of the driver outlives
// what says that the memory stays.
TEST(Gpu, HostMemoryWhereGpuMemoryWasIsTheHosts) {
  for (const char* const kind : {"plain", "registered", "of ncclMemAlloc"}) {
    run_gpus(2, [kind](ncclComm_t comm, int rank, const Gpu& gpu) {
      constexpr std::size_t kBytes = std::size_t{4} << 20;
      cuda::Memory memory;
      void* begin = nullptr;
      void* handle = nullptr;
      if (kind == std::string("of ncclMemAlloc")) {
        ASSERT_OK(ncclMemAlloc(&begin, kBytes));
      } else {
        memory = cuda::allocate(kBytes);
        // Addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
        begin = reinterpret_cast<void*>(memory.get());
      }
      if (kind == std::string("registered")) {
        ASSERT_OK(ncclCommRegister(comm, begin, kBytes, &handle));
      }
      auto* const at = static_cast<float*>(begin);
      const std::vector<float> ones(100, 1.0F);
      ASSERT_EQ(
          cuda::driver().copy_to_device(cuda::address_of(at), ones.data(), 400, gpu.stream.get()),
          cuda::kSuccess);
      for (int i = 0; i < 2; ++i) {
        ASSERT_OK(ncclAllReduce(at, at, 100, ncclFloat, ncclSum, comm, gpu.handle()));
      }
      EXPECT_EQ(gpu.read(at, 100), std::vector<float>(100, 4.0F));
      const int launches = fake_cuda_calls("cuLaunchKernel");
      EXPECT_OK(handle == nullptr ? ncclSuccess : ncclCommDeregister(comm, handle));
      EXPECT_OK(memory ? ncclSuccess : ncclMemFree(begin));
      memory.reset();
      void* const host = ::mmap(at, kBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      // Who cannot have the address takes part with other memory.
      std::vector<float> elsewhere(100);
      float* const data = host == at ? at : elsewhere.data();
      std::fill_n(data, 100, static_cast<float>(rank + 1));
      ASSERT_OK(ncclAllReduce(data, data, 100, ncclFloat, ncclSum, comm, gpu.handle()));
      EXPECT_EQ(std::vector<float>(data, data + 100), std::vector<float>(100, 3.0F)) << kind;
      EXPECT_EQ(fake_cuda_calls("cuLaunchKernel"), launches) << kind;
      if (host != MAP_FAILED) ::munmap(host, kBytes);
    });
  }
}

// Beside the four calls of a launch (tests/device/occupancy_calls_test.cpp): whose memory it is, if
// that is not known.
TEST(Gpu, ACallAsksTheDriverOncePerBlockOfUnknownMemory) {
  std::barrier meet(2);
  run_gpus(2, [&](ncclComm_t comm, int rank, const Gpu& gpu) {
    const cuda::Memory first = cuda::allocate(800);
    const cuda::Memory second = cuda::allocate(400);
    // Addresses are numbers. NOLINTBEGIN(performance-no-int-to-ptr)
    auto* const x = reinterpret_cast<float*>(first.get());
    auto* const y = reinterpret_cast<float*>(second.get());
    // NOLINTEND(performance-no-int-to-ptr)
    float* const given = gpu.memory(std::vector<float>(200, 1.0F));
    const auto expect_calls = [&](int most, float* from, float* to) {
      const auto call = [&] {
        ASSERT_OK(ncclAllReduce(from, to, 100, ncclFloat, ncclSum, comm, gpu.handle()));
      };
      call();
      meet.arrive_and_wait();
      const int before = fake_cuda_calls();
      meet.arrive_and_wait();
      call();
      meet.arrive_and_wait();
      EXPECT_EQ(fake_cuda_calls() - before, 2 * most) << "rank " << rank;
      meet.arrive_and_wait();
    };
    expect_calls(5, x, x);
    expect_calls(5, x, x + 100);
    expect_calls(6, x, y);
    expect_calls(4, given, given);
    expect_calls(4, given, given + 100);
    void* handles[2] = {};
    ASSERT_OK(ncclCommRegister(comm, x, 800, &handles[0]));
    expect_calls(4, x + 100, x);
    expect_calls(5, x, y);
    ASSERT_OK(ncclCommRegister(comm, y, 400, &handles[1]));
    expect_calls(4, x, y);
    for (void* const handle : handles) ASSERT_OK(ncclCommDeregister(comm, handle));
    expect_calls(6, y, x);
    gpu.wait();
    ASSERT_OK(ncclMemFree(given));
  });
}

TEST(Gpu, MessagesOfNothingMakeNobodyWait) {
  std::atomic<bool> enqueued{false};
  run_gpus(2, [&enqueued](ncclComm_t comm, int rank, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(4, 1.0F));
    if (rank == 0) {
      ASSERT_OK(ncclGroupStart());
      ASSERT_OK(ncclRecv(nullptr, 0, ncclFloat, 1, comm, gpu.handle()));
      ASSERT_OK(ncclRecv(x, 4, ncclFloat, 1, comm, gpu.handle()));
      ASSERT_OK(ncclGroupEnd());
      ASSERT_OK(ncclRecv(x, 0, ncclFloat, 1, comm, gpu.handle()));
      enqueued = true;
    } else {
      // Rank 0's calls return before anything is sent.
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!enqueued && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_TRUE(enqueued) << "a message of nothing made its receiver wait";
      ASSERT_OK(ncclGroupStart());
      ASSERT_OK(ncclSend(x, 0, ncclFloat, 0, comm, gpu.handle()));
      ASSERT_OK(ncclSend(x, 4, ncclFloat, 0, comm, gpu.handle()));
      ASSERT_OK(ncclGroupEnd());
      ASSERT_OK(ncclSend(nullptr, 0, ncclFloat, 0, comm, gpu.handle()));
    }
    gpu.wait();
    ASSERT_OK(ncclMemFree(x));
  });
}

TEST(Gpu, SymmetricWindowsAreAnsweredByNull) {
  run_gpus(1, [](ncclComm_t comm, int, const Gpu&) {
    for (const std::size_t size : {64U, 100'000U, 3U << 20}) {
      void* memory = nullptr;
      ASSERT_OK(ncclMemAlloc(&memory, size));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT, 0U);
      // A kernel would read what the handle points to.
      auto* window = reinterpret_cast<ncclWindow_t>(memory);
      EXPECT_OK(ncclCommWindowRegister(comm, memory, size, &window, NCCL_WIN_COLL_SYMMETRIC));
      EXPECT_EQ(window, nullptr);
      EXPECT_OK(ncclCommWindowDeregister(comm, window));
      EXPECT_OK(ncclCommWindowRegister(comm, memory, size, &window, NCCL_WIN_DEFAULT));
      EXPECT_NE(window, nullptr);
      EXPECT_OK(ncclCommWindowDeregister(comm, window));
      ASSERT_OK(ncclMemFree(memory));
    }
  });
}

TEST(Gpu, FinalizeWaitsForWhatWasEnqueued) {
  for (const int blocking : {1, 0}) {
    ncclUniqueId id;
    ASSERT_OK(ncclGetUniqueId(&id));
    run_threads(2, [&](int rank) {
      const Gpu gpu(0);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking;
      ncclComm_t comm = nullptr;
      ncclResult_t state = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      const auto settle = [&] {
        while (state == ncclInProgress) EXPECT_OK(ncclCommGetAsyncError(comm, &state));
        EXPECT_EQ(state, ncclSuccess);
      };
      settle();
      float* const x = gpu.memory(std::vector<float>(4, 1.0F));
      if (rank == 0) {  // the other one comes later
        ASSERT_OK(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()));
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        ASSERT_OK(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()));
      }
      state = ncclCommFinalize(comm);
      if (blocking == 0) {
        EXPECT_EQ(state, ncclInProgress);
      }
      settle();
      EXPECT_EQ(*x, 2) << "rank " << rank;  // the fake driver's memory is the host's
      EXPECT_OK(ncclCommDestroy(comm));
      ASSERT_OK(ncclMemFree(x));
    });
  }
}

TEST(Gpu, OnlyChorusOwnVariableSetsADeadline) {
  constexpr std::uint64_t kTenMinutes = 600'000'000'000;
  ASSERT_EQ(std::getenv("CHORUS_TIMEOUT_MS"), nullptr);
  for (const bool set : {false, true}) {
    if (set) ::setenv("CHORUS_TIMEOUT_MS", "7000", 1);
    run_gpus(1, [](ncclComm_t comm, int, const Gpu& gpu) {
      float* const x = gpu.memory(std::vector<float>(4, 1.0F));
      ASSERT_OK(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()));
      gpu.wait();
      ASSERT_OK(ncclMemFree(x));
    });
    const std::uint64_t timeout_ns = fake_cuda_last_launch().timeout_ns;
    if (set) {
      EXPECT_EQ(timeout_ns, 7'000'000'000U);
    } else {
      EXPECT_GT(timeout_ns, 1000 * kTenMinutes);
    }
  }
  ::unsetenv("CHORUS_TIMEOUT_MS");
}

TEST(Gpu, OneCallTakesTheScheduleThatItNames) {
  run_gpus(3, [](ncclComm_t comm, int rank, const Gpu& gpu) {
    // Rounding tells in which order a schedule adds: by rank 0, another way round 1.
    const float own[] = {1e8F, 1.0F, -1e8F};
    const std::vector<float> input(300, own[rank]);
    float* const x = gpu.memory(input);
    float* const y = gpu.memory(input);
    const cuda::Event event = cuda::make_event();
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    const auto run = [&](const char* schedule) {
      config.algSelection = schedule;
      EXPECT_OK(ncclAllReduceConfig(x, y, 300, ncclFloat, ncclSum, comm, gpu.handle(), &config));
      return gpu.read(y, 300);
    };
    const std::vector<float> by_rank = run("one_shot");
    EXPECT_EQ(by_rank, std::vector<float>(300, 0));
    config.launchCompletionEvent = event.get();
    EXPECT_NE(run("Ring"), by_rank);
    EXPECT_EQ(cuda::driver().event_query(event.get()), cuda::kSuccess);
    config.launchCompletionEvent = nullptr;
    config.algSelection = "nonesuch";
    EXPECT_REFUSED(ncclAllReduceConfig(x, y, 300, ncclFloat, ncclSum, comm, gpu.handle(), &config),
                   ncclInvalidArgument, "nonesuch");
    config.forceAlgSelection = 0;
    EXPECT_EQ(run("nonesuch"), by_rank);
    ASSERT_OK(ncclMemFree(x));
    ASSERT_OK(ncclMemFree(y));
  });
}

TEST(Gpu, AbortEndsKernelsThatWait) {
  std::atomic<bool> called{false};
  run_gpus(2, [&called](ncclComm_t comm, int rank, const Gpu& gpu) {
    float* const x = gpu.memory(std::vector<float>(4, 1.0F));
    if (rank == 0) {
      EXPECT_OK(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, gpu.handle()));
      called = true;
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess) ASSERT_OK(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, ncclRemoteError);
    } else {  // does not call
      while (!called) std::this_thread::yield();
      EXPECT_OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    }
  });
}

}  // namespace
}  // namespace chorus::testing
