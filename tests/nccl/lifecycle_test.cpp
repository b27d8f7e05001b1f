// Communicators that are wrongly used, polled, aborted, revoked, finalized: an error that says so,
// never a hang.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>

#include "nccl/newer.h"
#include "ranks.hpp"

namespace chorus::testing {
namespace {

using Clock = std::chrono::steady_clock;

ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// Polls until nothing is in progress.
ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return state;
}

TEST(Errors, TextsAndVersionAreNvidias) {
  int version = 0;
  EXPECT_OK(ncclGetVersion(&version));
  EXPECT_EQ(version, 22809);
  EXPECT_REFUSED(ncclGetVersion(nullptr), ncclInvalidArgument, "null");
  EXPECT_STREQ(ncclGetErrorString(ncclSuccess), "no error");
  EXPECT_STREQ(ncclGetErrorString(ncclRemoteError),
               "remote process exited or there was a network error");
  EXPECT_STREQ(ncclGetErrorString(static_cast<ncclResult_t>(9)), "unknown result code");
  EXPECT_STREQ(pncclGetErrorString(ncclInProgress), "NCCL operation in progress");
}

TEST(Errors, JoiningWithBadArgumentsIsRefused) {
  ncclUniqueId id;
  EXPECT_REFUSED(ncclGetUniqueId(nullptr), ncclInvalidArgument, "null");
  ASSERT_OK(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  EXPECT_REFUSED(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument, "null");
  EXPECT_REFUSED(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "rank 0 of 0");
  EXPECT_REFUSED(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
  EXPECT_REFUSED(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank -1 of 2");
  EXPECT_REFUSED(ncclCommInitRankScalable(&comm, 2, 0, 0, &id, nullptr), ncclInvalidArgument,
                 "ids for 2 ranks");
  EXPECT_REFUSED(ncclCommInitAll(&comm, 0, nullptr), ncclInvalidArgument, "at least one");
  const int twice[] = {0, 0};
  ncclComm_t two[2];
  EXPECT_REFUSED(ncclCommInitAll(two, 2, twice), ncclInvalidUsage, "listed twice");
  ncclUniqueId strange;
  std::memset(&strange, 0x5a, sizeof strange);
  EXPECT_REFUSED(ncclCommInitRank(&comm, 1, strange, 0), ncclInvalidArgument, "same libnccl");
  EXPECT_EQ(comm, nullptr);
}

TEST(Errors, ConfigurationsAreReadAsFarAsTheirVersionGoes) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 1;
  EXPECT_REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument,
                 "NCCL_CONFIG_INITIALIZER");
  config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 2;
  EXPECT_REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument,
                 "blocking is 2");
  config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 4;
  config.maxCTAs = 2;
  EXPECT_REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "minCTAs");
  // What an old program does not know of may hold anything.
  config = NCCL_CONFIG_INITIALIZER;
  config.version = NCCL_VERSION(2, 14, 0);
  config.CTAPolicy = 12345;
  config.commName = reinterpret_cast<const char*>(8);
  config.size = offsetof(ncclConfig_t, nChannelsPerNetPeer);
  EXPECT_OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  EXPECT_OK(ncclCommDestroy(comm));
}

TEST(Errors, CallsWithBadArgumentsAreRefusedAndNameTheRank) {
  const ncclComm_t comm = init_all(1)[0];
  float x[4] = {1, 2, 3, 4};
  const auto reduce = [&](const void* in, void* out, std::size_t count, int type, int op) {
    return ncclAllReduce(in, out, count, static_cast<ncclDataType_t>(type),
                         static_cast<ncclRedOp_t>(op), comm, nullptr);
  };
  EXPECT_REFUSED(reduce(nullptr, x, 1, ncclFloat, ncclSum), ncclInvalidArgument,
                 "rank 0 of communicator");
  EXPECT_REFUSED(reduce(x, nullptr, 1, ncclFloat, ncclSum), ncclInvalidArgument, "receive buffer");
  EXPECT_REFUSED(reduce(x, x, 1, ncclNumTypes, ncclSum), ncclInvalidArgument, "data type 12");
  EXPECT_REFUSED(reduce(x, x, 1, 15, ncclSum), ncclInvalidArgument, "data type 15");
  EXPECT_REFUSED(reduce(x, x, 1, ncclFloat, 5), ncclInvalidArgument, "reduction 5");
  EXPECT_REFUSED(reduce(x, x, 1, ncclFloat, 1000), ncclInvalidArgument, "reduction 1000");
  EXPECT_REFUSED(reduce(x, x, SIZE_MAX / 2, ncclFloat, ncclSum), ncclInvalidArgument, "count");
  EXPECT_REFUSED(reduce(x, x + 1, 3, ncclFloat, ncclSum), ncclInvalidArgument, "overlap");
  EXPECT_REFUSED(ncclBroadcast(x, x, 1, ncclFloat, 1, comm, nullptr), ncclInvalidArgument,
                 "root 1");
  EXPECT_REFUSED(ncclReduce(x, x, 1, ncclFloat, ncclSum, -1, comm, nullptr), ncclInvalidArgument,
                 "root -1");
  EXPECT_REFUSED(ncclSend(x, 1, ncclFloat, 7, comm, nullptr), ncclInvalidArgument, "peer 7");
  EXPECT_REFUSED(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, nullptr, nullptr), ncclInvalidArgument,
                 "null");
  EXPECT_REFUSED(ncclCommCount(comm, nullptr), ncclInvalidArgument, "null");
  EXPECT_EQ(x[0], 1);
  EXPECT_OK(ncclCommDestroy(comm));
}

