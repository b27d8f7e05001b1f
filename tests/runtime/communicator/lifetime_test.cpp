// How communicators and requests end: in any order, announced, moved from, inherited by a child.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/calls.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Descendants, HowManyGenerationsThereAreDoesNotMatter) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<Communicator> line;
    for (int i = 0; i < 60; ++i) {
      Communicator& parent = line.empty() ? comm : line.back();
      line.push_back(i % 2 == 0 ? *parent.split(i) : parent.shrink({}));
      expect_it_goes_on(line.back());
    }
    // Of one parent, and yet apart.
    Communicator twin = *line.back().split(0);
    Communicator other = line.back().shrink({});
    expect_it_goes_on(twin);
    expect_it_goes_on(other);
    while (!line.empty()) line.pop_back();
  }));
}

TEST(OutlivingRequest, IsCompleteWhereItsCommunicatorEndedWell) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(100'000, 1);
    Request waited, tested, gone, any;
    {
      Communicator part = *comm.split(0);
      for (Request* request : {&waited, &tested, &gone, &any}) *request = part.start(sum_of(data));
      gone.wait();
      gone = part.start(sum_of(data));  // the last in the queue
    }
    waited.wait();
    EXPECT_TRUE(tested.test());
    Request* const one[] = {&any};
    EXPECT_EQ(wait_any(one), 0U);
    EXPECT_EQ(data[99'999], 32);
  }));
}

TEST(OutlivingRequest, SaysThatItsCallNeverEnded) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(10);
    Request waited, tested;
    {
      Communicator part = *comm.split(0);
      const Call never{.kind = Call::Kind::recv,
                       .output = data.data(),
                       .count = data.size(),
                       .type = DataType::int32,
                       .peer = 1 - comm.rank()};
      waited = part.start(never);
      tested = part.start(never);
      comm.barrier();  // both have started
      part.abort("enough");
    }
    EXPECT_THAT(thrown_by<CollectiveError>([&] { waited.wait(); }), HasSubstr("rank"));
    EXPECT_THAT(thrown_by<CollectiveError>([&] { (void)tested.test(); }), HasSubstr("rank"));
    expect_it_goes_on(comm);
  }));
}

// Whoever waited for the end of one, while the other waits for that of another, would wait for
// ever.
TEST(Ends, OfSeveralMayComeInAnotherOrderOnEachRank) {
  for (const std::string transports : {"shm", "tcp"}) {
    for (const int n : {2, 3, 4}) {
      ::testing::internal::CaptureStderr();
      const auto start = std::chrono::steady_clock::now();
      expect_all_well(run_world(threads(n, transports), [](Communicator& comm) {
        std::vector<std::optional<Communicator>> parts(4);
        for (auto& part : parts) part = comm.split(0);
        for (auto& part : parts) expect_it_goes_on(*part);
        // Each rank begins with another, and goes round.
        for (std::size_t i = 0; i < parts.size(); ++i) {
          parts[(i + static_cast<std::size_t>(comm.rank())) % parts.size()].reset();
          expect_it_goes_on(comm);
        }
      }));
      EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    }
  }
}

// Ended by one rank long before the others: it goes on, and nothing is said.
TEST(Ends, OfOneRankNeedNotWaitForTheOthers) {
  ::testing::internal::CaptureStderr();
  expect_all_well(run_world(threads(3), [](Communicator& comm) {
    std::optional<Communicator> part = comm.split(0);
    expect_it_goes_on(*part);
    if (comm.rank() != 1) part.reset();
    for (int i = 0; i < 3; ++i) expect_it_goes_on(comm);
  }));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Ends, ThatSomeRankNeverReachesAreOverInTimeAndSaySo) {
  ::testing::internal::CaptureStderr();
  std::optional<Communicator> kept;
  const Outcomes outcomes = run_ranks({.size = 2}, [&](const UniqueId& id, Rank rank) {
    Options options;
    options.join_timeout_ms = 3'000;
    Communicator comm = Communicator::join(id, rank, 2, options);
    std::optional<Communicator> part = comm.split(0);
    if (rank == 1) kept = std::move(part);
    part.reset();
    expect_it_goes_on(comm);
  });
  kept.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("c0' was not ended by all of its ranks: nothing from rank 1 in 3000 ms"));
  expect_all_well(outcomes);
}

class AnnouncedEnd : public ::testing::TestWithParam<std::string> {};

