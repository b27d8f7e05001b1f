// What goes wrong on real fabrics, over true verbs: packets are lost, ports go down, adapters and
// peers vanish in the middle of a collective. The result is right, or the error names who it was.
// Changes this machine's network: only for the guest of guest.sh.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "adapters.hpp"
#include "chorus/memory.hpp"
#include "runtime/reference.hpp"
#include "runtime/world.hpp"
#include "transports/rdma.hpp"

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

/// All-reduces of 400 KB until it is over, every element checked.
void keep_reducing(Communicator& comm, const std::function<bool()>& over_now) {
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
    std::int32_t over = over_now() ? 1 : 0;
    comm.all_reduce(std::span(&over, 1), ReduceOp::max);
    if (over != 0) return;
  }
}
void keep_reducing(Communicator& comm, std::chrono::seconds time) {
  keep_reducing(comm, [end = Clock::now() + time] { return Clock::now() > end; });
}

TEST_F(RdmaFaultTest, OnePacketInAHundredLostChangesNoResult) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(run(fmt::format("tc qdisc add dev e{} root netem loss 1%", i)));
  }
  const auto before = counters("completer_retry_err");
  World lossy = world(2);
  lossy.options.rdma_retry = 6;
  ::testing::internal::CaptureStderr();
  // For as long as it takes until one is lost: on a busy machine few packets leave in a second.
  const auto lost = [before, least = Clock::now() + 6s, most = Clock::now() + 60s] {
    const auto now = counters("completer_retry_err");
    return Clock::now() > most || (Clock::now() > least && now[0] + now[1] > before[0] + before[1]);
  };
  const Outcomes outcomes =
      run_world(lossy, [&](Communicator& comm) { keep_reducing(comm, lost); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  expect_all_well(outcomes);
  EXPECT_EQ(said, "") << "the adapters repair it themselves";
  const auto after = counters("completer_retry_err");
  EXPECT_GT(after[0] + after[1], before[0] + before[1]) << "no packet was lost";
  for (int i = 0; i < 2; ++i) run(fmt::format("tc qdisc del dev e{} root", i));
}

/// True when more than `packets` have left an adapter; false if that takes too long.
bool await_packets(const std::string& adapter, std::uint64_t packets) {
  const auto end = Clock::now() + 30s;
  while (counter(adapter, "sent_pkts") <= packets) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

TEST_F(RdmaFaultTest, APortThatGoesDownIsDoneWithoutAndTakesItsTrafficAgainWhenItIsUp) {
  World failing = world(2);
  const std::string over = "/run/rdma_fault_test.over";
  bool used_before = false;
  bool used_instead = false;
  bool used_again = false;
  failing.meanwhile = [&](const std::vector<pid_t>&) {
    used_before = await_packets("rxe1", counter("rxe1", "sent_pkts") + 200);
    run("ip link set e1 down");
    used_instead = await_packets("rxe0", counter("rxe0", "sent_pkts") + 1000);
    run("ip link set e1 up");
    used_again = await_packets("rxe1", counter("rxe1", "sent_pkts") + 300);
    std::ofstream(over) << "over";
  };
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes = run_world(failing, [&](Communicator& comm) {
    keep_reducing(comm, [&] { return std::filesystem::exists(over); });
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  std::filesystem::remove(over);
  expect_all_well(outcomes);
  EXPECT_TRUE(used_before);
  EXPECT_TRUE(used_instead);
  EXPECT_TRUE(used_again) << said;
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over rxe0 port 1"));
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank 1 works again: going on over 2 of 2 rails"));
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 3) << said;  // each rank may notice first
}

TEST_F(RdmaFaultTest, WhenNoPortIsLeftTrafficGoesOverTcp) {
  World failing = world(2);
  failing.meanwhile = [](const std::vector<pid_t>&) {
    std::this_thread::sleep_for(2s);
    run("ip link set e1 down; ip link set e0 down");
  };
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes = run_world(failing, [](Communicator& comm) { keep_reducing(comm, 8s); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  run("ip link set e0 up; ip link set e1 up");
  expect_all_well(outcomes);
  EXPECT_THAT(said, HasSubstr("going on over tcp"));
}

TEST_F(RdmaFaultTest, APeerThatIsKilledIsNamedByAllOthers) {
  World killing = world(4);
  killing.launcher = true;
  Clock::time_point killed;
  killing.meanwhile = [&](const std::vector<pid_t>& pids) {
    std::this_thread::sleep_for(4s);
    killed = Clock::now();
    ::kill(pids[2], SIGKILL);
  };
  std::vector<Clock::time_point> ended;
  killing.ended = &ended;
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes =
      run_world(killing, [](Communicator& comm) { keep_reducing(comm, 60s); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const std::size_t r : {0, 1, 3}) {
    EXPECT_THAT(outcomes[r], HasSubstr("rank 2")) << "rank " << r;
    EXPECT_LT(ended[r] - killed, 10s) << "rank " << r;
  }
  EXPECT_THAT(said, ::testing::Not(HasSubstr("going on over"))) << "a dead peer is no dead port";
}

// The last: the adapter does not come back.
TEST_F(RdmaFaultTest, ZAnAdapterThatIsTakenOutIsDoneWithout) {
  World failing = world(2);
  failing.meanwhile = [](const std::vector<pid_t>&) {
    std::this_thread::sleep_for(2s);
    run("ip link delete e1");
  };
  ::testing::internal::CaptureStderr();
  const Outcomes outcomes = run_world(failing, [](Communicator& comm) { keep_reducing(comm, 8s); });
  const std::string said = ::testing::internal::GetCapturedStderr();
  expect_all_well(outcomes);
  EXPECT_THAT(said, HasSubstr("rxe1 port 1 to rank"));
  EXPECT_THAT(said, HasSubstr("going on over rxe0 port 1"));
}

}  // namespace
}  // namespace chorus::testing
