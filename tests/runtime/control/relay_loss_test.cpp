// Relays that end, and what becomes of those that they carry.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>

#include "base/index.hpp"
#include "control_harness.hpp"
#include "runtime/control/coordinator/end.hpp"
#include "runtime/control/relay.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kWorld = 6;

/// What a relay says goes nowhere but for the latest frame.
class NoWires final : public Wires {
 public:
  void send(Token, const wire::Frame& frame) override { said = frame; }
  void send(Token, const wire::Frame&, std::span<const std::byte>,
            std::shared_ptr<const void>) override {}
  void trust(Token, std::size_t, bool) override {}
  void finish(Token of) override { finished.push_back(of); }
  [[nodiscard]] std::size_t unsent(Token) const override { return 0; }
  [[nodiscard]] std::string peer(Token) const override { return ""; }

  wire::Frame said;
  std::vector<Token> finished;
};

std::span<const std::byte> body_of(const wire::Frame& frame) {
  return std::as_bytes(std::span(*frame)).subspan(5);
}

/// Says hello over connection `from`.
void say_hello(WireEnd& end, NoWires& wires, Wires::Token from, wire::Hello hello,
               const Secret& secret) {
  end.opened(from, {});
  hello.version = wire::version();
  hello.nonce = wire::random_nonce();
  hello.identity = fmt::format("process of {}", hello.rank);
  const auto nonce = wire::read_greeting(body_of(wires.said)).nonce;
  end.heard(from, wire::Type::hello, body_of(wire::hello_frame(hello, nonce, secret)), {});
  end.settle({});
}

// Its process would wait for them before it leaves.
TEST(RelayEnd, CarriesNobodyOnceItsWayUpIsGone) {
  const Secret secret = Secret::random();
  NoWires wires;
  RelayEnd end(kWorld, secret);
  end.speak_over(wires);
  end.rises(1, "127.0.0.1");
  wire::Hello hello;
  hello.world_size = kWorld;
  say_hello(end, wires, 2, hello, secret);
  EXPECT_EQ(end.carried(), 1U);
  end.closed(1, "its connection closed", {});
  end.settle({});
  EXPECT_TRUE(end.over());
  EXPECT_EQ(end.carried(), 0U);
  EXPECT_THAT(wires.finished, ElementsAre(2U));
  end.opened(3, {});
  EXPECT_THAT(wires.finished, ElementsAre(2U, 3U)) << "whoever comes is to find another way";
}

// Rank 0 comes once more, for what it was told was lost with the relay that carried it.
TEST(CoordinatorEnd, TellsWhyAJoiningFailedThoughAllHaveBeenTold) {
  const Secret secret = Secret::random();
  NoWires wires;
  CoordinatorEnd end(3, secret, {});
  end.speak_over(wires);
  wire::Hello hello;
  hello.world_size = 3;
  hello.relay_port = 1;
  say_hello(end, wires, 6, hello, secret);
  hello.relay_port = 0;
  say_hello(end, wires, 1, hello, secret);
  end.closed(6, "its connection closed", {});
  hello.rank = 1;
  say_hello(end, wires, 2, hello, secret);
  end.closed(2, "its connection closed", {});
  end.settle({});
  hello.rank = 2;
  say_hello(end, wires, 3, hello, secret);
  const auto goodbye = wire::Writer(wire::Type::goodbye).text("").share();
  end.heard(1, wire::Type::goodbye, body_of(goodbye), {});
  end.settle({});
  hello.rank = 0;
  for (const bool as_relay : {true, false}) {
    EXPECT_FALSE(end.over());
    hello.relay_port = as_relay ? 1 : 0;
    say_hello(end, wires, as_relay ? 4 : 5, hello, secret);
    EXPECT_THAT(wire::Reader(body_of(wires.said)).text(),
                AllOf(HasSubstr("rank 1 (pid "), HasSubstr("died: its connection closed before")));
  }
}

/// Ranks that a relay carries lose the coordinator, which lives in this process, and gather at the
/// successor that rank 0 holds ready, which is this process as well.
class GatheringByRelay : public ::testing::Test {
 protected:
  void SetUp() override {
    Pipe identity;
    zero_ = ::fork();
    if (zero_ == 0) {
      identity.say(net::process_identity());
      for (;;) ::pause();
    }
    identity_ = identity.hear();
    for (Rank rank = 1; rank < kWorld; ++rank) {
      pids_.push_back(::fork());
      if (pids_.back() != 0) continue;
      said_[at(rank)].say(rank_goes_on(rank));
      ::_exit(0);
    }
    coordinator_ = std::make_unique<Coordinator>(kWorld, "", 0, secret_);
    for (const Pipe& each : ids_) each.say(coordinator_->id());
    raw_ = std::make_unique<Raw>(coordinator_->id());
    EXPECT_EQ(raw_->enter(hello()).second, "welcome");
    const wire::Bytes appointed = next(Type::appoint);
    session_ = wire::Reader(appointed).u64();
    successor_ = std::make_unique<Coordinator>(kWorld, "", 0, secret_,
                                               Coordinator::Host{.succeeds = session_});
    const auto place = net::Id::parse(successor_->id()).endpoint;
    raw_->send(wire::places_frame(Type::listening,
                                  std::vector<wire::Place>{{place.host(), place.port()}}));
    next(Type::joined);
    for (std::size_t met = 0; met + 1 < kWorld;) met += met_.hear().size();
  }
  void TearDown() override {
    ::kill(zero_, SIGKILL);
    ::waitpid(zero_, nullptr, 0);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }

