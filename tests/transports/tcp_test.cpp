// What tcp alone has: a port that anybody can connect to, and peers that send anything.
#include <algorithm>

#include "ends.hpp"
#include "transports/tcp/endpoint.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus::testing {
namespace {

const Way kThreads{"tcp", "", false, "tcp_threads"};
const LinkConfig kConfig{.region_bytes = 8192, .num_channels = 2, .max_outstanding = 4};

std::unique_ptr<Transport> make(Rank rank, const LinkConfig& config = kConfig, int sockets = 2,
                                const std::string& interface = "") {
  TransportContext context = context_for(kThreads, config, rank);
  context.tcp_sockets = sockets;
  context.interface_name = interface;
  return make_transport("tcp", context);
}

TcpAddress parsed(const Transport& transport) { return *TcpAddress::parse(transport.address()); }

std::vector<std::byte> bytes_of(const TcpAddress& address) {
  return {address.bytes().begin(), address.bytes().end()};
}

Secret tcp_secret() { return context_for(kThreads, kConfig, 0).secret.derive("tcp"); }

/// Connects as anybody could.
Fd knock(const Transport& transport) {
  const Endpoint endpoint = Endpoint::from(parsed(transport));
  Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), endpoint.address(), endpoint.size()), 0) << std::strerror(errno);
  const timeval patience{5, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

void send_all(const Fd& fd, std::span<const std::byte> bytes) {
  ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}
template <class T>
requires std::is_trivially_copyable_v<T>
void send_all(const Fd& fd, const T& value) { send_all(fd, std::as_bytes(std::span(&value, 1))); }

TcpHello hello_of(const Transport& listener, Rank from, std::uint32_t socket) {
  TcpHello hello;
  hello.rank = from;
  hello.peer = parsed(listener).rank;
  hello.socket = socket;
  hello.nonce = Secret::random().bytes;
  hello.proof = hello_proof(tcp_secret(), parsed(listener).nonce, hello);
  return hello;
}

/// True once the transport has closed the connection (or reset it).
bool dropped(const Fd& fd, Transport& transport) {
  for (int i = 0; i < 500; ++i) {
    transport.progress();
    char byte = 0;
    const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got > 0) return false;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// Both ends of a link in this thread still come together over `listener`.
void expect_a_link_works(Transport& low, Transport& high) {
  const auto low_link = low.connect(1, high.address());
  const auto high_link = high.connect(0, low.address());
  const auto bytes = pattern(1000, 4);
  const auto deadline = Clock::now() + 20s;
  bool sent = false;
  while (high_link->arrivals(0) == 0) {
    ASSERT_LT(Clock::now(), deadline);
    static_cast<void>(low_link->progress());
    static_cast<void>(high_link->progress());
    sent = sent || low_link->try_put(bytes, 7, 0, 9);
  }
  EXPECT_EQ(std::memcmp(high_link->region().data() + 7, bytes.data(), bytes.size()), 0);
}

TEST(TcpStrangers, AreDroppedWhateverTheySay) {
  const auto low = make(0);
  const auto high = make(1);
  std::vector<TcpHello> hellos(7, hello_of(*high, 0, 0));
  hellos[0].proof[15] ^= 1;
  hellos[1].magic ^= 1;
  hellos[2].nonce[0] ^= 1;            // the proof is of another hello
  hellos[3] = hello_of(*high, 1, 0);  // the listener itself
  hellos[4] = hello_of(*high, -1, 0);
  hellos[5] = hello_of(*high, 0, 16);  // no such socket
  hellos[6] = hello_of(*low, 0, 0);    // meant for another listener
  for (std::size_t i = 0; i < hellos.size(); ++i) {
    const Fd unauthenticated = knock(*high);
    send_all(unauthenticated, hellos[i]);
    EXPECT_TRUE(dropped(unauthenticated, *high)) << "hello " << i;
  }
  const Fd browser = knock(*high);
  send_all(browser,
           std::as_bytes(std::span(std::string_view(
               "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something long\r\n\r\n"))));
  EXPECT_TRUE(dropped(browser, *high));
  expect_a_link_works(*low, *high);
}

TEST(TcpStrangers, ThatOverheardAHelloComeTooLate) {
  const auto high = make(1);
  const TcpHello hello = hello_of(*high, 0, 0);
  const Fd member = knock(*high);
  send_all(member, hello);
  TcpWelcome welcome;
  for (int i = 0; i < 1000; ++i) {
    high->progress();
    if (::recv(member.get(), &welcome, sizeof welcome, MSG_DONTWAIT) > 0) break;
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(same(welcome.proof, welcome_proof(tcp_secret(), parsed(*high).nonce, hello)));
  const Fd echo = knock(*high);
  send_all(echo, hello);
  EXPECT_TRUE(dropped(echo, *high));
}

TEST(TcpStrangers, ThatSayNothingAreBorneOnlyUpToALimit) {
  const auto low = make(0);
  const auto high = make(1);
  std::vector<Fd> crowd;
  for (int i = 0; i < 300; ++i) {
    crowd.push_back(knock(*high));
    if (i % 3 == 0) send_all(crowd.back(), std::as_bytes(std::span("half a hello", 12)));
    high->progress();
  }
  std::vector<pollfd> fds;
  high->append_wake_fds(fds);
  EXPECT_LE(fds.size(), 100u);
  expect_a_link_works(*low, *high);
  EXPECT_TRUE(dropped(crowd.front(), *high)) << "the oldest had its time";
}

TEST(TcpStrangers, WhoListenInThePeersPlaceGetNoData) {
  const auto low = make(0);
  const auto high = make(1);
  TcpAddress address = parsed(*high);
  const Fd impostor = listen_on(resolve_interface(""));
  address.port = Endpoint::bound(impostor.get()).port();
  const auto link = low->connect(1, bytes_of(address));
  Fd caught;
  std::size_t heard = 0;
  const auto until = Clock::now() + 300ms;
  while (Clock::now() < until) {
    EXPECT_FALSE(link->progress());
    EXPECT_FALSE(link->try_put({}, 0, 0, 0));
    if (!caught) caught = Fd(::accept4(impostor.get(), nullptr, nullptr, SOCK_NONBLOCK));
    std::byte bytes[256] = {};
    const ssize_t got = caught ? ::recv(caught.get(), bytes, sizeof bytes, 0) : 0;
    if (got <= 0) continue;
    heard += static_cast<std::size_t>(got);
    const TcpWelcome lie;
    send_all(caught, lie);
  }
  EXPECT_EQ(heard, sizeof(TcpHello));
}

TEST(Tcp, ConnectingGivesUpInTimeAndSaysWhy) {
  LinkConfig config = kConfig;
  config.timeout_ms = 200;
  for (const Rank rank : {0, 1}) {
    const auto self = make(rank, config);
    const auto peer = make(1 - rank, config);  // listens, and never makes progress
    const auto link = self->connect(1 - rank, peer->address());
    const auto begin = Clock::now();
    try {
      while (true) {
        static_cast<void>(link->progress());
        ASSERT_LT(Clock::now(), begin + 5s);
      }
    } catch (const LinkError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(fmt::format("rank {}: tcp: rank {} at 127.0.0.1:", rank, 1 - rank)),
                std::string::npos)
          << what;
      EXPECT_NE(what.find("no connection within 200 ms"), std::string::npos) << what;
    }
    EXPECT_GE(Clock::now() - begin, 200ms);
  }
}

TEST(Tcp, AListenerThatHasGoneIsNotedAtOnce) {
  const auto low = make(0);
  std::vector<std::byte> address;
  { address = make(1)->address(); }
  const auto link = low->connect(1, address);
  const auto begin = Clock::now();
  EXPECT_THROW(while (Clock::now() < begin + 5s) static_cast<void>(link->progress()), LinkError);
  EXPECT_LT(Clock::now() - begin, 1s);
}

/// A member that sends what it likes: connects to a rank-1 transport as rank 0, with one socket.
class TcpLiarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    link_ = honest_->connect(0, make(0, kConfig, 1)->address());
    liar_ = knock(*honest_);
    send_all(liar_, hello_of(*honest_, 0, 0));
    TcpWelcome welcome;
    for (int i = 0; i < 1000 && !link_->progress(); ++i) std::this_thread::sleep_for(1ms);
    ASSERT_EQ(::recv(liar_.get(), &welcome, sizeof welcome, MSG_WAITALL),
              static_cast<ssize_t>(sizeof welcome));
    const auto region = link_->region();
    std::fill(region.begin(), region.end(), std::byte{0xaa});
  }

  void put(const TcpFrame& frame, std::size_t payload) {
    send_all(liar_, frame);
    if (payload > 0) send_all(liar_, pattern(payload, 1));
  }

  /// Makes progress until the link complains; returns its words.
  std::string complaint() {
    for (int i = 0; i < 1000; ++i) {
      try {
        static_cast<void>(link_->progress());
      } catch (const LinkError& error) {
        return error.what();
      }
      std::this_thread::sleep_for(1ms);
    }
    return "none";
  }

  void await(std::uint64_t arrivals) {
    for (int i = 0; i < 1000 && link_->arrivals(0) < arrivals; ++i) {
      static_cast<void>(link_->progress());
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_EQ(link_->arrivals(0), arrivals);
  }

  std::unique_ptr<Transport> honest_ = make(1, kConfig, 1);
  std::unique_ptr<Link> link_;
  Fd liar_;
};

TEST_F(TcpLiarTest, ThatIsHonestForOnceIsUnderstood) {
  put({.tag = 77, .offset = 8092, .length = 100}, 100);
  await(1);
  EXPECT_EQ(link_->tag(0, 0), 77u);
  const auto bytes = pattern(100, 1);
  EXPECT_EQ(std::memcmp(link_->region().data() + 8092, bytes.data(), 100), 0);
}

TEST_F(TcpLiarTest, AFrameByteByByteIsUnderstoodToo) {
  const TcpFrame frame{.tag = 3, .length = 50};
  std::vector<std::byte> bytes(sizeof frame);
  std::memcpy(bytes.data(), &frame, sizeof frame);
  const auto payload = pattern(50, 2);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(link_->arrivals(0), 0u);
    send_all(liar_, bytes[i]);
    static_cast<void>(link_->progress());
  }
  await(1);
  EXPECT_EQ(std::memcmp(link_->region().data(), payload.data(), 50), 0);
}

