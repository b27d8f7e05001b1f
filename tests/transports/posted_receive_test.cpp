// Links that receive into their owner's memory: what expected puts do, and all others do not.
#include <sys/socket.h>

#include <algorithm>
#include <random>

#include "ends.hpp"
#include "transports/link/link.hpp"

namespace chorus::testing {
namespace {

class PostedReceiveTest : public ::testing::TestWithParam<Way> {};

constexpr std::size_t kKiB = 1024;

TEST_P(PostedReceiveTest, PutsLandWhereTheyAreExpectedAndLeaveTheRegionAlone) {
  constexpr std::uint64_t kSlots = 4;
  constexpr std::uint64_t kPuts = 300;
  constexpr std::size_t kSlot = 160 * kKiB;
  const LinkConfig config{
      .region_bytes = kSlots * kSlot, .num_channels = 2, .max_outstanding = kSlots};
  run_both(GetParam(), config, [&](End& end) {
    PostedReceives* const posted_receives = end.link.posted_receives();
    ASSERT_NE(posted_receives, nullptr);
    const auto size_of = [](std::uint64_t i) -> std::size_t {
      std::mt19937_64 random(i);
      return random() % 3 == 0 ? random() % 5000 : random() % kSlot + 1;
    };
    const auto offset_of = [](std::uint64_t i) { return i % kSlots * kSlot; };
    if (end.rank == 0) {
      std::vector<std::byte> live[kSlots];
      for (std::uint64_t i = 0; i < kPuts; ++i) {
        if (i >= kSlots) end.await(1, i - kSlots + 1);
        end.until([&] { return end.link.progress() || end.link.released(0) + kSlots > i; },
                  "release");
        live[i % kSlots] = pattern(size_of(i), i);
        end.put(live[i % kSlots], offset_of(i), 0, static_cast<std::uint32_t>(i));
      }
      end.flush();
      return end.meet();
    }
    std::mt19937_64 random(5);
    std::vector<std::byte> memory[kSlots];
    std::fill(end.link.region().begin(), end.link.region().end(), std::byte{0xee});
    std::uint64_t expected = 0;
    std::uint64_t in_place = 0;
    for (std::uint64_t i = 0; i < kPuts; ++i) {
      // As far ahead as puts may be, or too late for some. The first come after they are expected.
      const std::uint64_t ahead = i == 0 ? kSlots : 1 + random() % kSlots;
      for (; expected < std::min(i + ahead, kPuts); ++expected) {
        auto& place = memory[expected % kSlots];
        place.assign(size_of(expected), std::byte{0xcc});
        if (expected >= kSlots && random() % 4 == 0) continue;
        posted_receives->expect(0, expected,
                                {.memory = place,
                                 .offset = offset_of(expected),
                                 .tag = static_cast<std::uint32_t>(expected)});
      }
      end.await(0, i + 1);
      const auto sent = pattern(size_of(i), i);
      const auto slot = end.link.region().subspan(offset_of(i), kSlot);
      const auto untouched = [](std::span<const std::byte> bytes, std::byte as) {
        return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == as; });
      };
      if (posted_receives->in_place(0, i)) {
        ++in_place;
        ASSERT_EQ(memory[i % kSlots], sent) << "put " << i;
        ASSERT_TRUE(untouched(slot, std::byte{0xee})) << "put " << i;
      } else {
        ASSERT_TRUE(end.matches(offset_of(i), sent)) << "put " << i;
        ASSERT_TRUE(untouched(memory[i % kSlots], std::byte{0xcc})) << "put " << i;
        std::fill(slot.begin(), slot.end(), std::byte{0xee});
      }
      end.signal(1, 0);
    }
    EXPECT_GE(in_place, kSlots);
    end.flush();
    end.meet();
  });
}

TEST_P(PostedReceiveTest, AnotherPutThanTheExpectedOneGoesToTheRegion) {
  run_both(GetParam(), {.region_bytes = 64 * kKiB, .max_outstanding = 4}, [](End& end) {
    PostedReceives* const posted_receives = end.link.posted_receives();
    ASSERT_NE(posted_receives, nullptr);
    const auto sent = pattern(1000, 3);
    if (end.rank == 0) {
      for (std::uint32_t i = 0; i < 4; ++i) end.put(sent, i * 1000, 0, i);
      end.flush();
      return end.meet();
    }
    std::vector<std::byte> memory(1001, std::byte{0xcc});
    const std::span<std::byte> place(memory);
    posted_receives->expect(0, 0, {.memory = place.first(1000), .offset = 0, .tag = 7});
    posted_receives->expect(0, 1, {.memory = place, .offset = 1000, .tag = 1});
    posted_receives->expect(0, 2, {.memory = place.first(999), .offset = 2000, .tag = 2});
    posted_receives->expect(0, 3, {.memory = place.first(1000), .offset = 3001, .tag = 3});
    end.await(0, 4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      EXPECT_FALSE(posted_receives->in_place(0, i)) << i;
      EXPECT_TRUE(end.matches(i * 1000, sent)) << i;
    }
    EXPECT_EQ(std::ranges::count(memory, std::byte{0xcc}), 1001);
    end.meet();
  });
}

TEST_P(PostedReceiveTest, NothingIsWrittenToAPostedReceiveThatWasWithdrawn) {
  if (GetParam().by_kernel) GTEST_SKIP() << "the kernel copies a put in one go";
  constexpr std::size_t kSize = 24 << 20;  // more than is sent, or received, in one go
  run_both(GetParam(), {.region_bytes = kSize}, [&](End& end) {
    PostedReceives* const posted_receives = end.link.posted_receives();
    ASSERT_NE(posted_receives, nullptr);
    const auto sent = pattern(kSize, 3);
    if (end.rank == 0) {
      end.put(sent, 0, 0, 1);
      char byte = 0;  // the peer has withdrawn; until then the rest stays here
      ASSERT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
      end.flush();
      return end.meet();
    }
    std::vector<std::byte> memory(kSize, std::byte{0xcc});
    posted_receives->expect(0, 0, {.memory = memory, .offset = 0, .tag = 1});
    end.until([&] { return end.advance(), memory[0] == sent[0]; }, "the first bytes");
    for (int i = 0; i < 100; ++i) end.advance();
    ASSERT_EQ(end.link.arrivals(0), 0u);
    posted_receives->withdraw();
    std::ranges::fill(memory, std::byte{0x55});
    ASSERT_EQ(::send(end.side_channel, "w", 1, MSG_NOSIGNAL), 1);
    end.await(0, 1);
    EXPECT_FALSE(posted_receives->in_place(0, 0));
    EXPECT_TRUE(end.matches(0, sent));
    EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(memory, std::byte{0x55})), kSize);
    end.meet();
  });
}

std::vector<Way> posted_ways(bool processes) {
  std::vector<Way> ways = tcp_ways(processes);
  ways.push_back(kernel_way(processes));
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Threads, PostedReceiveTest, ::testing::ValuesIn(posted_ways(false)),
                         [](const auto& way) { return way.param.name; });
INSTANTIATE_TEST_SUITE_P(Processes, PostedReceiveTest, ::testing::ValuesIn(posted_ways(true)),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace chorus::testing
