// Which paths a link over several cables has, and who carries what.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>

#include "ends.hpp"
#include "transports/tcp/paths.hpp"

namespace chorus::testing {
namespace {

Rail rail(const std::string& interface, const std::string& ip, int prefix) {
  Rail rail{.interface = interface, .address = {}, .prefix = prefix};
  EXPECT_TRUE(Endpoint::parse(ip, rail.address)) << ip;
  rail.address.set_port(7);
  return rail;
}

TcpAddress published(const std::vector<Rail>& rails) {
  TcpAddress address;
  address.magic = TcpAddress::kMagic;
  address.num_sockets = 2;
  rails.front().address.fill(address);
  address.prefix = static_cast<std::uint16_t>(rails.front().prefix);
  address.num_rails = static_cast<std::uint16_t>(rails.size() - 1);
  for (std::size_t i = 1; i < rails.size(); ++i) {
    rails[i].address.fill(address.rails[i - 1]);
    address.rails[i - 1].prefix = static_cast<std::uint16_t>(rails[i].prefix);
  }
  return address;
}

/// "10.0.0.1-10.0.0.2 10.1.0.1-10.1.0.2", as the lower rank has them; the higher one agrees.
std::string paths(const std::vector<Rail>& low, const std::vector<Rail>& high, int sockets = 2,
                  bool same_network = false) {
  const auto of_low = paths_between(low, published(high), sockets, same_network, true);
  const auto of_high = paths_between(high, published(low), sockets, same_network, false);
  std::string text;
  EXPECT_EQ(of_low.size(), of_high.size());
  for (std::size_t i = 0; i < of_low.size(); ++i) {
    EXPECT_TRUE(of_low[i].own.same_ip(of_high[i].peer));
    EXPECT_TRUE(of_low[i].peer.same_ip(of_high[i].own));
    EXPECT_EQ(of_low[i].first_socket, of_high[i].first_socket);
    EXPECT_EQ(of_low[i].num_sockets, of_high[i].num_sockets);
    text += fmt::format("{}{}-{}", i == 0 ? "" : " ", of_low[i].own.ip_text(),
                        of_low[i].peer.ip_text());
  }
  return text;
}

TEST(TcpPaths, JoinInterfacesOfOneNetwork) {
  const Rail a0 = rail("eth0", "10.0.0.1", 24), a1 = rail("eth1", "10.1.0.1", 24);
  const Rail b0 = rail("eth0", "10.0.0.2", 24), b1 = rail("eth1", "10.1.0.2", 24);
  EXPECT_EQ(paths({a0}, {b0}), "10.0.0.1-10.0.0.2");
  EXPECT_EQ(paths({a0, a1}, {b0}), "10.0.0.1-10.0.0.2");
  EXPECT_EQ(paths({a0, a1}, {b0, b1}), "10.0.0.1-10.0.0.2 10.1.0.1-10.1.0.2");
  // In whatever order the others are listed.
  const Rail a2 = rail("eth2", "10.2.0.1", 24), b2 = rail("eth2", "10.2.0.2", 24);
  EXPECT_EQ(paths({a0, a1, a2}, {b0, b2, b1}),
            "10.0.0.1-10.0.0.2 10.1.0.1-10.1.0.2 10.2.0.1-10.2.0.2");
  // Networks of other sizes are others.
  EXPECT_EQ(paths({a0, a1}, {b0, rail("eth1", "10.1.0.2", 16)}), "10.0.0.1-10.0.0.2");
  EXPECT_EQ(paths({a0, rail("eth1", "10.1.0.1", 30)}, {b0, rail("eth1", "10.1.0.5", 30)}),
            "10.0.0.1-10.0.0.2");
  EXPECT_EQ(paths({a0, rail("eth1", "fd00::1", 64)}, {b0, rail("eth1", "fd00::2", 64)}),
            "10.0.0.1-10.0.0.2 fd00::1-fd00::2");
  EXPECT_EQ(paths({a0, rail("eth1", "fd00::1", 64)}, {b0, rail("eth1", "fd00:0:0:1::2", 64)}),
            "10.0.0.1-10.0.0.2");
}

TEST(TcpPaths, UseEachInterfaceOnceAndNoneThatIsOnBothHosts) {
  const Rail a0 = rail("eth0", "10.0.0.1", 24), b0 = rail("eth0", "10.0.0.2", 24);
  // Three interfaces meet two in one network.
  EXPECT_EQ(paths({a0, rail("a1", "10.1.0.1", 24), rail("a2", "10.1.0.2", 24)},
                  {b0, rail("b1", "10.1.0.11", 24)}),
            "10.0.0.1-10.0.0.2 10.1.0.1-10.1.0.11");
  // The private network of each host's guests.
  EXPECT_EQ(paths({a0, rail("br0", "172.17.0.1", 16)}, {b0, rail("br0", "172.17.0.1", 16)}),
            "10.0.0.1-10.0.0.2");
  // Two ranks of one host share its cables.
  EXPECT_EQ(paths({a0, rail("eth1", "10.1.0.1", 24)}, {a0, rail("eth1", "10.1.0.1", 24)}, 2, true),
            "10.0.0.1-10.0.0.1");
}

TEST(TcpPaths, HaveAsManySocketsAsTheFirstHasForDataAndFitIntoALink) {
  std::vector<Rail> low, high;
  for (int i = 0; i < kMaxTcpRails; ++i) {
    low.push_back(rail(fmt::format("a{}", i), fmt::format("10.{}.0.1", i), 24));
    high.push_back(rail(fmt::format("b{}", i), fmt::format("10.{}.0.2", i), 24));
  }
  for (const int sockets : {1, 2, 3, kMaxTcpSockets}) {
    const auto all = paths_between(low, published(high), sockets, false, true);
    ASSERT_EQ(all.size(), low.size());
    EXPECT_EQ(all[0].num_sockets, sockets);
    int next = 0;
    for (const TcpPath& path : all) {
      EXPECT_EQ(path.first_socket, next);
      next += path.num_sockets;
      EXPECT_GE(path.num_sockets, 1);
    }
    EXPECT_LE(next, kMaxLinkSockets);
    if (sockets < 8) {
      EXPECT_EQ(all[1].num_sockets, std::max(1, sockets - 1));
    }
  }
}

TEST(TcpPaths, AnAddressWithImpossibleRailsIsNone) {
  const TcpAddress good = published({rail("a", "10.0.0.1", 24), rail("b", "10.1.0.1", 24)});
  EXPECT_TRUE(TcpAddress::parse(good.bytes()).has_value());
  TcpAddress bad = good;
  bad.num_rails = kMaxTcpRails;
  EXPECT_FALSE(TcpAddress::parse(bad.bytes()).has_value());
  bad = good;
  bad.rails[0].version = 5;
  EXPECT_FALSE(TcpAddress::parse(bad.bytes()).has_value());
  bad = good;
  bad.rails[0].prefix = 33;
  EXPECT_FALSE(TcpAddress::parse(bad.bytes()).has_value());
  bad = good;
  bad.prefix = 200;
  EXPECT_FALSE(TcpAddress::parse(bad.bytes()).has_value());
}

TEST(TcpInterfaces, ThatAreNamedAreUsedInTheirOrderAndOnce) {
  const auto rails = resolve_rails("127.0.0.9,lo,127.0.0.1", false);
  ASSERT_EQ(rails.size(), 2u);  // lo is 127.0.0.1
  EXPECT_EQ(rails[0].address.ip_text(), "127.0.0.9");
  EXPECT_EQ(rails[1].address.ip_text(), "127.0.0.1");
  EXPECT_EQ(rails[1].interface, "lo");
  EXPECT_EQ(resolve_interface("127.0.0.9,lo").ip_text(), "127.0.0.9");
  EXPECT_EQ(resolve_rails("", true).size(), 1u) << "a job on loopback needs no cable";
  EXPECT_EQ(resolve_rails("lo", true).size(), 1u);
  EXPECT_THROW((void)resolve_rails("lo,no-such-if0", false), InputError);
  std::string many = "127.0.0.1";
  for (int i = 2; i <= kMaxTcpRails + 1; ++i) many += fmt::format(",127.0.0.{}", i);
  EXPECT_THROW((void)resolve_rails(many, false), InputError);
}

TEST(ShareOut, GivesEachStreamWhatItCarriesByItsRate) {
  std::vector<StreamLoad> streams = {{.bytes_per_s = 3e8, .has_room = true},
                                     {.bytes_per_s = 1e8, .has_room = true}};
  std::size_t given[2] = {};
  for (std::size_t left = 1 << 24; left > 0; left -= 1 << 16) {
    const auto chosen = share_out(streams, 1 << 16, left);
    ASSERT_TRUE(chosen.has_value());
    streams[*chosen].backlog_bytes += 1 << 16;
    given[*chosen] += 1 << 16;
  }
  EXPECT_NEAR(static_cast<double>(given[0]) / static_cast<double>(given[1]), 3, 0.1);
}

TEST(ShareOut, GivesLittleToTheFastest) {
  const std::vector<StreamLoad> streams = {{.bytes_per_s = 1e7, .has_room = true},
                                           {.bytes_per_s = 1e8, .has_room = true}};
  EXPECT_EQ(share_out(streams, 1 << 16, 1 << 16), 1u);
}

TEST(ShareOut, WaitsForTheFastestRatherThanBindItselfToASlowOne) {
  std::vector<StreamLoad> streams = {{.bytes_per_s = 1e6, .has_room = true},
                                     {.bytes_per_s = 1e8, .backlog_bytes = 1 << 16}};
  EXPECT_EQ(share_out(streams, 1 << 16, 1 << 17), std::nullopt);
  // Unless there is so much to do that even the slow one would be done before the end.
  EXPECT_EQ(share_out(streams, 1 << 16, 1 << 24), 0u);
  // It has to be idle for that.
  streams[0].backlog_bytes = 1 << 17;
  EXPECT_EQ(share_out(streams, 1 << 16, 1 << 24), std::nullopt);
}

TEST(ShareOut, TakesStreamsOfUnknownRateForLikeTheOthers) {
  std::vector<StreamLoad> streams = {{.has_room = true}, {.has_room = true}};
  streams[0].backlog_bytes = 100;
  EXPECT_EQ(share_out(streams, 1000, 1000), 1u);
  streams[0].bytes_per_s = 1e9;
  EXPECT_EQ(share_out(streams, 1000, 1000), 1u);
  streams[1].has_room = false;
  streams[1].backlog_bytes = 5000;
  EXPECT_EQ(share_out(streams, 1000, 1000), 0u);
}

/// A stream's rate, told of by a kernel.
struct Told {
  StreamRate rate;
  std::uint64_t bytes = 0;

