// Ranks as processes: one is killed, an address stands for the id, the environment decides.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "processes.hpp"

namespace chorus::testing {
namespace {

/// Rank `dead` of four is killed; rank 0 made the id.
void expect_survivors_to_go_on(int dead) {
  const auto statuses = run_processes(4, [dead](const ncclUniqueId& id, int rank) {
    ncclComm_t comm = nullptr, rest = nullptr;
    ASSERT_OK(ncclCommInitRank(&comm, 4, id, rank));
    std::vector<int> x(100, 1);
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) {
      state = ncclAllReduce(x.data(), x.data(), 100, ncclInt, ncclSum, comm, nullptr);
      if (rank == dead) ::raise(SIGKILL);  // others may be in the same call, or in the next
    }
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(fmt::format("rank {}", dead)),
              std::string::npos);
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclRemoteError);
    int excluded = dead;
    EXPECT_REFUSED(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT),
                   ncclRemoteError, "has failed before");
    ASSERT_OK(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
    int ranks = 0, mine = -1;
    EXPECT_OK(ncclCommCount(rest, &ranks));
    EXPECT_OK(ncclCommUserRank(rest, &mine));
    EXPECT_EQ(ranks, 3);
    EXPECT_EQ(mine, rank > dead ? rank - 1 : rank);
    x.assign(100, 1 << mine);
    ASSERT_OK(ncclAllReduce(x.data(), x.data(), 100, ncclInt, ncclSum, rest, nullptr));
    EXPECT_EQ(x, std::vector<int>(100, 7));
    EXPECT_OK(ncclCommDestroy(rest));
    EXPECT_OK(ncclCommAbort(comm));
  });
  for (int rank = 0; rank < 4; ++rank) {
    const int status = statuses[static_cast<std::size_t>(rank)];
    if (rank == dead) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_EQ(status, 0) << rank;
    }
  }
}

TEST(Processes, SurvivorsOfAKilledRankShrinkAndGoOn) { expect_survivors_to_go_on(2); }

TEST(Processes, SurvivorsOfTheRankThatMadeTheIdShrinkAndGoOn) { expect_survivors_to_go_on(0); }

TEST(Processes, ARankThatDiesWhileOthersJoinIsNamed) {
  const auto statuses = run_processes(
      3,
      [](const ncclUniqueId& id, int rank) {
        if (rank == 1) return;  // never joins; without a launcher only time tells
        ncclComm_t comm = nullptr;
        EXPECT_REFUSED(ncclCommInitRank(&comm, 3, id, rank), ncclRemoteError, "rank 1");
        EXPECT_EQ(std::string(ncclGetLastError(nullptr)).rfind("ncclCommInitRank: ", 0), 0U)
            << ncclGetLastError(nullptr);  // no group was there to name
        EXPECT_EQ(comm, nullptr);
      },
      [](int) { ::setenv("CHORUS_JOIN_TIMEOUT_MS", "700", 1); });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(Processes, GoingOnWithoutRanksThatDieIsRefused) {
  ::setenv("CHORUS_ON_LOSS", "finish", 1);
  ncclUniqueId id;
  EXPECT_REFUSED(ncclGetUniqueId(&id), ncclInvalidArgument,
                 "CHORUS_ON_LOSS=finish: NCCL's communicators keep their ranks");
  ::unsetenv("CHORUS_ON_LOSS");
}

TEST(Processes, AnAddressMayStandForTheId) {
  // A port that was free a moment ago.
  const int port = 20'000 + ::getpid() % 20'000;
  const auto statuses = run_processes(
      2,
      [&](const ncclUniqueId& /*shared*/, int rank) {
        ncclUniqueId id;
        ASSERT_OK(ncclGetUniqueId(&id));
        ncclComm_t comm = nullptr;
        ASSERT_OK(ncclCommInitRank(&comm, 2, id, rank));
        int x = 1;
        ASSERT_OK(ncclAllReduce(&x, &x, 1, ncclInt, ncclSum, comm, nullptr));
        EXPECT_EQ(x, 2);
        EXPECT_OK(ncclCommDestroy(comm));
      },
      [&](int) { ::setenv("NCCL_COMM_ID", fmt::format("127.0.0.1:{}", port).c_str(), 1); });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

TEST(Log, HasTheFormThatToolsParseAndNamesWhatIsIgnored) {
  const std::string path = fmt::format("{}/nccl-{}", ::testing::TempDir(), ::getpid());
  const auto statuses = run_processes(
      1,
      [](const ncclUniqueId& id, int rank) {
        ncclComm_t comm = nullptr;
        ASSERT_OK(ncclCommInitRank(&comm, 1, id, rank));
        float x = 1;
        ASSERT_OK(ncclAllReduce(&x, &x, 1, ncclFloat, ncclSum, comm, nullptr));
        EXPECT_EQ(ncclAllReduce(&x, nullptr, 1, ncclFloat, ncclSum, comm, nullptr),
                  ncclInvalidArgument);
        EXPECT_OK(ncclCommDestroy(comm));
      },
      [&](int) {
        ::setenv("NCCL_DEBUG", "INFO", 1);
        ::setenv("NCCL_DEBUG_SUBSYS", "INIT,ENV,COLL", 1);
        ::setenv("NCCL_DEBUG_FILE", (path + ".%p").c_str(), 1);
        ::setenv("NCCL_ALGO", "Ring", 1);
      });
  ASSERT_EQ(statuses[0], 0);
  const std::string command = fmt::format("cat {0}.*; rm {0}.*", path);
  std::string log;
  FILE* pipe = ::popen(command.c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) log += static_cast<char>(c);
  ::pclose(pipe);
  EXPECT_TRUE(log.starts_with("NCCL version 2.28.9+chorus")) << log;
  for (const char* pattern :
       {":[0-9]+:[0-9]+ \\[0\\] NCCL INFO ncclCommInitRank comm 0x.* rank 0 nranks 1 .*Init "
        "COMPLETE",
        "NCCL INFO NCCL_ALGO is ignored by Chorus, though set to Ring",
        "NCCL INFO ncclAllReduce: sendbuff 0x.* count 1 datatype 7 op 0 root 0",
        "NCCL WARN ncclAllReduce: rank 0 of communicator .*the receive buffer is null"}) {
    EXPECT_TRUE(std::regex_search(log, std::regex(pattern))) << pattern << "\n" << log;
  }
}

}  // namespace
}  // namespace chorus::testing
