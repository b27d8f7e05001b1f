// What the kernel has told of many sockets, and what it has not told yet.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include "base/files/fd.hpp"
#include "transports/tcp/readiness.hpp"

namespace chorus {
namespace {

constexpr std::size_t kMany = 8, kFew = 1;

class Readiness : public ::testing::Test {
 protected:
  Readiness() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    mine_ = Fd(ends[0]);
    theirs_ = Fd(ends[1]);
    readiness_.watch(mine_.get());
  }
  /// As a link does that is the only one: each look begins a round.
  void look(std::size_t sockets = kMany) { readiness_.look(round_, sockets); }
  bool may_read() { return readiness_.may_read(mine_.get()); }
  bool may_write() { return readiness_.may_write(mine_.get()); }
  void read_all() {
    std::array<char, 4096> buffer;
    while (::recv(mine_.get(), buffer.data(), buffer.size(), 0) > 0) continue;
    readiness_.is_empty(mine_.get());
  }
  void write_all() {
    const std::vector<char> bytes(1 << 16);
    while (::send(mine_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) continue;
    readiness_.is_full(mine_.get());
  }
  void say() { EXPECT_EQ(::send(theirs_.get(), "x", 1, MSG_NOSIGNAL), 1); }
  void hear_all() {
    std::array<char, 1 << 16> buffer;
    while (::recv(theirs_.get(), buffer.data(), buffer.size(), 0) > 0) continue;
  }

  TcpReadiness readiness_;
  std::uint64_t round_ = 0;
  Fd mine_, theirs_;
};

TEST_F(Readiness, IsToldWhenBytesHaveCome) {
  look();
  read_all();
  look();
  look();
  EXPECT_FALSE(may_read());
  say();
  look();
  EXPECT_TRUE(may_read());
  look();
  EXPECT_TRUE(may_read()) << "nobody has read them";
}

TEST_F(Readiness, IsNotLostWhereBytesComeBetweenTheLastReadAndTheNextLook) {
  look();
  look();
  say();
  readiness_.is_empty(mine_.get());  // by what was read before they came
  look();
  EXPECT_TRUE(may_read());
}

TEST_F(Readiness, FewSocketsAreReadWithoutAsking) {
  look(kFew);
  read_all();
  look(kFew);
  look(kFew);
  EXPECT_TRUE(may_read());
  // From the next round on they are many.
  look(kMany);
  look(kMany);
  EXPECT_FALSE(may_read());
}

TEST_F(Readiness, ARoundEndsWithTheLinkThatComesAgain) {
  std::uint64_t other = 0;
  look();
  readiness_.look(other, kMany);
  read_all();
  look();
  readiness_.look(other, kMany);
  say();
  EXPECT_FALSE(may_read()) << "all were asked in this round";
  readiness_.look(other, kMany);
  EXPECT_TRUE(may_read());
}

TEST_F(Readiness, RoomIsToldOfHoweverFewTheSocketsAre) {
  look(kFew);
  EXPECT_TRUE(may_write());
  write_all();
  look(kFew);
  EXPECT_FALSE(may_write());
  hear_all();
  look(kFew);
  EXPECT_TRUE(may_write());
}

TEST_F(Readiness, RoomIsToldOfWhereNobodyReads) {
  std::uint64_t rooms = 0;
  write_all();
  readiness_.look_for_room(rooms);
  EXPECT_FALSE(may_write());
  hear_all();
  readiness_.look_for_room(rooms);
  EXPECT_TRUE(may_write());
}

TEST_F(Readiness, AnEndStaysToBeRead) {
  say();
  theirs_.reset();
  look();
  look();
  readiness_.is_empty(mine_.get());  // a short read, which does not show the end behind it
  EXPECT_TRUE(may_read());
}

TEST_F(Readiness, ADescriptorThatIsUsedAgainBeginsAnew) {
  write_all();
  read_all();
  const int number = mine_.get();
  mine_.reset();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  mine_ = Fd(ends[0]);
  theirs_ = Fd(ends[1]);
  ASSERT_EQ(mine_.get(), number);
  readiness_.watch(number);
  EXPECT_TRUE(may_write());
  look();
  look();
  EXPECT_TRUE(may_read());
}

}  // namespace
}  // namespace chorus
