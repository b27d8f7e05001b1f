// Groups: one thread may hold several ranks, messages cannot block each other, errors have one
// place.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "ranks.hpp"

namespace chorus::testing {
namespace {

TEST(Group, OneThreadHoldsAllRanks) {
  const int n = 4;
  const auto comms = init_all(n);
  std::vector<std::vector<int>> data(n);
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(ncclGroupStart());
    for (int r = 0; r < n; ++r) {
      data[r].assign(5000, r + round);
      ASSERT_OK(
          ncclAllReduce(data[r].data(), data[r].data(), 5000, ncclInt, ncclSum, comms[r], nullptr));
    }
    ASSERT_OK(ncclGroupEnd());
    for (int r = 0; r < n; ++r) EXPECT_EQ(data[r], std::vector<int>(5000, 6 + n * round));
  }
  for (int r = 0; r < n; ++r) {
    int count = 0, rank = -1, device = -1;
    EXPECT_OK(ncclCommCount(comms[r], &count));
    EXPECT_OK(ncclCommUserRank(comms[r], &rank));
    EXPECT_OK(ncclCommCuDevice(comms[r], &device));
    EXPECT_EQ(std::tuple(count, rank, device), std::tuple(n, r, r));
  }
  destroy_all(comms);
}

TEST(Group, OneThreadJoinsAndSplitsSeveralRanks) {
  const int n = 4;
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  std::vector<ncclComm_t> comms(n), halves(n);
  ASSERT_OK(ncclGroupStart());
  for (int r = 0; r < n; ++r) ASSERT_OK(ncclCommInitRank(&comms[r], n, id, r));
  ASSERT_OK(ncclGroupEnd());

  ASSERT_OK(ncclGroupStart());
  // Backwards by key; rank 3 takes no part.
  for (int r = 0; r < n; ++r) {
    ASSERT_OK(ncclCommSplit(comms[r], r == 3 ? NCCL_SPLIT_NOCOLOR : 0, -r, &halves[r], nullptr));
  }
  ASSERT_OK(ncclGroupEnd());
  EXPECT_EQ(halves[3], nullptr);
  ASSERT_OK(ncclGroupStart());
  std::vector<double> data{1, 2, 4};
  for (int r = 0; r < 3; ++r) {
    int rank = -1;
    EXPECT_OK(ncclCommUserRank(halves[r], &rank));
    EXPECT_EQ(rank, 2 - r);
    ASSERT_OK(ncclAllReduce(&data[r], &data[r], 1, ncclDouble, ncclSum, halves[r], nullptr));
  }
  ASSERT_OK(ncclGroupEnd());
  EXPECT_EQ(data, (std::vector<double>{7, 7, 7}));
  halves.pop_back();
  destroy_all(halves);
  destroy_all(comms);
}

TEST(Group, MessagesOfOneGroupCannotBlockEachOther) {
  run_ranks(3, [](ncclComm_t comm, int rank) {
    const int to = (rank + 1) % 3, from = (rank + 2) % 3;
    // Far larger than what links hold, the sends first.
    std::vector<int> out(400'000, rank), in(400'000, -1), own(7, rank), back(7, -1);
    std::vector<int> second(3, 10 * rank), behind(3, -1);
    for (int round = 0; round < 3; ++round) {
      ASSERT_OK(ncclGroupStart());
      ASSERT_OK(ncclSend(out.data(), out.size(), ncclInt, to, comm, nullptr));
      ASSERT_OK(ncclSend(second.data(), 3, ncclInt, to, comm, nullptr));
      ASSERT_OK(ncclSend(own.data(), 7, ncclInt, rank, comm, nullptr));
      ASSERT_OK(ncclGroupStart());  // groups nest
      ASSERT_OK(ncclRecv(back.data(), 7, ncclInt, rank, comm, nullptr));
      ASSERT_OK(ncclGroupEnd());
      ASSERT_OK(ncclRecv(in.data(), in.size(), ncclInt, from, comm, nullptr));
      ASSERT_OK(ncclRecv(behind.data(), 3, ncclInt, from, comm, nullptr));
      ASSERT_OK(ncclSend(nullptr, 0, ncclInt, to, comm, nullptr));
      ASSERT_OK(ncclRecv(nullptr, 0, ncclInt, from, comm, nullptr));
      ASSERT_OK(ncclGroupEnd());
      EXPECT_EQ(in, std::vector<int>(400'000, from));
      EXPECT_EQ(behind, std::vector<int>(3, 10 * from));
      EXPECT_EQ(back, own);
    }
  });
}

TEST(Group, MessagesWaitOutsideGroupsToo) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    long word = rank == 0 ? 42 : 0;
    if (rank == 0) {
      ASSERT_OK(ncclSend(&word, 1, ncclInt64, 1, comm, nullptr));
      ASSERT_OK(ncclRecv(&word, 1, ncclInt64, 1, comm, nullptr));
      EXPECT_EQ(word, 43);
    } else {
      ASSERT_OK(ncclRecv(&word, 1, ncclInt64, 0, comm, nullptr));
      ++word;
      ASSERT_OK(ncclSend(&word, 1, ncclInt64, 0, comm, nullptr));
    }
    EXPECT_REFUSED(ncclSend(&word, 1, ncclInt64, rank, comm, nullptr), ncclInvalidUsage,
                   "same group");
  });
}

