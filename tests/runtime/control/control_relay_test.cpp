// Ranks whose connections a relay carries: they meet as any others, and what ends is named as
// elsewhere, also where it is the relay. Ranks are processes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <random>

#include "base/index.hpp"
#include "control_harness.hpp"
#include "runtime/control/relay.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kWorld = 6;

/// What each process answers; "" of one that dies.
std::vector<std::string> run_processes(const std::function<std::string(Rank)>& body) {
  std::vector<pid_t> pids;
  std::vector<Fd> answers;
  std::fflush(stdout);
  for (Rank rank = 0; rank < kWorld; ++rank) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    answers.emplace_back(ends[0]);
    Fd write(ends[1]);
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    std::string text;
    try {
      text = body(rank);
    } catch (const std::exception& error) {
      text = fmt::format("rank {} threw: {}", rank, error.what());
    }
    [[maybe_unused]] const auto written = ::write(write.get(), text.data(), text.size());
    ::_exit(0);
  }
  std::vector<std::string> said;
  for (const Fd& answer : answers) {
    std::string& text = said.emplace_back();
    std::array<char, 4096> buffer;
    for (ssize_t got; (got = ::read(answer.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }
  for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  return said;
}

std::shared_ptr<Control> join_by_relay(const std::string& id, Rank rank) {
  return Control::join(id, rank, kWorld, kPatience_ms, {.most_direct = 1});
}

/// The rank in whose process the relay is, as all come to know.
Rank carrier(Control& control) {
  const auto flags =
      control.exchange("carrier", all_ranks(kWorld),
                       bytes_of(control.carries_others() ? "yes" : "no"), kPatience_ms);
  for (Rank rank = 0; rank < kWorld; ++rank) {
    if (text_of(flags[at(rank)]) == "yes") return rank;
  }
  return -1;
}

/// Connections between processes of this machine to that port.
int connections_to(std::uint16_t port) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  int count = 0;
  while (std::getline(table, line)) {
    // "  sl local remote st ...": 01 is established, and counted at its far end alone.
    const std::string to = fmt::format(":{:04X} 01 ", port);
    count += line.find(to) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(Relay, OneConnectionCarriesAllRanksOfAHost) {
  const std::string id = UniqueId::make(kWorld).text;
  const std::uint16_t port = net::Id::parse(id).endpoint.port();
  const auto said = run_processes([&](Rank rank) {
    const auto control = join_by_relay(id, rank);
    if (carrier(*control) < 0) return std::string("nobody carries the others");
    std::string text;
    for (int round = 0; round < 20; ++round) {
      text = all_of(control->exchange(fmt::format("round {}", round), all_ranks(kWorld),
                                      bytes_of(letter(rank)), kPatience_ms));
    }
    const int connections = connections_to(port);
    // Large ones are read in place, also from a relay.
    const std::string large(100'000, 'x');
    const auto table = control->exchange("large", all_ranks(kWorld), bytes_of(large), kPatience_ms);
    for (const auto blob : table) {
      if (text_of(blob) != large) return std::string("a large blob is another");
    }
    return fmt::format("{} over {} connections, {}", text, connections, control->local_address());
  });
  EXPECT_THAT(said, Each("abcdef over 1 connections, 127.0.0.1"));
}

TEST(Relay, ARankThatNobodyExpectsIsRefusedInTheWordsOfTheCoordinator) {
  const std::string id = UniqueId::make(kWorld).text;
  const auto said = run_processes([&](Rank rank) {
    try {
      (void)join_by_relay(id, rank == 1 ? 0 : rank);
    } catch (const BootstrapError& error) {
      return std::string(error.what());
    }
    return std::string("joined");
  });
  EXPECT_THAT(said, Each(HasSubstr("two processes claim to be one rank: rank 0 (pid ")));
}

TEST(Relay, WithoutACoordinatorAllRanksOfTheHostHearSo) {
  const std::string id = fmt::format("chorus:127.0.0.1:1:{}", Secret::random().text());
  const auto said = run_processes([&](Rank rank) {
    try {
      (void)join_by_relay(id, rank);
    } catch (const BootstrapError& error) {
      return std::string(error.what());
    }
    return std::string("joined");
  });
  EXPECT_THAT(said, Each(HasSubstr("nothing listens at 127.0.0.1:1: ")));
}

/// Rounds until somebody is lost; then that it is `victim`, and one with those that are left.
std::string go_on_without(Control& control, Rank victim, bool is_victim, int after_us) {
  control.open_group("g", all_ranks(kWorld));
  std::thread death;
  if (is_victim) {
    death = std::thread([after_us] {
      std::this_thread::sleep_for(std::chrono::microseconds(after_us));
      ::raise(SIGKILL);
    });
  }
  const std::string all = "abcdef";
  std::string lost;
  for (int round = 0; lost.empty(); ++round) {
    try {
      const std::string got =
          all_of(control.exchange(fmt::format("round {}", round % 3), all_ranks(kWorld),
                                  bytes_of(letter(control.rank())), kPatience_ms, "g"));
      if (got != all) return fmt::format("round {} gives {}", round, got);
    } catch (const BootstrapError& error) {
      lost = error.what();
    }
  }
  if (is_victim) death.join();
  const std::string verdict = verdict_within(control, "g", kPatience_ms);
  const std::string culprit = fmt::format("rank {} (pid ", victim);
  if (!verdict.starts_with(culprit) ||
      verdict.find("died: its connection closed") == verdict.npos) {
    return fmt::format("verdict: {}", verdict);
  }
  const std::string rest = all_of(control.exchange("rest", all_ranks_but(victim, kWorld),
                                                   bytes_of(letter(control.rank())), kPatience_ms));
  std::string expected = all;
  expected.erase(at(victim), 1);
  return rest == expected ? "went on" : fmt::format("the rest gives {}", rest);
}

void expect_all_go_on(const std::vector<std::string>& said, const std::string& trial) {
  int went_on = 0;
  for (const std::string& text : said) {
    went_on += text == "went on" ? 1 : 0;
    EXPECT_TRUE(text == "went on" || text.empty()) << trial << ": " << text;
  }
  EXPECT_EQ(went_on, kWorld - 1) << trial;
}

TEST(Relay, AKilledRankIsNamedByAllAndTheOthersGoOn) {
  std::minstd_rand random(1);
  for (int i = 0; i < 8; ++i) {
    const std::string id = UniqueId::make(kWorld).text;
    const auto after_us = static_cast<int>(random() % 20'000);
    const auto said = run_processes([&](Rank rank) {
      const auto control = join_by_relay(id, rank);
      const Rank victim = (carrier(*control) + 1) % kWorld;
      return go_on_without(*control, victim, rank == victim, after_us);
    });
    expect_all_go_on(said, fmt::format("trial {}", i));
  }
}

// What was on its way up or down is lost with the relay, and must not be missed.
TEST(Relay, AKilledRelayIsNamedByAllAndTheOthersGoOn) {
  std::minstd_rand random(2);
  for (int i = 0; i < 16; ++i) {
    const std::string id = UniqueId::make(kWorld).text;
    const auto after_us = static_cast<int>(random() % 20'000);
    const auto said = run_processes([&](Rank rank) {
      const auto control = join_by_relay(id, rank);
      const Rank victim = carrier(*control);
      return go_on_without(*control, victim, rank == victim, after_us);
    });
    expect_all_go_on(said, fmt::format("trial {}", i));
  }
}

TEST(Relay, TheCoordinatorAndTheRelayMayDieTogether) {
  std::minstd_rand random(3);
  for (int i = 0; i < 8; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd ids(ends[0]), tell(ends[1]);
    const auto after_us = static_cast<int>(random() % 20'000);
    const auto said = run_processes([&](Rank rank) {
      std::string id;
      std::shared_ptr<Control> control;
      if (rank == 0) {  // the first to come, so the relay is its as well
        id = UniqueId::make(kWorld).text;
        std::thread others([&] {
          std::this_thread::sleep_for(milliseconds(50));
          for (Rank other = 1; other < kWorld; ++other) {
            [[maybe_unused]] const auto written = ::write(tell.get(), id.data(), id.size());
          }
        });
        control = join_by_relay(id, rank);
        others.join();
      } else {
        // "chorus:127.0.0.1:port:secret", of one length for all
        std::array<char, 128> buffer;
        const std::size_t size = std::string("chorus:127.0.0.1:12345:").size() + 32;
        std::size_t got = 0;
        while (got < size) {
          const ssize_t now = ::read(ids.get(), buffer.data() + got, size - got);
          if (now > 0) got += static_cast<std::size_t>(now);
        }
        id = std::string(buffer.data(), size);
        control = join_by_relay(id, rank);
      }
      return go_on_without(*control, 0, rank == 0, after_us);
    });
    expect_all_go_on(said, fmt::format("trial {}", i));
  }
}

TEST(Relay, TheRankOfTheRelayMayLeaveWhileTheOthersGoOn) {
  const std::string id = UniqueId::make(kWorld).text;
  const auto said = run_processes([&](Rank rank) {
    auto control = join_by_relay(id, rank);
    const Rank first = carrier(*control);
    if (rank == first) {
      control.reset();
      return std::string("left");
    }
    std::string text;
    for (int round = 0; round < 400; ++round) {
      text = all_of(control->exchange(fmt::format("round {}", round % 3),
                                      all_ranks_but(first, kWorld), bytes_of("x"), kPatience_ms));
      std::this_thread::sleep_for(milliseconds(5));  // longer than the relay stays
    }
    return text;
  });
  int left = 0;
  for (const std::string& text : said) {
    left += text == "left" ? 1 : 0;
    EXPECT_TRUE(text == "left" || text == "xxxxx") << text;
  }
  EXPECT_EQ(left, 1);
}

TEST(Relay, AProcessThatComesAnewIsTakenInPastTheRelays) {
  const std::string id = UniqueId::make(kWorld).text;
  const net::Id met = net::Id::parse(id);
  const Rank last = kWorld - 1;
  const auto said = run_processes([&](Rank rank) {
    // Before the job has begun, whoever would be taken in joins as all do.
    auto control =
        Control::join(id, rank, kWorld, kPatience_ms, {.most_direct = 1, .rejoin = rank == 2});
    (void)all_of(control->exchange("all", all_ranks(kWorld), bytes_of("x"), kPatience_ms));
    std::shared_ptr<Control> grown;
    std::unique_ptr<Coordinator> coordinator;
    if (rank == last) {
      control.reset();
      grown = Control::join(id, rank, kWorld, kPatience_ms, {.most_direct = 1, .rejoin = true});
    } else {
      std::string place;
      if (rank == 0) {
        const net::Caller asks{.secret = met.secret, .wish = wire::Wish::count};
        while (net::ask_room(met, asks, kPatience_ms).waiting == 0) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        const Secret tag = Secret::random();
        coordinator =
            std::make_unique<Coordinator>(kWorld, "", 0, met.secret.derive("grown " + tag.text()));
        place = net::Id{net::Id::parse(coordinator->id()).endpoint, tag}.text();
        (void)net::ask_room(met,
                            {.rank = last,
                             .world_size = kWorld,
                             .secret = met.secret,
                             .wish = wire::Wish::offer,
                             .place = place},
                            kPatience_ms);
      }
      place = all_of(
          control->exchange("place", all_ranks_but(last, kWorld), bytes_of(place), kPatience_ms));
      grown = join_by_relay(net::grown_id(met.secret, place).text(), rank);
    }
    const std::string text =
        all_of(grown->exchange("grown", all_ranks(kWorld), bytes_of(letter(rank)), kPatience_ms));
    return fmt::format("{} {}", text, grown->was_taken_in() == (rank == last));
  });
  EXPECT_THAT(said, Each("abcdef true"));
}

TEST(Relay, ThatComesToAJoiningThatHasFailedIsToldWhy) {
  const std::string id = UniqueId::make(kWorld).text;
  Raw zero(id);
  EXPECT_EQ(zero.enter(zero.hello(0, kWorld)).second, "welcome");
  {
    Raw dies(id);
    wire::Hello hello = dies.hello(1, kWorld);
    hello.identity = "rank 1";
    EXPECT_EQ(dies.enter(hello).second, "welcome");
  }
  const auto failed = zero.next();
  ASSERT_TRUE(failed);
  const std::string why =
      "rank 1 (pid 4242 on elsewhere) died: its connection closed before all "
      "ranks had joined";
  EXPECT_EQ(wire::Reader(failed->second).text(), why);
  zero.close();
  // Rank 0 comes again: as a relay of its host, and as itself.
  for (const bool as_relay : {true, false}) {
    Raw again(id);
    wire::Hello hello = again.hello(0, kWorld);
    hello.relay_address = "127.0.0.1";
    hello.relay_port = as_relay ? 1 : 0;
    EXPECT_EQ(again.enter(hello), std::pair(wire::Type::refused, why)) << as_relay;
  }
}

TEST(Relay, TheNextOneOfAHostServesWhomTheFirstCannotCarry) {
  const Secret secret = Secret::random();
  const net::Endpoint up = net::local_endpoint("", 1);
  const std::string name = Relay::name(secret, up, 0, 0);
  EXPECT_FALSE(Relay::connect(name));
  {
    const net::Socket first = Relay::listen(name);
    ASSERT_TRUE(first);
    EXPECT_FALSE(Relay::listen(name)) << "a name is had once";
    EXPECT_TRUE(Relay::connect(name));
    EXPECT_TRUE(Relay::listen(Relay::name(secret, up, 0, 1)));
    EXPECT_TRUE(Relay::listen(Relay::name(secret, up, 1, 0))) << "of another joining";
  }
  EXPECT_TRUE(Relay::listen(name)) << "it ends with its process";
}

}  // namespace
}  // namespace chorus
