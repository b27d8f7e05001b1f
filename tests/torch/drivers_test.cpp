// The drivers of the torch backend alone, without torch: what a task runs may throw anything or
// wait for other tasks, and still every task ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "drivers/collective_driver.hpp"
#include "drivers/message_driver.hpp"
#include "runtime/world.hpp"

namespace {

thread_local int allocations = 0;  // of this thread, from its start on

}  // namespace

// Not inlined, or the compiler sees free() on what new gave and warns.
[[gnu::noinline]] void* operator new(std::size_t size_bytes) {
  ++allocations;
  if (void* const memory = std::malloc(size_bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace chorus_torch {
namespace {

using chorus::Call;
using chorus::Communicator;
using chorus::testing::expect_all_well;
using chorus::testing::run_world;
using chorus::testing::threads;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kNoLimit{0};

std::string as_it_is(std::string sentence) { return sentence; }

std::shared_ptr<Task> task_of(std::string name, Call call) {
  auto task = std::make_shared<Task>();
  task->name = std::move(name);
  task->calls.push_back(call);
  return task;
}

std::shared_ptr<Task> sum(float& value) {
  return task_of("all_reduce", {.kind = Call::Kind::all_reduce,
                                .input = &value,
                                .output = &value,
                                .count = 1,
                                .type = chorus::DataType::float32});
}

std::shared_ptr<Task> message(bool sending, float& value, chorus::Rank peer) {
  return task_of(sending ? "send" : "recv", {.kind = sending ? Call::Kind::send : Call::Kind::recv,
                                             .input = &value,
                                             .output = &value,
                                             .count = 1,
                                             .type = chorus::DataType::float32,
                                             .peer = peer});
}

/// A driver without the communicator that it took over, which leaves at the end.
template <class Driver, class Body>
void on_two_ranks(const Body& body) {
  expect_all_well(run_world(threads(2), [&](Communicator& comm) {
    const chorus::Rank rank = comm.rank();
    Driver driver(std::move(*comm.split(0)), as_it_is);
    comm.barrier();  // a rank that fails at once must not reach another that still splits
    body(driver, rank);
  }));
}

void wait_without_driving(const Task& task) {
  while (!task.done.load()) std::this_thread::sleep_for(milliseconds(1));
}

TEST(MessageDriver, FailsTheMessagesOfAGroupWhateverUnpackingThrows) {
  on_two_ranks<MessageDriver>([](MessageDriver& driver, chorus::Rank rank) {
    float values[2] = {};
    const auto never = message(false, values[0], 1 - rank);
    // Its pair comes second on both ranks, so that the first is under way when it fails.
    const auto bad = message(rank == 1, values[1], 1 - rank);
    if (rank == 0) {
      bad->unpack = [] { throw std::bad_alloc(); };
      driver.submit(bad);
      driver.submit(never);
      driver.wait(bad, kNoLimit);
      EXPECT_THAT(bad->error, HasSubstr("recv: std::bad_alloc"));
    } else {
      driver.submit(never);
      driver.submit(bad);
    }
    driver.wait(never, kNoLimit);
    EXPECT_THAT(never->error, HasSubstr("std::bad_alloc")) << "rank " << rank;
  });
}

TEST(MessageDriver, FailsTheMessagesOfAGroupWhateverPackingThrows) {
  on_two_ranks<MessageDriver>([](MessageDriver& driver, chorus::Rank rank) {
    float value = 0;
    const auto task = message(rank == 0, value, 1 - rank);
    if (rank == 0) task->pack = [] { throw std::length_error("too long"); };
    driver.submit(task);
    driver.wait(task, kNoLimit);
    EXPECT_THAT(task->error, HasSubstr("send: too long")) << "rank " << rank;
  });
}

TEST(MessageDriver, LeavesMessagesToWhoeverWaitsAndSeesToThemAfterwards) {
  on_two_ranks<MessageDriver>([](MessageDriver& driver, chorus::Rank rank) {
    // Nobody waits for the second; the first shows that what moves messages on is the waiting
    // thread.
    float values[2] = {1, 2};
    const auto awaited = message(rank == 1, values[0], 1 - rank);
    const auto left_alone = message(rank == 0, values[1], 1 - rank);
    std::atomic<std::thread::id> moved_by;
    awaited->unpack = [&] { moved_by = std::this_thread::get_id(); };
    driver.submit(left_alone);
    if (rank == 1)
      std::this_thread::sleep_for(milliseconds(30));  // the other waits by then, mostly
    driver.submit(awaited);
    driver.wait(awaited, kNoLimit);
    if (rank == 0) {
      EXPECT_EQ(moved_by.load(), std::this_thread::get_id());
    }
    wait_without_driving(*left_alone);
    EXPECT_EQ(left_alone->error, "");
  });
}

TEST(CollectiveDriver, AllocatesNothingForACallThatWasMadeBefore) {
  on_two_ranks<CollectiveDriver>([](CollectiveDriver& driver, chorus::Rank rank) {
    float value = 1;
    for (int round = 0; round < 20; ++round) {
      const auto task = sum(value);
      task->awaited = true;
      driver.submit(task);
      // Whoever waits for the other so long has gone to sleep.
      if (round % 4 == rank) std::this_thread::sleep_for(milliseconds(30));
      const int before = allocations;
      driver.wait(task, kNoLimit);
      if (round >= 10) {
        EXPECT_EQ(allocations, before) << "rank " << rank << ", round " << round;
      }
      EXPECT_EQ(task->error, "");
    }
    EXPECT_EQ(value, 1 << 20);
  });
}

TEST(CollectiveDriver, LeavesWhatIsAwaitedToWhoeverWaits) {
  on_two_ranks<CollectiveDriver>([](CollectiveDriver& driver, chorus::Rank rank) {
    float value = 1;
    const auto task = sum(value);
    task->awaited = true;
    std::thread::id ran_on;
    task->pack = [&] { ran_on = std::this_thread::get_id(); };
    driver.submit(task);
    std::this_thread::sleep_for(milliseconds(30));  // many naps, if it took any
    driver.wait(task, kNoLimit);
    EXPECT_EQ(ran_on, std::this_thread::get_id()) << "rank " << rank;
    EXPECT_EQ(value, 2);
  });
}

TEST(CollectiveDriver, RunsWhatIsAwaitedIfOthersComeBehindItOrItIsKicked) {
  on_two_ranks<CollectiveDriver>([](CollectiveDriver& driver, chorus::Rank rank) {
    float values[3] = {1, 1, 1};
    std::shared_ptr<Task> tasks[3];
    for (int i = 0; i < 3; ++i) tasks[i] = sum(values[i]);
    tasks[0]->awaited = tasks[2]->awaited = true;
    driver.submit(tasks[0]);
    driver.submit(tasks[1]);
    wait_without_driving(*tasks[1]);
    driver.submit(tasks[2]);
    driver.kick();
    wait_without_driving(*tasks[2]);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(values[i], 2) << "rank " << rank << ", task " << i;
  });
}

TEST(CollectiveDriver, FailsEveryRankWhateverPackingOrUnpackingThrows) {
  for (const bool packing : {true, false}) {
    on_two_ranks<CollectiveDriver>([packing](CollectiveDriver& driver, chorus::Rank rank) {
      float value = 1;
      const auto task = sum(value);
      if (rank == 0) (packing ? task->pack : task->unpack) = [] { throw std::bad_alloc(); };
      driver.submit(task);
      driver.wait(task, kNoLimit);
      if (rank == 0) {
        EXPECT_THAT(task->error, HasSubstr("all_reduce: std::bad_alloc"));
      }
      const auto next = sum(value);
      driver.submit(next);
      driver.wait(next, kNoLimit);
      EXPECT_THAT(next->error, HasSubstr("std::bad_alloc")) << "rank " << rank;
    });
  }
}

TEST(CollectiveDriver, GoesOnAfterWhatFollowsATaskThrew) {
  on_two_ranks<CollectiveDriver>([](CollectiveDriver& driver, chorus::Rank /*rank*/) {
    float value = 1;
    for (const bool by_the_driver : {true, false}) {
      const auto task = sum(value);
      task->finished = [](const std::string& error) {
        EXPECT_EQ(error, "");
        throw std::runtime_error("no good");
      };
      driver.submit(task);
      by_the_driver ? wait_without_driving(*task) : driver.wait(task, kNoLimit);
      EXPECT_EQ(task->error, "all_reduce: no good");
    }
    EXPECT_EQ(value, 4);
  });
}

TEST(MessageDriver, GoesOnAfterWhatFollowsAMessageThrew) {
  on_two_ranks<MessageDriver>([](MessageDriver& driver, chorus::Rank rank) {
    float value = 3;
    const auto task = message(rank == 0, value, 1 - rank);
    task->finished = [](const std::string&) { throw 1; };
    driver.submit(task);
    driver.wait(task, kNoLimit);
    EXPECT_THAT(task->error, HasSubstr("unknown exception"));
    const auto back = message(rank == 1, value, 1 - rank);
    driver.submit(back);
    driver.wait(back, kNoLimit);
    EXPECT_EQ(back->error, "");
  });
}

// Each end waits for the next task, ever deeper, and none of them is driven by anybody else: a
// thread for each. Then as often again, by those that stand by.
constexpr int kDepth = 5;

template <class Driver, class Make>
void wait_ever_deeper(Driver& driver, const Make& make) {
  std::function<void(int)> go = [&](int depth) {
    const auto task = make(depth);
    task->want_future();
    if (depth + 1 < kDepth) task->finished = [&, depth](const std::string&) { go(depth + 1); };
    driver.submit(task);
    driver.kick();
    wait_without_driving(*task);
    EXPECT_EQ(task->error, "");
  };
  for (int round = 0; round < 10; ++round) go(0);
}

TEST(CollectiveDriver, LetsTheEndOfATaskWaitForAnother) {
  on_two_ranks<CollectiveDriver>([](CollectiveDriver& driver, chorus::Rank /*rank*/) {
    float values[kDepth] = {};
    wait_ever_deeper(driver, [&](int depth) { return sum(values[depth]); });
  });
}

TEST(MessageDriver, LetsTheEndOfAMessageWaitForAnother) {
  on_two_ranks<MessageDriver>([](MessageDriver& driver, chorus::Rank rank) {
    float values[kDepth] = {};
    wait_ever_deeper(driver, [&](int depth) {
      return message((depth + rank) % 2 == 0, values[depth], 1 - rank);
    });
  });
}

/// From now on this process gets memory for everything but the stack of another thread.
void start_no_more_threads() {
  pthread_attr_t large;
  pthread_attr_init(&large);
  pthread_attr_setstacksize(&large, std::size_t{1} << 32);
  pthread_setattr_default_np(&large);
  pthread_attr_destroy(&large);
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const rlimit limit{.rlim_cur = pages * page + (std::uint64_t{1} << 31),
                     .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
}

/// What two ranks throw, of which rank 0 can start no thread, not even the driver's first unless
/// `has_first`.
template <class Driver, class Body>
chorus::testing::Outcomes without_threads(bool has_first, const Body& body) {
  chorus::testing::World world{.size = 2, .ranks = chorus::testing::Ranks::processes};
  world.options.flight_dir.clear();
  return run_world(world, [&](Communicator& comm) {
    const chorus::Rank rank = comm.rank();
    auto part = comm.split(0);
    comm.barrier();
    if (rank == 0 && !has_first) start_no_more_threads();
    Driver driver(std::move(*part), as_it_is);
    body(driver, rank);
  });
}

class WithoutThreads : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers end the process that can get no memory";
#endif
  }
};

TEST_F(WithoutThreads, ACollectiveDriverIsNotMadeAndTheOthersAreTold) {
  const auto outcomes =
      without_threads<CollectiveDriver>(false, [](CollectiveDriver& driver, chorus::Rank) {
        float value = 1;
        const auto task = sum(value);
        driver.submit(task);
        driver.wait(task, kNoLimit);
        throw std::runtime_error(task->error);
      });
  EXPECT_THAT(outcomes[0], HasSubstr("no thread can be started"));
  EXPECT_THAT(outcomes[1], HasSubstr("rank 0 aborted: no thread can be started"));
}

TEST_F(WithoutThreads, AMessageIsNotBegunAndTheOthersAreTold) {
  const auto outcomes =
      without_threads<MessageDriver>(false, [](MessageDriver& driver, chorus::Rank rank) {
        float value = 1;
        const auto task = message(rank == 0, value, 1 - rank);
        driver.submit(task);
        driver.wait(task, kNoLimit);
        throw std::runtime_error(task->error);
      });
  EXPECT_THAT(outcomes[0], HasSubstr("no thread can be started"));
  EXPECT_THAT(outcomes[1], HasSubstr("rank 0 aborted: no thread can be started"));
}

// The end of the first task waits for the second, which nobody is left to drive.
template <class Driver, class Make>
void expect_no_hang(const Make& make) {
  const auto outcomes = without_threads<Driver>(true, [&](Driver& driver, chorus::Rank rank) {
    float values[2] = {};
    const auto begin = make(rank, values[0]);
    driver.submit(begin);
    driver.wait(begin, kNoLimit);
    if (rank == 0) start_no_more_threads();
    const auto first = make(rank, values[0]), second = make(rank, values[1]);
    first->want_future();
    second->want_future();
    first->finished = [&](const std::string&) {
      driver.submit(second);
      driver.kick();
      wait_without_driving(*second);
    };
    driver.submit(first);
    driver.kick();
    wait_without_driving(*first);
    throw std::runtime_error(second->error);
  });
  for (const std::string& outcome : outcomes) {
    EXPECT_THAT(outcome, HasSubstr("no thread can be started"));
  }
}

TEST_F(WithoutThreads, WhatTheEndOfATaskWaitsForFails) {
  expect_no_hang<CollectiveDriver>([](chorus::Rank, float& value) { return sum(value); });
}

TEST_F(WithoutThreads, WhatTheEndOfAMessageWaitsForFails) {
  expect_no_hang<MessageDriver>(
      [](chorus::Rank rank, float& value) { return message(rank == 0, value, 1 - rank); });
}

}  // namespace
}  // namespace chorus_torch
