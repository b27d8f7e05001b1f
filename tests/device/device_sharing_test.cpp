// Memory that ranks let each other's GPUs reach: each on its own, while calls go on. Ranks are
// processes.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/fake/fake_cuda.hpp"
#include "device_floats.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

constexpr std::size_t kCount = 100'000;  // floats: a call that is large enough
constexpr std::size_t kBytes = kCount * sizeof(float);

void expect(bool well, const char* what) {
  if (!well) throw std::runtime_error(what);
}

/// Calls that sum `data`, `value` everywhere, over all ranks, until all ranks' are direct.
float sum_until_direct(DeviceRank& rank, float* data, float value, int most) {
  const auto n = static_cast<std::size_t>(rank.comm().world_size());
  for (int i = 0; i < most; ++i) {
    fill(rank, data, std::vector<float>(kCount, value));
    rank.device().enqueue(sum(data, data, kCount, rank.stream()));
    rank.finish();
    expect_all(rank, data, kCount, value * static_cast<float>(n));
    // Of a true driver it is not seen which way a call went.
    const bool offered =
        fake_cuda() ? fake_cuda_last_launch().direct : rank.device().is_shared(data);
    std::vector<int> direct(1, offered ? 1 : 0);
    rank.comm().all_reduce(std::span(direct), ReduceOp::min);
    if (direct[0] != 0) return value;
    value = value > 1000 ? 1 : value + 1;
  }
  throw std::runtime_error("calls did not become direct");
}

/// Waits for what comes without anybody's doing.
template <class Come>
void wait_until(const Come& come, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!come()) {
    expect(std::chrono::steady_clock::now() < deadline, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class DeviceSharing : public ::testing::Test {
 protected:
  static void run(int ranks, Gpus gpus, const std::function<void(DeviceRank&)>& body) {
    expect_all_well(run_devices(device_world_of(ranks, Ranks::processes), gpus, {}, body));
  }
};

TEST_F(DeviceSharing, CallsBecomeDirectOnceAllRanksShareTheirMemoryEachAtItsTime) {
  for (const Gpus gpus : {Gpus::one, Gpus::two}) {
    run(3, gpus, [](DeviceRank& rank) {
      float* const data = floats(rank, kCount, 0.0F);
      for (int i = 0; i < 3; ++i) {
        if (i == rank.comm().rank()) expect(rank.device().share(data, kBytes), "not shared");
        rank.device().enqueue(sum(data, data, kCount, rank.stream()));
      }
      rank.finish();
      sum_until_direct(rank, data, 1, 10'000);
    });
  }
}

TEST_F(DeviceSharing, ARankThatSharesAloneHangsNobody) {
  run(2, Gpus::one, [](DeviceRank& rank) {
    float* const data = floats(rank, kCount, 1.0F);
    if (rank.comm().rank() == 0) rank.share(data, kBytes);
    rank.comm().barrier();
    for (int i = 0; i < 5; ++i) rank.device().enqueue(sum(data, data, kCount, rank.stream()));
    rank.finish();
    expect_all(rank, data, kCount, 32.0F);
    if (!fake_cuda()) return;
    expect(fake_cuda_last_launch().direct == (rank.comm().rank() == 0), "who offers what");
  });
}

// To map memory, and to let go of it, may mean to wait for the kernels that run.
TEST_F(DeviceSharing, NeitherSharingNorItsEndMakesACallWait) {
  run(2, Gpus::two, [](DeviceRank& rank) {
    std::vector<float*> all;
    for (int i = 0; i < 6; ++i) all.push_back(floats(rank, kCount, 1.0F));
    rank.comm().barrier();
    fake_cuda_allocation_waits(true);
    for (float* const data : all) {
      rank.device().share(data, kBytes);
      for (int i = 0; i < 3; ++i) {
        if ((i & 1) == rank.comm().rank()) {  // the other's kernel waits for this one's
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        rank.device().enqueue(sum(data, data, kCount, rank.stream()));
      }
      rank.device().unshare(data);
    }
    rank.finish();
    for (float* const data : all) expect_all(rank, data, kCount, 8.0F);
    rank.comm().barrier();
    fake_cuda_allocation_waits(false);
  });
}

TEST_F(DeviceSharing, MemoryIsKeptUntilNobodyReachesItAndThenLetGo) {
  run(2, Gpus::one, [](DeviceRank& rank) {
    const cuda::Current current(rank.context());
    for (int i = 0; i < 3; ++i) {
      auto memory = std::make_shared<cuda::Memory>(cuda::allocate(kBytes));
      const std::weak_ptr<cuda::Memory> kept = memory;
      void* const at = reinterpret_cast<void*>(memory->get());
      // The last time both are shared: only then does anything go directly.
      expect(rank.device().share(at, kBytes, std::move(memory)), "not shared");
      sum_until_direct(rank, static_cast<float*>(at), 2, 10'000);
      expect(!kept.expired(), "memory was let go of while it is shared");
      rank.device().unshare(at);
      wait_until([&] { return kept.expired(); }, "memory is never let go of");
      rank.comm().barrier();
    }
    expect(fake_cuda_frees_of_mapped() == 0, "memory was freed while others had it mapped");
  });
}

TEST_F(DeviceSharing, AllMemoryIsLetGoOfBeforeItsOwnerFreesIt) {
  run(3, Gpus::two, [](DeviceRank& rank) {
    const cuda::Current current(rank.context());
    {
      DeviceCommunicator another(rank.comm(), rank.device().device());
      auto memory = std::make_shared<cuda::Memory>(cuda::allocate(kBytes));
      void* const at = reinterpret_cast<void*>(memory->get());
      another.share(at, kBytes, std::move(memory));
      wait_until([&] { return another.is_shared(at); }, "memory is never shared");
      // The last rank comes late: the others' mappings must go before anybody's memory does.
      std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank.comm().rank()));
    }
    expect(fake_cuda_frees_of_mapped() == 0, "memory was freed while others had it mapped");
  });
}

TEST_F(DeviceSharing, ThereIsRoomForSomeBlocksAndForNewOnesWhenOldOnesGo) {
  run(2, Gpus::one, [](DeviceRank& rank) {
    const cuda::Current current(rank.context());
    auto* const memory = floats(rank, 64, 0.0F);
    for (int i = 0; i < 64; ++i) expect(rank.device().share(memory + i, 4), "there is room for 64");
    expect(!rank.device().share(memory, 4), "there is no room for 65");
    wait_until([&] { return rank.device().is_shared(memory + 63); }, "memory is never shared");
    rank.device().unshare(memory + 7);
    wait_until([&] { return rank.device().share(memory + 7, 4); }, "room is not used again");
    int host = 0;
    rank.device().unshare(memory + 9);
    expect(!rank.device().share(&host, 4), "host memory was shared");
  });
}

}  // namespace
}  // namespace chorus::testing
