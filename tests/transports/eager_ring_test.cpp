// EagerRings on memory of this process: two ends, on one thread or two.
#include "transports/shm/eager_ring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "chorus/error.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

class EagerRingTest : public ::testing::Test {
 protected:
  EagerRingTest() { EXPECT_GE(pipe_[1], 0); }
  ~EagerRingTest() override {
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }

  static std::array<int, 2> make_pipe() {
    std::array<int, 2> ends = {-1, -1};
    if (::pipe(ends.data()) != 0) ends.fill(-1);
    return ends;
  }

  /// Messages of any size, the same for the same number.
  static std::vector<std::byte> message(std::uint32_t number) {
    std::minstd_rand random(number + 1);
    constexpr std::size_t kLimits[] = {9, 49, 300, EagerRing::kMostBytes + 1};
    std::vector<std::byte> bytes(number % 97 == 0 ? EagerRing::kMostBytes
                                                  : random() % kLimits[random() % 4]);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  static void put(EagerRing& eager_ring, std::uint32_t number) {
    const auto bytes = message(number);
    while (!eager_ring.try_put(bytes, number)) std::this_thread::yield();
    eager_ring.announce();
  }
  static void expect(EagerRing& eager_ring, std::uint32_t number) {
    const auto wanted = message(number);
    eager_ring.look_ahead(wanted.size());
    while (!eager_ring.has_message()) std::this_thread::yield();
    ASSERT_EQ(eager_ring.tag(), number);
    std::vector<std::byte> got(wanted.size());
    eager_ring.take(got);
    ASSERT_EQ(got, wanted) << "message " << number;
  }

  // Zeroed, as the pages that ranks share are.
  const std::unique_ptr<EagerRingMemory> memory_[2] = {std::make_unique<EagerRingMemory>(),
                                                       std::make_unique<EagerRingMemory>()};
  std::atomic<std::uint32_t> asleep_[2] = {0, 0};
  const std::array<int, 2> pipe_ = make_pipe();
  EagerRing here_{0, 1, *memory_[1], *memory_[0], asleep_[1], pipe_[1]};
  EagerRing there_{1, 0, *memory_[0], *memory_[1], asleep_[0], pipe_[1]};
};

TEST_F(EagerRingTest, CarriesMessagesOfAllSizesBothWaysAtOnce) {
  static constexpr std::uint32_t kMessages = 20'000;
  const auto stream = [](EagerRing& eager_ring) {
    // As far ahead as there is room, in between.
    std::uint32_t sent = 0;
    for (std::uint32_t taken = 0; taken < kMessages; ++taken) {
      for (; sent < std::min(kMessages, taken + 300); ++sent) {
        if (!eager_ring.try_put(message(sent), sent)) break;
      }
      eager_ring.announce();
      expect(eager_ring, taken);
    }
    for (; sent < kMessages; ++sent) put(eager_ring, sent);
  };
  std::jthread other([&] { stream(there_); });
  stream(here_);
}

TEST_F(EagerRingTest, RefusesWhatItHasNoRoomForAndTakesItLater) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{48}, std::size_t{49},
                                  EagerRing::kMostBytes - 1, EagerRing::kMostBytes}) {
    std::vector<std::byte> data(bytes);
    const auto fill = [&] {
      std::uint32_t put = 0;
      while (here_.try_put(data, put)) ++put;
      return put;
    };
    const std::uint32_t whole = fill();
    const std::uint32_t least =
        static_cast<std::uint32_t>(EagerRingMemory::kBytes / EagerRing::kMostBytes - 1);
    EXPECT_GE(whole, bytes <= EagerSlot::kInlineBytes ? EagerRingMemory::kSlots * 3 / 4 : least)
        << bytes;
    // However few are taken: what the receiver does not tell leaves room for one once it is empty.
    for (std::uint32_t i = 0; i < whole; ++i) {
      ASSERT_TRUE(there_.has_message());
      EXPECT_EQ(there_.tag(), i);
      there_.take(data);
    }
    EXPECT_FALSE(there_.has_message());
    ASSERT_TRUE(here_.try_put(data, 7)) << bytes;
    there_.take(data);
  }
}

TEST_F(EagerRingTest, WakesAPeerThatSleeps) {
  const auto woken = [&] {
    pollfd fd{pipe_[0], POLLIN, 0};
    if (::poll(&fd, 1, 0) == 0) return false;
    char byte = 0;
    return ::read(pipe_[0], &byte, 1) == 1;
  };
  put(here_, 1);
  EXPECT_FALSE(woken());
  asleep_[1].store(1);
  here_.announce();  // nothing new
  EXPECT_FALSE(woken());
  put(here_, 2);
  EXPECT_TRUE(woken());
  EXPECT_EQ(asleep_[1].load(), 0U);
  // One that waits for room, too: it is told now and then.
  asleep_[0].store(1);
  std::vector<std::byte> none;
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(here_.try_put(none, 0));
  expect(there_, 1);
  expect(there_, 2);
  for (int i = 0; i < 60; ++i) there_.take(none);
  EXPECT_TRUE(woken());
}

TEST_F(EagerRingTest, BelievesNoPeerThatLies) {
  const auto complaint = [](auto call) -> std::string {
    try {
      call();
    } catch (const LinkError& error) {
      EXPECT_EQ(error.peer(), 1);
      return error.what();
    }
    return "nothing was thrown";
  };
  std::vector<std::byte> data(10);
  ASSERT_TRUE(there_.try_put(data, 0));
  memory_[0]->slots[0].size_bytes = 0xffffffff;
  EXPECT_THAT(complaint([&] { here_.take(data); }), HasSubstr("rank 1 sent a message of another"));
  memory_[1]->taken.store(5);
  EXPECT_THAT(complaint([&] {
                for (int i = 0; i < 1000; ++i) (void)here_.try_put(data, 0);
              }),
              HasSubstr("nothing was thrown"));  // fewer than were sent by then
  memory_[1]->taken.store(1'000'000);
  EXPECT_THAT(complaint([&] {
                for (int i = 0; i < 1000; ++i) (void)here_.try_put(data, 0);
              }),
              HasSubstr("never sent"));
}

}  // namespace
}  // namespace chorus::testing