TEST_F(TcpLiarTest, FillersMeanNothingWhereverTheyAre) {
  constexpr std::uint64_t kSizes[] = {0, 1, 1000, TcpFrame::kMostFiller};
  const auto nothing = pattern(TcpFrame::kMostFiller, 5);
  std::uint32_t sequence = 0;
  for (const std::uint64_t size : kSizes) {
    for (const std::size_t length : {0, 50, 8192}) {
      send_all(liar_, TcpFrame{.magic = TcpFrame::kFiller, .length = size});
      send_all(liar_, std::vector(nothing.begin(),
                                  nothing.begin() + static_cast<std::ptrdiff_t>(size / 2)));
      static_cast<void>(link_->progress());  // a part of it
      send_all(liar_, std::vector(nothing.begin() + static_cast<std::ptrdiff_t>(size / 2),
                                  nothing.begin() + static_cast<std::ptrdiff_t>(size)));
      put({.tag = sequence, .length = length, .sequence = sequence}, length);
      await(++sequence);
      EXPECT_EQ(link_->tag(0, sequence - 1), sequence - 1);
      EXPECT_EQ(std::memcmp(link_->region().data(), pattern(8192, 1).data(), length), 0);
    }
  }
}

TEST_F(TcpLiarTest, ALieAfterATruthComesAfterTheTruth) {
  put({.tag = 1}, 0);
  put({.magic = 0xdead}, 0);
  await(1);
  EXPECT_EQ(link_->tag(0, 0), 1u);
  EXPECT_NE(complaint().find("no frame"), std::string::npos);
  EXPECT_EQ(link_->arrivals(0), 1u);
}

