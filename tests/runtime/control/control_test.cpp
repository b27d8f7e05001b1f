// Ranks meet and exchange. Ranks are threads here; what becomes of failures is in verdict_test.cpp.
#include "runtime/control/control.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <latch>
#include <utility>

#include "base/index.hpp"
#include "chorus/communicator.hpp"
#include "control_harness.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::Type;
using wire::Writer;

// Ids.

TEST(UniqueId, IsPrintedAndReadBackWithBothKindsOfAddresses) {
  const std::string secret = "000102030405060708090a0b0c0d0e0f";
  for (const std::string& text :
       {"chorus:127.0.0.1:4000:" + secret, "chorus:[::1]:65535:" + secret}) {
    EXPECT_EQ(net::Id::parse(text).text(), text);
  }
  EXPECT_THAT(UniqueId::make(1).text, HasSubstr("chorus:127.0.0.1:"));
  EXPECT_THAT(UniqueId::make(1, "::1").text, HasSubstr("chorus:[::1]:"));
  EXPECT_THAT(UniqueId::make(1, "lo").text, HasSubstr("chorus:127.0.0.1:"));
}

TEST(UniqueId, AMalformedOneIsRefusedWithAnExampleAndWithoutItsSecret) {
  const std::string secret = "000102030405060708090a0b0c0d0e0f";
  for (const std::string& text :
       {std::string(), std::string("chorus"), std::string("chorus:"), std::string(":::::"),
        "chorus:127.0.0.1:" + secret, "chorus:127.0.0.1:0:" + secret,
        "chorus:127.0.0.1:65536:" + secret, "chorus:127.0.0.1:4000x:" + secret,
        "chorus:127.0.0.1:4000:" + secret + "0", "chorus:localhost:4000:" + secret,
        "chorus:::1:4000:" + secret, "chorus:[127.0.0.1]:4000:" + secret,
        "chorus:[::1:4000:" + secret, "chorus:256.0.0.1:4000:" + secret, "chorus:1:4000:" + secret,
        "nccl:127.0.0.1:4000:" + secret, "chorus:127.0.0.1:-4000:" + secret,
        std::string(100'000, 'x')}) {
    try {
      (void)net::Id::parse(text);
      FAIL() << "accepted " << text.substr(0, 80);
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("an id looks like chorus:127.0.0.1:4000:"),
                                      Not(HasSubstr(secret))));
      EXPECT_LT(std::strlen(error.what()), 400u);
    }
  }
}

TEST(UniqueId, AnUnknownInterfaceIsRefusedWithTheOnesThereAre) {
  try {
    (void)UniqueId::make(2, "nonesuch7");
    FAIL();
  } catch (const BootstrapError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("nonesuch7"), HasSubstr("lo (127.0.0.1)")));
  }
}

// Meeting.

TEST(Control, AnIdForAnyNumberOfRanksTakesThatOfTheFirst) {
  const std::string id = UniqueId::make(0).text;
  auto controls = join_all(id, 3);
  leave_all(controls);

  const std::string other = UniqueId::make(0).text;
  const auto errors = run_ranks(
      2, [&](Rank rank) { (void)Control::join(other, rank, rank == 0 ? 2 : 5, kPatience_ms); });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("joins a world of"));
}

