// The process that holds the coordinator ends, and the job goes on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "control_harness.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/meet.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::Type;
using wire::Writer;

// Processes.

/// What a rank is given.
struct Seat {
  Rank rank;
  int world_size;
  std::string id;
  std::function<void()> met;  ///< tells the test that this rank stands where it is waited for
};

/// Ranks as processes, the coordinator in the first one's. What each returned, or threw; nothing of
/// those that were killed. `meanwhile` runs here once all have said met().
class Job {
 public:
  using Body = std::function<std::string(const Seat&)>;

  std::vector<std::string> run(int world_size, const Body& body,
                               const std::function<void()>& meanwhile = {}) {
    Pipe met;
    std::vector<Pipe> ids(static_cast<std::size_t>(world_size));
    std::vector<Pipe> said(static_cast<std::size_t>(world_size));
    for (Rank rank = 0; rank < world_size; ++rank) {
      std::fflush(stdout);
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        Seat seat{rank, world_size, {}, [&] { met.say("."); }};
        if (rank == 0) {
          seat.id = UniqueId::make(world_size).text;
          for (const Pipe& each : ids) each.say(seat.id);
        } else {
          seat.id = ids[static_cast<std::size_t>(rank)].hear();
        }
        said[static_cast<std::size_t>(rank)].say(outcome_of(body, seat));
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
    for (std::size_t count = 0; meanwhile && count < pids_.size();) count += met.hear().size();
    if (meanwhile) meanwhile();
    std::vector<std::string> all;
    for (std::size_t r = 0; r < pids_.size(); ++r) {
      int status = 0;
      ::waitpid(pids_[r], &status, 0);
      said[r].write.reset();
      all.push_back(said[r].hear());
    }
    return all;
  }

  void signal(Rank rank, int number) const {
    ::kill(pids_[static_cast<std::size_t>(rank)], number);
    if (number != SIGSTOP) return;
    int status = 0;
    ::waitpid(pids_[static_cast<std::size_t>(rank)], &status, WUNTRACED);
  }

 private:
  static std::string outcome_of(const Body& body, const Seat& seat) {
    try {
      return body(seat);
    } catch (const std::exception& error) {
      return fmt::format("threw: {}", error.what());
    }
  }
  std::vector<pid_t> pids_;
};

std::vector<Rank> ranks_from(Rank first, int world_size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(world_size - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

/// For who is about to die: once `count` others have said that they have what they came for.
void die_after(const Pipe& others, std::size_t count) {
  for (std::size_t heard = 0; heard < count;) heard += others.hear().size();
  ::raise(SIGKILL);
}

std::string gather(Control& control, const std::string& key, const std::vector<Rank>& members) {
  return all_of(control.exchange(key, members, bytes_of(letter(control.rank())), kPatience_ms));
}

TEST(Succession, TheDeathOfRankZeroIsNamedAlikeAndTheOthersGoOn) {
  Job job;
  Pipe here;
  const auto said = job.run(4, [&](const Seat& seat) {
    const auto control = Control::join(seat.id, seat.rank, 4, kPatience_ms);
    control->open_group("all", all_ranks(4));
    if (seat.rank != 0) control->open_group("rest", ranks_from(1, 4));
    gather(*control, "together", all_ranks(4));
    if (seat.rank == 0) die_after(here, 3);
    here.say(".");
    const std::string sentence = verdict_within(*control, "all", kPatience_ms);
    std::string rest = gather(*control, "rest", ranks_from(1, 4));
    if (control->verdict("rest")) rest += *control->verdict("rest");
    control->survived();
    return sentence + " | " + rest;
  });
  EXPECT_EQ(said[0], "");
  EXPECT_THAT(said[1], AllOf(HasSubstr("rank 0 (pid "), HasSubstr("died: its connection closed"),
                             HasSubstr(" | bcd")));
  EXPECT_EQ(said[2], said[1]);
  EXPECT_EQ(said[3], said[1]);
}

TEST(Succession, ARankThatOnlyComputesIsNotTakenForDead) {
  Job job;
  Pipe done, here;
  const auto said = job.run(4, [&](const Seat& seat) {
    const auto control = Control::join(seat.id, seat.rank, 4, kPatience_ms);
    control->open_group("all", all_ranks(4));
    if (seat.rank != 0) control->open_group("rest", ranks_from(1, 4));
    gather(*control, "together", all_ranks(4));
    if (seat.rank == 0) die_after(here, 3);
    here.say(".");
    if (seat.rank == 2) {
      (void)done.hear();  // until the others have been told: no look at the control plane
    } else {
      const std::string sentence = verdict_within(*control, "all", kPatience_ms);
      if (sentence.find("rank 0") == std::string::npos) return sentence;
      if (seat.rank == 3) done.say(".");
    }
    const std::string rest = gather(*control, "rest", ranks_from(1, 4));
    control->survived();
    return rest + control->verdict("rest").value_or("");
  });
  EXPECT_THAT(said, ElementsAre("", "bcd", "bcd", "bcd"));
}

TEST(Succession, EveryCoordinatorInTurnMayDieUntilOneRankIsLeft) {
  constexpr int kWorldSize = 7;
  Job job;
  std::vector<Pipe> here(kWorldSize);
  const auto said = job.run(kWorldSize, [&](const Seat& seat) -> std::string {
    const auto control = Control::join(seat.id, seat.rank, kWorldSize, kPatience_ms);
    for (Rank dead = 0; dead + 1 < kWorldSize; ++dead) {
      const std::vector<Rank> alive = ranks_from(dead, kWorldSize);
      const std::string group = fmt::format("from {}", dead);
      control->open_group(group, alive);
      const std::string met = gather(*control, group, alive);
      if (met.size() != alive.size()) return "met " + met;
      const Pipe& others = here[static_cast<std::size_t>(dead)];
      if (seat.rank == dead) die_after(others, alive.size() - 1);
      others.say(".");
      const std::string sentence = verdict_within(*control, group, kPatience_ms);
      if (sentence.find("rank 0 (") != 0 || sentence.find(" died: its conn") == std::string::npos) {
        return sentence;
      }
      control->survived();
    }
    return "alone";
  });
  EXPECT_EQ(said.back(), "alone");
  for (std::size_t r = 0; r + 1 < said.size(); ++r) EXPECT_EQ(said[r], "");
}

TEST(Succession, AStoppedSuccessorIsPassedByAndComesBackLater) {
  Job job;
  Pipe going_on;
  const auto said = job.run(
      4,
      [&](const Seat& seat) {
        const auto control = Control::join(seat.id, seat.rank, 4, kPatience_ms);
        control->open_group("all", all_ranks(4));
        if (seat.rank != 0) control->open_group("rest", ranks_from(1, 4));
        gather(*control, "together", all_ranks(4));
        seat.met();
        const std::string sentence = verdict_within(*control, "all", kPatience_ms);
        if (seat.rank == 3) going_on.say(".");
        const std::string rest = gather(*control, "rest", ranks_from(1, 4));
        control->survived();
        return sentence + " | " + rest + control->verdict("rest").value_or("");
      },
      [&] {
        job.signal(1, SIGSTOP);
        job.signal(0, SIGKILL);
        (void)going_on.hear();
        job.signal(1, SIGCONT);
      });
  EXPECT_THAT(said[2], AllOf(HasSubstr("rank 0 (pid "), HasSubstr(" | bcd")));
  EXPECT_EQ(said[3], said[2]);
  EXPECT_EQ(said[1], said[2]);
}

TEST(Succession, TooFewRanksEndWithThatSentence) {
  Job job;
  Pipe over;
  const auto said = job.run(
      4,
      [&](const Seat& seat) {
        const auto control = Control::join(seat.id, seat.rank, 4, kPatience_ms);
        control->open_group("all", all_ranks(4));
        if (seat.rank == 1 || seat.rank == 2) {
          control->open_group("alone", std::vector<Rank>{1, 2});
        }
        gather(*control, "together", all_ranks(4));
        seat.met();
        const std::string sentence = verdict_within(*control, "all", kPatience_ms);
        const std::string alone = verdict_within(*control, "alone", kPatience_ms);
        if (seat.rank == 1) over.say(".");
        return sentence == alone ? sentence : sentence + " | " + alone;
      },
      [&] {
        job.signal(2, SIGSTOP);
        job.signal(3, SIGSTOP);
        job.signal(0, SIGKILL);
        (void)over.hear();
        job.signal(2, SIGKILL);
        job.signal(3, SIGKILL);
      });
  EXPECT_THAT(said[1], AllOf(HasSubstr("this is the smaller part"),
                             HasSubstr("1 of the 3 ranks that were alive came")));
}

/// Rank 1, which is asked to be ready to take over: what listens at its place does not know the
/// secret.
std::string lie(const Seat& seat, const std::function<void()>& met) {
  Raw raw(seat.id);
  wire::Hello hello = raw.hello(1, seat.world_size);
  hello.may_succeed = true;
  if (raw.enter(hello).second != "welcome") return "not let in";
  Coordinator other(seat.world_size, "", 0, Secret::random(), {.succeeds = 1});
  while (const auto frame = raw.next()) {
    if (frame->first == Type::appoint) {
      const auto port = net::Id::parse(other.id()).endpoint.port();
      raw.send(wire::places_frame(Type::listening, {{"127.0.0.1", port}}));
    }
    if (frame->first == Type::joined) met();
  }
  ::pause();  // it neither follows nor ends
  return "";
}

TEST(Succession, ASuccessorThatDoesNotKnowTheSecretIsPassedBy) {
  Job job;
  Pipe told;
  const auto said = job.run(
      4,
      [&](const Seat& seat) {
        if (seat.rank == 1) return lie(seat, seat.met);
        const auto control = Control::join(seat.id, seat.rank, 4, kPatience_ms);
        control->open_group("all", all_ranks(4));
        const std::vector<Rank> honest{2, 3};
        if (seat.rank != 0) gather(*control, "before", honest);
        seat.met();
        const std::string sentence = verdict_within(*control, "all", kPatience_ms);
        const std::string after = gather(*control, "after", honest);
        control->open_group("with the liar", ranks_from(1, 4));
        const std::string liar = verdict_within(*control, "with the liar", kPatience_ms);
        gather(*control, "told", honest);
        if (seat.rank == 2) told.say(".");
        return sentence + " | " + after + " | " + liar;
      },
      [&] {
        job.signal(0, SIGKILL);
        (void)told.hear();
        job.signal(1, SIGKILL);
      });
  EXPECT_THAT(said[2], AllOf(HasSubstr("rank 0 (pid "), HasSubstr("died: its connection closed"),
                             HasSubstr(" | cd | rank 0 (world rank 1, pid 4242 on elsewhere) died: "
                                       "it did not come to the coordinator's successor")));
  EXPECT_EQ(said[3], said[2]);
}

TEST(Succession, TheHostOfTheCoordinatorMayLeaveWithAFailureAndTheOthersGoOn) {
  Job job;
  const auto said = job.run(3, [](const Seat& seat) {
    auto control = Control::join(seat.id, seat.rank, 3, kPatience_ms);
    control->open_group("all", all_ranks(3));
    gather(*control, "together", all_ranks(3));
    if (seat.rank == 0) {
      control->leaves_because("no memory");
      control.reset();
      return std::string();
    }
    std::string sentence = verdict_within(*control, "all", kPatience_ms);
    // The coordinator stays a second; what comes then is answered by its successor.
    control->open_group("rest", ranks_from(1, 3));
    const auto until = Clock::now() + milliseconds(1'500);
    for (int i = 0;; ++i) {
      const std::string met = gather(*control, fmt::format("round {}", i), ranks_from(1, 3));
      if (met != "bc") return met;
      // Both end with the same round.
      const bool last = Clock::now() >= until;
      if (all_of(control->exchange(fmt::format("last {}", i), ranks_from(1, 3),
                                   bytes_of(last ? "y" : "n"), kPatience_ms)) != "nn") {
        break;
      }
    }
    if (control->verdict("rest")) sentence += *control->verdict("rest");
    control->survived();
    return sentence;
  });
  EXPECT_THAT(said[1], HasSubstr("left after a failure: no memory"));
  EXPECT_EQ(said[2], said[1]);
}

// Where the coordinator was.

/// Something listens, ends the first `breaks` connections before it answers, and tells the next
/// rank that the others went on without it.
class Listener {
 public:
  explicit Listener(int breaks) : socket_(net::listen_on(net::local_endpoint("", 0))) {
    place_ = {net::local_end(socket_.get()).host(), net::local_end(socket_.get()).port()};
    thread_ = std::thread([this, breaks] {
      for (int i = 0; i <= breaks; ++i) {
        const Fd peer(accept_next());
        if (peer.get() < 0) return;
        if (i == breaks) refuse(peer.get());
      }
    });
  }
  ~Listener() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  /// For rank 1, by any path: what keeps it away.
  template <typename Cause>
  [[nodiscard]] bool keeps_away_by(milliseconds within) const {
    try {
      const std::vector<wire::Place> places{place_};
      (void)net::rise_once(places, {.rank = 1, .world_size = 3}, Clock::now() + within, nullptr);
    } catch (const Cause&) {
      return true;
    } catch (const BootstrapError& error) {
      ADD_FAILURE() << error.what();
    }
    return false;
  }

 private:
  [[nodiscard]] int accept_next() const {
    pollfd entry{socket_.get(), POLLIN, 0};
    ::poll(&entry, 1, -1);
    return ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  }
  static void refuse(int peer) {
    const auto say = [&](const wire::Frame& frame) {
      EXPECT_EQ(::send(peer, frame->data(), frame->size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(frame->size()));
    };
    say(wire::greeting_frame(wire::random_nonce()));
    char hello[4096];
    EXPECT_GT(::recv(peer, hello, sizeof hello, 0), 0);
    say(Writer(Type::refused).text("it comes too late").u8(1).share());
  }

  net::Socket socket_;
  wire::Place place_;
  std::thread thread_;
};

// Else the rank, which the others have left behind, would look for a successor, and go on alone
// where they have ended by then.
TEST(WhereTheCoordinatorWas, AConnectionThatEndsBeforeTheAnswerIsMadeAgain) {
  EXPECT_TRUE(Listener(0).keeps_away_by<net::GoneOn>(milliseconds(kPatience_ms)));
  EXPECT_TRUE(Listener(3).keeps_away_by<net::GoneOn>(milliseconds(kPatience_ms)));
}

TEST(WhereTheCoordinatorWas, WhatListensAndDoesNotAnswerHasNotEnded) {
  EXPECT_TRUE(Listener(1'000'000).keeps_away_by<net::Unanswered>(milliseconds(50)));
}

// A successor, and peers that say what the test wants.

constexpr std::uint64_t kSession = 77;

class SuccessorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Raw> come(Rank rank, std::uint64_t session = kSession) {
    auto raw = std::make_unique<Raw>(successor_.id());
    wire::Hello hello = raw->hello(rank, 3);
    hello.session = session;
    hello.identity = fmt::format("process of {}", rank);
    answer_ = raw->enter(hello);
    return raw;
  }
  static void bring(Raw& raw, const wire::Follow& known) {
    raw.send(wire::follow_frame(known));
    raw.send(Writer(Type::followed).share());
  }
  static wire::Follow knowing() {
    return {.loss = wire::Loss::closed,
            .host_rank = 0,
            .host_text = "pid 1 on h",
            .last_result = 0,
            .deaths = {},
            .successors = {},
            .verdicts = {}};
  }
  /// Rank 1 has result 5, of the exchange "k".
  static wire::Frame has_result(std::span<const Rank> members) {
    Writer done(Type::exchange_done);
    return done.u64(5).text("k").ranks(members).blob(bytes_of("one")).text("").share();
  }
  /// The next frame of that type.
  static wire::Bytes next(Raw& raw, Type type) {
    while (auto frame = raw.next()) {
      if (frame->first == type) return frame->second;
    }
    ADD_FAILURE() << "no frame of type " << static_cast<int>(type);
    return {};
  }

  Coordinator successor_{3, "", 0, Secret::random(), {.succeeds = kSession}};
  std::pair<Type, std::string> answer_;
};

TEST_F(SuccessorTest, RefusesByNameWhoComesWithTheIdOfAJobThatHasBegun) {
  come(1, 0);
  EXPECT_EQ(answer_.first, Type::refused);
  EXPECT_THAT(answer_.second, HasSubstr("rank 1 (pid 4242 on elsewhere) comes with the id of a job "
                                        "that has begun"));
}

TEST_F(SuccessorTest, RefusesByNameWhoLostAnotherJobsCoordinator) {
  come(1, kSession + 1);
  EXPECT_THAT(answer_.second, HasSubstr("rank 1 (pid 4242 on elsewhere) lost the coordinator of "
                                        "another job"));
}

TEST_F(SuccessorTest, RefusesByNameWhoComesAfterTheOthersWentOn) {
  const auto one = come(1);
  const auto two = come(2);
  bring(*one, knowing());
  bring(*two, knowing());
  const wire::Bytes death = next(*one, Type::death);
  wire::Reader reader(death);
  EXPECT_EQ(wire::read_death(reader, 3).rank, 0);
  come(0);
  EXPECT_EQ(answer_.first, Type::refused);
  EXPECT_THAT(answer_.second, HasSubstr("rank 0 (pid 4242 on elsewhere) comes too late: the others "
                                        "went on without it"));
}

TEST_F(SuccessorTest, RefusesAnotherSecret) {
  Raw raw("chorus:127.0.0.1:" + std::to_string(net::Id::parse(successor_.id()).endpoint.port()) +
          ":" + Secret::random().text());
  wire::Hello hello = raw.hello(1, 3);
  hello.session = kSession;
  EXPECT_THAT(raw.enter(hello).second, HasSubstr("has another secret"));
}

TEST_F(SuccessorTest, GivesAResultThatOneRankHasToTheOneThatMissedIt) {
  const auto one = come(1);
  const auto two = come(2);
  const std::vector<Rank> both{1, 2};
  wire::Follow has = knowing();
  has.last_result = 5;
  // Rank 1 has the result, and has asked for the next one by the same name.
  one->send(wire::follow_frame(has));
  one->send(has_result(both));
  one->send(Writer(Type::exchange).text("k").ranks(both).blob(bytes_of("next")).text("").share());
  one->send(Writer(Type::followed).share());
  two->send(wire::follow_frame(knowing()));
  two->send(Writer(Type::exchange).text("k").ranks(both).blob(bytes_of("two")).text("").share());
  two->send(Writer(Type::followed).share());
  const auto read = [&](Raw& raw) {
    const wire::Bytes frame = next(raw, Type::exchange_result);
    wire::Reader reader(frame);
    std::string text = reader.text();
    reader.u64();
    for (const auto blob : Table(nullptr, reader.rest())) text += " " + text_of(blob);
    return text;
  };
  EXPECT_EQ(read(*two), "k one two");
  two->send(Writer(Type::exchange).text("k").ranks(both).blob(bytes_of("last")).text("").share());
  EXPECT_EQ(read(*one), "k next last");
}

TEST_F(SuccessorTest, AsksARankForAResultToWhichTheDeadOneGave) {
  const auto one = come(1);
  const auto two = come(2);
  const auto all = all_ranks(3);
  wire::Follow has = knowing();
  has.last_result = 5;
  one->send(wire::follow_frame(has));
  one->send(has_result(all));
  one->send(Writer(Type::followed).share());
  two->send(wire::follow_frame(knowing()));
  two->send(Writer(Type::exchange).text("k").ranks(all).blob(bytes_of("two")).text("").share());
  two->send(Writer(Type::followed).share());
  const wire::Bytes wanted = next(*one, Type::wanted);
  EXPECT_EQ(wire::Reader(wanted).u64(), 5U);
  Writer held(Type::exchange_held);
  held.text("k").u64(5);
  const auto zero = bytes_of("zero"), first = bytes_of("one"), second = bytes_of("two");
  const std::span<const std::byte> blobs[] = {zero, first, second};
  Table::write(held, blobs);
  one->send(held.share());
  const wire::Bytes result = next(*two, Type::exchange_result);
  wire::Reader reader(result);
  EXPECT_EQ(reader.text(), "k");
  EXPECT_EQ(reader.u64(), 5U);
  const Table given(nullptr, reader.rest());
  ASSERT_EQ(given.size(), 3U);
  EXPECT_EQ(text_of(given[0]), "zero");
  const wire::Bytes death = next(*two, Type::death);  // and not before
  wire::Reader dead(death);
  EXPECT_EQ(wire::read_death(dead, 3).rank, 0);
}

TEST_F(SuccessorTest, TellsTheDeathsThatSomeWereToldInTheirOrderAndThenTheHosts) {
  Coordinator successor(4, "", 0, Secret::random(), {.succeeds = kSession});
  std::vector<std::unique_ptr<Raw>> raws;
  for (const Rank rank : {1, 2}) {
    raws.push_back(std::make_unique<Raw>(successor.id()));
    wire::Hello hello = raws.back()->hello(rank, 4);
    hello.session = kSession;
    EXPECT_EQ(raws.back()->enter(hello).second, "welcome");
  }
  wire::Follow more = knowing();
  more.deaths = {{3, "pid 3 on h", "killed by signal 9 (SIGKILL)", false}};
  bring(*raws[0], knowing());
  bring(*raws[1], more);
  const auto told = [&](Raw& raw) {
    const wire::Bytes frame = next(raw, Type::death);
    wire::Reader reader(frame);
    const wire::Death death = wire::read_death(reader, 4);
    return fmt::format("{} {}: {}", death.rank, death.who, death.how);
  };
  EXPECT_EQ(told(*raws[0]), "3 pid 3 on h: killed by signal 9 (SIGKILL)");
  EXPECT_EQ(told(*raws[0]), "0 pid 1 on h: its connection closed");
  EXPECT_EQ(told(*raws[1]), "0 pid 1 on h: its connection closed");
}

// The coordinator's part of a network that is cut.

TEST(SplitNetwork, TheCoordinatorsSmallerPartEndsAndSaysSo) {
  Judge judge(
      {.world_size = 5, .launcher = false, .host_identity = "0", .host_text = "pid 1 on h"});
  Judge::Time now{};
  for (Rank rank = 0; rank < 5; ++rank) {
    wire::Hello hello;
    hello.rank = rank;
    hello.identity = fmt::format("{}", rank);
    hello.may_succeed = true;
    EXPECT_EQ(judge.admit(hello, now), std::nullopt);
  }
  judge.tick(now);
  now += milliseconds(600);  // nobody is ready: they are waited for no longer
  judge.tick(now);
  (void)judge.take_orders();
  const auto count = [&](Type type) {
    std::size_t found = 0;
    for (const Judge::Order& order : judge.take_orders()) {
      if (order.frame && static_cast<Type>((*order.frame)[4]) == type) ++found;
    }
    return found;
  };
  judge.closed(1, kSilent, now);
  judge.closed(2, kSilent, now);
  judge.tick(now);
  EXPECT_EQ(count(Type::death), 4U + 3U) << "three of five are more than half";
  now += milliseconds(3'000);
  judge.closed(3, kSilent, now);
  judge.tick(now);
  EXPECT_EQ(count(Type::smaller_part), 3U);
  EXPECT_EQ(judge.state(0), Judge::State::left);
}

}  // namespace
}  // namespace chorus
