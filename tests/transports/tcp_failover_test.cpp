// Paths of a link that break, fall silent and lie, while it carries puts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>

#include "ends.hpp"
#include "transports/tcp/endpoint.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kSlot = 256 * 1024;
constexpr int kOutstanding = 4;
constexpr int kChannels = 2;
const LinkConfig kConfig{.region_bytes = kChannels * kOutstanding * kSlot,
                         .num_channels = kChannels,
                         .max_outstanding = kOutstanding};

std::unique_ptr<Transport> make(Rank rank, const std::string& addresses) {
  return make_transport("tcp", context_for({"tcp", addresses, false, ""}, kConfig, rank));
}

/// What the packets of `fd` meet: nothing that comes in is seen by TCP, nor acknowledged.
void make_deaf(int fd) {
  sock_filter drop_all = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &drop_all};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

/// What no other socket has ever had.
std::uint64_t cookie(int fd) {
  std::uint64_t value = 0;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &value, &size), 0);
  return value;
}

/// Puts from one end, each checked when it arrives at the other.
class Traffic {
 public:
  Traffic(Link& from, Link& to, unsigned seed) : from_(from), to_(to), random_(seed) {}

  void advance(int puts) {
    for (ChannelId c = 0; c < kChannels; ++c) {
      Channel& channel = channels_[c];
      while (made_ < puts && channel.under_way.size() < kOutstanding && put(c)) ++made_;
      while (to_.arrivals(c) > channel.arrived) take(c);
    }
  }
  [[nodiscard]] int arrived() const { return arrived_; }

 private:
  struct Put {
    std::vector<std::byte> bytes;
    std::vector<std::byte> posted;
    std::uint32_t tag = 0;
  };
  struct Channel {
    std::deque<Put> under_way;
    std::uint64_t made = 0;
    std::uint64_t arrived = 0;
  };

  [[nodiscard]] static std::size_t place(ChannelId c, std::uint64_t index) {
    return (static_cast<std::size_t>(c) * kOutstanding + index % kOutstanding) * kSlot;
  }

  bool put(ChannelId c) {
    Channel& channel = channels_[c];
    const std::size_t offset = place(c, channel.made);
    // What has been taken belongs to the owner: nobody writes there any more.
    const auto region = to_.region().subspan(offset, kSlot);
    if (channel.made >= kOutstanding) {
      EXPECT_EQ(std::memcmp(region.data(), taken_.data(), kSlot), 0);
    }
    if (!next_) {
      static constexpr std::size_t kSizes[] = {0, 100, 5000, 20'000, 100'000, kSlot};
      next_ = Put{pattern(kSizes[random_() % std::size(kSizes)], random_()),
                  {},
                  static_cast<std::uint32_t>(random_())};
    }
    if (!from_.try_put(next_->bytes, offset, c, next_->tag)) return false;
    channel.under_way.push_back(std::move(*next_));
    next_.reset();
    Put& put = channel.under_way.back();
    if (random_() % 2 == 0 && !put.bytes.empty()) {
      put.posted.resize(put.bytes.size());
      to_.posted_receives()->expect(c, channel.made,
                                    {.memory = put.posted, .offset = offset, .tag = put.tag});
    }
    ++channel.made;
    return true;
  }

  void take(ChannelId c) {
    Channel& channel = channels_[c];
    const auto region = to_.region().subspan(place(c, channel.arrived), kSlot);
    ASSERT_FALSE(channel.under_way.empty()) << "a put that nobody made";
    Put& put = channel.under_way.front();
    EXPECT_EQ(to_.tag(c, channel.arrived), put.tag);
    if (to_.posted_receives()->in_place(c, channel.arrived)) {
      EXPECT_TRUE(put.posted == put.bytes);
    } else {
      EXPECT_TRUE(std::equal(put.bytes.begin(), put.bytes.end(), region.begin()));
    }
    std::memcpy(region.data(), taken_.data(), kSlot);
    // The link may read the bytes until they are released.
    finished_.push_back(std::move(put));
    channel.under_way.pop_front();
    ++channel.arrived;
    ++arrived_;
  }

  const std::vector<std::byte> taken_ = std::vector<std::byte>(kSlot, std::byte{0xa5});
  Link& from_;
  Link& to_;
  std::mt19937 random_;
  Channel channels_[kChannels];
  std::optional<Put> next_;
  std::vector<Put> finished_;
  int made_ = 0;
  int arrived_ = 0;
};

