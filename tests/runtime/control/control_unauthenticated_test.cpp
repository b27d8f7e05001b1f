// Who does not know the secret, or knows it and does not keep to the protocol, harms nobody else.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "chorus/communicator.hpp"
#include "control_harness.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using wire::Type;
using wire::Writer;

/// Two ranks meet at `id` and exchange: the coordinator is well.
void expect_two_can_meet(const std::string& id) {
  const auto errors = run_ranks(2, [&](Rank rank) {
    const auto control = Control::join(id, rank, 2, kPatience_ms);
    EXPECT_EQ(control->exchange("x", all_ranks(2), bytes_of("y"), kPatience_ms).size(), 2u);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

wire::Bytes random_bytes(std::minstd_rand& random, std::size_t size) {
  wire::Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random() >> 7);
  return bytes;
}

TEST(UnauthenticatedPeer, WithTheWrongSecretIsRefusedAndTheOthersMeet) {
  const std::string id = UniqueId::make(2).text;
  net::Id wrong = net::Id::parse(id);
  wrong.secret = Secret::random();
  EXPECT_THAT(join_error(wrong.text(), 0, 2, kPatience_ms),
              AllOf(HasSubstr("refused rank 0: rank 0 (pid "),
                    HasSubstr("has another secret than the coordinator (pid ")));
  expect_two_can_meet(id);
}

TEST(UnauthenticatedPeer, CannotAnswerWithWhatAnotherRankSaid) {
  const std::string id = UniqueId::make(2).text;
  // Records a good hello, and says it again on a connection with another nonce.
  Raw honest(id), thief(id);
  const auto greeting = honest.next();
  ASSERT_TRUE(greeting);
  const auto hello = wire::hello_frame(
      honest.hello(0, 2), wire::read_greeting(greeting->second).nonce, net::Id::parse(id).secret);
  ASSERT_TRUE(thief.next());
  thief.send(hello);
  const auto answer = thief.next();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->first, Type::refused);
  EXPECT_FALSE(thief.next());
  EXPECT_TRUE(thief.ended());
  expect_two_can_meet(id);
}

TEST(UnauthenticatedPeer, ManySilentOnesDoNotKeepRanksOutAndAreClosed) {
  const std::string id = UniqueId::make(2).text;
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(std::make_unique<Raw>(id));
  Raw last(id);
  ASSERT_TRUE(last.next());  // greeted
  const auto start = Clock::now();
  std::shared_ptr<Control> control;
  std::thread joiner([&] { control = Control::join(id, 0, 2, kPatience_ms); });
  EXPECT_FALSE(last.next());
  EXPECT_TRUE(last.ended());
  EXPECT_LT(Clock::now() - start, milliseconds(8'000));
  std::thread other([&] { (void)Control::join(id, 1, 2, kPatience_ms); });
  joiner.join();
  other.join();
}

TEST(UnauthenticatedPeer, GarbageIsClosedAndTheOthersMeet) {
  const std::string id = UniqueId::make(2).text;
  std::minstd_rand random(5);
  for (int i = 0; i < 300; ++i) {
    Raw raw(id);
    if (i % 3 == 0) {
      raw.send(random_bytes(random, 1 + random() % 3000));
    } else if (i % 3 == 1) {
      raw.send(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    } else {
      // A frame whose length is honest, of a random type and body.
      Writer writer(static_cast<Type>(random() % 256));
      writer.raw(std::vector<std::uint8_t>(random() % 900, static_cast<std::uint8_t>(i)));
      raw.send(writer.share());
    }
  }
  expect_two_can_meet(id);
}

TEST(UnauthenticatedPeer, ATruncatedHelloOrOneOfAnotherShapeIsRefused) {
  const std::string id = UniqueId::make(2).text;
  std::minstd_rand random(6);
  for (std::size_t cut = 0; cut < 200; ++cut) {
    Raw raw(id);
    const auto greeting = raw.next();
    ASSERT_TRUE(greeting);
    wire::Bytes hello = *wire::hello_frame(
        raw.hello(0, 2), wire::read_greeting(greeting->second).nonce, net::Id::parse(id).secret);
    if (cut % 2 == 0) {
      hello.resize(std::min(hello.size() - 1, cut));
    } else {
      hello[random() % hello.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    raw.send(hello);
    raw.close();
  }
  expect_two_can_meet(id);
}

// Ranks that know the secret and say what no rank says: they are named, the others live.

void expect_liar_is_named(const std::function<void(Raw&)>& lie) {
  const std::string id = UniqueId::make(3).text;
  Raw liar(id);
  run_ranks(3, [&](Rank rank) {
    if (rank == 2) {
      EXPECT_EQ(liar.enter(liar.hello(2, 3)).second, "welcome");
      const auto joined = liar.next();
      ASSERT_TRUE(joined);
      EXPECT_EQ(joined->first, Type::joined);
      lie(liar);
      return;
    }
    const auto control = Control::join(id, rank, 3, kPatience_ms);
    control->open_group("g", all_ranks(3));
    EXPECT_THAT(verdict_within(*control, "g", 5'000),
                AnyOf(HasSubstr("rank 2 (pid 4242 on elsewhere) was disconnected: it sent what no "
                                "rank sends: "),
                      // Random messages may all be good ones.
                      HasSubstr("rank 2 (pid 4242 on elsewhere) died: its connection closed")));
    const std::vector<Rank> rest{0, 1};
    EXPECT_EQ(control->exchange("rest", rest, bytes_of("z"), kPatience_ms).size(), 2u);
  });
}

/// The liar itself is told why before its connection is closed.
void expect_to_be_told(Raw& liar) {
  const auto told = liar.next(5'000);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->first, Type::expelled);
  EXPECT_THAT(wire::Reader(told->second).text(), HasSubstr("it sent what no rank sends: "));
  EXPECT_FALSE(liar.next(5'000));
  EXPECT_TRUE(liar.ended());
}

TEST(LyingRank, IsNamedForEachImpossibleMessage) {
  const std::vector<Rank> outside{0, 3}, twice{2, 2}, others{0, 1};
  const std::string long_key(300, 'k');
  const wire::Frame lies[] = {
      Writer(static_cast<Type>(0)).share(),
      Writer(Type::verdict).text("g").text("rank 0 did it").share(),
      Writer(Type::hello).share(),
      Writer(Type::open_group).text("g").ranks(outside).share(),
      Writer(Type::open_group).text("g").ranks(twice).share(),
      Writer(Type::open_group).text("g").ranks(RankList()).share(),
      Writer(Type::open_group).text("h").ranks(others).share(),
      Writer(Type::open_group).text("g").u32(0xffffffff).share(),
      Writer(Type::open_group).text(long_key).share(),
      Writer(Type::exchange).text("x").ranks(others).blob({}).text("").share(),
      Writer(Type::exchange).text("x").share(),
      Writer(Type::exchange).u32(0xffffffff).share(),
      Writer(Type::abort).text("g").share(),
      Writer(Type::goodbye).share(),
      Writer(Type::goodbye).text("").u8(0).share(),
  };
  for (const wire::Frame& lie : lies) {
    expect_liar_is_named([&](Raw& liar) {
      liar.send(lie);
      expect_to_be_told(liar);
    });
  }
}

TEST(LyingRank, IsNamedForAMessageWithoutEnd) {
  expect_liar_is_named([](Raw& liar) {
    liar.send(bytes_of("\xff\xff\xff\x7f"));
    expect_to_be_told(liar);
  });
}

TEST(LyingRank, WithRandomMessagesHarmsNobodyElse) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::minstd_rand random(seed);
    expect_liar_is_named([&](Raw& liar) {
      for (int i = 0; i < 30; ++i) {
        Writer writer(static_cast<Type>(2 + random() % 8));
        writer.text(random() % 2 == 0 ? "g" : "other");
        for (auto fields = random() % 6; fields > 0; --fields) {
          switch (random() % 4) {
            case 0:
              writer.u32(static_cast<std::uint32_t>(random() % 5));
              break;
            case 1:
              writer.ranks(all_ranks(3));
              break;
            case 2:
              writer.text("text");
              break;
            default:
              writer.u64(random());
          }
        }
        // A goodbye would be a good one.
        wire::Bytes frame = writer.take();
        if (frame[4] == static_cast<std::byte>(Type::goodbye)) continue;
        if (frame[4] == static_cast<std::byte>(Type::abort)) continue;
        liar.send(frame);
      }
      liar.close();
    });
  }
}

// Coordinators that are none.

/// Listens, and hands each connection to `serve`.
class FakeCoordinator {
 public:
  explicit FakeCoordinator(std::function<void(int fd)> serve)
      : listener_(net::listen_on(net::local_endpoint("", 0))),
        id_{net::local_end(listener_.get()), Secret::random()},
        thread_([this, serve = std::move(serve)] {
          while (!stop_) {
            pollfd entry{listener_.get(), POLLIN, 0};
            if (::poll(&entry, 1, 10) <= 0) continue;
            const Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (fd) serve(fd.get());
          }
        }) {}
  ~FakeCoordinator() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] const net::Id& id() const { return id_; }

 private:
  net::Socket listener_;
  net::Id id_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void say(int fd, const wire::Frame& frame) {
  [[maybe_unused]] const auto sent = ::send(fd, frame->data(), frame->size(), MSG_NOSIGNAL);
}

/// The hello of whoever connected, or one that is empty.
wire::Hello hear_hello(int fd) {
  wire::Inbox inbox(wire::kMaxHandshake);
  std::byte buffer[1024];
  for (;;) {
    if (const auto item = inbox.next()) return wire::read_hello(item->body);
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) return {};
    inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

/// As a coordinator does that knows the secret.
void welcome(int fd, const Secret& secret) {
  const wire::Nonce nonce = wire::random_nonce();
  say(fd, wire::greeting_frame(nonce));
  const wire::Hello hello = hear_hello(fd);
  Writer welcome(Type::welcome);
  welcome.raw(wire::server_proof(secret, nonce, hello.nonce)).text("pid 1 on x").u8(0).u8(0);
  say(fd, welcome.share());
}

TEST(FakeCoordinator, ThatDoesNotKnowTheSecretIsNoticed) {
  FakeCoordinator fake([](int fd) {
    say(fd, wire::greeting_frame(wire::random_nonce()));
    (void)hear_hello(fd);
    Writer welcome(Type::welcome);
    say(fd, welcome.raw(wire::random_nonce()).text("pid 1 on x").u8(0).u8(0).share());
  });
  EXPECT_THAT(join_error(fake.id().text(), 0, 2, kPatience_ms),
              HasSubstr("does not know the secret of the id: it is not the coordinator"));
}

TEST(FakeCoordinator, AnotherServerIsNamedAsNone) {
  FakeCoordinator fake([](int fd) {
    const std::string_view text = "HTTP/1.1 400 Bad Request\r\n\r\n";
    [[maybe_unused]] const auto sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  });
  EXPECT_THAT(join_error(fake.id().text(), 0, 2, kPatience_ms),
              HasSubstr("is not a Chorus coordinator"));
}

TEST(FakeCoordinator, OneThatSaysNothingOrHangsUpCostsNoMoreThanTheDeadline) {
  FakeCoordinator mute([](int) { std::this_thread::sleep_for(milliseconds(100)); });
  const auto start = Clock::now();
  EXPECT_THAT(join_error(mute.id().text(), 0, 2, 400), HasSubstr("after 400 ms"));
  EXPECT_LT(Clock::now() - start, milliseconds(3'000));
}

// A rank learns from what is acknowledged of its heartbeats that a path fell silent. It says them
// once it has heard of another path, though what waits for the connection's end was there before.
TEST(FakeCoordinator, IsSentHeartbeatsOnceThereIsAnotherPath) {
  Secret secret;
  std::atomic<bool> beaten{false};
  FakeCoordinator lone([&](int fd) {
    welcome(fd, secret);
    say(fd, wire::successors_frame({{1, {{"127.0.0.1", 1}}}}));
    say(fd, Writer(Type::joined).i32(1).u64(1).share());
    wire::Inbox inbox(1 << 20);
    std::byte buffer[1024];
    for (ssize_t got = 0; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
      while (const auto item = inbox.next()) {
        if (item->type == Type::open_group) {
          say(fd, wire::places_frame(Type::places, {{"127.0.0.1", 1}, {"127.0.0.2", 1}}));
        } else if (item->type == Type::heartbeat) {
          beaten = true;
          return;
        }
      }
    }
  });
  secret = lone.id().secret;
  const auto control = Control::join(lone.id().text(), 0, 2, kPatience_ms);
  control->open_group("g", all_ranks(2));
  const auto start = Clock::now();
  while (!beaten && Clock::now() - start < milliseconds(kPatience_ms)) {
    (void)control->await_verdict("g", 20);
  }
  EXPECT_TRUE(beaten);
}

TEST(FakeCoordinator, OneThatKnowsTheSecretAndTalksNonsenseCrashesNobody) {
  Secret secret;
  std::minstd_rand random(11);
  FakeCoordinator mad([&](int fd) {
    welcome(fd, secret);
    if (random() % 2 == 0)
      say(fd, Writer(Type::joined).i32(static_cast<int>(random() % 3)).share());
    for (int i = 0; i < 10; ++i) {
      Writer writer(static_cast<Type>(64 + random() % 14));
      if (random() % 2 == 0) writer.text("g");
      const auto junk = random_bytes(random, random() % 60);
      writer.blob(junk);
      if (random() % 2 == 0) writer.u64(random());
      say(fd, writer.share());
    }
  });
  secret = mad.id().secret;
  for (int i = 0; i < 200; ++i) {
    try {
      const auto control = Control::join(mad.id().text(), 0, 2, 1'000);
      control->open_group("g", all_ranks(2));
      (void)control->await_verdict("g", 20);
      (void)control->exchange("g", all_ranks(2), {}, 20);
    } catch (const BootstrapError&) {
      // Whatever it says: a sentence, no crash and no hang.
    }
  }
}

}  // namespace
}  // namespace chorus
