// Ranks of a communicator as threads of this process, and what C does not have: results as text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "chorus/nccl.h"

namespace chorus::testing {

/// "no error", or the code's text and the last error's: for EXPECT_EQ.
inline std::string text_of(ncclResult_t result) {
  std::string text = ncclGetErrorString(result);
  if (result != ncclSuccess && result != ncclInProgress) {
    text += ": ";
    text += ncclGetLastError(nullptr);
  }
  return text;
}

#define EXPECT_OK(call) EXPECT_EQ(::chorus::testing::text_of(call), "no error") << #call
#define ASSERT_OK(call) ASSERT_EQ(::chorus::testing::text_of(call), "no error") << #call

/// The call is refused with `code`, and the last error says `part`.
#define EXPECT_REFUSED(call, code, part)                                            \
  do {                                                                              \
    EXPECT_EQ(call, code) << #call << ": " << ncclGetLastError(nullptr);            \
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find(part), std::string::npos) \
        << #call << ": " << ncclGetLastError(nullptr);                              \
  } while (0)

inline void run_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// Joins one communicator per thread, runs `body` and destroys it.
inline void run_ranks(int ranks, const std::function<void(ncclComm_t comm, int rank)>& body,
                      const ncclConfig_t* config = nullptr) {
  ncclUniqueId id;
  ASSERT_OK(ncclGetUniqueId(&id));
  run_threads(ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ncclConfig_t mine = NCCL_CONFIG_INITIALIZER;
    if (config != nullptr) mine = *config;
    ASSERT_OK(ncclCommInitRankConfig(&comm, ranks, id, rank, &mine));
    body(comm, rank);
    EXPECT_OK(ncclCommDestroy(comm));
  });
}

/// All ranks of a communicator, held by this thread.
inline std::vector<ncclComm_t> init_all(int ranks) {
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
  EXPECT_OK(ncclCommInitAll(comms.data(), ranks, nullptr));
  return comms;
}

inline void destroy_all(const std::vector<ncclComm_t>& comms) {
  for (const ncclComm_t comm : comms) EXPECT_OK(ncclCommDestroy(comm));
}

}  // namespace chorus::testing
