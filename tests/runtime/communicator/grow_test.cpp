// Communicators that processes come to: by an id that is handed to them, or by the waiting room
// where the job met; and the state that these get.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <numeric>
#include <thread>
#include <vector>

#include "chorus/error.hpp"
#include "runtime/control/control_harness.hpp"
#include "runtime/control/coordinator/host.hpp"
#include "runtime/control/meet.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void expect_sum(Communicator& comm, int world_size) {
  require(comm.world_size() == world_size, fmt::format("a world of {}", comm.world_size()));
  std::vector<std::int64_t> sum(5'000, std::int64_t{1} << comm.rank());
  comm.all_reduce<std::int64_t>(sum);
  require(sum.back() == (std::int64_t{1} << world_size) - 1, fmt::format("sum {}", sum.back()));
}

std::string what_is_thrown(const std::function<void()>& body) {
  try {
    body();
    return "nothing is thrown";
  } catch (const Error& error) {
    return error.what();
  }
}

class Grow : public ::testing::TestWithParam<std::string> {};

TEST_P(Grow, ByAnIdThatOneRankGivesAsNcclDoes) {
  World world = threads(2, GetParam());
  world.options.host_probe = "off";
  const UniqueId larger = UniqueId::make(4);
  std::vector<std::string> fresh(2);
  std::vector<std::thread> comers;
  for (Rank rank = 2; rank < 4; ++rank) {
    comers.emplace_back([&, rank] {
      try {
        auto comm = Communicator::join(larger, rank, 4, world.options);
        require(!comm.was_taken_in(), "whoever has an id joins");
        expect_sum(comm, 4);
      } catch (const std::exception& error) {
        fresh[static_cast<std::size_t>(rank - 2)] = error.what();
      }
    });
  }
  expect_all_well(run_world(world, [&](Communicator& comm) {
    auto grown = comm.grow(comm.rank() == 1 ? larger : UniqueId{}, 4);
    require(grown.rank() == comm.rank(), "members keep their numbers");
    expect_sum(grown, 4);
    expect_sum(comm, 2);
  }));
  for (std::thread& comer : comers) comer.join();
  EXPECT_THAT(fresh, ::testing::Each(""));
}

/// Listens where rank 0 was to hold a coordinator, kills it when the first rank comes, and refuses
/// all that come.
class Usurper {
 public:
  Usurper()
      : socket_(net::listen_on(net::local_endpoint("", 0))),
        id_{net::Id{net::local_end(socket_.get()), Secret::random()}.text()} {
    void* const memory = ::mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    victim_ = new (memory) std::atomic<pid_t>(0);
    thread_ = std::thread([this] {
      for (pollfd entry{socket_.get(), POLLIN, 0}; ::poll(&entry, 1, -1) > 0;) {
        const Fd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (peer.get() < 0) return;
        ::kill(*victim_, SIGKILL);
        refuse(peer.get());
      }
    });
  }
  ~Usurper() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
    ::munmap(victim_, sizeof *victim_);
  }
  [[nodiscard]] const UniqueId& id() const { return id_; }
  void will_kill_this_process() { *victim_ = ::getpid(); }

 private:
  static void refuse(int peer) {
    const auto say = [&](const wire::Frame& frame) {
      (void)::send(peer, frame->data(), frame->size(), MSG_NOSIGNAL);
    };
    say(wire::greeting_frame(wire::random_nonce()));
    char hello[4096];
    (void)::recv(peer, hello, sizeof hello, 0);
    say(wire::Writer(wire::Type::refused).text("it has another secret").u8(0).share());
  }

  net::Socket socket_;
  UniqueId id_;
  std::atomic<pid_t>* victim_ = nullptr;  ///< in memory that the ranks share
  std::thread thread_;
};

// What the others are told is who died, and not what the unauthenticated peer says that has its
// place.
TEST_P(Grow, NamesTheRankThatDiedWithTheLargerCoordinator) {
  Usurper usurper;
  World world = threads(2, GetParam());
  world.ranks = Ranks::processes;
  world.options.host_probe = "off";
  const Outcomes outcomes = run_world(world, [&](Communicator& comm) {
    if (comm.rank() == 0) usurper.will_kill_this_process();
    comm.barrier();
    const std::string why =
        what_is_thrown([&] { (void)comm.grow(comm.rank() == 0 ? usurper.id() : UniqueId{}, 3); });
    require(why.find("rank 0 (pid ") == 0 && why.find(" died: ") != why.npos, why);
  });
  EXPECT_THAT(outcomes[0], HasSubstr("signal 9"));
  EXPECT_EQ(outcomes[1], "");
}