TEST(Group, CollectivesOfSeveralCommunicatorsAndMessagesMix) {
  ncclUniqueId a, b;
  ASSERT_OK(ncclGetUniqueId(&a));
  ASSERT_OK(ncclGetUniqueId(&b));
  run_threads(2, [&](int rank) {
    ncclComm_t first, second;
    ASSERT_OK(ncclGroupStart());
    ASSERT_OK(ncclCommInitRank(&first, 2, a, rank));
    ASSERT_OK(ncclCommInitRank(&second, 2, b, 1 - rank));
    ASSERT_OK(ncclGroupEnd());
    std::vector<float> x(1000, 1), y(1000, 2), gathered(2000);
    int mine = rank, theirs = -1;
    ASSERT_OK(ncclGroupStart());
    // In another order on the other rank: communicators are independent.
    for (const int turn : {rank, 1 - rank}) {
      auto& data = turn == 0 ? x : y;
      ASSERT_OK(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum,
                              turn == 0 ? first : second, nullptr));
    }
    ASSERT_OK(ncclAllGather(x.data(), gathered.data(), 1000, ncclFloat, first, nullptr));
    ASSERT_OK(ncclSend(&mine, 1, ncclInt, 1 - rank, first, nullptr));
    ASSERT_OK(ncclRecv(&theirs, 1, ncclInt, 1 - rank, first, nullptr));
    ASSERT_OK(ncclGroupEnd());
    EXPECT_EQ(x, std::vector<float>(1000, 2));
    EXPECT_EQ(y, std::vector<float>(1000, 4));
    EXPECT_EQ(theirs, 1 - rank);
    EXPECT_OK(ncclCommDestroy(first));
    EXPECT_OK(ncclCommDestroy(second));
  });
}

TEST(Group, AnEndWithoutAStartIsRefused) {
  EXPECT_REFUSED(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupStart");
  EXPECT_OK(ncclGroupStart());
  EXPECT_OK(ncclGroupEnd());
  EXPECT_REFUSED(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage, "ncclGroupStart");
}

TEST(Group, ARefusedArgumentLeavesTheGroupAlone) {
  const auto comms = init_all(2);
  int x[2] = {1, 2};
  ASSERT_OK(ncclGroupStart());
  EXPECT_REFUSED(ncclAllReduce(nullptr, &x[0], 1, ncclInt, ncclSum, comms[0], nullptr),
                 ncclInvalidArgument, "null");
  for (int r = 0; r < 2; ++r) {
    ASSERT_OK(ncclAllReduce(&x[r], &x[r], 1, ncclInt, ncclSum, comms[r], nullptr));
  }
  ASSERT_OK(ncclGroupEnd());
  EXPECT_EQ(x[0], 3);
  EXPECT_EQ(x[1], 3);
  destroy_all(comms);
}

TEST(Group, AnyOtherErrorFailsTheWholeGroupAtItsEnd) {
  const auto comms = init_all(2);
  int x[2] = {1, 2};
  ASSERT_OK(ncclGroupStart());
  ASSERT_OK(ncclAllReduce(&x[0], &x[0], 1, ncclInt, ncclSum, comms[0], nullptr));
  ASSERT_OK(ncclSend(&x[1], 1, ncclInt, 1, comms[1], nullptr));  // nobody receives it
  EXPECT_REFUSED(ncclGroupEnd(), ncclInvalidUsage, "must receive it");
  EXPECT_EQ(x[0], 1);
  for (const ncclComm_t comm : comms) EXPECT_OK(ncclCommAbort(comm));
}

TEST(Group, JoiningAndCallingDoNotMix) {
  const auto comms = init_all(1);
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  ncclComm_t other = nullptr;
  int x = 1;
  ASSERT_OK(ncclGroupStart());
  ASSERT_OK(ncclCommInitRank(&other, 1, id, 0));
  ASSERT_OK(ncclAllReduce(&x, &x, 1, ncclInt, ncclSum, comms[0], nullptr));
  EXPECT_REFUSED(ncclGroupEnd(), ncclInvalidUsage, "two groups");
  destroy_all(comms);
}

TEST(Group, ASimulationPredictsAndRunsNothing) {
  run_ranks(2, [](ncclComm_t comm, int) {
    std::vector<float> data(1'000'000, 1);
    const auto predicted = [&](std::size_t count) {
      ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
      EXPECT_OK(ncclGroupStart());
      EXPECT_OK(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, nullptr));
      EXPECT_OK(ncclGroupSimulateEnd(&info));
      return info.estimatedTime;
    };
    const float small = predicted(1), large = predicted(1'000'000);
    EXPECT_GT(small, 0);
    EXPECT_GT(large, small);
    EXPECT_EQ(data[0], 1);
  });
}

}  // namespace
}  // namespace chorus::testing