  using Type = wire::Type;

  wire::Hello hello() const {
    wire::Hello hello = raw_->hello(0, kWorld);
    hello.identity = identity_;
    hello.may_succeed = true;
    hello.session = session_;
    return hello;
  }
  /// Of what rank 0 is told.
  wire::Bytes next(Type type) const {
    while (auto frame = raw_->next()) {
      if (frame->first == type) return frame->second;
    }
    ADD_FAILURE() << "no frame of type " << static_cast<int>(type);
    return {};
  }
  /// What a rank says in the end: whose death it read, and what the others gave.
  std::string rank_goes_on(Rank rank) const {
    try {
      const auto control =
          Control::join(ids_[at(rank)].hear(), rank, kWorld, kPatience_ms, {.most_direct = 1});
      control->open_group("all", all_ranks(kWorld));
      met_.say(".");
      const std::string verdict = verdict_within(*control, "all", kPatience_ms);
      const Rank dead = verdict.starts_with("rank ") ? std::stoi(verdict.substr(5)) : -1;
      const Table rest = control->exchange("rest", all_ranks_but(dead, kWorld),
                                           bytes_of(letter(rank)), kPatience_ms);
      return fmt::format("{} {}", dead, all_of(rest));
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  /// The rank whose process has the relay to the successor, once there is one.
  Rank relay_to_successor() const {
    const auto up = net::Id::parse(successor_->id()).endpoint;
    net::Socket met;
    while (!met) met = Relay::connect(Relay::name(secret_, up, session_, 0));
    ucred listener{};
    socklen_t size = sizeof listener;
    EXPECT_EQ(::getsockopt(met.get(), SOL_SOCKET, SO_PEERCRED, &listener, &size), 0);
    const auto found = std::find(pids_.begin(), pids_.end(), listener.pid);
    EXPECT_NE(found, pids_.end());
    return static_cast<Rank>(found - pids_.begin()) + 1;
  }

  const Secret secret_ = Secret::random();
  std::vector<Pipe> ids_{kWorld}, said_{kWorld};
  Pipe met_;
  std::vector<pid_t> pids_;  ///< of rank 1, 2, …
  pid_t zero_ = 0;           ///< lives as long as rank 0 does
  std::string identity_;
  std::unique_ptr<Coordinator> coordinator_, successor_;
  std::unique_ptr<Raw> raw_;  ///< rank 0
  std::uint64_t session_ = 0;
};

TEST_F(GatheringByRelay, LosesNobodyButTheProcessOfARelayThatDiesMeanwhile) {
  coordinator_.reset();
  const Rank dead = relay_to_successor();
  ::kill(pids_[at(dead) - 1], SIGKILL);
  ::waitpid(pids_[at(dead) - 1], nullptr, 0);
  raw_ = std::make_unique<Raw>(successor_->id());
  EXPECT_EQ(raw_->enter(hello()).second, "welcome");
  raw_->send(wire::follow_frame({.loss = wire::Loss::closed,
                                 .host_rank = -1,
                                 .host_text = "",
                                 .last_result = 0,
                                 .deaths = {},
                                 .successors = {},
                                 .verdicts = {}}));
  raw_->send(wire::Writer(Type::followed).share());
  const wire::Bytes told = next(Type::death);
  wire::Reader reader(told);
  EXPECT_EQ(wire::read_death(reader, kWorld).rank, dead);
  raw_->send(wire::Writer(Type::exchange)
                 .text("rest")
                 .ranks(all_ranks_but(dead, kWorld))
                 .blob(bytes_of("a"))
                 .text("")
                 .share());
  std::string all = "abcdef";
  all.erase(at(dead), 1);
  for (Rank rank = 1; rank < kWorld; ++rank) {
    if (rank == dead) continue;
    EXPECT_EQ(said_[at(rank)].hear(), fmt::format("{} {}", dead, all));
  }
  raw_->send(wire::Writer(Type::goodbye).text("").share());
}

}  // namespace
}  // namespace chorus