TEST(Errors, AnEndedCommunicatorIsRecognised) {
  float x = 1;
  for (const auto end : {ncclCommDestroy, ncclCommAbort}) {
    const ncclComm_t comm = init_all(1)[0];
    EXPECT_OK(end(comm));
    EXPECT_REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidArgument,
                   "destroyed or aborted");
    EXPECT_REFUSED(end(comm), ncclInvalidArgument, "destroyed or aborted");
    ncclResult_t state;
    EXPECT_REFUSED(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument, "destroyed");
  }
  EXPECT_OK(ncclCommDestroy(nullptr));
  EXPECT_OK(ncclCommAbort(nullptr));
}

TEST(Errors, RanksThatCallDifferentThingsAreToldBoth) {
  std::atomic<int> usage{0};
  run_ranks(2, [&](ncclComm_t comm, int rank) {
    float x[2] = {1, 2}, y[2];
    const ncclResult_t result = rank == 0
                                    ? ncclAllReduce(x, y, 2, ncclFloat, ncclSum, comm, nullptr)
                                    : ncclBroadcast(x, y, 2, ncclFloat, 0, comm, nullptr);
    // The root's broadcast may be over before anybody can object.
    if (result == ncclInvalidUsage) ++usage;
    if (rank == 0) {
      EXPECT_EQ(result, ncclInvalidUsage) << ncclGetLastError(comm);
      EXPECT_REFUSED(ncclAllReduce(x, y, 2, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                     "has failed before");
    }
  });
  EXPECT_GE(usage, 1);
}

TEST(Errors, ASecondThreadInACommunicatorIsRefused) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    long word = 0;
    if (rank == 1) {
      ASSERT_OK(ncclRecv(&word, 1, ncclInt64, 0, comm, nullptr));
      ASSERT_OK(ncclSend(&word, 1, ncclInt64, 0, comm, nullptr));
      return;
    }
    // This thread's group claims the communicator until it ends.
    ASSERT_OK(ncclGroupStart());
    ASSERT_OK(ncclSend(&word, 1, ncclInt64, 1, comm, nullptr));
    std::thread([&] {
      EXPECT_REFUSED(ncclRecv(&word, 1, ncclInt64, 1, comm, nullptr), ncclInvalidUsage,
                     "one thread at a time");
      ncclResult_t state = ncclInternalError;
      EXPECT_OK(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, ncclSuccess);
    }).join();
    ASSERT_OK(ncclGroupEnd());
    ASSERT_OK(ncclRecv(&word, 1, ncclInt64, 1, comm, nullptr));
  });
}

TEST(NonBlocking, EveryCallMayBePolled) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  run_threads(2, [&](int rank) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr, half = nullptr;
    // Rank 1 comes late: the other's call returns all the same.
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    ASSERT_NE(comm, nullptr);
    float x = 1;
    if (rank == 0) {
      EXPECT_REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr),
                     ncclInvalidArgument, "still in progress");
    }
    ASSERT_EQ(settled(comm), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr), ncclInProgress);
    ASSERT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(x, 2);
    ASSERT_EQ(ncclCommSplit(comm, rank, 0, &half, nullptr), ncclInProgress);
    ASSERT_EQ(settled(comm), ncclSuccess);
    ASSERT_NE(half, nullptr);
    ASSERT_EQ(settled(half), ncclSuccess);
    int ranks = 0;
    EXPECT_OK(ncclCommCount(half, &ranks));
    EXPECT_EQ(ranks, 1);
    EXPECT_OK(ncclCommDestroy(half));
    EXPECT_OK(ncclCommFinalize(comm));
    EXPECT_OK(ncclCommDestroy(comm));
  });
}