TEST_F(TcpLiarTest, AnEndInTheMiddleOfAFrameIsADeath) {
  put({.length = 100}, 40);
  ::shutdown(liar_.get(), SHUT_WR);
  EXPECT_NE(complaint().find("without a goodbye"), std::string::npos);
  EXPECT_EQ(link_->arrivals(0), 0u);
}

TEST_F(TcpLiarTest, APostedReceiveIsFilledByteByByte) {
  std::vector<std::byte> memory(50, std::byte{0xcc});
  link_->posted_receives()->expect(0, 0, {.memory = memory, .offset = 9, .tag = 3});
  const auto payload = pattern(50, 2);
  send_all(liar_, TcpFrame{.tag = 3, .offset = 9, .length = 50});
  for (const std::byte byte : payload) {
    send_all(liar_, byte);
    static_cast<void>(link_->progress());
  }
  await(1);
  EXPECT_TRUE(link_->posted_receives()->in_place(0, 0));
  EXPECT_EQ(memory, payload);
  const auto region = link_->region();
  EXPECT_EQ(std::count(region.begin(), region.end(), std::byte{0xaa}), 8192);
}

TEST_F(TcpLiarTest, ThatDiesInTheMiddleOfAPostedReceiveLeavesItToItsOwner) {
  std::vector<std::byte> memory(100, std::byte{0xcc});
  link_->posted_receives()->expect(0, 0, {.memory = memory, .offset = 0, .tag = 3});
  put({.tag = 3, .length = 100}, 40);
  ::shutdown(liar_.get(), SHUT_WR);
  EXPECT_NE(complaint().find("without a goodbye"), std::string::npos);
  EXPECT_EQ(link_->arrivals(0), 0u);
  EXPECT_EQ(std::memcmp(memory.data(), pattern(40, 1).data(), 40), 0);
  EXPECT_EQ(std::count(memory.begin() + 40, memory.end(), std::byte{0xcc}), 60);
  link_->posted_receives()->withdraw();
  std::ranges::fill(memory, std::byte{0x55});
  EXPECT_THROW(static_cast<void>(link_->progress()), LinkError);
  EXPECT_EQ(std::ranges::count(memory, std::byte{0x55}), 100);
}

