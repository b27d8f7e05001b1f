// Ranks as processes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "ranks.hpp"

namespace chorus::testing {

/// Rank 0 makes the id. The exit status of each process: 0 if `body` met no failed expectation.
inline std::vector<int> run_processes(
    int ranks, const std::function<void(const ncclUniqueId& id, int rank)>& body,
    const std::function<void(int rank)>& prepare = {}) {
  std::vector<std::array<int, 2>> pipes(static_cast<std::size_t>(ranks));
  for (auto& pipe : pipes) EXPECT_EQ(::pipe(pipe.data()), 0);
  std::vector<pid_t> pids;
  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    ::alarm(60);
    if (prepare) prepare(rank);
    ncclUniqueId id = {};
    if (rank == 0) {
      EXPECT_OK(ncclGetUniqueId(&id));
      for (const auto& pipe : pipes) (void)!::write(pipe[1], &id, sizeof id);
    } else {
      (void)!::read(pipes[static_cast<std::size_t>(rank)][0], &id, sizeof id);
    }
    body(id, rank);
    std::fflush(nullptr);
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  std::vector<int> statuses;
  for (const pid_t pid : pids) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    statuses.push_back(status);
  }
  for (const auto& pipe : pipes) {
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  return statuses;
}

}  // namespace chorus::testing