TEST(NonBlocking, AJoinThatNobodyAnswersIsAborted) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  const auto start = Clock::now();
  EXPECT_OK(ncclCommAbort(comm));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  // The other rank comes: the background thread has somebody to meet, and ends.
  ncclComm_t other = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&other, 2, id, 1, &config), ncclInProgress);
  (void)settled(other);
  EXPECT_OK(ncclCommAbort(other));
}

TEST(Abort, FromAnotherThreadReleasesTheCallAndAllOtherRanks) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  std::atomic<ncclComm_t> waiting{nullptr};
  std::atomic<int> released{0};
  std::thread aborter([&] {
    while (waiting == nullptr) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_OK(ncclCommAbort(waiting));
  });
  run_threads(3, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_OK(ncclCommInitRank(&comm, 3, id, rank));
    std::vector<float> x(1000, 1);
    if (rank == 2) {  // never calls, and polls as a watchdog does
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess) ASSERT_OK(ncclCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, ncclRemoteError);
      ++released;
      EXPECT_OK(ncclCommAbort(comm));
      return;
    }
    if (rank == 0) waiting = comm;
    EXPECT_REFUSED(ncclAllReduce(x.data(), x.data(), x.size(), ncclFloat, ncclSum, comm, nullptr),
                   ncclRemoteError, "ncclCommAbort was called on rank 0");
    ++released;
    if (rank == 1) {
      EXPECT_OK(ncclCommAbort(comm));
    }
  });
  aborter.join();
  EXPECT_EQ(released, 3);
}

TEST(Finalize, EndsCallsAndComesOnce) {
  run_ranks(2, [](ncclComm_t comm, int) {
    float x = 1;
    EXPECT_OK(ncclCommFinalize(comm));
    EXPECT_REFUSED(ncclCommFinalize(comm), ncclInvalidArgument, "finalized before");
    EXPECT_REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                   "finalized");
  });
}

TEST(Revoke, EndsCallsButLetsTheRanksSplitAndShrink) {
  std::barrier all_have_joined(3);
  run_ranks(3, [&](ncclComm_t comm, int rank) {
    float x = 1;
    all_have_joined.arrive_and_wait();  // a rank that still joins would be told in the middle of it
    EXPECT_REFUSED(ncclCommRevoke(comm, 5), ncclInvalidArgument, "flags");
    if (rank == 0) {
      EXPECT_OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
      EXPECT_REFUSED(ncclCommFinalize(comm), ncclInvalidUsage, "revoked");
    } else {  // released by rank 0
      EXPECT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr), ncclRemoteError);
      EXPECT_OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    }
    EXPECT_REFUSED(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidUsage,
                   "revoked");
    ncclResult_t state = ncclInternalError;
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
    ncclComm_t next = nullptr;
    ASSERT_OK(ncclCommSplit(comm, 0, -rank, &next, nullptr));
    ASSERT_OK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, next, nullptr));
    EXPECT_EQ(x, 3);
    EXPECT_OK(ncclCommDestroy(next));
  });
}

TEST(Shrink, RefusesListsThatCannotBe) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    ncclComm_t next = nullptr;
    int list[] = {1 - rank, 1 - rank}, own[] = {rank}, wrong[] = {9};
    const auto shrink = [&](int* ranks, int count, int flags) {
      return ncclCommShrink(comm, ranks, count, &next, nullptr, flags);
    };
    EXPECT_REFUSED(shrink(nullptr, 1, 0), ncclInvalidArgument, "empty");
    EXPECT_REFUSED(shrink(list, 0, 0), ncclInvalidArgument, "empty");
    EXPECT_REFUSED(shrink(list, 2, 0), ncclInvalidArgument, "different");
    EXPECT_REFUSED(shrink(wrong, 1, 0), ncclInvalidArgument, "0 to 1");
    EXPECT_REFUSED(shrink(own, 1, 0), ncclInvalidArgument, "only ranks that stay");
    EXPECT_REFUSED(shrink(list, 1, 4), ncclInvalidArgument, "flags");
    // The other rank goes on alone, and so does this one.
    EXPECT_OK(shrink(list, 1, NCCL_SHRINK_DEFAULT));
    float x = 5;
    EXPECT_OK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, next, nullptr));
    EXPECT_EQ(x, 5);
    EXPECT_OK(ncclCommDestroy(next));
    EXPECT_OK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr));
    EXPECT_EQ(x, 10);
  });
}

