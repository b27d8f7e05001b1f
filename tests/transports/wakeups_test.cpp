// Communicators of one rank sleep in several threads at once, and no byte that was meant for one of
// them is lost on another.
#include "transports/link/wakeups.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace chorus {
namespace {

bool readable(int fd, int ms) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, ms) == 1;
}

void wake(const Wakeups& wakeups) { ASSERT_EQ(::write(wakeups.pipe_fd(), "", 1), 1); }

TEST(Wakeups, CommunicatorsOfOneThreadShareThePipe) {
  const auto wakeups = std::make_shared<Wakeups>();
  Wakeups::Sleeper a(wakeups), b(wakeups);
  a.begin();
  b.begin();
  EXPECT_EQ(a.fd(), b.fd());
  EXPECT_FALSE(readable(a.fd(), 0));
  wake(*wakeups);
  EXPECT_TRUE(readable(b.fd(), 0));
  a.end();
  EXPECT_TRUE(readable(b.fd(), 0)) << "b has not seen it yet";
  b.end();
  a.begin();
  EXPECT_FALSE(readable(a.fd(), 0)) << "still readable: it would never sleep again";
}

TEST(Wakeups, AByteBetweenTwoSleepsWakesTheSecond) {
  const auto wakeups = std::make_shared<Wakeups>();
  Wakeups::Sleeper sleeper(wakeups);
  sleeper.begin();
  sleeper.end();
  wake(*wakeups);
  sleeper.begin();
  EXPECT_TRUE(readable(sleeper.fd(), 0));
}

// Each thread counts what it is told and must see the last of it: told at random moments, to any.
TEST(Wakeups, NoThreadSleepsThroughWhatItIsToldThoughOthersSleepToo) {
  constexpr int kThreads = 4, kRounds = 2'000;
  const auto wakeups = std::make_shared<Wakeups>();
  struct Told {
    std::atomic<int> count{0}, seen{0}, sleeping{0};
  };
  std::array<Told, kThreads> told;
  std::atomic<int> overslept{0};
  std::vector<std::jthread> threads;
  for (Told& mine : told) {
    threads.emplace_back([&] {
      Wakeups::Sleeper sleeper(wakeups);
      while (mine.seen < kRounds) {
        sleeper.begin();
        mine.sleeping.store(1);
        if (mine.count == mine.seen && !readable(sleeper.fd(), 10'000)) ++overslept;
        mine.sleeping.store(0);
        sleeper.end();
        mine.seen.store(mine.count.load());
      }
    });
  }
  for (int round = 1; round <= kRounds; ++round) {
    for (Told& each : told) {
      each.count.store(round);
      if (each.sleeping.exchange(0) == 1) wake(*wakeups);
      if (round % 7 == 0) {
        while (each.seen != round) std::this_thread::yield();
      }
    }
  }
  threads.clear();
  EXPECT_EQ(overslept, 0);
}

TEST(Wakeups, APeersPipeIsOpenedOnceAndOnlyIfItIsTheOneThatWasPublished) {
  Wakeups own, peer;
  std::string reason;
  const auto first = own.open_peer(::getpid(), peer.pipe_fd(), peer.pipe_inode(), reason);
  ASSERT_NE(first, nullptr) << reason;
  EXPECT_EQ(own.open_peer(::getpid(), peer.pipe_fd(), peer.pipe_inode(), reason), first);
  EXPECT_EQ(own.open_peer(::getpid(), peer.pipe_fd(), peer.pipe_inode() + 1, reason), nullptr);
  EXPECT_NE(reason.find("is not what the peer published"), std::string::npos) << reason;
  EXPECT_EQ(own.open_peer(::getpid(), 9'999, peer.pipe_inode() + 2, reason), nullptr);
  EXPECT_NE(reason.find("cannot open /proc/"), std::string::npos) << reason;
}

}  // namespace
}  // namespace chorus