TEST_P(Grow, RefusesOnAllRanksWhatTheyDoNotAgreeOn) {
  World world = threads(2, GetParam());
  world.options.host_probe = "off";
  const UniqueId one = UniqueId::make(3), other = UniqueId::make(3);
  expect_all_well(run_world(world, [&](Communicator& comm) {
    EXPECT_THAT(what_is_thrown([&] { (void)comm.grow(one, 2); }), HasSubstr("must have more"));
    EXPECT_THAT(what_is_thrown([&] { (void)comm.grow(comm.rank() == 0 ? one : other, 3); }),
                HasSubstr("another id"));
    EXPECT_THAT(what_is_thrown([&] { (void)comm.grow(one, 3 + comm.rank()); }),
                HasSubstr("grows to 4 ranks, but rank 0 to 3"));
    EXPECT_THAT(what_is_thrown([&] { (void)comm.grow(UniqueId{}, 3); }), HasSubstr("no rank has"));
    EXPECT_THAT(what_is_thrown([&] { (void)comm.take_in(0); }), HasSubstr("at least 1"));
    expect_sum(comm, 2);
  }));
}

/// A job whose coordinator lives in the test, as under `chorus run`.
class Rejoin : public Grow {
 protected:
  Coordinator coordinator_{3, "", 0, Secret::random(), {.launcher = true, .joined_often = true}};
};