TEST(Control, RanksMeetAndExchangeBlobs) {
  for (const int n : {1, 2, 3, 8, 33}) {
    const std::string id = UniqueId::make(n).text;
    const auto errors = run_ranks(n, [&](Rank rank) {
      const auto control = Control::join(id, rank, n, kPatience_ms);
      EXPECT_EQ(control->rank(), rank);
      EXPECT_EQ(control->world_size(), n);
      EXPECT_EQ(control->local_address(), "127.0.0.1");
      for (int round = 0; round < 3; ++round) {
        // Of different sizes, the empty one among them.
        const char letter = static_cast<char>('a' + round);
        const std::string mine(at(rank) * 100, letter);
        const auto all = control->exchange(fmt::format("round {}", round), all_ranks(n),
                                           bytes_of(mine), kPatience_ms);
        ASSERT_EQ(all.size(), at(n));
        for (int other = 0; other < n; ++other) {
          EXPECT_EQ(text_of(all[at(other)]), std::string(at(other) * 100, letter));
        }
      }
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(Control, AnExchangeAmongSomeKeepsTheirOrderAndLargeBlobsPass) {
  const auto controls_id = UniqueId::make(4, "::1").text;
  const std::vector<Rank> members{3, 0, 2};
  const std::string large(1 << 20, 'x');
  const auto errors = run_ranks(4, [&](Rank rank) {
    const auto control = Control::join(controls_id, rank, 4, kPatience_ms);
    EXPECT_EQ(control->local_address(), "::1");
    if (rank == 1) return;
    const auto all = control->exchange("some", members,
                                       bytes_of(std::to_string(rank) + large.substr(1)), 20'000);
    ASSERT_EQ(all.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(text_of(all[i]), std::to_string(members[i]) + large.substr(1));
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Control, ListensOnTheChosenAddressAlone) {
  const net::Id id = net::Id::parse(UniqueId::make(2).text);
  net::Id other = id;
  ASSERT_TRUE(net::Endpoint::parse("127.0.0.2", id.endpoint.port(), other.endpoint));
  EXPECT_TRUE(Raw(id.text()).connected());
  EXPECT_FALSE(Raw(other.text()).connected());
}

TEST(Control, RanksThatDoNotComeAreNamedToAllWhoWait) {
  const std::string id = UniqueId::make(5).text;
  std::vector<std::string> errors(5);
  run_ranks(5, [&](Rank rank) {
    if (rank == 1 || rank == 3) return;
    errors[at(rank)] = join_error(id, rank, 5, rank == 0 ? 300 : kPatience_ms);
  });
  for (const Rank rank : {0, 2, 4}) {
    EXPECT_THAT(errors[at(rank)], HasSubstr("waited 300 ms for ranks 1 and 3 to join"));
  }
}

TEST(Control, RanksThatAreLateToJoinAreMentionedByOneOfThoseWhoWait) {
  const std::string id = UniqueId::make(4).text;
  ::testing::internal::CaptureStderr();
  const auto errors = run_ranks(4, [&](Rank rank) {
    if (rank == 1 || rank == 3) std::this_thread::sleep_for(milliseconds(900));
    (void)Control::join(id, rank, 4, kPatience_ms, {.warn_after_ms = 300});
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_THAT(said, HasSubstr("warn: [rank 0/4] still waiting for ranks 1 and 3 to join at 127."));
  EXPECT_THAT(said, Not(HasSubstr("[rank 2/4]")));
}

TEST(Control, TheListenerMayBeBusyButNotAbsent) {
  net::Id id = net::Id::parse(UniqueId::make(2).text);
  {
    const net::Socket free = net::listen_on(net::local_endpoint("", 0));
    id.endpoint.set_port(net::local_end(free.get()).port());
  }
  const auto start = Clock::now();
  EXPECT_THAT(join_error(id.text(), 1, 2, kPatience_ms),
              AllOf(HasSubstr("nothing listens at 127.0.0.1:"), HasSubstr("rank 0")));
  EXPECT_LT(Clock::now() - start, milliseconds(1'900));
}

TEST(Control, AnExchangeNamesWhoIsMissing) {
  auto controls = join_all(UniqueId::make(3).text, 3);
  const auto errors = run_ranks(2, [&](Rank rank) {
    (void)controls[at(rank)]->exchange("half", all_ranks(3), bytes_of("x"), rank == 0 ? 200 : 400);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("nothing from rank 2 after 200 ms"), HasSubstr("half")));
  EXPECT_THAT(errors[1], HasSubstr("nothing from rank 2"));
  leave_all(controls);
}

TEST(Control, AnExchangeFailsWhenAMemberHasLeft) {
  const std::string id = UniqueId::make(3).text;
  const auto errors = run_ranks(3, [&](Rank rank) {
    const auto control = Control::join(id, rank, 3, kPatience_ms);
    if (rank == 2) return;
    if (rank == 1) std::this_thread::sleep_for(milliseconds(150));
    (void)control->exchange("two", all_ranks(3), bytes_of("x"), kPatience_ms);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 2 ("), HasSubstr("has left")));
  EXPECT_THAT(errors[1], HasSubstr("has left"));
}

TEST(Control, WhatIsWithdrawnFromAnExchangeDoesNotStandForALaterOne) {
  const std::string id = UniqueId::make(2).text;
  std::latch waiting(1);
  const auto errors = run_ranks(2, [&](Rank rank) {
    const auto control = Control::join(id, rank, 2, kPatience_ms);
    if (rank == 0) {
      EXPECT_THROW((void)control->exchange("k", all_ranks(2), bytes_of("old"), kPatience_ms, {},
                                           [] { throw InputError("no longer"); }),
                   InputError);
    }
    (void)control->exchange("between", all_ranks(2), {}, kPatience_ms);
    if (rank == 0) waiting.wait();
    bool told = false;
    const auto tell = [&] {
      if (rank == 1 && !std::exchange(told, true)) waiting.count_down();
    };
    const auto all = control->exchange("k", all_ranks(2), bytes_of("new"), kPatience_ms, {}, tell);
    tell();
    EXPECT_EQ(text_of(all[0]), "new");
    EXPECT_FALSE(control->reason_to_leave());
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Control, AFailureAsideIsNoReasonToLeave) {
  const std::string id = UniqueId::make(2).text;
  const auto errors = run_ranks(2, [&](Rank rank) {
    const auto control = Control::join(id, rank, 2, kPatience_ms);
    control->open_group("aside", all_ranks(2), true);
    (void)control->exchange("both", all_ranks(2), {}, kPatience_ms);
    if (rank == 0) control->abort("aside", "it does not matter");
    EXPECT_THROW((void)control->exchange("rank " + std::to_string(rank) + " alone", all_ranks(2),
                                         {}, kPatience_ms, "aside"),
                 BootstrapError);
    EXPECT_FALSE(control->reason_to_leave()) << *control->reason_to_leave();
    control->close_group("aside");
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Control, AnExchangeOfAGroupEndsWithItsVerdict) {
  auto controls = join_all(UniqueId::make(2).text, 2);
  for (auto& control : controls) control->open_group("g", all_ranks(2));
  const auto start = Clock::now();
  const auto errors = run_ranks(2, [&](Rank rank) {
    if (rank == 0) {
      (void)controls[0]->exchange("g/x", all_ranks(2), {}, kPatience_ms, "g");
    } else {
      std::this_thread::sleep_for(milliseconds(50));
      controls[1]->abort("g", "enough");
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 aborted: enough"));
  EXPECT_LT(Clock::now() - start, milliseconds(2'000));
  leave_all(controls);
}

// Mismatches.

/// What the coordinator says next to a rank that waits for the others: why they will not come.
std::string why_join_failed(Raw& waiting) {
  const auto frame = waiting.next();
  if (!frame || frame->first != Type::job_failed) return "nothing";
  return wire::Reader(frame->second).text();
}

TEST(Control, AnotherWorldSizeIsToldToBothSides) {
  const std::string id = UniqueId::make(2).text;
  Raw waiting(id);
  EXPECT_EQ(waiting.enter(waiting.hello(0, 2)).second, "welcome");
  const std::string error = join_error(id, 1, 8, kPatience_ms);
  for (const auto& text : {error, why_join_failed(waiting)}) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1 (pid "),
                            HasSubstr("joins a world of 8 ranks, but the coordinator (pid "),
                            HasSubstr("has a world of 2: start all ranks")));
  }
}

TEST(Control, AnotherVersionIsToldToBothSides) {
  const std::string id = UniqueId::make(2).text;
  Raw waiting(id), other(id);
  EXPECT_EQ(waiting.enter(waiting.hello(0, 2)).second, "welcome");
  wire::Hello hello = other.hello(1, 2);
  hello.version = "9.9.9 (control protocol 9)";
  const std::string answer = other.enter(hello).second;
  for (const auto& text : {answer, why_join_failed(waiting)}) {
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1 (pid 4242 on elsewhere) has Chorus 9.9.9"),
                            HasSubstr("the coordinator " + wire::version())));
  }
}

TEST(Control, TwoProcessesWithOneRankAreToldToBothSides) {
  const std::string id = UniqueId::make(3).text;
  Raw waiting(id);
  EXPECT_EQ(waiting.enter(waiting.hello(1, 3)).second, "welcome");
  const std::string error = join_error(id, 1, 3, kPatience_ms);
  for (const auto& text : {error, why_join_failed(waiting)}) {
    EXPECT_THAT(text, HasSubstr("two processes claim to be one rank: rank 1 (pid 4242 on "
                                "elsewhere) and rank 1 (pid "));
  }
}

TEST(Control, AnIdServesOneJoiningAndSaysSo) {
  const std::string id = UniqueId::make(2).text;
  auto controls = join_all(id, 2);
  EXPECT_THAT(join_error(id, 1, 2, 500), HasSubstr("has joined with this id before"));
  leave_all(controls);
}

// A place such as MASTER_PORT: the coordinator in rank 0's process, which may be joined again.

/// A coordinator that rank 0 of `world_size` holds, and rank 0.
struct Place {
  explicit Place(int world_size) : coordinator(world_size, "", 0, Secret::random(), kHost) {
    joiner = std::thread([this, world_size] {
      try {
        zero = Control::join(coordinator.id(), 0, world_size, kPatience_ms);
      } catch (const Error& error) {
        why = error.what();
      }
    });
  }
  static constexpr Coordinator::Host kHost{.joined_often = true};
  Coordinator coordinator;
  std::thread joiner;
  std::shared_ptr<Control> zero;
  std::string why;
};

/// A hello of another process than that of all the others.
wire::Hello hello_of(const Raw& raw, Rank rank, int world_size, const std::string& process) {
  wire::Hello hello = raw.hello(rank, world_size);
  hello.identity = process;
  return hello;
}

TEST(Place, AWrongWorldSizeFailsTheJoinForAllAtOnce) {
  for (const auto& [rank, wrong] :
       {std::pair(1, 3), std::pair(1, 1), std::pair(2, 3), std::pair(0, 4), std::pair(5, 8)}) {
    const auto start = Clock::now();
    Place place(2);
    Raw other(place.coordinator.id());
    const std::string answer = other.enter(hello_of(other, rank, wrong, "x")).second;
    place.joiner.join();
    for (const auto& text : {answer, place.why}) {
      EXPECT_THAT(text, AllOf(HasSubstr(fmt::format(
                                  "rank {} (pid 4242 on elsewhere) joins a world "
                                  "of {}, but the coordinator (pid ",
                                  rank, wrong == 1 ? "1 rank" : fmt::format("{} ranks", wrong))),
                              HasSubstr("has a world of 2")));
    }
    EXPECT_LT(Clock::now() - start, milliseconds(5'000));
  }
}

TEST(Place, ARankThatIsClaimedTwiceIsToldToAllAtOnce) {
  Place place(3);
  Raw first(place.coordinator.id()), second(place.coordinator.id());
  EXPECT_EQ(first.enter(hello_of(first, 1, 3, "a")).second, "welcome");
  const std::string answer = second.enter(hello_of(second, 1, 3, "b")).second;
  place.joiner.join();
  for (const auto& text : {answer, why_join_failed(first), place.why}) {
    EXPECT_THAT(text, HasSubstr("two processes claim to be one rank: rank 1 (pid 4242 on "
                                "elsewhere) and rank 1 (pid 4242 on elsewhere)"));
  }
}

// While all ranks are there, whoever comes besides is mistaken; the job goes on.
TEST(Place, WhoComesToACompleteJobIsRefusedAtOnceAndRankZeroIsWarned) {
  Place place(2);
  Raw one(place.coordinator.id());
  EXPECT_EQ(one.enter(hello_of(one, 1, 2, "a")).second, "welcome");
  place.joiner.join();
  ASSERT_NE(place.zero, nullptr);
  for (const auto& [rank, world_size, expected] :
       {std::tuple(1, 2, "two processes claim to be one rank"),
        std::tuple(1, 3, "joins a world of 3 ranks")}) {
    Raw other(place.coordinator.id());
    ::testing::internal::CaptureStderr();
    const auto [type, text] = other.enter(hello_of(other, rank, world_size, "b"));
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(type, Type::refused);
    EXPECT_THAT(text, HasSubstr(expected));
    EXPECT_THAT(said, AllOf(HasSubstr("warn: refused 127.0.0.1:"), HasSubstr(expected)));
  }
  place.zero->open_group("g", all_ranks(2));
  EXPECT_EQ(verdict_within(*place.zero, "g", 50), "no verdict");
  one.send(Writer(Type::goodbye).text("").share());
}

// Once a rank has left, the next job may be on its way.
TEST(Place, EarlyRanksOfTheNextJobAreToComeLater) {
  Place place(2);
  Raw one(place.coordinator.id());
  EXPECT_EQ(one.enter(hello_of(one, 1, 2, "a")).second, "welcome");
  place.joiner.join();
  one.send(Writer(Type::goodbye).text("").share());
  one.close();
  for (const bool over : {false, true}) {
    const auto end = Clock::now() + milliseconds(2'000);
    if (over) place.zero.reset();
    for (const int world_size : {2, 3, 5}) {
      Type type = Type::refused;  // until the goodbye is heard
      while (type != Type::later && Clock::now() < end) {
        Raw next(place.coordinator.id());
        type = next.enter(hello_of(next, 1, world_size, "b")).first;
      }
      EXPECT_EQ(type, Type::later) << world_size;
    }
  }
}

TEST(Joining, EndsForAllOnceOneKnowsThatItIsInVain) {
  const std::string id = UniqueId::make(3).text;
  Raw one(id);
  EXPECT_EQ(one.enter(one.hello(1, 3)).second, "welcome");
  const std::string why = "rank 2 (pid 5 on h) died: its connection closed";
  int asked = 0;
  try {
    (void)Control::join(id, 0, 3, kPatience_ms,
                        {.is_in_vain = [&](int) -> std::optional<std::string> {
                          return ++asked < 3 ? std::nullopt : std::optional(why);
                        }});
    ADD_FAILURE() << "joined";
  } catch (const BootstrapError& error) {
    EXPECT_EQ(error.what(), why);
  }
  const auto told = one.next();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->first, Type::job_failed);
  EXPECT_EQ(wire::Reader(told->second).text(), why);
}

TEST(Place, WhatTheCoordinatorSaidLastIsKeptThoughItIsGone) {
  auto place = std::make_unique<Place>(2);
  const std::string id = place->coordinator.id();
  Raw one(id);
  EXPECT_EQ(one.enter(hello_of(one, 1, 2, "a")).second, "welcome");
  place->joiner.join();
  one.send(Writer(Type::goodbye).text("").share());
  place->zero.reset();
  Raw early(id);
  EXPECT_EQ(early.enter(hello_of(early, 1, 2, "b")).first, Type::later);
  const pid_t child = ::fork();
  if (child == 0) {  // another process, as identities tell
    const std::string why = join_error(id, 1, 2, 1'500);
    const bool kept =
        why.find("not admitted at 127.0.0.1:") != std::string::npos &&
        why.find("holds the place for an earlier joining of 2 ranks") != std::string::npos &&
        why.find("in the end: Connection refused") != std::string::npos;
    if (!kept) std::fprintf(stderr, "%s\n", why.c_str());
    ::_exit(kept ? 0 : 1);
  }
  std::this_thread::sleep_for(milliseconds(500));
  place.reset();
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Place, AnotherSecretIsToldToBothSides) {
  ::testing::internal::CaptureStderr();
  Coordinator coordinator(2, "", 0, Secret::random(), {.joined_often = true});
  net::Id wrong = net::Id::parse(coordinator.id());
  wrong.secret = Secret::random();
  std::string why;
  std::thread waiting([&] { why = join_error(coordinator.id(), 0, 2, 700); });
  const std::string refused = join_error(wrong.text(), 1, 2, kPatience_ms);
  waiting.join();
  EXPECT_THAT(refused, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(refused, HasSubstr("has another secret than the coordinator (pid "));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warn: refused 127.0.0.1:"), HasSubstr("has another secret")));
  EXPECT_THAT(why, AllOf(HasSubstr("rank 0 waited 700 ms for rank 1 to join"),
                         HasSubstr("1 with another secret was refused, the last from 127.0.0.1:"),
                         HasSubstr("as rank 1 of 2")));
}

TEST(Place, ARankThatDiesWhileJoiningIsToldToAllWithinASecond) {
  Place place(3);
  Raw dying(place.coordinator.id());
  EXPECT_EQ(dying.enter(hello_of(dying, 1, 3, "a")).second, "welcome");
  const auto start = Clock::now();
  dying.close();
  place.joiner.join();
  EXPECT_LT(Clock::now() - start, milliseconds(1'000));
  EXPECT_THAT(place.why, HasSubstr("rank 1 (pid 4242 on elsewhere) died: its connection closed "
                                   "before all ranks had joined"));
}

TEST(Coordinator, OfALauncherLetsTheRanksJoinAgain) {
  Coordinator coordinator(3, "", 0, Secret::random(), {.launcher = true, .joined_often = true});
  for (int round = 0; round < 5; ++round) {
    const auto errors = run_ranks(3, [&](Rank rank) {
      const auto control = Control::join(coordinator.id(), rank, 3, kPatience_ms);
      const auto all =
          control->exchange("x", all_ranks(3), bytes_of(fmt::format("{}", rank)), 9000);
      EXPECT_EQ(text_of(all[2]), "2");
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace chorus
