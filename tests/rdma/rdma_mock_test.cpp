// The rdma link over adapters that fail on command (fake_verbs.cpp): at any moment, with what was
// under way lost, or delivered and never acknowledged.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "rdma/fake_verbs.hpp"
#include "rdma/traffic.hpp"
#include "runtime/reference.hpp"
#include "runtime/world.hpp"
#include "transports/ends.hpp"
#include "transports/rdma/link.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Way kWay{.transport = "rdma", .interface_name = "", .processes = false, .name = "rdma"};
constexpr std::size_t kKiB = 1024;

class RdmaMockTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::reset(2); }
  void TearDown() override { EXPECT_THAT(fake::violations(), IsEmpty()); }

  static RdmaLink& rdma(End& end) { return dynamic_cast<RdmaLink&>(end.link); }
};

TEST_F(RdmaMockTest, AnAdapterMayBreakAtAnyMomentAndNothingIsLostOrDoubled) {
  std::mt19937_64 random(5);
  ::testing::internal::CaptureStderr();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    fake::reset(2);
    fake::Adapter& breaking = fake::adapter(static_cast<int>(seed % 2));
    breaking.breaks_after = static_cast<long>(1 + random() % 300);
    breaking.unheard = static_cast<int>(random() % 8);
    run_both(kWay, Traffics::config(),
             [&](End& end) { random_traffic(end, seed, 60, {}, seed % 3 == 0); });
    EXPECT_THAT(fake::violations(), IsEmpty()) << "seed " << seed;
    if (HasFailure()) break;
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("going on over fake"));
}

TEST_F(RdmaMockTest, WhenAllAdaptersBreakTheControlConnectionCarriesTheRest) {
  std::mt19937_64 random(9);
  ::testing::internal::CaptureStderr();
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    fake::reset(2);
    for (int i = 0; i < 2; ++i) {
      fake::adapter(i).breaks_after = static_cast<long>(1 + random() % 200);
      fake::adapter(i).unheard = static_cast<int>(random() % 8);
    }
    run_both(kWay, Traffics::config(),
             [&](End& end) { random_traffic(end, seed, 60, {}, seed % 3 == 0); });
    EXPECT_THAT(fake::violations(), IsEmpty()) << "seed " << seed;
    if (HasFailure()) break;
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("going on over tcp"));
}

// The owner takes what is told for known: it sends no message of its own for it.
TEST_F(RdmaMockTest, TotalsThatAreToldAreHeardWhateverBreaks) {
  std::mt19937_64 random(13);
  ::testing::internal::CaptureStderr();
  for (int seed = 0; seed < 30; ++seed) {
    fake::reset(2);
    for (int i = 0; i < (seed % 2 == 0 ? 1 : 2); ++i) {
      fake::adapter(i).breaks_after = static_cast<long>(1 + random() % 60);
      fake::adapter(i).unheard = static_cast<int>(random() % 8);
    }
    std::atomic<std::uint32_t> told = 0;
    run_both(kWay, Traffics::config(), [&](End& end) {
      PiggybackedCredits& piggybacked_credits = *end.link.piggybacked_credits();
      const auto bytes = pattern(4, 1);
      for (std::uint32_t i = 1; i <= 60; ++i) {
        if (end.rank == 0) {
          piggybacked_credits.tell(0, i);
          end.put(bytes, i % 4 * bytes.size(), 0, 7);
          EXPECT_LE(piggybacked_credits.told(0), i);
        } else {
          end.await(0, i);
          // Rank 0 is ahead by three puts at most.
          EXPECT_LE(piggybacked_credits.heard(0), (i + 3) / 4 * 4);
        }
        if (i % 4 == 0) end.meet();
      }
      if (end.rank == 0) told = piggybacked_credits.told(0);
      end.meet();
      EXPECT_GT(told, 0u);
      if (end.rank == 1) {
        end.until(
            [&] {
              end.advance();
              return piggybacked_credits.heard(0) == told;
            },
            "waiting for what was told");
      }
      end.meet();
    });
    EXPECT_THAT(fake::violations(), IsEmpty()) << "seed " << seed;
    if (HasFailure()) break;
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("going on over"));
}