/// Both ends of a link of several paths in this thread, and traffic both ways.
struct Rails {
  explicit Rails(const std::string& addresses, unsigned seed = 1)
      : low(make(0, addresses)),
        high(make(1, addresses)),
        from(low->connect(1, high->address())),
        to(high->connect(0, low->address())),
        there(*from, *to, seed),
        back(*to, *from, seed + 1) {}
  Rails(const Rails&) = delete;
  Rails& operator=(const Rails&) = delete;
  ~Rails() {  // before the traffic, whose bytes they may read
    from.reset();
    to.reset();
  }

  void advance(int puts) {
    there.advance(puts);
    back.advance(puts);
    low->progress();
    static_cast<void>(from->progress());
    high->progress();
    static_cast<void>(to->progress());
    ASSERT_LT(Clock::now(), deadline) << there.arrived() << " and " << back.arrived();
  }
  /// Goes on until so many puts have arrived each way.
  void until(int arrived, int puts) {
    while (there.arrived() < arrived || back.arrived() < arrived) {
      ASSERT_NO_FATAL_FAILURE(advance(puts));
    }
  }
  void all(int puts) {
    until(puts, puts);
    while (!from->progress() || !to->progress()) ASSERT_NO_FATAL_FAILURE(advance(puts));
  }
  /// The connected sockets of both ends that go over `ip`.
  [[nodiscard]] std::vector<int> sockets(const std::string& ip) const {
    std::vector<int> found;
    for (const Transport* transport : {low.get(), high.get()}) {
      std::vector<pollfd> fds;
      transport->append_wake_fds(fds);
      for (const pollfd& fd : fds) {
        sockaddr_storage peer{};
        socklen_t size = sizeof peer;
        if (::getpeername(fd.fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
        if (Endpoint::bound(fd.fd).ip_text() == ip) found.push_back(fd.fd);
      }
    }
    return found;
  }
  /// Puts go by the path over `ip`, in both directions.
  void await_use(const std::string& ip, std::size_t sockets_each, int& puts) {
    const auto used = [&] {
      const std::vector<int> fds = sockets(ip);
      return fds.size() == 2 * sockets_each && std::ranges::all_of(fds, [](int fd) {
               return progress_of(fd)->acknowledged_bytes > sizeof(TcpHello) + 1;
             });
    };
    while (!used()) {
      puts = std::max(puts, std::min(there.arrived(), back.arrived()) + 8);
      ASSERT_NO_FATAL_FAILURE(advance(puts));
    }
  }

  std::unique_ptr<Transport> low, high;
  std::unique_ptr<Link> from, to;
  Traffic there, back;
  Clock::time_point deadline = Clock::now() + 120s;
};

constexpr const char* kTwo = "127.0.0.1,127.0.0.2";
constexpr const char* kThree = "127.0.0.1,127.0.0.2,127.0.0.3";

/// Data that both ends have had acknowledged by the path over `ip`.
std::uint64_t carried(const Rails& rails, const std::string& ip) {
  std::uint64_t bytes = 0;
  for (const int fd : rails.sockets(ip)) bytes += progress_of(fd)->acknowledged_bytes;
  return bytes;
}

TEST(TcpDivision, LargePutsTakeTheNetworksThatTheyAreToldAndOthersWhereThoseAreAway) {
  Rails rails(kTwo);
  ASSERT_NO_FATAL_FAILURE(rails.all(8));
  EXPECT_TRUE(rails.from->joined_by(""));
  EXPECT_TRUE(rails.from->joined_by("127.0.0.0/8"));
  EXPECT_FALSE(rails.from->joined_by("10.0.0.0/8"));
  const auto told = [&](const NetworkShares& shares) {
    const auto both = std::make_shared<const NetworkShares>(shares);
    rails.from->divide(both);
    rails.to->divide(both);
  };
  int puts = 8;
  const auto more = [&](const char* ip, const char* other) {
    const std::uint64_t before = carried(rails, ip), before_other = carried(rails, other);
    puts += 60;
    rails.all(puts);
    return std::pair(carried(rails, ip) - before, carried(rails, other) - before_other);
  };
  // Small puts take the first path, whatever is said.
  told({{.network = "127.0.0.0/8", .share = 1}});
  const auto [second, first] = more("127.0.0.2", "127.0.0.1");
  EXPECT_GT(second, 10 * first);
  told({{.network = "", .share = 1}});
  const auto [one, other] = more("127.0.0.1", "127.0.0.2");
  EXPECT_GT(one, 10 * other);
  told({{.network = "", .share = 0.5}, {.network = "127.0.0.0/8", .share = 0.5}});
  const auto [half, rest] = more("127.0.0.1", "127.0.0.2");
  EXPECT_LT(half, 2 * rest);
  EXPECT_LT(rest, 2 * half);
  // A network that does not join the two; then one whose path is away.
  told({{.network = "10.0.0.0/8", .share = 1}});
  ASSERT_NO_FATAL_FAILURE(rails.all(puts += 20));
  told({{.network = "127.0.0.0/8", .share = 1}});
  for (const int fd : rails.sockets("127.0.0.2")) ::shutdown(fd, SHUT_RDWR);
  ASSERT_NO_FATAL_FAILURE(rails.all(puts += 20));
}

TEST(TcpFailover, APathThatIsResetLosesNothingAndIsUsedAgain) {
  for (const std::string ip : {"127.0.0.2", "127.0.0.1"}) {
    for (const bool of_low : {true, false}) {
      Rails rails(kTwo);
      ASSERT_NO_FATAL_FAILURE(rails.until(20, 200));
      const std::vector<int> fds = rails.sockets(ip);
      ASSERT_EQ(fds.size(), ip == "127.0.0.2" ? 2u : 4u);
      ::shutdown(of_low ? fds.front() : fds.back(), SHUT_RDWR);
      ASSERT_NO_FATAL_FAILURE(rails.all(200));
      int puts = 200;
      ASSERT_NO_FATAL_FAILURE(rails.await_use(ip, fds.size() / 2, puts));
      ASSERT_NO_FATAL_FAILURE(rails.all(puts));
    }
  }
}

TEST(TcpFailover, APathThatDropsAllInSilenceLosesNothingAndIsUsedAgain) {
  for (const std::string ip : {"127.0.0.2", "127.0.0.1"}) {
    for (const int deaf : {1, 2, 3}) {  // one end, the other, both
      Rails rails(kTwo);
      ASSERT_NO_FATAL_FAILURE(rails.until(20, 400));
      const std::vector<int> fds = rails.sockets(ip);
      for (std::size_t i = 0; i < fds.size(); ++i) {
        if ((i < fds.size() / 2 ? deaf & 1 : deaf & 2) != 0) make_deaf(fds[i]);
      }
      ASSERT_NO_FATAL_FAILURE(rails.all(400));
      int puts = 400;
      // Made anew: the old sockets hear nothing ever after.
      ASSERT_NO_FATAL_FAILURE(rails.await_use(ip, fds.size() / 2, puts));
      ASSERT_NO_FATAL_FAILURE(rails.all(puts));
    }
  }
}

TEST(TcpFailover, OnePathOfThreeIsEnough) {
  Rails rails(kThree);
  ASSERT_NO_FATAL_FAILURE(rails.until(20, 300));
  for (const int fd : rails.sockets("127.0.0.1")) make_deaf(fd);
  for (const int fd : rails.sockets("127.0.0.3")) ::shutdown(fd, SHUT_RDWR);
  ASSERT_NO_FATAL_FAILURE(rails.all(300));
}

TEST(TcpFailover, WhatIsSentAgainMayBeLostAgain) {
  Rails rails(kThree, 5);
  std::set<std::uint64_t> spoilt;
  int puts = 60;
  for (int round = 0; round < 12; ++round) {
    ASSERT_NO_FATAL_FAILURE(rails.until(puts - 40, puts));
    const std::string ip = fmt::format("127.0.0.{}", 1 + round % 3);
    // The last one is not to be taken: another stands, or is waited for.
    const auto another = [&] {
      for (int other = 1; other <= 3; ++other) {
        const std::string name = fmt::format("127.0.0.{}", other);
        const std::vector<int> fds = rails.sockets(name);
        if (name == ip || fds.size() != (other == 1 ? 4u : 2u)) continue;
        if (std::ranges::none_of(fds, [&](int fd) { return spoilt.contains(cookie(fd)); })) {
          return true;
        }
      }
      return false;
    };
    while (!another()) ASSERT_NO_FATAL_FAILURE(rails.advance(++puts));
    for (const int fd : rails.sockets(ip)) spoilt.insert(cookie(fd));
    const std::vector<int> fds = rails.sockets(ip);
    if (round % 2 == 0) {
      if (!fds.empty()) ::shutdown(fds[fds.size() / 2], SHUT_RDWR);
    } else {
      for (const int fd : fds) make_deaf(fd);
    }
    puts += 40;
  }
  ASSERT_NO_FATAL_FAILURE(rails.all(puts));
}

TEST(TcpFailover, APeerThatDoesNotReadIsNoLostPath) {
  const auto bytes = pattern(kSlot, 3);
  Rails rails(kTwo);
  ASSERT_NO_FATAL_FAILURE(rails.all(20));
  const std::vector<int> before = rails.sockets("127.0.0.2");
  // More than the sockets take: windows close, and only probes are answered.
  std::uint64_t made = 0;
  const auto end = Clock::now() + 1500ms;
  while (Clock::now() < end) {
    for (ChannelId c = 0; c < kChannels; ++c) {
      if (made < kChannels * kOutstanding && rails.from->try_put(bytes, 0, c, 0)) ++made;
    }
    static_cast<void>(rails.from->progress());
    ::sched_yield();
  }
  EXPECT_EQ(rails.sockets("127.0.0.2"), before);
}

TEST(TcpFailover, TheLastPathTakesTheLinkWithItAndIsNamed) {
  Rails rails(kTwo);
  ASSERT_NO_FATAL_FAILURE(rails.until(20, 100));
  for (const char* ip : {"127.0.0.1", "127.0.0.2"}) {
    for (const int fd : rails.sockets(ip)) ::shutdown(fd, SHUT_RDWR);
  }
  std::string words;
  try {
    for (int i = 0; i < 100'000; ++i) static_cast<void>(rails.from->progress());
  } catch (const LinkError& error) {
    words = error.what();
  }
  EXPECT_THAT(words, HasSubstr("rank 0: tcp: rank 1 at 127.0.0.1:"));
  EXPECT_THAT(words, HasSubstr("(from 127.0.0."));
}

TEST(TcpFailover, AnEndThatLeavesWhileAPathIsDownLosesNothing) {
  const auto bytes = pattern(1000, 3);
  Rails rails(kTwo);
  ASSERT_NO_FATAL_FAILURE(rails.all(20));
  for (const int fd : rails.sockets("127.0.0.1")) make_deaf(fd);
  const std::uint64_t before = rails.to->arrivals(0);
  while (!rails.from->try_put(bytes, 0, 0, 77)) static_cast<void>(rails.from->progress());
  static_cast<void>(rails.from->flush());
  std::jthread other([&] {
    while (rails.to->arrivals(0) == before && Clock::now() < rails.deadline) {
      static_cast<void>(rails.to->progress());
    }
    while (!rails.to->progress() && Clock::now() < rails.deadline) ::sched_yield();
  });
  // Long enough for the loss to be seen; then it leaves in order.
  const auto end = Clock::now() + 700ms;
  while (Clock::now() < end) static_cast<void>(rails.from->progress());
  rails.from.reset();
  other.join();
  EXPECT_EQ(rails.to->arrivals(0), before + 1);
}

/// A member that connects as rank 0, by both paths, and says what it likes.
struct Member {
  Member() : high(make(1, kTwo)), low(make(0, kTwo)), link(high->connect(0, low->address())) {
    for (std::uint32_t i = 0; i < 3; ++i) connect(i, 0);
    const TcpPaths paths{.sockets = 7};
    send(0, &paths, sizeof paths);
  }
  void connect(std::uint32_t socket, std::uint32_t incarnation) {
    const TcpAddress address = *TcpAddress::parse(high->address());
    const Endpoint endpoint =
        socket < 2 ? Endpoint::from(address) : Endpoint::from(address.rails[0]);
    Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), endpoint.address(), endpoint.size()), 0);
    TcpHello hello{.peer = 1, .socket = socket, .incarnation = incarnation};
    const Secret secret = Secret::parse("00112233445566778899aabbccddeeff").derive("tcp");
    hello.proof = hello_proof(secret, address.nonce, hello);
    ASSERT_EQ(::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL), ssize_t{sizeof hello});
    if (sockets.size() <= socket) sockets.resize(socket + 1);
    sockets[socket] = std::move(fd);
  }
  void send(std::size_t socket, const void* bytes, std::size_t size) const {
    ASSERT_EQ(::send(sockets[socket].get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  void send(std::size_t socket, const TcpFrame& frame) const { send(socket, &frame, sizeof frame); }
  /// What the other end says before it is patient no longer.
  std::string complaint() const {
    try {
      for (int i = 0; i < 2000; ++i) {
        high->progress();
        static_cast<void>(link->progress());
        std::this_thread::sleep_for(1ms);
      }
    } catch (const LinkError& error) {
      return error.what();
    }
    return "none";
  }
  /// The next frame of `magic` that it sends on `socket`.
  std::optional<TcpFrame> next(std::size_t socket, std::uint16_t magic) const {
    for (int i = 0; i < 5000; ++i) {
      high->progress();
      static_cast<void>(link->progress());
      TcpFrame frame;
      const ssize_t got = ::recv(sockets[socket].get(), &frame, sizeof frame, MSG_DONTWAIT);
      if (got == ssize_t{sizeof frame} && frame.magic == magic) return frame;
      if (got <= 0) std::this_thread::sleep_for(1ms);
    }
    return std::nullopt;
  }

  std::unique_ptr<Transport> high, low;
  std::unique_ptr<Link> link;
  std::vector<Fd> sockets;
};

TcpFrame word_of_loss(std::uint32_t socket, std::uint32_t incarnation) {
  return {.magic = TcpFrame::kLost, .tag = socket, .sequence = incarnation, .pieces = 0};
}

TcpFrame count_of(std::uint32_t socket, std::uint64_t frames) {
  TcpFrame frame = word_of_loss(socket, 0);
  frame.channel = 1;
  frame.offset = frames;
  return frame;
}

/// Skips the welcomes.
void hear_welcomes(const Member& member) {
  for (const Fd& fd : member.sockets) {
    TcpWelcome welcome;
    ssize_t got = -1;
    for (int i = 0; i < 5000 && got < 0; ++i) {
      member.high->progress();
      static_cast<void>(member.link->progress());
      got = ::recv(fd.get(), &welcome, sizeof welcome, MSG_DONTWAIT);
      if (got < 0) std::this_thread::sleep_for(1ms);
    }
    ASSERT_EQ(got, ssize_t{sizeof welcome});
  }
}

TEST(TcpFailover, LiesAboutLossesEndTheLink) {
  TcpFrame long_word = word_of_loss(2, 0);
  long_word.length = 8;
  TcpFrame odd = word_of_loss(2, 0);
  odd.channel = 2;
  const std::pair<TcpFrame, const char*> lies[] = {
      {word_of_loss(3, 0), "a socket that does not exist"},
      {odd, "a socket that does not exist"},
      {word_of_loss(2, 5), "a lost connection that never was"},
      {count_of(2, 1), "a count of frames that cannot have come"},
      {long_word, "word of a lost path with bytes behind it"}};
  for (const auto& [frame, complaint] : lies) {
    const Member member;
    member.send(0, frame);
    EXPECT_THAT(member.complaint(), HasSubstr(complaint));
  }
}

TEST(TcpFailover, APutThatIsSentTwiceOrWithAWrongNumberIsALie) {
  const TcpFrame signal{.tag = 9};
  TcpFrame other = signal;
  {
    const Member member;
    member.send(0, signal);
    member.send(2, signal);
    EXPECT_THAT(member.complaint(), HasSubstr("a put that has arrived before"));
  }
  other.pieces = 2;
  {  // the same piece by both paths, as if one had been lost
    const Member member;
    member.send(0, other);
    other.tag = 8;
    member.send(2, other);
    EXPECT_THAT(member.complaint(), HasSubstr("do not fit together"));
  }
}

TEST(TcpFailover, HalfAPutIsForgottenAndItsSecondComingCountsOnce) {
  const Member member;
  ASSERT_NO_FATAL_FAILURE(hear_welcomes(member));
  const auto bytes = pattern(50'000, 4);
  const TcpFrame first{.tag = 1};
  const TcpFrame frame{.tag = 7, .offset = 64, .length = bytes.size(), .sequence = 1};
  member.send(2, first);
  member.send(2, frame);
  member.send(2, bytes.data(), 20'000);
  member.send(0, word_of_loss(2, 0));
  // First that it has lost it too, then how much had come.
  const auto lost = member.next(0, TcpFrame::kLost);
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->tag, 2u);
  EXPECT_EQ(lost->channel, 0);
  const auto count = member.next(0, TcpFrame::kLost);
  ASSERT_TRUE(count.has_value());
  EXPECT_EQ(count->channel, 1);
  EXPECT_EQ(count->offset, 1u) << "the first put came whole";
  EXPECT_EQ(member.link->arrivals(0), 1u);
  member.send(0, count_of(2, 0));
  member.send(1, frame);
  member.send(1, bytes.data(), bytes.size());
  for (int i = 0; i < 5000 && member.link->arrivals(0) < 2; ++i) {
    static_cast<void>(member.link->progress());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(member.link->arrivals(0), 2u);
  EXPECT_EQ(std::memcmp(member.link->region().data() + 64, bytes.data(), bytes.size()), 0);
}

}  // namespace
}  // namespace chorus::testing