TEST(Grow, TakesANewRankIn) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  ncclUniqueId next;
  std::atomic<bool> made{false};
  run_threads(3, [&](int rank) {
    ncclComm_t comm = nullptr, larger = nullptr;
    if (rank < 2) {
      ASSERT_OK(ncclCommInitRank(&comm, 2, id, rank));
      if (rank == 0) {
        ASSERT_OK(ncclCommGetUniqueId(comm, &next));
        made = true;
      }
      EXPECT_REFUSED(ncclCommGrow(comm, 2, nullptr, -1, &larger, nullptr), ncclInvalidArgument,
                     "more ranks than now");
      ASSERT_OK(ncclCommGrow(comm, 3, rank == 0 ? &next : nullptr, -1, &larger, nullptr));
      EXPECT_OK(ncclCommDestroy(comm));
    } else {
      while (!made) std::this_thread::yield();
      ASSERT_OK(ncclCommGrow(nullptr, 3, &next, 2, &larger, nullptr));
    }
    int x = 1 << rank;
    ASSERT_OK(ncclAllReduce(&x, &x, 1, ncclInt, ncclSum, larger, nullptr));
    EXPECT_EQ(x, 7);
    EXPECT_OK(ncclCommDestroy(larger));
  });
}

TEST(Newer, NamesAreRealOrSayWhatToUse) {
  const ncclComm_t comm = init_all(1)[0];
  ncclCommProperties_t properties = {};
  EXPECT_REFUSED(ncclCommQueryProperties(comm, &properties), ncclInvalidArgument, "INITIALIZER");
  properties.size = sizeof properties;
  properties.magic = 0xcafebeef;
  EXPECT_OK(ncclCommQueryProperties(comm, &properties));
  EXPECT_EQ(properties.nRanks, 1);
  EXPECT_FALSE(properties.deviceApiSupport);
  EXPECT_REFUSED(ncclSignal(0, 0, 0, 0, comm, nullptr), ncclInvalidUsage, "0 elements");
  EXPECT_REFUSED(ncclDevCommCreate(comm, nullptr, nullptr), ncclInvalidUsage, "device API");
  EXPECT_EQ(ncclTeamWorld(comm).nRanks, 1);
  ncclParamHandle_t handle = nullptr;
  EXPECT_REFUSED(ncclParamBind(&handle, "NCCL_NONESUCH"), ncclInvalidArgument, "no parameter");
  ::setenv("NCCL_IB_TC", "17", 1);
  ASSERT_OK(ncclParamBind(&handle, "NCCL_IB_TC"));
  std::int32_t number = 0;
  EXPECT_OK(ncclParamGetI32(handle, &number));
  EXPECT_EQ(number, 17);
  ::unsetenv("NCCL_IB_TC");
  EXPECT_OK(ncclCommDestroy(comm));
}

TEST(Memory, IsAllocatedRegisteredAndGivenBackOnce) {
  const ncclComm_t comm = init_all(1)[0];
  void* memory = nullptr;
  ASSERT_OK(ncclMemAlloc(&memory, 1 << 20));
  std::memset(memory, 1, 1 << 20);
  EXPECT_REFUSED(ncclMemAlloc(nullptr, 8), ncclInvalidArgument, "null");
  EXPECT_REFUSED(ncclMemAlloc(&memory, 0), ncclInvalidArgument, "0 bytes");
  ASSERT_OK(ncclMemAlloc(&memory, 1 << 20));
  void* handle = nullptr;
  ASSERT_OK(ncclCommRegister(comm, memory, 4096, &handle));
  ASSERT_OK(ncclCommDeregister(comm, handle));
  EXPECT_REFUSED(ncclCommDeregister(comm, handle), ncclInvalidArgument, "not registered");
  ncclWindow_t window = nullptr;
  ASSERT_OK(ncclCommWindowRegister(comm, memory, 1 << 20, &window, NCCL_WIN_COLL_SYMMETRIC));
  ASSERT_NE(window, nullptr);
  EXPECT_REFUSED(
      ncclCommWindowRegister(comm, static_cast<char*>(memory) + 8, 64, &window, NCCL_WIN_DEFAULT),
      ncclInvalidArgument, "multiple of 4096");
  EXPECT_EQ(window, nullptr);
  ASSERT_OK(ncclMemFree(memory));
  EXPECT_REFUSED(ncclMemFree(memory), ncclInvalidArgument, "freed before");
  int local = 0;
  EXPECT_REFUSED(ncclMemFree(&local), ncclInvalidArgument, "ncclMemAlloc");
  EXPECT_OK(ncclMemFree(nullptr));
  EXPECT_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace chorus::testing
