// Callers that do what they must not: each is told at once, on its own rank where that can be, and
// no other rank is left waiting.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "chorus/communicator.hpp"
#include "collectives/algorithms.hpp"
#include "runtime/calls.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Counts = std::vector<std::size_t>;

TEST(AllToAllV, RefusesWhatCannotBeRightAndGoesOn) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> in(4, 1), out(4);
    const Counts two(2, 2), apart{0, 2}, far{0, 3}, endless{2, SIZE_MAX / 2}, none(2, 0);
    const auto me = static_cast<std::size_t>(comm.rank());
    Counts unlike = two;
    unlike[me] = 1;
    const auto exchange = [&](std::span<const int> from, const Counts& to_counts,
                              const Counts& to_offsets, std::span<int> to,
                              const Counts& from_counts, const Counts& from_offsets) {
      return refusal([&] {
        comm.all_to_all_v<int>(from, to_counts, to_offsets, to, from_counts, from_offsets);
      });
    };
    EXPECT_THAT(exchange(in, two, far, out, two, apart), HasSubstr("beyond the input"));
    EXPECT_THAT(exchange(in, two, apart, out, two, far), HasSubstr("beyond the output"));
    EXPECT_THAT(exchange(in, endless, apart, out, two, apart), HasSubstr("beyond the input"));
    EXPECT_THAT(exchange(in, unlike, apart, out, two, apart), HasSubstr("sends itself 1 element "));
    EXPECT_THAT(exchange(in, two, apart, out, {2}, apart), HasSubstr("one entry per rank"));
    EXPECT_THAT(exchange(in, two, apart, out, two, none), HasSubstr("the same place"));
    EXPECT_THAT(exchange(out, two, apart, out, two, apart), HasSubstr("overlap"));
    Call untyped{.kind = Call::Kind::all_to_all_v,
                 .input = in.data(),
                 .output = out.data(),
                 .type = DataType::int32,
                 .send_counts = two,
                 .send_offsets = apart,
                 .recv_counts = two,
                 .recv_offsets = apart};
    Call wrong = untyped;
    wrong.input = nullptr;
    EXPECT_THAT(refusal([&] { comm.run(wrong); }), HasSubstr("null"));
    wrong = untyped;
    wrong.send_counts = wrong.recv_counts = endless;
    if (me == 0) {
      EXPECT_THAT(refusal([&] { comm.run(wrong); }), HasSubstr("more than memory"));
    }
    // Nothing of a group runs if one of its calls is refused.
    std::vector<int> sum(4, 1);
    comm.group_start();
    comm.all_reduce<int>(sum);
    untyped.send_counts = unlike;
    comm.run(untyped);
    EXPECT_THAT(refusal([&] { comm.group_end(); }), HasSubstr("sends itself"));
    EXPECT_EQ(sum, std::vector<int>(4, 1));
    // Pieces of one buffer may lie between each other, and what is sent may be sent twice.
    std::vector<int> mixed{comm.rank(), -1, comm.rank() + 10, -1};
    const Counts one(2, 1);
    comm.all_to_all_v<int>(mixed, one, Counts{0, 2}, mixed, one, Counts{1, 3});
    EXPECT_EQ(mixed[1], 10 * comm.rank());
    EXPECT_EQ(mixed[3], 1 + 10 * comm.rank());
    comm.all_to_all_v<int>(in, two, none, out, two, apart);
    expect_it_goes_on(comm);
  }));
}

// What each rank is told. By the time limit it would be another sentence.
Outcomes each_told(int size, const std::function<void(Communicator&)>& body) {
  return run_world(threads(size), [&](Communicator& comm) {
    body(comm);
    comm.barrier();  // whose own part was done learns of it here
  });
}

