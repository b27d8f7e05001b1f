// What goes wrong on real fabrics, over true verbs: packets are lost, ports go down, adapters and
// peers vanish in the middle of a collective. The result is right, or the error names who it was.
// Changes this machine's network: only for the guest of guest.sh.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <numeric>
#include <thread>

#include "adapters.hpp"
#include "chorus/memory.hpp"
#include "runtime/reference.hpp"
#include "runtime/world.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

bool run(const std::string& command) { return std::system(command.c_str()) == 0; }

class RdmaFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_rdma({})) GTEST_SKIP() << "no rdma: " << *reason;
    if (adapters().size() < 2) GTEST_SKIP() << "only one RDMA adapter here";
  }
  [[nodiscard]] static World world(int size) {
    World world{.size = size, .ranks = Ranks::processes};
    world.options.transports = "rdma";
    world.options.timeout_ms = 60'000;
    world.options.flight_dir.clear();
    world.options.rdma_timeout = 14;  // 67 ms
    world.options.rdma_retry = 3;
    world.timeout_s = 120;
    return world;
  }
};

/// What the test and its ranks, which are processes of their own, know of each other.
class Shared {
 public:
  struct State {
    std::atomic<int> rounds = 0;  ///< that rank 0 has finished
    std::atomic<bool> over = false;
  };
  Shared()
      : state_(new (::mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) State) {}
  ~Shared() { ::munmap(state_, sizeof(State)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  [[nodiscard]] State* operator->() const { return state_; }

  /// True when rank 0 has finished `more` rounds from now; false if that takes too long.
  [[nodiscard]] bool await_rounds(int more) const {
    const auto end = Clock::now() + 60s;
    for (const int least = state_->rounds + more; state_->rounds < least;) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(20ms);
    }
    return true;
  }

 private:
  State* const state_;
};

/// All-reduces of 400 KB until it is over, every element checked.
void keep_reducing(Communicator& comm, const Shared& shared) {
  const int n = comm.world_size();
  // Half of them out of memory that the adapters read in place.
  std::vector<std::int32_t> heap(100'000);
  std::vector<std::int32_t, Allocator<std::int32_t>> ours(100'000);
  for (int round = 0;; ++round) {
    const std::span<std::int32_t> data =
        round % 2 == 0 ? std::span<std::int32_t>(heap) : std::span<std::int32_t>(ours);
    std::iota(data.begin(), data.end(), round * 7 + comm.rank());
    comm.all_reduce(data);
    for (std::size_t i = 0; i < data.size(); ++i) {
      const int expected = n * (static_cast<int>(i) + round * 7) + n * (n - 1) / 2;
      if (data[i] != expected) {
        throw std::runtime_error(
            fmt::format("round {}: element {} is {} instead of {}", round, i, data[i], expected));
      }
    }
    // All ranks must stop after the same round.
    std::int32_t over = shared->over ? 1 : 0;
    comm.all_reduce(std::span(&over, 1), ReduceOp::max);
    if (over != 0) return;
    if (comm.rank() == 0) ++shared->rounds;
  }
}

/// Goes on reducing until `disturb` is done and rounds have been finished after it. Returns what
/// was said meanwhile.
std::string said_during(World world, const std::function<void()>& disturb) {
  const Shared shared;
  world.meanwhile = [&](const std::vector<pid_t>&) {
    EXPECT_TRUE(shared.await_rounds(3));
    disturb();
    EXPECT_TRUE(shared.await_rounds(5));
    shared->over = true;
  };
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes =
      run_world(world, [&](Communicator& comm) { keep_reducing(comm, shared); });
  std::string said = ::testing::internal::GetCapturedStderr();
  expect_all_well(outcomes);
  return said;
}

std::ptrdiff_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }

/// True when more than `packets` have left an adapter; false if that takes too long.
bool await_packets(const std::string& adapter, std::uint64_t packets) {
  const auto end = Clock::now() + 60s;
  while (counter(adapter, "sent_pkts") <= packets) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

TEST_F(RdmaFaultTest, OnePacketInAHundredLostChangesNoResult) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(run(fmt::format("tc qdisc add dev e{} root netem loss 1%", i)));
  }
  const auto retries = [] {
    const auto each = counters("completer_retry_err");
    return each[0] + each[1];
  };
  const auto before = retries();
  World lossy = world(2);
  lossy.options.rdma_retry = 6;
  // For as long as it takes until one is lost: on a busy machine few packets leave in a second.
  const std::string said = said_during(lossy, [&] {
    for (const auto end = Clock::now() + 60s; retries() == before && Clock::now() < end;) {
      std::this_thread::sleep_for(20ms);
    }
  });
  EXPECT_EQ(said, "") << "the adapters repair it themselves";
  EXPECT_GT(retries(), before) << "no packet was lost";
  for (int i = 0; i < 2; ++i) run(fmt::format("tc qdisc del dev e{} root", i));
}

TEST_F(RdmaFaultTest, APortThatGoesDownIsDoneWithoutAndTakesItsTrafficAgainWhenItIsUp) {
  const std::string said = said_during(world(2), [] {
    EXPECT_TRUE(await_packets("rxe1", counter("rxe1", "sent_pkts") + 200));
    EXPECT_TRUE(run("ip link set e1 down"));
    EXPECT_TRUE(await_packets("rxe0", counter("rxe0", "sent_pkts") + 1000));
    EXPECT_TRUE(run("ip link set e1 up"));
    EXPECT_TRUE(await_packets("rxe1", counter("rxe1", "sent_pkts") + 300));
  });
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over rxe0 port 1"));
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank 1 works again: going on over 2 of 2 rails"));
  EXPECT_EQ(lines(said), 2) << said;
}

TEST_F(RdmaFaultTest, WhenNoPortIsLeftTrafficGoesOverTcp) {
  const std::string said = said_during(world(2), [] {
    EXPECT_TRUE(run("ip link set e1 down"));
    EXPECT_TRUE(run("ip link set e0 down"));
  });
  run("ip link set e0 up; ip link set e1 up");
  EXPECT_THAT(said, HasSubstr("going on over tcp"));
  EXPECT_EQ(lines(said), 2) << "one for each port:\n" << said;
}

TEST_F(RdmaFaultTest, AGidThatIsAnotherEndsTheUseOfItsPort) {
  const std::string said = said_during(world(2), [] {
    EXPECT_TRUE(run("ip addr add 10.77.0.9/24 dev e1; ip addr del 10.77.0.2/24 dev e1"));
  });
  run("ip addr flush dev e1 scope global; ip addr add 10.77.0.2/24 dev e1");
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over rxe0 port 1"));
  EXPECT_EQ(lines(said), 1) << said;
}

TEST_F(RdmaFaultTest, GidsOfTwoKindsAreToldAndTheirRanksGoOverTcp) {
  World mixed = world(2);
  ::testing::internal::CaptureStderr();
  const auto outcomes = run_ranks(mixed, [&](const UniqueId& id, Rank rank) {
    Options options = mixed.options;
    options.rdma_gid_index = rank;  // 0 is link-local, 1 the IPv4 address
    auto comm = Communicator::join(id, rank, mixed.size, options);
    run_case(comm, {.kind = Call::Kind::all_reduce, .type = DataType::float32, .count = 50'000});
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  expect_all_well(outcomes);
  EXPECT_THAT(said, HasSubstr("CHORUS_RDMA_GID_INDEX has to name GIDs of one kind"));
  EXPECT_THAT(said, HasSubstr("; going on over tcp"));
  EXPECT_EQ(lines(said), 1) << said;
}

TEST_F(RdmaFaultTest, APeerThatIsKilledIsNamedByAllOthers) {
  World killing = world(4);
  killing.launcher = true;
  const Shared shared;
  Clock::time_point killed;
  killing.meanwhile = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(shared.await_rounds(2));
    killed = Clock::now();
    ::kill(pids[2], SIGKILL);
  };
  std::vector<Clock::time_point> ended;
  killing.ended = &ended;
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes =
      run_world(killing, [&](Communicator& comm) { keep_reducing(comm, shared); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_THAT(outcomes[r], HasSubstr("rank 2")) << "rank " << r;
    EXPECT_LT(ended[r] - killed, 10s) << "rank " << r;
  }
  EXPECT_THAT(said, ::testing::Not(HasSubstr("going on over"))) << "a dead peer is no dead port";
}

// The last: the adapter does not come back.
TEST_F(RdmaFaultTest, ZAnAdapterThatIsTakenOutIsDoneWithout) {
  const std::string said = said_during(world(2), [] {
    // Linux 6.1 ends this command when the last process has let go of the adapter.
    EXPECT_TRUE(run("ip link delete e1 &"));
    for (const auto end = Clock::now() + 60s; std::filesystem::exists("/sys/class/net/e1");) {
      ASSERT_LT(Clock::now(), end) << "e1 cannot be deleted";
      std::this_thread::sleep_for(20ms);
    }
  });
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over rxe0 port 1"));
  EXPECT_EQ(lines(said), 1) << said;
}

}  // namespace
}  // namespace chorus::testing