  void loaded(std::uint64_t bytes_per_s, std::size_t backlog = 1 << 20) {
    rate.sample({.acknowledged_bytes = bytes += 1000,
                 .last_bytes_per_s = bytes_per_s,
                 .had_enough_to_send = true},
                backlog);
  }
  void short_of_work(std::uint64_t bytes_per_s) {
    rate.sample({.acknowledged_bytes = bytes += 1000, .last_bytes_per_s = bytes_per_s}, 1 << 20);
  }
};

TEST(StreamRate, SettlesOnWhatTheKernelTellsMoreThanOnce) {
  Told told;
  EXPECT_EQ(told.rate.bytes_per_s(), 0);
  told.loaded(500'000'000);  // a bucket let it through
  EXPECT_EQ(told.rate.bytes_per_s(), 5e8) << "better than nothing";
  EXPECT_EQ(told.rate.steady_bytes_per_s(), 0);
  for (int i = 0; i < 30; ++i) told.loaded(20'000'000);
  EXPECT_NEAR(told.rate.steady_bytes_per_s(), 20e6, 1e6);
  told.loaded(500'000'000);
  EXPECT_LT(told.rate.bytes_per_s(), 30e6) << "once is not enough";
  for (int i = 0; i < 30; ++i) told.loaded(60'000'000);
  EXPECT_NEAR(told.rate.bytes_per_s(), 60e6, 2e6);
  told.bytes -= 1000;  // what it says again counts for nothing
  const double before = told.rate.bytes_per_s();
  told.loaded(1'000'000);
  EXPECT_EQ(told.rate.bytes_per_s(), before);
}

TEST(StreamRate, OfAStreamWithLittleToDoIsTheLeastThatItCanDo) {
  Told told;
  told.short_of_work(30'000);  // its last bytes waited for their acknowledgement
  told.loaded(30'000, 24);
  EXPECT_EQ(told.rate.bytes_per_s(), 0) << "unknown, rather than that";
  told.loaded(20'000'000);
  told.short_of_work(30'000);
  told.loaded(30'000, 24);
  EXPECT_EQ(told.rate.bytes_per_s(), 20e6);
  for (int i = 0; i < 200; ++i) told.short_of_work(50'000'000);
  EXPECT_NEAR(told.rate.bytes_per_s(), 50e6, 2e6);
}

TEST(StreamRate, OfAStreamThatIsNotUsedIsDoubtedWithinLimits) {
  Told told;
  told.loaded(1'000'000);
  for (int i = 0; i < 100; ++i) told.rate.passed_over();
  EXPECT_NEAR(told.rate.bytes_per_s(), 2e6, 1);
  EXPECT_LE(told.rate.steady_bytes_per_s(), 1e6);
  told.loaded(1'000'000);
  EXPECT_NEAR(told.rate.bytes_per_s(), 1e6, 1);
}

/// A link over two addresses of loopback in this thread, and what goes wrong while it is made.
struct RailEnds {
  explicit RailEnds(int low_sockets = 2, int high_sockets = 2)
      : low(make(0, low_sockets)), high(make(1, high_sockets)) {}
  static std::unique_ptr<Transport> make(Rank rank, int sockets) {
    const Way way{"tcp", "127.0.0.1,127.0.0.2", false, "rails"};
    TransportContext context =
        context_for(way, {.region_bytes = 1 << 20, .max_outstanding = 4}, rank);
    context.tcp_sockets = sockets;
    return make_transport("tcp", context);
  }
  void expect_a_put_arrives(Link& from, Link& to) const {
    const auto bytes = pattern(1 << 20, 3);
    const auto deadline = Clock::now() + 20s;
    bool sent = false;
    while (to.arrivals(0) == 0) {
      ASSERT_LT(Clock::now(), deadline);
      sent = sent || from.try_put(bytes, 0, 0, 5);
      static_cast<void>(from.progress());
      static_cast<void>(to.progress());
    }
    EXPECT_EQ(std::memcmp(to.region().data(), bytes.data(), bytes.size()), 0);
  }
  [[nodiscard]] TcpAddress address() const { return *TcpAddress::parse(high->address()); }

  std::unique_ptr<Transport> low, high;
};

std::vector<std::byte> bytes_of(const TcpAddress& address) {
  return {address.bytes().begin(), address.bytes().end()};
}

TEST(DividedOut, GoesByThePathThatIsMostBehindItsShare) {
  const std::vector<StreamLoad> streams(3, {.bytes_per_s = 1e8, .has_room = true});
  const std::vector<std::size_t> path_of_stream = {0, 1, 2};
  std::vector<PathShare> paths = {{.share = 0.75}, {.share = 0}, {.share = 0.25}};
  for (int piece = 0; piece < 400; ++piece) {
    const auto chosen = divided_out(streams, path_of_stream, paths, 16384, 1 << 20);
    ASSERT_TRUE(chosen);
    paths[*chosen].given_bytes += 16384;
  }
  EXPECT_NEAR(paths[0].given_bytes, 300 * 16384, 2 * 16384);
  EXPECT_EQ(paths[1].given_bytes, 0);
  EXPECT_NEAR(paths[2].given_bytes, 100 * 16384, 2 * 16384);
}

TEST(DividedOut, WaitsForAPathThatIsFarBehind) {
  std::vector<StreamLoad> streams = {{.has_room = false}, {.has_room = true}};
  const std::vector<std::size_t> path_of_stream = {0, 1};
  std::vector<PathShare> paths = {{.share = 0.5}, {.share = 0.5}};
  const auto chosen = [&] { return divided_out(streams, path_of_stream, paths, 4096, 4 << 20); };
  int ahead = 0;
  for (; chosen() == 1U && ahead < 1000; ++ahead) paths[1].given_bytes += 4096;
  EXPECT_GT(ahead, 10) << "a pause of one path is no pause of the other";
  EXPECT_LT(ahead, 100);
  streams[0].has_room = true;
  EXPECT_EQ(chosen(), 0U);
}

TEST(DividedOut, LeavesOutASlowPathThatWouldBeTheLast) {
  const std::vector<StreamLoad> idle = {{.has_room = true}, {.has_room = true}};
  const std::vector<StreamLoad> fast_is_full = {{.has_room = false}, {.has_room = true}};
  const std::vector<std::size_t> path_of_stream = {0, 1};
  std::vector<PathShare> paths = {{.share = 0.9}, {.share = 0.1}};
  // The slow one would need as long for a piece as the fast one for nine.
  for (int waiting = 4; waiting > 0; --waiting) {
    const std::size_t bytes = static_cast<std::size_t>(waiting) * 16384;
    EXPECT_EQ(divided_out(fast_is_full, path_of_stream, paths, 16384, bytes), std::nullopt);
    const auto chosen = divided_out(idle, path_of_stream, paths, 16384, bytes);
    ASSERT_EQ(chosen, 0U) << waiting;
    paths[*chosen].given_bytes += 16384;
  }
  paths[0].given_bytes = 0;
  EXPECT_EQ(divided_out(fast_is_full, path_of_stream, paths, 16384, 20 * 16384), 1U)
      << "of a long message it carries its part";
}

TEST(DividedOut, GivesASlowPathItsPartAlsoOfMessagesThatComeOneByOne) {
  const std::vector<StreamLoad> idle = {{.has_room = true}, {.has_room = true}};
  const std::vector<std::size_t> path_of_stream = {0, 1};
  std::vector<PathShare> paths = {{.share = 0.9}, {.share = 0.1}};
  for (int message = 0; message < 1000; ++message) {
    const auto chosen = divided_out(idle, path_of_stream, paths, 16384, 16384);
    ASSERT_TRUE(chosen);
    paths[*chosen].given_bytes += 16384;
  }
  EXPECT_NEAR(paths[1].given_bytes, 100 * 16384, 2 * 16384);
}

TEST(PathOfWhole, IsTheFastestUntilItHasMuchToCarry) {
  std::vector<PathShare> paths = {{.share = 0.9}, {.share = 0}, {.share = 0.1}};
  for (int message = 0; message < 1000; ++message) {
    const auto path = path_of_whole(paths, 4096);
    ASSERT_TRUE(path);
    if (message < 8) {
      EXPECT_EQ(path, 0U) << message;
    }
    paths[*path].given_bytes += 4096;
  }
  EXPECT_NEAR(paths[0].given_bytes, 900 * 4096, 2 * 4096);
  EXPECT_EQ(paths[1].given_bytes, 0);
  EXPECT_EQ(path_of_whole({}, 4096), std::nullopt);
}

TEST(TcpRails, CarryPutsWhateverTheNumberOfSockets) {
  for (const auto& [low, high] :
       {std::pair(1, 1), std::pair(1, 3), std::pair(4, 3), std::pair(16, 16)}) {
    const RailEnds ends(low, high);
    const auto from = ends.low->connect(1, ends.high->address());
    const auto to = ends.high->connect(0, ends.low->address());
    ends.expect_a_put_arrives(*from, *to);
    ends.expect_a_put_arrives(*to, *from);
  }
}

TEST(TcpRails, APathWhereNobodyListensIsLeftOut) {
  const RailEnds ends;
  TcpAddress address = ends.address();
  const Fd gone = listen_on(resolve_interface("127.0.0.2"));
  address.rails[0].port = Endpoint::bound(gone.get()).port();
  ::shutdown(gone.get(), SHUT_RDWR);  // the port is taken, and refuses
  const auto from = ends.low->connect(1, bytes_of(address));
  const auto to = ends.high->connect(0, ends.low->address());
  const auto begin = Clock::now();
  ends.expect_a_put_arrives(*from, *to);
  EXPECT_LT(Clock::now() - begin, 10s);
}

TEST(TcpRails, APathOnWhichAStrangerListensIsLeftOut) {
  const RailEnds ends;
  TcpAddress address = ends.address();
  const Fd unauthenticated = listen_on(resolve_interface("127.0.0.2"));
  address.rails[0].port = Endpoint::bound(unauthenticated.get()).port();
  const auto from = ends.low->connect(1, bytes_of(address));
  const auto to = ends.high->connect(0, ends.low->address());
  ends.expect_a_put_arrives(*from, *to);
  const Fd caught(::accept4(unauthenticated.get(), nullptr, nullptr, SOCK_NONBLOCK));
  std::byte heard[4096] = {};
  EXPECT_LE(::recv(caught.get(), heard, sizeof heard, MSG_DONTWAIT),
            static_cast<ssize_t>(sizeof(TcpHello)))
      << "nothing but the hello";
}

/// A member that connects as rank 0 to a rank with two addresses, and lies about its paths.
TEST(TcpRails, LiesAboutPathsEndTheLink) {
  struct Lie {
    TcpPaths paths;
    bool cut = false;
    const char* complaint;
  };
  const std::vector<Lie> lies = {
      {{.magic = 1, .sockets = 7}, false, "paths that do not exist"},
      {{.sockets = 6}, false, "paths that do not exist"},  // the first path is missing
      {{.sockets = 7}, false, "paths that do not exist"},  // the second has not connected
      {{.sockets = 1}, false, "paths that do not exist"},  // half of the first
      {{.sockets = 11}, false, "paths that do not exist"},
      {{.sockets = 3}, true, "without a goodbye"}};
  for (const Lie& lie : lies) {
    const RailEnds ends;
    const auto link = ends.high->connect(0, ends.low->address());
    std::vector<Fd> sockets;
    const Endpoint endpoint = Endpoint::from(ends.address());
    const Secret secret = Secret::parse("00112233445566778899aabbccddeeff").derive("tcp");
    for (std::uint32_t i = 0; i < 2; ++i) {
      Fd& fd = sockets.emplace_back(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(::connect(fd.get(), endpoint.address(), endpoint.size()), 0);
      TcpHello hello;
      hello.peer = 1;
      hello.socket = i;
      hello.proof = hello_proof(secret, ends.address().nonce, hello);
      ASSERT_EQ(::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL), ssize_t{sizeof hello});
    }
    const std::size_t bytes = lie.cut ? 5 : sizeof lie.paths;
    ASSERT_EQ(::send(sockets[0].get(), &lie.paths, bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
    if (lie.cut) ::shutdown(sockets[0].get(), SHUT_WR);
    std::string words;
    for (int i = 0; i < 2000 && words.empty(); ++i) {
      try {
        static_cast<void>(link->progress());
        std::this_thread::sleep_for(1ms);
      } catch (const LinkError& error) {
        words = error.what();
      }
    }
    EXPECT_NE(words.find(lie.complaint), std::string::npos)
        << words << ", of " << lie.paths.sockets;
  }
}

}  // namespace
}  // namespace chorus::testing
