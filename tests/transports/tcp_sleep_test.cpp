// A rank that sleeps with many sockets: one descriptor tells of all of them.
#include <poll.h>

#include <array>
#include <memory>
#include <vector>

#include "ends.hpp"

namespace chorus::testing {
namespace {

const Way kThreads{"tcp", "127.0.0.1", false, "tcp_threads"};
constexpr LinkConfig kConfig{.region_bytes = 8192, .num_channels = 1, .max_outstanding = 4};
constexpr int kPeers = 3, kSockets = 3;

std::unique_ptr<Transport> make(Rank rank) {
  TransportContext context = context_for(kThreads, kConfig, 0);
  context.rank = rank;
  context.world_size = kPeers + 1;
  context.tcp_sockets = kSockets;
  return make_transport("tcp", context);
}

/// The last rank, with a link to each of the others; all of them in this thread.
class TcpSleep : public ::testing::Test {
 protected:
  TcpSleep() {
    for (Rank peer = 0; peer < kPeers; ++peer) {
      peers_.push_back(make(peer));
      theirs_.push_back(peers_.back()->connect(kPeers, sleeper_->address()));
      mine_.push_back(sleeper_->connect(peer, peers_.back()->address()));
    }
    const auto deadline = Clock::now() + 20s;
    for (bool all = false; !all && Clock::now() < deadline;) {
      sleeper_->progress();
      all = true;
      for (Rank peer = 0; peer < kPeers; ++peer) all = say(peer) && arrivals(peer) > 0 && all;
    }
    for (Rank peer = 0; peer < kPeers; ++peer) EXPECT_EQ(arrivals(peer), 1u) << "peer " << peer;
    look_at_all();
  }

  /// Sends one message if none has been; true once it is on its way.
  bool say(Rank peer) {
    Link& link = *theirs_[static_cast<std::size_t>(peer)];
    bool& said = said_[static_cast<std::size_t>(peer)];
    peers_[static_cast<std::size_t>(peer)]->progress();
    static_cast<void>(link.progress());
    said = said || link.try_put({}, 0, 0, 1);
    return said && link.flush();
  }
  void say_again(Rank peer) {
    said_[static_cast<std::size_t>(peer)] = false;
    while (!say(peer)) continue;
  }
  void look(Rank peer) { static_cast<void>(mine_[static_cast<std::size_t>(peer)]->progress()); }
  void look_at_all() {
    for (int round = 0; round < 3; ++round) {
      for (Rank peer = 0; peer < kPeers; ++peer) look(peer);
    }
  }
  std::uint64_t arrivals(Rank peer) {
    look(peer);
    return mine_[static_cast<std::size_t>(peer)]->arrivals(0);
  }
  /// Whether a sleep ends, within `ms`.
  bool wakes(int ms) {
    fds_.clear();
    sleeper_->append_wake_fds(fds_);
    return ::poll(fds_.data(), fds_.size(), ms) > 0;
  }

  std::unique_ptr<Transport> sleeper_ = make(kPeers);
  std::vector<std::unique_ptr<Transport>> peers_;
  std::vector<std::unique_ptr<Link>> theirs_, mine_;
  std::array<bool, kPeers> said_ = {};
  std::vector<pollfd> fds_;
};

TEST_F(TcpSleep, PollsFewerDescriptorsThanThereAreSockets) {
  sleeper_->prepare_to_sleep();
  look_at_all();
  EXPECT_FALSE(wakes(0));
  EXPECT_LT(fds_.size(), std::size_t{kPeers});
}

TEST_F(TcpSleep, EndsWithWhatAnybodySends) {
  for (Rank peer = 0; peer < kPeers; ++peer) {
    sleeper_->prepare_to_sleep();
    look_at_all();
    say_again(peer);
    EXPECT_TRUE(wakes(10'000)) << "peer " << peer;
    EXPECT_EQ(arrivals(peer), 2u);
    look_at_all();
  }
}

// All sockets are asked in the middle of a look: the answer of a link that has looked before is not
// told a second time.
TEST_F(TcpSleep, EndsWithWhatWasToldAfterTheLook) {
  for (Rank peer = 0; peer < kPeers; ++peer) {
    sleeper_->prepare_to_sleep();
    look_at_all();
    say_again(peer);
    for (int round = 0; round < 3; ++round) look((peer + 1) % kPeers);
    EXPECT_TRUE(wakes(10'000)) << "peer " << peer;
    EXPECT_EQ(arrivals(peer), 2u);
    look_at_all();
  }
}

// A message for a later call stays where it is until then.
TEST_F(TcpSleep, GoesOnWhereALinkThatNobodyLooksAtHasBytes) {
  sleeper_->prepare_to_sleep();
  say_again(0);
  EXPECT_TRUE(wakes(10'000)) << "once";
  sleeper_->prepare_to_sleep();
  look(1);
  EXPECT_FALSE(wakes(0));
  say_again(1);
  EXPECT_TRUE(wakes(10'000));
  EXPECT_EQ(arrivals(1), 2u);
  EXPECT_EQ(arrivals(0), 2u);
}

TEST_F(TcpSleep, EndsWithAPeerThatIsGone) {
  sleeper_->prepare_to_sleep();
  look_at_all();
  theirs_[2].reset();
  peers_[2].reset();
  EXPECT_TRUE(wakes(10'000));
}

}  // namespace
}  // namespace chorus::testing