TEST_F(TcpLiarTest, APostedReceiveWithdrawnAtAnyByteGoesOnInTheRegion) {
  const auto payload = pattern(60, 2);
  for (std::size_t before = 0; before <= payload.size(); ++before) {
    std::vector<std::byte> memory(payload.size(), std::byte{0xcc});
    const auto sequence = static_cast<std::uint32_t>(before);
    link_->posted_receives()->expect(0, before, {.memory = memory, .offset = 100, .tag = 3});
    send_all(liar_, TcpFrame{.tag = 3, .offset = 100, .length = 60, .sequence = sequence});
    send_all(liar_, std::span(payload).first(before));
    static_cast<void>(link_->progress());
    link_->posted_receives()->withdraw();
    const auto kept = memory;
    send_all(liar_, std::span(payload).subspan(before));
    await(before + 1);
    EXPECT_EQ(memory, kept) << before;
    if (link_->posted_receives()->in_place(0, before)) {
      EXPECT_EQ(memory, payload) << before;
    } else {
      EXPECT_EQ(std::memcmp(link_->region().data() + 100, payload.data(), 60), 0) << before;
    }
  }
}

struct Lie {
  const char* name;
  TcpFrame frame;
  const char* complaint;
};
class TcpLieTest : public TcpLiarTest, public ::testing::WithParamInterface<Lie> {};

TEST_P(TcpLieTest, EndsTheLinkAndWritesNothing) {
  put(GetParam().frame, 64);
  const std::string words = complaint();
  EXPECT_NE(words.find(GetParam().complaint), std::string::npos) << words;
  EXPECT_NE(words.find("rank 1: tcp: rank 0 at 127.0.0.1:"), std::string::npos) << words;
  const auto region = link_->region();
  EXPECT_EQ(std::count(region.begin(), region.end(), std::byte{0xaa}), 8192);
  EXPECT_THROW(static_cast<void>(link_->try_put({}, 0, 0, 0)), LinkError);
  EXPECT_THROW(static_cast<void>(link_->progress()), LinkError);
}