TEST(AllToAllV, AnotherCollectiveInItsPlaceIsToldOnEveryRank) {
  const std::vector<int> in(3, 1);
  const Counts one(3, 1), apart{0, 1, 2};
  const auto exchange = [&](Communicator& comm) {
    std::vector<int> out(3);
    comm.all_to_all_v<int>(in, one, apart, out, one, apart);
  };
  for (const bool even : {true, false}) {
    const Outcomes outcomes = each_told(3, [&](Communicator& comm) {
      std::vector<int> out(3);
      comm.barrier();
      if (comm.rank() != 1) return exchange(comm);
      if (even) {
        comm.all_to_all<int>(in, out);
      } else {  // a root's part is done at once
        comm.broadcast<int>(out, 1);
      }
    });
    const char* const other = even ? "called all_to_all(count 1" : "called broadcast(count 3";
    EXPECT_THAT(outcomes, Each(AllOf(HasSubstr("called all_to_all_v(int32)"), HasSubstr(other),
                                     HasSubstr("as call 2"))));
  }
}

TEST(AllToAllV, CountsThatDisagreeAreToldOnEveryRank) {
  const Outcomes outcomes = each_told(3, [](Communicator& comm) {
    std::vector<int> in(3, 1), out(4);
    const Counts one(3, 1), apart{0, 1, 2};
    const bool expects_more = comm.rank() == 2;
    comm.all_to_all_v<int>(in, one, apart, out, expects_more ? Counts{2, 1, 1} : one,
                           expects_more ? Counts{0, 2, 3} : apart);
  });
  EXPECT_THAT(outcomes, Each(AllOf(HasSubstr("message(count 2, int32) from rank 0 to rank 2"),
                                   Not(HasSubstr("30000 ms")))));
}

TEST(AllToAllV, InAGroupKeepsItsOwnCounts) {
  expect_all_well(run_world(threads(3), [](Communicator& comm) {
    std::vector<int> in{comm.rank(), comm.rank() + 10, comm.rank() + 20}, out(3, -1);
    comm.group_start();
    for (int i = 0; i < 5; ++i) {
      Counts counts(3, 1), offsets{0, 1, 2};
      comm.all_to_all_v<int>(in, counts, offsets, out, counts, offsets);
      counts.assign(3, 1 << 30);
      offsets.assign(3, 1 << 30);
    }
    comm.group_end();
    for (int r = 0; r < 3; ++r) EXPECT_EQ(out[static_cast<std::size_t>(r)], r + 10 * comm.rank());
  }));
}

// Short messages go another way than long ones: each must notice the other in its place.
TEST(Messages, OfAnotherSizeThanAwaitedAreToldOnEveryRank) {
  constexpr std::size_t kSizes[] = {0, 3, 2'000, 100'000, 3'000'000};
  for (const std::size_t sent : kSizes) {
    for (const std::size_t awaited : kSizes) {
      if (sent == awaited) continue;
      for (const bool grouped : {false, true}) {
        const Outcomes outcomes = run_world(threads(2), [&](Communicator& comm) {
          std::vector<std::int8_t> first(3), out(sent), in(awaited);
          if (grouped) comm.group_start();
          if (comm.rank() == 0) {
            comm.send<std::int8_t>(first, 1);
            comm.send<std::int8_t>(out, 1);
          } else {
            comm.recv<std::int8_t>(first, 0);
            comm.recv<std::int8_t>(in, 0);
          }
          if (grouped) comm.group_end();
          comm.barrier();
        });
        EXPECT_THAT(outcomes, Each(AllOf(HasSubstr(fmt::format("message(count {},", awaited)),
                                         Not(HasSubstr("30000 ms")))))
            << sent << " B sent";
      }
    }
  }
}

