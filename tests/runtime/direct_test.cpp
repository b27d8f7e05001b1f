// Ranks that share memory: every way in which a buffer can reach the others gives the same result,
// and none of them outlives a failure.
#include "model/program/direct.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "chorus/memory.hpp"
#include "collectives/algorithms.hpp"
#include "tests/transports/forbid_foreign_memory.hpp"
#include "topology/discover/host_rates.hpp"
#include "world.hpp"

namespace chorus::testing {
namespace {

using Shared = std::vector<int, Allocator<int>>;
using Ordinary = std::vector<int>;

World world_of(int size, Ranks ranks) {
  World world{.size = size, .ranks = ranks};
  world.options.transports = "shm";
  world.options.flight_dir.clear();
  world.options.timeout_ms = 60'000;
  return world;
}

int value(Rank rank, std::size_t i) { return rank * 1000 + static_cast<int>(i % 977); }

[[noreturn]] void wrong(const char* what, std::size_t count, std::size_t at) {
  throw std::runtime_error(fmt::format("{} of {} elements: wrong at {}", what, count, at));
}

/// Each collective that moves data, of `count` elements per block beginning `shift` elements into
/// the buffers.
template <class Buffer>
void check_all(Communicator& comm, std::size_t count, std::size_t shift) {
  const auto n = static_cast<std::size_t>(comm.world_size());
  const Rank me = comm.rank();
  const auto mine = static_cast<std::size_t>(me);
  Buffer in(n * count + shift), out(n * count + shift, -1);
  for (std::size_t i = 0; i < n * count; ++i) in[shift + i] = value(me, i);
  const auto inputs = std::span<const int>(in).subspan(shift);
  const auto outputs = std::span<int>(out).subspan(shift);
  const auto sum = [&](std::size_t i) {
    int total = 0;
    for (Rank r = 0; r < comm.world_size(); ++r) total += value(r, i);
    return total;
  };

  comm.all_reduce<int>(inputs.first(count), outputs.first(count));
  for (std::size_t i = 0; i < count; ++i) {
    if (outputs[i] != sum(i)) wrong("all_reduce", count, i);
  }
  comm.all_gather<int>(inputs.first(count), outputs);
  for (std::size_t i = 0; i < n * count; ++i) {
    if (outputs[i] != value(static_cast<Rank>(i / count), i % count)) wrong("all_gather", count, i);
  }
  comm.reduce_scatter<int>(inputs, outputs.first(count));
  for (std::size_t i = 0; i < count; ++i) {
    if (outputs[i] != sum(mine * count + i)) wrong("reduce_scatter", count, i);
  }
  comm.all_to_all<int>(inputs, outputs);
  for (std::size_t i = 0; i < n * count; ++i) {
    if (outputs[i] != value(static_cast<Rank>(i / count), mine * count + i % count)) {
      wrong("all_to_all", count, i);
    }
  }
  const Rank root = comm.world_size() - 1;
  comm.reduce<int>(inputs.first(count), outputs.first(count), root);
  for (std::size_t i = 0; me == root && i < count; ++i) {
    if (outputs[i] != sum(i)) wrong("reduce", count, i);
  }
  std::copy(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(count), outputs.begin());
  comm.broadcast<int>(outputs.first(count), root);
  for (std::size_t i = 0; i < count; ++i) {
    if (outputs[i] != value(root, i)) wrong("broadcast", count, i);
  }
  std::copy(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(count), outputs.begin());
  comm.all_reduce<int>(outputs.first(count));
  for (std::size_t i = 0; i < count; ++i) {
    if (outputs[i] != sum(i)) wrong("all_reduce in place", count, i);
  }
}

void check_sizes(Communicator& comm) {
  for (const std::size_t count : {1, 9, 65, 1000, 12'345, 200'003}) {
    check_all<Ordinary>(comm, count, 0);
    check_all<Shared>(comm, count, 0);
    check_all<Shared>(comm, count, 3);
    // Ranks that do not use alike memory.
    if (comm.rank() % 2 == 0) {
      check_all<Shared>(comm, count, 1);
    } else {
      check_all<Ordinary>(comm, count, 1);
    }
  }
}

/// Figures of a host whose kernel copies faster than its cores do through slots, from 2 KiB on; or
/// that takes another share of the time of both copies through them.
class QuickKernel {
 public:
  explicit QuickKernel(double share = 0.25) {
    HostRates rates = assumed_host_rates();
    rates.machine = "a machine of this test";
    rates.pairs[0].samples = {{2048, 2e-6, 2e-6, share * 4e-6, 1e-6},
                              {1 << 20, 2e-4, 2e-4, share * 4e-4, 1e-4}};
    std::ofstream(path_) << to_json(rates);
  }
  ~QuickKernel() { std::filesystem::remove(path_); }
  QuickKernel(const QuickKernel&) = delete;
  QuickKernel& operator=(const QuickKernel&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ =
      fmt::format("{}chorus-quick-kernel-{}.json", ::testing::TempDir(), ::getpid());
};

std::string explained(Communicator& comm, std::size_t count) {
  return comm.explain({.kind = Call::Kind::all_gather, .count = count, .type = DataType::int32});
}

constexpr const char* kOneCopy = "ordinary buffers are read by the kernel: one copy (host measured";
constexpr const char* kTwoCopies = "ordinary buffers go through slots: two copies (host measured";

class DirectTest : public ::testing::TestWithParam<std::tuple<Ranks, int>> {};

TEST_P(DirectTest, EveryKindOfBufferGivesTheRightResult) {
  const auto [ranks, size] = GetParam();
  expect_all_well(run_world(world_of(size, ranks), check_sizes));
}

TEST_P(DirectTest, AndSoDoesOneCopyByTheKernel) {
  const auto [ranks, size] = GetParam();
  const QuickKernel host;
  World world = world_of(size, ranks);
  world.options.host_probe = host.path();
  const bool alone = ranks == Ranks::threads;
  expect_all_well(run_world(world, [alone](Communicator& comm) {
    constexpr const char* kNoCopy = "buffers are read where they are";
    EXPECT_THAT(explained(comm, 256), ::testing::HasSubstr(alone ? kNoCopy : kTwoCopies));
    EXPECT_THAT(explained(comm, 1000), ::testing::HasSubstr(alone ? kNoCopy : kOneCopy));
    check_sizes(comm);
  }));
}

// Either way is tried within some thirty calls alike where it is predicted to be hardly slower.
TEST(Direct, TryingTheOtherWayBetweenCallsChangesNoResult) {
  for (const double share : {0.95, 1.05}) {
    const QuickKernel host(share);
    World world = world_of(3, Ranks::processes);
    world.options.host_probe = host.path();
    expect_all_well(run_world(world, [](Communicator& comm) {
      for (int round = 0; round < 100; ++round) {
        for (const std::size_t count : {3000, 60'000}) check_all<Ordinary>(comm, count, 0);
      }
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, DirectTest,
                         ::testing::Combine(::testing::Values(Ranks::threads, Ranks::processes),
                                            ::testing::Values(2, 3, 5)),
                         [](const auto& param) {
                           return fmt::format(
                               "{}{}",
                               std::get<0>(param.param) == Ranks::threads ? "Threads" : "Processes",
                               std::get<1>(param.param));
                         });

/// Messages of all sizes both ways at once, larger than all slots, too.
void check_messages(Communicator& comm) {
  const Rank peer = comm.rank() ^ 1;
  for (const std::size_t count : {1, 700, 3000, 4096, 40'000, 32'768, 700'001}) {
    for (int round = 0; round < 3; ++round) {
      Ordinary in(count, -1), out(count);
      for (std::size_t i = 0; i < count; ++i) out[i] = value(comm.rank(), i + count);
      Request sent = comm.start({.kind = Call::Kind::send,
                                 .input = out.data(),
                                 .count = count,
                                 .type = DataType::int32,
                                 .peer = peer});
      if (round == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      comm.recv<int>(in, peer);
      sent.wait();
      std::fill(out.begin(), out.end(), -2);  // it is this rank's again
      comm.barrier();
      for (std::size_t i = 0; i < count; ++i) {
        if (in[i] != value(peer, i + count)) wrong("recv", count, i);
      }
    }
  }
}

TEST(Direct, MessagesAreReadByTheKernelWhereThatIsFaster) {
  const QuickKernel host;
  for (const int refused : {-1, 0, 1}) {  // the rank that the kernel refuses to read the other
    World world = world_of(2, Ranks::processes);
    world.options.host_probe = host.path();
    expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
      if (rank == refused) forbid_foreign_memory(EPERM);
      auto comm = Communicator::join(id, rank, 2, world.options);
      check_messages(comm);
    }));
  }
}

// Rank 1 may read the others, and does.
TEST(Direct, GoesThroughSlotsWhereTheKernelForbidsToReadOthers) {
  const QuickKernel host;
  World world = world_of(3, Ranks::processes);
  world.options.host_probe = host.path();
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    if (rank != 1) forbid_foreign_memory(EPERM);
    auto comm = Communicator::join(id, rank, 3, world.options);
    if (explained(comm, 1000).find(kOneCopy) == std::string::npos) wrong("explain before", 0, 0);
    check_sizes(comm);
    // Everybody was refused once, by rank 0 or 2, and is not read any more.
    if (explained(comm, 1000).find(kTwoCopies) == std::string::npos) wrong("explain", 0, 0);
  }));
}

// Such as a device's, mapped into a process.
TEST(Direct, GoesThroughSlotsForMemoryThatTheKernelCannotRead) {
  const QuickKernel host;
  World world = world_of(3, Ranks::processes);
  world.options.host_probe = host.path();
  expect_all_well(run_ranks(world, [&](const UniqueId& id, Rank rank) {
    if (rank == 2) forbid_foreign_memory(EFAULT);
    auto comm = Communicator::join(id, rank, 3, world.options);
    check_sizes(comm);
    if (explained(comm, 1000).find(kOneCopy) == std::string::npos) wrong("explain", 0, 0);
  }));
}

TEST(Direct, APeerThatIsKilledWhileItsMemoryIsReadIsNamed) {
  const QuickKernel host;
  for (int round = 0; round < 8; ++round) {
    World world = world_of(3, Ranks::processes);
    world.timeout_s = 30;
    if (round % 4 < 2) world.options.host_probe = host.path();  // ordinary memory is read, too
    world.meanwhile = [&](const std::vector<pid_t>& pids) {
      std::this_thread::sleep_for(std::chrono::milliseconds(400 + 17 * round));
      ::kill(pids[1], SIGKILL);
    };
    const Outcomes outcomes = run_world(world, [&](Communicator& comm) {
      Shared shared(round % 2 == 0 ? 3'000'000 : 0, 1);
      Ordinary ordinary(3'000'000, 1), all(9'000'000);
      while (true) {
        if (!shared.empty()) comm.all_reduce<int>(shared, ReduceOp::max);
        comm.all_gather<int>(ordinary, all);
      }
    });
    EXPECT_THAT(outcomes[0], ::testing::HasSubstr("rank 1")) << "round " << round;
    EXPECT_THAT(outcomes[2], ::testing::HasSubstr("rank 1")) << "round " << round;
  }
}

TEST(Direct, ManyBroadcastsDoNotOverrunASlowReader) {
  expect_all_well(run_world(world_of(3, Ranks::threads), [](Communicator& comm) {
    std::vector<int> data(3000);
    for (int i = 0; i < 200; ++i) {
      if (comm.rank() == 0) std::fill(data.begin(), data.end(), i);
      if (comm.rank() == 2 && i % 50 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      comm.broadcast<int>(data, 0);
      if (data.front() != i || data.back() != i) wrong("broadcast", data.size(), 0);
    }
  }));
}

TEST(Direct, MemoryCanBeGivenBackAndTakenAgainBetweenCalls) {
  expect_all_well(run_world(world_of(2, Ranks::processes), [](Communicator& comm) {
    for (int i = 0; i < 30; ++i) {
      check_all<Shared>(comm, static_cast<std::size_t>(100'000 * (i % 4) + 1), 0);
      Shared large(5'000'000, comm.rank());  // a segment of its own
      comm.all_reduce<int>(large);
      if (large.front() != 1 || large.back() != 1) wrong("all_reduce", large.size(), 0);
    }
  }));
}

// The checker is why a direct form may be trusted, so it must also say no.
TEST(DirectProgram, AnySingleMistakeIsNoticed) {
  const Schedule schedule =
      algorithm("two_shot")
          .make({.kind = CollectiveKind::all_reduce, .world_size = 4, .levels = {}});
  const auto good = direct(schedule);
  ASSERT_TRUE(good);
  ASSERT_EQ(first_fault(*good), std::nullopt);
  for (std::size_t r = 0; r < good->size(); ++r) {
    for (std::size_t m = 0; m < (*good)[r].moves.size(); ++m) {
      auto dropped = *good;
      dropped[r].moves.erase(dropped[r].moves.begin() + static_cast<std::ptrdiff_t>(m));
      EXPECT_NE(first_fault(dropped), std::nullopt);
      auto doubled = *good;
      doubled[r].moves.push_back(doubled[r].moves[m]);
      EXPECT_NE(first_fault(doubled), std::nullopt);
      auto missing = *good;
      missing[r].moves[m].sources.pop_back();
      EXPECT_NE(first_fault(missing), std::nullopt);
      auto misplaced = *good;
      ++misplaced[r].moves[m].destinations[0].index;
      EXPECT_NE(first_fault(misplaced), std::nullopt);
    }
  }
}

TEST(DirectProgram, SchedulesThatRelayHaveNone) {
  EXPECT_FALSE(direct(
      algorithm("ring").make({.kind = CollectiveKind::all_reduce, .world_size = 4, .levels = {}})));
  EXPECT_TRUE(
      direct(algorithm("one_shot")
                 .make({.kind = CollectiveKind::all_to_all, .world_size = 4, .levels = {}})));
}

}  // namespace
}  // namespace chorus::testing