constexpr std::uint64_t kHuge = UINT64_MAX;
INSTANTIATE_TEST_SUITE_P(
    Lies, TcpLieTest,
    ::testing::Values(
        Lie{"Magic", {.magic = 0x1234, .length = 8}, "no frame"},
        Lie{"Filler", {.magic = TcpFrame::kFiller, .length = 32 * 1024 + 1}, "a filler"},
        Lie{"Channel", {.channel = 2, .length = 8}, "no channel"},
        Lie{"LastChannel", {.channel = 0xffff, .length = 8}, "no channel"},
        Lie{"Length", {.length = 8193}, "outside the region"},
        Lie{"HugeLength", {.length = kHuge}, "outside the region"},
        Lie{"Offset", {.offset = 8192, .length = 1}, "outside the region"},
        Lie{"HugeOffset", {.offset = kHuge, .length = 8}, "outside the region"},
        Lie{"WrappingOffset", {.offset = kHuge - 7, .length = 16}, "outside the region"},
        Lie{"NoPieces", {.length = 8, .pieces = 0}, "too many pieces"},
        Lie{"ManyPieces", {.length = 8, .pieces = 2}, "too many pieces"},
        Lie{"Future", {.length = 8, .sequence = 1u << 20}, "out of order"},
        Lie{"Past", {.length = 8, .sequence = 0xffffffff}, "arrived before"}),
    [](const auto& lie) { return lie.param.name; });

TEST(Tcp, PiecesOfAPutMustFitTogether) {
  // Two sockets, so that a put may have two pieces.
  const auto honest = make(1);
  const auto link = honest->connect(0, make(0)->address());
  const Fd first = knock(*honest);
  const Fd second = knock(*honest);
  send_all(first, hello_of(*honest, 0, 0));
  send_all(second, hello_of(*honest, 0, 1));
  for (int i = 0; i < 1000 && !link->progress(); ++i) std::this_thread::sleep_for(1ms);
  send_all(first, TcpFrame{.tag = 1, .pieces = 2});
  send_all(first, TcpFrame{.tag = 1, .pieces = 2});  // that is all of it
  send_all(first, TcpFrame{.tag = 5, .sequence = 1, .pieces = 2});
  send_all(second, TcpFrame{.tag = 6, .sequence = 1, .pieces = 2});  // another tag
  std::string words;
  for (int i = 0; i < 1000 && words.empty(); ++i) {
    try {
      static_cast<void>(link->progress());
      std::this_thread::sleep_for(1ms);
    } catch (const LinkError& error) {
      words = error.what();
    }
  }
  EXPECT_EQ(link->arrivals(0), 1u);
  EXPECT_NE(words.find("do not fit together"), std::string::npos) << words;
}

TEST(Tcp, PiecesThatDoNotMakeUpThePostedReceiveEndTheLink) {
  const TcpFrame half{.tag = 1, .length = 50, .pieces = 2};
  std::vector<std::pair<TcpFrame, TcpFrame>> lies(3, {half, half});
  lies[0].second.offset = 51;  // reaches beyond it
  lies[1].second.offset = 50;
  lies[1].second.length = 49;  // leaves a byte out
  lies[2].first.offset = 20;
  lies[2].second.offset = UINT64_MAX - 10;
  for (const auto& [first, second] : lies) {
    const auto honest = make(1);
    const auto link = honest->connect(0, make(0)->address());
    const Fd sockets[] = {knock(*honest), knock(*honest)};
    send_all(sockets[0], hello_of(*honest, 0, 0));
    send_all(sockets[1], hello_of(*honest, 0, 1));
    for (int i = 0; i < 1000 && !link->progress(); ++i) std::this_thread::sleep_for(1ms);
    std::vector<std::byte> memory(102, std::byte{0xcc});
    link->posted_receives()->expect(0, 0, {.memory = std::span(memory).first(100), .tag = 1});
    send_all(sockets[0], first);
    send_all(sockets[0], pattern(first.length, 1));
    send_all(sockets[1], second);
    send_all(sockets[1], pattern(second.length, 1));
    const auto fails = [&] {
      for (int i = 0; i < 1000; ++i) {
        static_cast<void>(link->progress());
        std::this_thread::sleep_for(1ms);
      }
    };
    EXPECT_THROW(fails(), LinkError);
    EXPECT_EQ(link->arrivals(0), 0u);
    EXPECT_EQ(std::count(memory.begin() + 100, memory.end(), std::byte{0xcc}), 2);
  }
}