TEST(Messages, AreCountedWhicheverWayTheyGo) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    for (const std::size_t count : {1U, 48U, 49U, 8192U, 8193U, 50'000U}) {
      std::vector<std::int8_t> data(count);
      const Traffic before = comm.traffic();
      if (comm.rank() == 0) {
        comm.send<std::int8_t>(data, 1);
      } else {
        comm.recv<std::int8_t>(data, 0);
      }
      const Traffic after = comm.traffic();
      const std::uint64_t sent = after.messages - before.messages;
      const std::uint64_t taken = after.messages_taken - before.messages_taken;
      EXPECT_EQ(after.message_bytes - before.message_bytes, comm.rank() == 0 ? count : 0U);
      EXPECT_EQ((comm.rank() == 0 ? taken : sent), 0U);
      EXPECT_GE((comm.rank() == 0 ? sent : taken), 1U);  // one for each slot that it fills
    }
  }));
}

TEST(Overlap, IsRefusedUnlessItIsInPlace) {
  expect_all_well(run_world(threads(3), [](Communicator& comm) {
    constexpr std::size_t kCount = 5;
    const std::size_t n = 3;
    const auto me = static_cast<std::size_t>(comm.rank());
    std::vector<int> memory(40);
    const std::span<int> all(memory.data(), n * kCount), shifted(memory.data() + 1, n * kCount);
    const std::span<int> own = all.subspan(me * kCount, kCount);
    const std::span<int> another = all.subspan((me + 1) % n * kCount, kCount);
    const auto overlap = HasSubstr("overlap");
    EXPECT_THAT(refusal([&] { comm.all_reduce<int>(all, shifted); }), overlap);
    EXPECT_THAT(refusal([&] { comm.all_to_all<int>(all, shifted); }), overlap);
    EXPECT_THAT(refusal([&] { comm.all_gather<int>(another, all); }), overlap);
    EXPECT_THAT(refusal([&] { comm.reduce_scatter<int>(all, another); }), overlap);
    if (me == 1) {
      EXPECT_THAT(refusal([&] { comm.reduce<int>(all, shifted, 1); }), overlap);
      EXPECT_THAT(refusal([&] { comm.gather<int>(another, all, 1); }), overlap);
      EXPECT_THAT(refusal([&] { comm.scatter<int>(all, another, 1); }), overlap);
    }
    comm.all_reduce<int>(all, all);
    comm.all_to_all<int>(all, all);
    comm.reduce<int>(all, all, 1);
    comm.gather<int>(own, all, 1);
    comm.scatter<int>(all, own, 1);
    comm.reduce_scatter<int>(all, own);
    std::fill(own.begin(), own.end(), static_cast<int>(me) + 1);
    comm.all_gather<int>(own, all);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i], static_cast<int>(i / kCount) + 1);
  }));
}

// One that was made before is not judged anew as long as its memory stays the same.
TEST(RepeatedCall, IsJudgedWhereItsMemoryChanges) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(8, 1);
    Call call = sum_of(data);
    call.count = 4;
    for (int i = 0; i < 3; ++i) comm.run(call);
    EXPECT_EQ(data[3], 8);
    Call bad = call;
    bad.output = nullptr;
    EXPECT_THAT(refusal([&] { comm.run(bad); }), HasSubstr("null"));
    bad.output = data.data() + 2;
    EXPECT_THAT(refusal([&] { comm.run(bad); }), HasSubstr("overlap"));
    comm.run(call);
    EXPECT_EQ(data[3], 16);
    call.output = data.data() + 4;
    comm.run(call);
    EXPECT_EQ(data[3], 16);
    EXPECT_EQ(data[7], 32);
  }));
}

TEST(RepeatedCall, ThatOthersDoNotRepeatIsToldOnEveryRank) {
  const Outcomes outcomes = run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(4, 1);
    for (int i = 0; i < 3; ++i) comm.all_reduce<int>(data);
    comm.all_reduce<int>(data, comm.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
    comm.barrier();
  });
  EXPECT_THAT(outcomes, Each(AllOf(HasSubstr("sum"), HasSubstr("max"))));
}

