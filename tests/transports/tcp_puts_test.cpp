// How puts travel over tcp: what leaves together, what does not wait, and what is released when.
#include <algorithm>

#include "ends.hpp"

namespace chorus::testing {
namespace {

const Way kThreads{"tcp", "", false, "tcp_threads"};

/// Both ends of a link, in this thread: what one does not do, nobody does.
struct TcpEnds {
  explicit TcpEnds(const LinkConfig& config, int sockets = 2)
      : low(make(0, config, sockets)),
        high(make(1, config, sockets)),
        from(low->connect(1, high->address())),
        to(high->connect(0, low->address())) {}

  static std::unique_ptr<Transport> make(Rank rank, const LinkConfig& config, int sockets) {
    TransportContext context = context_for(kThreads, config, rank);
    context.tcp_sockets = sockets;
    return make_transport("tcp", context);
  }
  [[nodiscard]] bool in_time() const { return Clock::now() < deadline; }
  /// False when time is up.
  [[nodiscard]] bool advance() const {
    static_cast<void>(from->progress());
    static_cast<void>(to->progress());
    return in_time();
  }
  /// The first put, which connects; not flushed.
  void signal_first() const {
    while (!from->try_put({}, 0, 0, 0)) ASSERT_TRUE(advance());
  }
  /// Without help of the sender.
  void receive(std::uint64_t puts) const {
    while (to->arrivals(0) < puts && in_time()) static_cast<void>(to->progress());
    EXPECT_EQ(to->arrivals(0), puts);
  }