TEST(Tcp, RanksWithDifferentNumbersOfSocketsUseTheSmaller) {
  const auto low = make(0, kConfig, 5);
  const auto high = make(1, kConfig, 3);
  expect_a_link_works(*low, *high);
}

TEST(Tcp, ListensOnNothingButWhatWasAsked) {
  for (const std::string interface : {"", "lo", "127.0.0.1", "127.0.0.9"}) {
    const auto transport = make(1, kConfig, 1, interface);
    const Endpoint endpoint = Endpoint::from(parsed(*transport));
    EXPECT_TRUE(endpoint.loopback()) << endpoint.text();
    EXPECT_EQ(endpoint.ip_text(), interface == "127.0.0.9" ? interface : "127.0.0.1");
  }
  if (have_ipv6_loopback()) {
    EXPECT_EQ(Endpoint::from(parsed(*make(1, kConfig, 1, "::1"))).ip_text(), "::1");
  }
}

TEST(Tcp, AnUnknownInterfaceIsAnsweredWithThoseThatExist) {
  for (const std::string name : {"no-such-if0", "203.0.113.7", "2001:db8::77"}) {
    try {
      static_cast<void>(make(0, kConfig, 1, name));
      FAIL() << "accepted " << name;
    } catch (const InputError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(name), std::string::npos) << what;
      EXPECT_NE(what.find("lo (127.0.0.1"), std::string::npos) << what;
    }
  }
}

TEST(Tcp, AddressesThatCannotWorkSayWhy) {
  const auto self = make(0);
  const auto peer = make(1);
  EXPECT_LE(peer->address().size(), 1024u);
  EXPECT_EQ(self->why_not(peer->address()), std::nullopt);
  const auto why = [&](const std::function<void(TcpAddress&)>& change) {
    TcpAddress address = parsed(*peer);
    change(address);
    return self->why_not(bytes_of(address)).value_or("");
  };
  EXPECT_NE(why([](TcpAddress& a) { a.host.boot[0] ^= 1; }).find("another host"),
            std::string::npos);
  EXPECT_NE(why([](TcpAddress& a) { a.version = 6; }).find("IPv6"), std::string::npos);
  EXPECT_NE(why([](TcpAddress& a) { a.region_bytes = 1; }).find("other sizes"), std::string::npos);
  EXPECT_NE(why([](TcpAddress& a) { a.magic = 1; }).find("no tcp address"), std::string::npos);
  EXPECT_NE(why([](TcpAddress& a) { a.num_sockets = 0; }).find("no tcp address"),
            std::string::npos);
  EXPECT_TRUE(self->why_not({}).has_value());
  EXPECT_THROW(static_cast<void>(self->connect(2, peer->address())), LinkError);
}

TEST(Tcp, NoPortIsLeftOpen) {
  std::uint16_t port = 0;
  std::unique_ptr<Link> survivor;
  {
    const auto low = make(0);
    const auto high = make(1);
    port = parsed(*high).port;
    survivor = high->connect(0, low->address());  // keeps no listener alive
  }
  Endpoint endpoint = resolve_interface("");
  endpoint.set_port(port);
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), endpoint.address(), endpoint.size()), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

}  // namespace
}  // namespace chorus::testing