TEST(RepeatedCall, FollowsThePlanInUse) {
  expect_all_well(run_world(threads(3), [](Communicator& comm) {
    std::vector<int> data(4, 1);
    const auto messages_of_one = [&] {
      const std::uint64_t before = comm.traffic().messages;
      comm.all_reduce<int>(data);
      return comm.traffic().messages - before;
    };
    comm.all_reduce<int>(data);
    EXPECT_EQ(messages_of_one(), 0U);
    // A ring passes partial sums on: it has no direct form, but messages.
    comm.use(
        {.world_size = 3,
         .entries = {{.max_bytes = UINT64_MAX,
                      .schedule = algorithm("ring").make(
                          {.kind = CollectiveKind::all_reduce, .world_size = 3, .levels = {}})}}});
    EXPECT_GT(messages_of_one(), 0U);
    EXPECT_GT(messages_of_one(), 0U);
  }));
}

TEST(RootedForms, RefuseBuffersThatAreTooSmallOnTheRoot) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> block(400, 1), small(3), nothing;
    if (comm.rank() == 0) {
      EXPECT_THAT(refusal([&] { comm.reduce<int>(block, small, 0); }), HasSubstr("differ in size"));
      EXPECT_THAT(refusal([&] { comm.gather<int>(block, small, 0); }), HasSubstr("world_size"));
      EXPECT_THAT(refusal([&] { comm.scatter<int>(small, block, 0); }), HasSubstr("world_size"));
    }
    std::vector<int> all(comm.rank() == 0 ? 800 : 0, 2);
    comm.gather<int>(block, all, 0);
    comm.scatter<int>(all, block, 0);
    comm.reduce<int>(block, comm.rank() == 0 ? std::span<int>(block) : std::span<int>(nothing), 0);
    EXPECT_EQ(block[399], comm.rank() == 0 ? 2 : 1);
  }));
}

TEST(Group, ThatRefusedACallDoesNotSwallowLaterOnes) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(4, 1);
    EXPECT_THAT(refusal([&] {
                  comm.group_start();
                  comm.all_reduce<int>(data);
                  comm.all_gather<int>(data, std::span<int>(data));
                  comm.group_end();
                }),
                HasSubstr("world_size"));
    EXPECT_EQ(data[0], 1);
    expect_it_goes_on(comm);
  }));
}

TEST(Group, ThatIsNeverEndedIsToldToTheOthers) {
  const Outcomes outcomes = run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(4, 1);
    if (comm.rank() == 0) comm.group_start();
    comm.all_reduce<int>(data);
  });
  EXPECT_EQ(outcomes[0], "");  // too late to throw; it is in the log
  EXPECT_THAT(outcomes[1], HasSubstr("group that was not ended"));
}

class OverTransport : public ::testing::TestWithParam<std::string> {};

// A barrier that finds what the others had sent before they failed would let its rank go on alone.
TEST_P(OverTransport, AfterAFailureNoCallSucceedsOnAnyRank) {
  World world = threads(3, GetParam());
  world.options.join_timeout_ms = 30'000;
  const Outcomes outcomes = run_world(world, [](Communicator& comm) {
    std::string first;
    try {
      if (comm.rank() == 0) {
        (void)comm.split(0);
      } else {
        comm.barrier();
      }
      ADD_FAILURE() << "split() of one rank met a barrier() of the others";
    } catch (const Error& error) {
      first = error.what();
    }
    EXPECT_THAT(first, AllOf(HasSubstr("rank 0 called split()"), HasSubstr("called barrier()"),
                             HasSubstr("call 1")));
    const auto failed = HasSubstr("called split()");
    EXPECT_THAT(thrown_by<CollectiveError>([&] { comm.barrier(); }), failed);
    EXPECT_THAT(thrown_by<CollectiveError>([&] { (void)comm.split(0); }), failed);
    EXPECT_THAT(thrown_by<CollectiveError>([&] { (void)comm.reprobe(); }), failed);
    EXPECT_THAT(thrown_by<CollectiveError>([&] { comm.use({.world_size = 3}); }), failed);
  });
  EXPECT_THAT(outcomes, Each(""));
}