/// What is said while traffic goes on, whatever `disturb` does midway.
std::string said_during(const std::function<void()>& disturb) {
  ::testing::internal::CaptureStderr();
  run_both(kWay, Traffics::config(), [&](End& end) {
    bool done = end.rank != 0;
    random_traffic(end, 1, 60, [&](std::uint64_t made) {
      if (made >= 20 && !std::exchange(done, true)) disturb();
    });
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(RdmaMockTest, AFailureIsToldWithRankDevicePortPeerAndStatus) {
  const std::string said = said_during([] {
    fake::adapter(1).breaks_with = IBV_WC_REM_ACCESS_ERR;
    fake::adapter(1).breaks_after = 1;
  });
  EXPECT_THAT(said, HasSubstr("remote access error (verbs status 10, vendor error 0x81)"));
  EXPECT_THAT(said, HasSubstr("rdma: fake1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over fake0 port 1"));
  EXPECT_THAT(said, HasSubstr("[rank "));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
}

TEST_F(RdmaMockTest, APortThatGoesDownIsLeftWithoutWaitingForRetries) {
  const std::string said = said_during([] { fake::raise(0, IBV_EVENT_PORT_ERR); });
  EXPECT_THAT(said, AllOf(HasSubstr("fake0 port 1"), HasSubstr("the port went down"),
                          HasSubstr("going on over fake1 port 1")));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << "both ends heard of it:\n" << said;
}

// Of every rank that has it one line when it fails, and one when it works again.
TEST_F(RdmaMockTest, APortThatServesManyPairsIsSpokenOfOnceByEachRankThatHasIt) {
  World world{.size = 4, .ranks = Ranks::threads};
  world.options.transports = "rdma";
  world.options.flight_dir.clear();
  std::atomic<bool> down = false;
  std::atomic<bool> up = false;
  std::uint64_t connected = 0;
  const auto port = [](bool active, ibv_event_type event) {
    fake::adapter(0).port_active = active;
    fake::raise(0, event);
  };
  ::testing::internal::CaptureStderr();
  expect_all_well(run_world(world, [&](Communicator& comm) {
    const auto exchange = [&] {
      std::vector<std::int32_t> data(4, comm.rank());
      std::vector<std::int32_t> all(4);
      comm.all_to_all(std::span<const std::int32_t>(data), std::span(all));
      EXPECT_EQ(all, (std::vector<std::int32_t>{0, 1, 2, 3}));
    };
    for (int round = 0; round < 40; ++round) {
      exchange();
      if (round == 20 && !down.exchange(true)) port(false, IBV_EVENT_PORT_ERR);
    }
    if (!up.exchange(true)) {
      connected = fake::connected();
      port(true, IBV_EVENT_PORT_ACTIVE);
    }
    // Until the rails of all six pairs are back, counted at both ends.
    const auto end = Clock::now() + 30s;
    for (bool over = false; !over;) {
      exchange();
      std::int32_t enough = fake::connected() >= connected + 12 || Clock::now() > end ? 1 : 0;
      comm.all_reduce(std::span(&enough, 1), ReduceOp::min);
      over = enough != 0;
    }
    for (int round = 0; round < 200; ++round) exchange();
  }));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto lines_with = [&](std::string_view what) {
    int lines = 0;
    for (auto at = said.find(what); at != said.npos; at = said.find(what, at + 1)) ++lines;
    return lines;
  };
  EXPECT_GE(lines_with("the port went down"), 1) << said;
  EXPECT_LE(lines_with("the port went down"), 4) << said;
  EXPECT_GE(lines_with("works again"), 1) << said;
  EXPECT_LE(lines_with("works again"), 4) << said;
  EXPECT_EQ(std::ranges::count(said, '\n'),
            lines_with("the port went down") + lines_with("works again"))
      << said;
}

TEST_F(RdmaMockTest, AnAdapterThatIsRemovedIsLeft) {
  const std::string said = said_during([] { fake::raise(1, IBV_EVENT_DEVICE_FATAL); });
  EXPECT_THAT(said, AllOf(HasSubstr("fake1 port 1"), HasSubstr("failed or was removed")));
}

TEST_F(RdmaMockTest, AGidThatChangesIsNoticedAndOneThatDoesNotIsNoCause) {
  EXPECT_EQ(said_during([] { fake::raise(0, IBV_EVENT_GID_CHANGE); }), "");
  const std::string said = said_during([] {
    fake::adapter(0).only_roce1 = true;
    fake::raise(0, IBV_EVENT_GID_CHANGE);
  });
  EXPECT_THAT(said, HasSubstr("its GID 3 changed"));
}

TEST_F(RdmaMockTest, AnAdapterThatRefusesMemoryOrConnectionsIsDoneWithout) {
  fake::adapter(0).refuses_memory = true;
  EXPECT_THAT(said_during([] {}), AllOf(HasSubstr("fake0 port 1 cannot register"),
                                        HasSubstr("Cannot allocate memory")));
  fake::reset(2);
  fake::adapter(1).refuses_pairs = true;
  EXPECT_THAT(said_during([] {}), AllOf(HasSubstr("fake1 port 1 gives no queue pair"),
                                        HasSubstr("`rdma resource show` tells")));
  fake::reset(2);
  fake::adapter(0).refuses_memory = fake::adapter(1).refuses_memory = true;
  const std::string said = said_during([] {});
  EXPECT_THAT(said,
              AllOf(HasSubstr("fake0 port 1 cannot register"),
                    HasSubstr("fake1 port 1 cannot register"), HasSubstr("; going on over tcp\n")));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  fake::reset(2);
  fake::adapter(0).max_inline = 0;
  EXPECT_EQ(said_during([] {}), "");
}

TEST_F(RdmaMockTest, PortsAreChosenByStateAndListAndGidsByQuery) {
  std::string why_not;
  RdmaSettings settings;
  EXPECT_EQ(open_rdma_devices(settings, why_not).at(0)->port().gid_index, 3) << "IPv4";
  settings.gid_index = 1;
  EXPECT_EQ(open_rdma_devices(settings, why_not).at(0)->port().gid_index, 1);
  settings.gid_index = 9;
  EXPECT_THAT(open_rdma_devices(settings, why_not), IsEmpty());
  EXPECT_THAT(why_not,
              HasSubstr("fake0 port 1, fake1 port 1 without a GID 9 (CHORUS_RDMA_GID_INDEX)"));
  settings = {};
  fake::adapter(0).only_roce1 = true;
  EXPECT_EQ(open_rdma_devices(settings, why_not).at(0)->port().gid_index, 0);
  fake::adapter(0).port_active = false;
  EXPECT_EQ(open_rdma_devices(settings, why_not).size(), 1u);
  settings.hca = "^fake1";
  EXPECT_THAT(open_rdma_devices(settings, why_not), IsEmpty());
  EXPECT_THAT(why_not, AllOf(HasSubstr("fake0 port 1 not active"),
                             HasSubstr("fake1 port 1 left out by CHORUS_RDMA_HCA=^fake1")));
  fake::reset(8);
  settings = {};
  settings.max_rails = 3;
  EXPECT_EQ(open_rdma_devices(settings, why_not).size(), 3u);
}

TEST_F(RdmaMockTest, AChoiceThatLeavesNoAdapterIsWarnedAboutUnlessItWasMeant) {
  const auto said_with = [](const std::string& hca, int gid_index) {
    World world{.size = 2, .ranks = Ranks::threads};
    world.options.transports = "rdma,tcp";
    world.options.flight_dir.clear();
    world.options.rdma_hca = hca;
    world.options.rdma_gid_index = gid_index;
    ::testing::internal::CaptureStderr();
    expect_all_well(run_world(world, [](Communicator& comm) { comm.barrier(); }));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(
      said_with("mlx5_0", -1),
      HasSubstr("pairs of ranks: 1 by tcp; 1 not by rdma, the first ranks 0 and 1: none here: "
                "fake0 port 1, fake1 port 1 left out by CHORUS_RDMA_HCA=mlx5_0\n"));
  EXPECT_THAT(said_with("", 9), HasSubstr("port 1 without a GID 9 (CHORUS_RDMA_GID_INDEX)"));
  EXPECT_EQ(said_with("^fake", -1), "");
  EXPECT_EQ(said_with("fake1", -1), "");
  fake::adapter(0).port_active = fake::adapter(1).port_active = false;
  EXPECT_EQ(said_with("", -1), "");
  EXPECT_THAT(said_with("fake1", -1), HasSubstr("fake1 port 1 not active"));
  // Nobody named them, but somebody wants to know.
  fake::adapter(0).closed = fake::adapter(1).closed = true;
  EXPECT_THAT(said_with("", -1),
              AllOf(HasSubstr("by tcp"), HasSubstr("fake0, fake1 cannot be opened: no "),
                    HasSubstr("docker run --device=/dev/infiniband")));
}

TEST(HcaList, SelectsAsOperatorsKnowItFromNccl) {
  const HcaList all("");
  EXPECT_TRUE(all.admits("mlx5_0", 1));
  const HcaList some("mlx5_0:1,mlx5_1");
  EXPECT_TRUE(some.admits("mlx5_0", 1));
  EXPECT_FALSE(some.admits("mlx5_0", 2));
  EXPECT_TRUE(some.admits("mlx5_1", 2));
  EXPECT_TRUE(some.admits("mlx5_10", 1)) << "by the beginning of the name";
  const HcaList exact("=mlx5_1");
  EXPECT_TRUE(exact.admits("mlx5_1", 2));
  EXPECT_FALSE(exact.admits("mlx5_10", 1));
  const HcaList none("^=mlx5_1:2");
  EXPECT_TRUE(none.admits("mlx5_1", 1));
  EXPECT_FALSE(none.admits("mlx5_1", 2));
  EXPECT_TRUE(none.admits("mlx5_3", 2));
  const HcaList spaced(" ^ mlx5_1 : 2 , mlx5_2 ");
  EXPECT_FALSE(spaced.admits("mlx5_1", 2)) << "blanks are no part of a name";
  EXPECT_FALSE(spaced.admits("mlx5_2", 1));
  EXPECT_TRUE(spaced.admits("mlx5_3", 1));
  for (const char* bad :
       {"^", "=", "^ ", ",", "mlx5_0:", "mlx5_0:x", "mlx5_0:0", ":1", "mlx5_0,,mlx5_1"}) {
    EXPECT_THROW((void)HcaList(bad), InputError) << bad;
  }
}

// The cost of a put in calls of the verbs library, and in copies.
TEST_F(RdmaMockTest, ASmallPutIsOneRequestAndALargeOneIsNoMoreThanItsPieces) {
  const LinkConfig config{.region_bytes = 256 * kKiB, .num_channels = 1, .max_outstanding = 32};
  run_both(kWay, config, [](End& end) {
    end.meet();
    const RdmaCounters start = rdma(end).counters();
    const auto since = [&](RdmaCounters& from) {
      RdmaCounters now = rdma(end).counters();
      const RdmaCounters change{now.work_requests - from.work_requests,
                                now.doorbells - from.doorbells,
                                now.signalled - from.signalled,
                                now.arrivals - from.arrivals,
                                now.copied_bytes - from.copied_bytes,
                                now.direct_bytes - from.direct_bytes,
                                now.polls - from.polls,
                                now.refills - from.refills};
      from = now;
      return change;
    };
    RdmaCounters last = start;
    const auto bytes = pattern(64 * kKiB, 1);
    if (end.rank == 0) {
      end.put(std::span(bytes).first(100), 0, 0, 1);
      RdmaCounters cost = since(last);
      EXPECT_EQ(cost.work_requests, 1u) << "small";
      EXPECT_EQ(cost.doorbells, 1u);
      EXPECT_EQ(cost.copied_bytes, 100u);
      end.put(std::span(bytes).first(8 * kKiB), 0, 0, 2);
      cost = since(last);
      EXPECT_EQ(cost.work_requests, 2u) << "with a new tag: its bytes, and its slot";
      EXPECT_EQ(cost.doorbells, 1u);
      EXPECT_EQ(cost.copied_bytes, 8 * kKiB);
      end.put(std::span(bytes).first(8 * kKiB), 0, 0, 2);
      cost = since(last);
      EXPECT_EQ(cost.work_requests, 1u) << "with the same tag: the number says it all";
      end.put(bytes, 0, 0, 2);
      cost = since(last);
      EXPECT_EQ(cost.work_requests, 3u) << "striped over two rails: two pieces and a slot";
      EXPECT_EQ(cost.doorbells, 2u);
      for (int i = 0; i < 400; ++i) end.put(std::span(bytes).first(8), 0, 0, 2);
      cost = since(last);
      EXPECT_EQ(cost.work_requests, 400u);
      EXPECT_LE(cost.signalled, 400u / 64 + 1) << "of a queue of 256";
    } else {
      end.await(0, 404);
      const RdmaCounters cost = since(last);
      EXPECT_EQ(cost.arrivals, 405u);  // one more piece
      EXPECT_LE(cost.work_requests, 404u / 32 + 1) << "credits by half windows";
      EXPECT_LE(cost.refills, 405u / 16 + 1) << "receives by the sixteen";
    }
    end.meet();
  });
}

// What a message of 4 bytes costs two ranks that play ping-pong, all layers together.
TEST_F(RdmaMockTest, ASmallMessageIsOneRequestThatBringsItsCredits) {
  constexpr int kRounds = 500;
  World world{.size = 2, .ranks = Ranks::threads};
  world.options.transports = "rdma";
  world.options.flight_dir.clear();
  world.options.slots = 8;
  expect_all_well(run_world(world, [](Communicator& comm) {
    std::vector<int> token(1, 1);
    const Rank peer = 1 - comm.rank();
    fake::Calls before;
    const auto play = [&](int rounds) {
      for (int i = 0; i < rounds; ++i) {
        if (comm.rank() == 0) comm.send(std::span<const int>(token), peer);
        comm.recv(std::span(token), peer);
        if (comm.rank() == 1) comm.send(std::span<const int>(token), peer);
      }
    };
    play(20);
    if (comm.rank() == 0) before = fake::calls();  // rank 1 waits for the next
    play(kRounds);
    if (comm.rank() == 1) return;
    const fake::Calls now = fake::calls();
    const auto messages = 2.0 * kRounds;
    const auto per_message = [&](std::uint64_t fake::Calls::*what) {
      return static_cast<double>(now.*what - before.*what) / messages;
    };
    // Credits go with what goes the other way; one of the link's is for every eight puts.
    EXPECT_LT(per_message(&fake::Calls::requests), 1.15);
    EXPECT_LT(per_message(&fake::Calls::post_send), 1.15);
    EXPECT_LT(per_message(&fake::Calls::post_recv), 0.1) << "sixteen at a time";
    EXPECT_LT(per_message(&fake::Calls::signalled), 0.03) << "one in 64";
    EXPECT_EQ(now.registrations, before.registrations);
  }));
}

TEST_F(RdmaMockTest, WhoSpinsDoesNotCallTheKernelOften) {
  run_both(kWay, Traffics::config(), [](End& end) {
    end.until([&] { return end.link.progress(); }, "connecting");
    end.meet();
    const auto start = Clock::now();
    const fake::Calls before = fake::calls();
    for (int i = 0; i < 20'000; ++i) end.advance();
    end.meet();
    const std::uint64_t looks = fake::calls().looks - before.looks;
    const auto ms = static_cast<std::uint64_t>((Clock::now() - start) / 1ms);
    EXPECT_LT(looks, 4 * (ms + 2)) << "two ranks with two adapters each";
    end.meet();
  });
}

TEST_F(RdmaMockTest, RanksThatNeverTalkAreNeverConnected) {
  World world{.size = 4, .ranks = Ranks::threads};
  world.options.transports = "rdma";
  world.options.flight_dir.clear();
  world.options.algorithm = "ring";
  expect_all_well(run_world(world, [](Communicator& comm) {
    run_case(comm, {.kind = Call::Kind::all_reduce, .type = DataType::float32, .count = 50'000});
  }));
  // Four neighbours of a ring, two rails each, counted at both ends.
  EXPECT_EQ(fake::connected(), 16u);
}

// The send is over for rank 0 when it is posted; that it was lost shows while rank 0 waits for a
// third rank, which waits for what was lost.
TEST_F(RdmaMockTest, WhatWasLostIsSentAgainWhileAnotherLinkIsWaitedFor) {
  World world{.size = 3, .ranks = Ranks::threads};
  world.options.transports = "rdma";
  world.options.flight_dir.clear();
  world.options.timeout_ms = 20'000;
  fake::adapter(0).breaks_after = 1;
  fake::adapter(1).breaks_after = 1;
  ::testing::internal::CaptureStderr();
  expect_all_well(run_world(world, [](Communicator& comm) {
    const Rank next = (comm.rank() + 1) % 3;
    const Rank before = (comm.rank() + 2) % 3;
    std::vector<int> token(1, 42);
    if (comm.rank() > 0) {
      token[0] = 0;
      comm.recv(std::span(token), before);
    }
    comm.send(std::span<const int>(token), next);
    if (comm.rank() == 0) {
      token[0] = 0;
      comm.recv(std::span(token), before);
    }
    EXPECT_EQ(token[0], 42) << "rank " << comm.rank();
  }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("going on over tcp"));
}

TEST_F(RdmaMockTest, CollectivesGoOnWhileAdaptersBreak) {
  World world{.size = 3, .ranks = Ranks::threads};
  world.options.transports = "rdma";
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  world.options.slot_bytes = 4096;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) {
    fake::reset(2);
    fake::adapter(i % 2).breaks_after = 50 + 37 * i;
    fake::adapter(i % 2).unheard = i;
    expect_all_well(run_world(world, [](Communicator& comm) {
      for (const std::size_t count : {100, 20'000, 7}) {
        run_case(comm, {.kind = Call::Kind::all_reduce, .type = DataType::float32, .count = count});
        run_case(comm, {.kind = Call::Kind::all_to_all, .type = DataType::int32, .count = count});
      }
    }));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("going on over"));
}

}  // namespace
}  // namespace chorus::testing