TEST_P(Rejoin, AProcessStartedAnewIsTakenInAndGetsTheState) {
  World world = threads(3, GetParam());
  world.options.on_loss = "shrink";
  world.options.host_probe = "off";
  const std::string id = coordinator_.id();
  std::atomic<int> through{0};
  const auto member = [&](Rank rank, std::string& outcome) {
    try {
      auto comm = Communicator::join({id}, rank, 3, world.options);
      expect_sum(comm, 3);
      ++through;
      auto smaller = comm.shrink(std::vector<Rank>{1});
      expect_sum(smaller, 2);
      for (int times = 0; times < 2; ++times) {
        // One asks: whoever is offered a place does not wait any more.
        std::vector<int> waiting{0};
        while (waiting[0] == 0) {
          if (smaller.rank() == 0) waiting[0] = smaller.num_waiting();
          smaller.all_reduce<int>(waiting, ReduceOp::max);
        }
        auto grown = smaller.take_in(1);
        expect_sum(grown, 3);
        std::vector<float> weights(100'000);
        std::iota(weights.begin(), weights.end(), 0.5F);
        std::vector<double> moments(777, 3.25);
        const std::vector<std::span<std::byte>> state{std::as_writable_bytes(std::span(weights)),
                                                      std::as_writable_bytes(std::span(moments))};
        const StateCopy copy = grown.copy_state(state, true);
        require(copy.bytes == 0 && copy.from.empty(), "a holder got something");
      }
    } catch (const std::exception& error) {
      outcome = error.what();
      ADD_FAILURE() << "rank " << rank << ": " << outcome;  // others may wait for it meanwhile
    }
  };
  const auto anew = [&](std::string& outcome) {
    try {
      Options options = world.options;
      options.rejoin = true;
      auto comm = Communicator::join({id}, 1, 3, options);
      require(comm.was_taken_in() && comm.rank() == 2, "it was not taken in");
      expect_sum(comm, 3);
      std::vector<float> weights(100'000, -1);
      std::vector<double> moments(777, -1);
      const std::vector<std::span<std::byte>> state{std::as_writable_bytes(std::span(weights)),
                                                    std::as_writable_bytes(std::span(moments))};
      const StateCopy copy = comm.copy_state(state, false);
      require(weights[99'999] == 99'999.5F && moments[776] == 3.25, "the state is another");
      require(copy.bytes == 4 * weights.size() + 8 * moments.size(), "not all bytes came");
      require(copy.from == std::vector<Rank>{0, 1}, "not every holder sent a part");
    } catch (const std::exception& error) {
      outcome = error.what();
    }
  };
  std::string first, zero, two, second, third;
  std::thread a([&] { member(0, zero); }), b([&] { member(2, two); });
  std::thread c([&] {
    try {
      auto comm = Communicator::join({id}, 1, 3, world.options);
      expect_sum(comm, 3);
      while (through < 2) ::usleep(100);  // nobody is left behind in the call
      throw std::runtime_error("had enough");
    } catch (const std::exception& error) {
      first = error.what();
    }
  });
  c.join();
  std::thread d([&] { anew(second); });
  d.join();
  std::thread e([&] { anew(third); });
  e.join();
  a.join();
  b.join();
  EXPECT_EQ(first, "had enough");
  EXPECT_EQ(zero, "");
  EXPECT_EQ(two, "");
  EXPECT_EQ(second, "");
  EXPECT_EQ(third, "");
}

/// Waits for a seat as another process, comes to where it is, and dies there.
void die_on_the_way(const std::string& id) {
  const net::Id met = net::Id::parse(id);
  for (;; ::usleep(1'000)) {
    testing_control::Raw asks(id);
    const auto greeting = asks.next();
    require(greeting.has_value(), "no greeting");
    wire::Hello hello = asks.hello(1, 3);
    hello.wish = wire::Wish::rejoin;
    asks.send(wire::hello_frame(hello, wire::read_greeting(greeting->second).nonce, met.secret));
    const auto answer = asks.next();
    require(answer.has_value(), "no answer");
    if (answer->first == wire::Type::later) continue;
    require(answer->first == wire::Type::moved, "another answer");
    wire::Reader reader(answer->second);
    (void)reader.raw16();
    const std::string place = reader.text(wire::kMaxPlace);
    const Rank rank = reader.i32();
    testing_control::Raw there(net::grown_id(met.secret, place).text());
    require(there.enter(there.hello(rank, reader.i32())).second == "welcome", "not welcome");
    return there.close();
  }
}

TEST_P(Rejoin, WhereOneDiesOnItsWayMembersStayAsTheyWereAndOthersWaitAgain) {
  World world = threads(3, GetParam());
  world.options.host_probe = "off";
  const std::string id = coordinator_.id();
  std::vector<std::string> outcomes(4);
  std::vector<std::thread> all;
  const auto begin = [&](std::size_t which, std::function<void()> body) {
    all.emplace_back([&outcomes, which, body = std::move(body)] {
      try {
        body();
      } catch (const std::exception& error) {
        outcomes[which] = error.what();
        ADD_FAILURE() << which << ": " << error.what();
      }
    });
  };
  for (const Rank rank : {0, 2}) {
    begin(static_cast<std::size_t>(rank), [&, rank] {
      auto smaller = Communicator::join({id}, rank, 3, world.options).shrink(std::vector<Rank>{1});
      const auto await_waiting = [&](int many) {
        for (std::vector<int> waiting{0}; waiting[0] < many;) {
          if (smaller.rank() == 0) waiting[0] = smaller.num_waiting();
          smaller.all_reduce<int>(waiting, ReduceOp::max);
        }
      };
      await_waiting(2);
      EXPECT_THAT(what_is_thrown([&] { (void)smaller.take_in(2); }), HasSubstr("died"));
      expect_sum(smaller, 2);
      await_waiting(1);
      auto grown = smaller.take_in(1);
      expect_sum(grown, 3);
    });
  }
  { auto leaves = Communicator::join({id}, 1, 3, world.options); }
  begin(1, [&] { die_on_the_way(id); });
  begin(3, [&] {
    Options options = world.options;
    options.rejoin = true;
    auto comm = Communicator::join({id}, 1, 3, options);
    require(comm.was_taken_in(), "it was not taken in");
    expect_sum(comm, 3);
  });
  for (std::thread& each : all) each.join();
  EXPECT_THAT(outcomes, ::testing::Each(""));
}

TEST(Hosting, APlaceWhereRanksMeetAgainOutlivesItsJoinings) {
  const std::string id = host_coordinator(2, "", 0, Secret::random(), true);
  for (int times = 0; times < 10; ++times) {
    testing_control::run_ranks(2, [&](Rank rank) {
      const auto control = Control::join(id, rank, 2, testing_control::kPatience_ms);
      EXPECT_FALSE(control->was_taken_in());
    });
    (void)UniqueId::make(2);  // lets go of what nobody can need any more
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Grow, ::testing::Values("shm", "tcp"),
                         [](const auto& param) { return param.param; });
INSTANTIATE_TEST_SUITE_P(Transports, Rejoin, ::testing::Values("shm", "tcp"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace chorus::testing