TEST_P(OverTransport, NoCallSucceedsOnARankThatHasAborted) {
  const Outcomes outcomes = run_world(threads(3, GetParam()), [](Communicator& comm) {
    std::vector<int> data(10, 1);
    if (comm.rank() == 0) comm.abort("operator said so");
    comm.all_reduce<int>(data);
    comm.barrier();  // in which the others learn of it at the latest
  });
  EXPECT_THAT(outcomes, Each(HasSubstr("operator said so")));
}

INSTANTIATE_TEST_SUITE_P(Transports, OverTransport, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return each.param; });

TEST(TwoThreads, OfOneCommunicatorAreRefused) {
  // Of rank 1: has the thread that looks been refused? Until then rank 0's stays in its call.
  std::atomic<bool> refused{false};
  expect_all_well(run_world(threads(2), [&](Communicator& comm) {
    std::vector<int> data(10, comm.rank());
    if (comm.rank() == 1) {
      while (!refused) std::this_thread::yield();
      comm.send<int>(data, 0);
      return expect_it_goes_on(comm);
    }
    const auto two_threads = [](const std::string& what) {
      return what.find("two threads") != std::string::npos;
    };
    std::thread receiver([&] {
      while (two_threads(refusal([&] { comm.recv<int>(data, 1); }))) {  // by the one that looks
      }
    });
    const Call impossible{.kind = Call::Kind::send, .peer = 7};  // does nothing where it is let in
    while (!two_threads(refusal([&] { comm.run(impossible); }))) std::this_thread::yield();
    refused = true;
    receiver.join();
    EXPECT_EQ(data[9], 1);
    expect_it_goes_on(comm);
  }));
}

TEST(Options, SetByHandAreHeldToTheSameLimits) {
  const auto refused = [](auto change) {
    Options options;
    change(options);
    const UniqueId nobody{"chorus:127.0.0.1:1:0123456789abcdef0123456789abcdef"};
    return refusal([&] { (void)Communicator::join(nobody, 0, 2, options); });
  };
  EXPECT_THAT(refused([](Options& o) { o.slots = 0; }), HasSubstr("Options::slots = 0"));
  EXPECT_THAT(refused([](Options& o) { o.slots = -5; }), HasSubstr("[2, 32]"));
  EXPECT_THAT(refused([](Options& o) { o.tcp_sockets = 0; }), HasSubstr("Options::tcp_sockets"));
  EXPECT_THAT(refused([](Options& o) { o.slot_bytes = SIZE_MAX; }), HasSubstr("multiple of 64"));
  EXPECT_THAT(refused([](Options& o) { o.slot_bytes = 1000; }), HasSubstr("slot_bytes = 1000"));
  EXPECT_THAT(refused([](Options& o) { o.timeout_ms = 0; }), HasSubstr("Options::timeout_ms"));
}