  std::unique_ptr<Transport> low, high;
  std::unique_ptr<Link> from, to;
  Clock::time_point deadline = Clock::now() + 20s;
};

TEST(TcpPuts, ASignalDoesNotWaitBehindData) {
  constexpr std::size_t kPiece = 1 << 20;
  constexpr int kPieces = 64;  // more than sockets buffer
  const LinkConfig config{.region_bytes = kPiece, .num_channels = 2, .max_outstanding = kPieces};
  const TcpEnds ends(config);
  const auto bytes = pattern(kPiece, 1);
  for (int made = 0; made < kPieces;) {
    ASSERT_TRUE(ends.in_time());
    if (ends.from->try_put(bytes, 0, 0, 7)) {
      ++made;
    } else {
      static_cast<void>(ends.from->progress());
      if (made == 0) static_cast<void>(ends.to->progress());  // still connecting
    }
  }
  ASSERT_TRUE(ends.from->try_put({}, 0, 1, 9));
  static_cast<void>(ends.from->flush());
  while (ends.to->arrivals(1) == 0) {
    ASSERT_TRUE(ends.in_time());
    static_cast<void>(ends.to->progress());  // the sender rests: what it could not send stays there
  }
  EXPECT_LT(ends.to->arrivals(0), std::uint64_t{kPieces});
  while (ends.to->arrivals(0) < std::uint64_t{kPieces}) {
    ASSERT_TRUE(ends.advance());
  }
}

TEST(TcpPuts, LeaveNoFasterThanTheirPaceWheneverItIsSet) {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr double kPace = 8e6;  // bytes per second: 131 ms
  const LinkConfig config{.region_bytes = kBytes, .max_outstanding = 4};
  const auto bytes = pattern(kBytes, 5);
  for (const bool connected : {false, true}) {
    const TcpEnds ends(config);
    const auto seconds_of_put = [&](std::uint64_t puts) {
      const auto start = Clock::now();
      while (!ends.from->try_put(bytes, 0, 0, 0)) EXPECT_TRUE(ends.advance());
      while (ends.to->arrivals(0) < puts && ends.advance()) continue;
      EXPECT_EQ(ends.to->arrivals(0), puts);
      EXPECT_TRUE(std::ranges::equal(ends.to->region(), bytes));
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    std::uint64_t puts = 0;
    if (connected) seconds_of_put(++puts);
    ends.from->pace(kPace);
    EXPECT_GE(seconds_of_put(++puts), 0.5 * kBytes / kPace);
    ends.from->pace(0);
    seconds_of_put(++puts);
  }
}

TEST(TcpPuts, LargePutsLeaveTogetherWhenFlushedOrWhenTheyAreMany) {
  constexpr std::size_t kBytes = 64 * 1024;
  constexpr std::uint64_t kMany = 8;  // 512 KiB
  const LinkConfig config{.region_bytes = kBytes, .max_outstanding = 32};
  const TcpEnds ends(config);
  const auto bytes = pattern(kBytes, 1);
  ends.signal_first();
  EXPECT_TRUE(ends.from->flush());
  ends.receive(1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ends.from->try_put(bytes, 0, 0, 0));
  EXPECT_EQ(ends.from->released(0), 1u);
  static_cast<void>(ends.from->flush());
  ends.receive(4);
  for (std::uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(ends.from->try_put(bytes, 0, 0, 0));
  EXPECT_GT(ends.from->released(0), 4u);
  static_cast<void>(ends.from->flush());
  ends.receive(4 + kMany);
}

TEST(TcpPuts, SmallPutsAreReleasedAtOnceAndLeaveWhenFlushed) {
  constexpr int kPuts = 40;  // of sizes on both sides of what is copied
  const LinkConfig config{.region_bytes = 1 << 20, .max_outstanding = 64};
  TcpEnds ends(config);
  ends.signal_first();
  EXPECT_EQ(ends.from->released(0), 1u);
  for (int i = 0; i < 20; ++i) static_cast<void>(ends.to->progress());
  EXPECT_EQ(ends.to->arrivals(0), 0u) << "it left alone";
  const auto bytes = pattern(20'000, 3);
  const auto size_of_put = [](int i) { return static_cast<std::size_t>(i) * 499; };
  std::size_t at = 0;
  for (int i = 0; i < kPuts; ++i) {
    std::vector<std::byte> mine(bytes.begin(),
                                bytes.begin() + static_cast<std::ptrdiff_t>(size_of_put(i)));
    const auto released = ends.from->released(0);
    ASSERT_TRUE(ends.from->try_put(mine, at, 0, static_cast<std::uint32_t>(i)));
    if (at + mine.size() < 100'000) {  // there is room for copies
      EXPECT_EQ(ends.from->released(0), released + 1);
    }
    while (ends.from->released(0) == released && ends.in_time()) {
      static_cast<void>(ends.from->progress());
    }
    std::ranges::fill(mine, std::byte{0});  // ours again
    at += size_of_put(i);
  }
  ends.from.reset();  // what has been released gets there
  ends.receive(1 + kPuts);
  at = 0;
  for (int i = 0; i < kPuts; ++i) {
    EXPECT_EQ(ends.to->tag(0, static_cast<std::uint64_t>(i) + 1), static_cast<std::uint32_t>(i));
    EXPECT_EQ(std::memcmp(ends.to->region().data() + at, bytes.data(), size_of_put(i)), 0) << i;
    at += size_of_put(i);
  }
}

TEST(TcpPuts, TotalsTravelWithPutsOfTheirChannelAndNeverBackwards) {
  constexpr std::size_t kLarge = 600'000;  // in pieces, which overtake small ones
  const LinkConfig config{.region_bytes = kLarge, .num_channels = 2, .max_outstanding = 64};
  const TcpEnds ends(config, 3);
  const auto bytes = pattern(kLarge, 1);
  for (bool connected = false; !connected;) {
    ASSERT_TRUE(ends.in_time());
    const bool one = ends.from->progress();
    connected = ends.to->progress() && one;
  }
  PiggybackedCredits& out = *ends.from->piggybacked_credits();
  PiggybackedCredits& in = *ends.to->piggybacked_credits();
  out.tell(0, 0x7fff'fff0);
  EXPECT_EQ(out.told(0), 0u);
  ASSERT_TRUE(ends.from->try_put({}, 0, 1, 0));
  EXPECT_EQ(out.told(0), 0u) << "another channel's put";
  std::uint32_t total = 0x7fff'fff0;
  for (std::uint64_t put = 1; put <= 40; ++put) {  // where the sign changes
    out.tell(0, total);
    while (!ends.from->try_put(std::span(bytes).first(put % 3 == 0 ? kLarge : 8), 0, 0, 0)) {
      ASSERT_TRUE(ends.advance());
    }
    EXPECT_EQ(out.told(0), total);
    const std::uint32_t heard = in.heard(0);
    static_cast<void>(ends.to->progress());
    EXPECT_GE(static_cast<std::int32_t>(in.heard(0) - heard), 0);
    ++total;
  }
  while (ends.to->arrivals(0) < 40) {
    ASSERT_TRUE(ends.advance());
  }
  EXPECT_EQ(in.heard(0), total - 1);
  EXPECT_EQ(in.heard(1), 0u);
}

// Neither are acknowledgements waited for, which the kernel would send 40 ms later: 80 s in all.
TEST(TcpPuts, SmallPutsOneWayFlowWithoutAnAnswer) {
  constexpr int kPuts = 2000;
  const LinkConfig config{.region_bytes = 4096, .max_outstanding = 64};
  const TcpEnds ends(config);
  const auto bytes = pattern(64, 1);
  for (std::uint64_t sent = 0; sent < kPuts;) {
    ASSERT_TRUE(ends.in_time());
    if (ends.from->try_put(bytes, sent % 64 * 64, 0, static_cast<std::uint32_t>(sent))) {
      ++sent;
      static_cast<void>(ends.from->flush());
    } else {  // it connects
      static_cast<void>(ends.from->progress());
      static_cast<void>(ends.to->progress());
    }
    for (int look = 0; look < 100 && ends.to->arrivals(0) < sent; ++look) {
      static_cast<void>(ends.to->progress());
    }
  }
  ends.receive(kPuts);
}

TEST(TcpPuts, LargePutsTravelInPiecesAndCountOnce) {
  for (const int sockets : {1, 2, 3, 16}) {
    const LinkConfig config{.region_bytes = 4 << 20, .max_outstanding = 4};
    const TcpEnds ends(config, sockets);
    const auto bytes = pattern((4 << 20) - 77, 8);
    std::vector<std::byte> memory(bytes.size());
    ends.to->posted_receives()->expect(0, 1, {.memory = memory, .offset = 70, .tag = 1});
    int sent = 0;
    while (ends.to->arrivals(0) < 2 || !ends.from->progress()) {
      ASSERT_TRUE(ends.advance());
      if (sent < 2 && ends.from->try_put(bytes, 70, 0, 1)) ++sent;
    }
    EXPECT_EQ(ends.from->released(0), 2u);
    EXPECT_FALSE(ends.to->posted_receives()->in_place(0, 0));
    EXPECT_EQ(std::memcmp(ends.to->region().data() + 70, bytes.data(), bytes.size()), 0) << sockets;
    EXPECT_TRUE(ends.to->posted_receives()->in_place(0, 1));
    EXPECT_EQ(memory, bytes) << sockets;
  }
}

}  // namespace
}  // namespace chorus::testing