// Large messages go through slots, short ones through an eager ring where there is one.
TEST_P(AnnouncedEnd, LetsMessagesFinishAndRefusesOthersOnBothSides) {
  for (const std::size_t count : {std::size_t{4}, std::size_t{1} << 22}) {
    const Outcomes outcomes = run_world(threads(2, GetParam()), [&](Communicator& comm) {
      std::vector<int> data(count, comm.rank());
      const Call send = {.kind = Call::Kind::send,
                         .input = data.data(),
                         .count = count,
                         .type = DataType::int32,
                         .peer = 1};
      if (comm.rank() == 0) {
        comm.run(send);
        Request second = comm.start(send);
        comm.announce_end();
        const auto refused = HasSubstr("this rank has announced the end of its calls");
        EXPECT_THAT(refusal([&] { (void)comm.start(send); }), refused);
        EXPECT_THAT(refusal([&] { comm.run(send); }), refused);
        EXPECT_THAT(refusal([&] { comm.barrier(); }), refused);
        second.wait();
        return;
      }
      for (int i = 0; i < 2; ++i) {
        comm.recv<int>(data, 0);
        EXPECT_EQ(data, std::vector<int>(count, 0));
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      }
      comm.recv<int>(data, 0);
    });
    EXPECT_EQ(outcomes[0], "");
    EXPECT_THAT(outcomes[1], AllOf(HasSubstr("rank 0"),
                                   HasSubstr("left while rank 1 waited for it in message 3")));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, AnnouncedEnd, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return each.param; });

TEST(MovedFrom, CommunicatorsAreRefusedAndRequestsAreComplete) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(1000, 1);
    Communicator before = *comm.split(0);
    Communicator after = std::move(before);
    // NOLINTBEGIN(bugprone-use-after-move): the mistake in question
    const std::vector<std::function<void()>> uses = {
        [&] { (void)before.rank(); },
        [&] { (void)before.world_size(); },
        [&] { (void)before.split(0); },
        [&] { (void)before.shrink({}); },
        [&] { (void)before.start(sum_of(data)); },
        [&] { before.all_reduce<int>(data); },
        [&] { before.send<int>(data, 0); },
        [&] { before.group_start(); },
        [&] { before.group_end(); },
        [&] { before.abort("by mistake"); },
        [&] { before.announce_end(); },
        [&] { (void)before.failure(); },
        [&] { before.use({}); },
        [&] { (void)before.reprobe(); },
        [&] { (void)before.topology(); },
        [&] { (void)before.traffic(); },
        [&] { (void)before.explain(sum_of(data)); },
        [&] { (void)before.predicted_s(sum_of(data)); }};
    for (const auto& use : uses) EXPECT_THAT(refusal(use), HasSubstr("has been moved from"));
    before = std::move(after);
    expect_it_goes_on(before);

    Request started = comm.start(sum_of(data));
    Request taken = std::move(started);
    EXPECT_TRUE(started.test());
    started.wait();
    // NOLINTEND(bugprone-use-after-move)
    taken.wait();
    EXPECT_EQ(data[0], 2);
  }));
}

/// Runs `body` in a forked child, which ends with what it returns.
int status_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

// It shares its parent's memory and sockets: a call would be taken for one of its parent's, and so
// would a goodbye.
TEST(AForkedChild, IsRefusedAndLeavesItsParentsCommunicatorAlone) {
  for (const char* transport : {"shm", "tcp"}) {
    World world = threads(2, transport);
    world.ranks = Ranks::processes;
    expect_all_well(run_world(world, [](Communicator& comm) {
      expect_it_goes_on(comm);
      std::vector<int> data(10, 1);
      Request request = comm.start(sum_of(data));
      const int status = status_of_child([&] {
        auto inherited = std::make_unique<Communicator>(std::move(comm));
        const auto refused = [](const std::string& sentence) {
          return sentence.find("was forked from rank") != std::string::npos;
        };
        const bool well = refused(refusal([&] { inherited->start(sum_of(data)); })) &&
                          refused(refusal([&] { inherited->barrier(); })) &&
                          refused(refusal([&] { static_cast<void>(inherited->split(0)); })) &&
                          refused(refusal([&] { request.wait(); }));
        inherited.reset();
        return well ? 0 : 1;
      });
      if (status != 0) throw std::runtime_error(fmt::format("the child: status {}", status));
      request.wait();
      expect_it_goes_on(comm);
    }));
  }
}

}  // namespace
}  // namespace chorus::testing