// At debug each call tells its schedule, why, and what it took, also one that is repeated; at info
// each collective once.
TEST(Log, TellsEachCallsScheduleAndTimeAtDebug) {
  for (const std::string level : {"debug", "info", "warn"}) {
    World world = threads(2);
    world.options.log_level = level;
    ::testing::internal::CaptureStderr();
    const Outcomes outcomes = run_world(world, [](Communicator& comm) {
      std::vector<float> data(1000);
      for (int i = 0; i < 3; ++i) comm.all_reduce<float>(data);
      comm.broadcast<float>(data, 0);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(outcomes, ::testing::Each(""));
    for (int rank = 0; rank < 2; ++rank) {
      for (int call = 1; call <= 3; ++call) {
        const std::string what = fmt::format(
            "debug: [rank {}/2] call {} all_reduce(count 1000, float32, sum) ", rank, call);
        EXPECT_EQ(said.find(what + "of 4000 bytes runs ") != said.npos, level == "debug") << said;
        EXPECT_EQ(said.find(what + "took ") != said.npos, level == "debug") << said;
      }
    }
    EXPECT_EQ(said.find("predicted") != said.npos, level == "debug");
    const std::string chosen = "info: [rank 0/2] all_reduce on '";
    EXPECT_EQ(said.find(chosen) != said.npos, level != "warn") << said;
    EXPECT_EQ(said.find(chosen), said.rfind(chosen));
    if (level == "warn") {
      EXPECT_EQ(said, "");
    }
  }
}

// Ranks of two users cannot open each other's memory: whoever wonders why all is slow can read it.
TEST(Log, TellsAtInfoWhyRanksOfOneHostShareNoMemory) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ::testing::internal::CaptureStderr();
  const World world{.size = 2, .ranks = Ranks::processes};
  const Outcomes outcomes = run_ranks(world, [](const UniqueId& id, Rank rank) {
    if (rank == 1 && ::setuid(65534) != 0) throw std::runtime_error("setuid");
    Options options;
    options.log_level = "info";
    options.transports = "shm,tcp";
    options.flight_dir.clear();
    Communicator::join(id, rank, 2, options).barrier();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(outcomes, ::testing::Each(""));
  EXPECT_THAT(said, AllOf(HasSubstr("info: [rank 0/2] pairs of ranks: 1 by tcp; 1 not by shm, the "
                                    "first ranks 0 and 1: cannot open /proc/"),
                          HasSubstr("Permission denied (is it another user's process?)")));
}

TEST(Files, ThatNeverEndOrAreNoneAreRefused) {
  for (const char* path : {"/dev/zero", "/", "/no/such/plan"}) {
    const Outcomes outcomes = run_ranks({.size = 1}, [&](const UniqueId& id, Rank rank) {
      Options options;
      options.plan_file = path;
      (void)Communicator::join(id, rank, 1, options);
    });
    EXPECT_THAT(outcomes[0], HasSubstr(fmt::format("cannot read {}", path)));
    EXPECT_THAT(outcomes[0],
                HasSubstr("CHORUS_PLAN names a file of Chorus JSON, which chorus synth"));
  }
}

TEST(Files, NamesAndXmlThatCommandsTakeForATopologyAreRefusedWithTheCommand) {
  const std::string xml = ::testing::TempDir() + fmt::format("topology-{}.xml", ::getpid());
  std::ofstream(xml) << "<system version=\"1\"/>";
  for (const std::string& source : {std::string("dgx1"), xml}) {
    const Outcomes outcomes = run_ranks({.size = 1}, [&](const UniqueId& id, Rank rank) {
      Options options;
      options.topology_file = source;
      (void)Communicator::join(id, rank, 1, options);
    });
    EXPECT_THAT(outcomes[0], HasSubstr("CHORUS_TOPOLOGY names a file of Chorus JSON, which chorus "
                                       "topo SOURCE --json writes"));
  }
  std::filesystem::remove(xml);
}

TEST(Kinds, ThatThereAreNotAreRefused) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(8, 1);
    Call call = sum_of(data);
    call.kind = static_cast<Call::Kind>(55);
    EXPECT_THAT(refusal([&] { comm.run(call); }), HasSubstr("there is no call of kind 55"));
    EXPECT_THAT(refusal([&] { (void)comm.explain(call); }), HasSubstr("no call of kind 55"));
    EXPECT_THAT(refusal([&] { (void)comm.predicted_s(call); }), HasSubstr("no call of kind 55"));
    expect_it_goes_on(comm);
  }));
}

TEST(Waiting, NeedsRequestsThatExist) {
  Request done;
  Request* const requests[] = {&done, nullptr};
  EXPECT_THAT(refusal([&] { wait_any(requests); }), HasSubstr("request 1 is null"));
  EXPECT_THAT(refusal([&] { wait_all(requests); }), HasSubstr("request 1 is null"));
}

}  // namespace
}  // namespace chorus::testing
