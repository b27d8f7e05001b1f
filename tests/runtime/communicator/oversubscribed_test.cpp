// Ranks that outnumber the cores lend them to each other, in whatever communicator they wait.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.hpp"
#include "base/text/slice.hpp"
#include "chorus/communicator.hpp"
#include "runtime/world.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus::testing {
namespace {

constexpr int kSliceUs = 100;
constexpr std::chrono::milliseconds kLate{5};

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

/// Rank 0 waits for rank 1, which is on another core and late, for less time than it would spin
/// before it sleeps. Whoever gives way asks for short slices first, so this says whether it did.
/// Several times: rank 0 may be late as well.
bool gives_way(Communicator& comm) {
  std::vector<int> data(1, comm.rank());
  for (int round = 0; round < 10; ++round) {
    if (comm.rank() == 1) std::this_thread::sleep_for(kLate);
    comm.all_reduce<int>(data);
  }
  return own_slice_us() == kSliceUs;
}

/// A machine on which a wake-up takes so long that ranks spin for as long as they are told, also
/// beside the other programs of a busy one.
class SlowToWake {
 public:
  SlowToWake()
      : path_(std::filesystem::temp_directory_path() /
              ("chorus-oversubscribed-test-" + std::to_string(::getpid()))) {
    HostRates rates = assumed_host_rates();
    rates.machine = "slow to wake";
    rates.wake_s = 10;
    std::ofstream(path_) << to_json(rates);
  }
  ~SlowToWake() { std::filesystem::remove(path_); }
  SlowToWake(const SlowToWake&) = delete;
  SlowToWake& operator=(const SlowToWake&) = delete;

  [[nodiscard]] std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class OversubscribedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cores_.size() < 2)
      GTEST_SKIP() << "one core: groups of two are oversubscribed by themselves";
    if (own_slice_us() <= kSliceUs) {
      GTEST_SKIP() << "this kernel has no slices to ask for, by which one sees who gives way";
    }
  }

  /// Rank r on core r % 2.
  Outcomes run(int size, const std::function<void(Communicator&)>& body) {
    const SlowToWake host;
    return run(size, body, host.path());
  }
  Outcomes run(int size, const std::function<void(Communicator&)>& body,
               const std::string& host_probe) {
    Options options;
    options.host_probe = host_probe;
    options.transports = "shm";
    options.spin_us = 1'000'000;
    options.slice_us = kSliceUs;
    const World world{.size = size, .ranks = Ranks::processes, .options = options};
    return run_ranks(world, [&](const UniqueId& id, Rank rank) {
      stay_on(cores_[static_cast<std::size_t>(rank % 2)]);
      Communicator comm = Communicator::join(id, rank, size, options);
      body(comm);
    });
  }

  const std::vector<int> cores_ = usable_cores();
};

TEST_F(OversubscribedTest, PartsOfACrowdGiveWayThoughTheyWouldHaveCoresEnough) {
  expect_all_well(run(4, [](Communicator& comm) {
    Communicator pair = *comm.split(comm.rank() / 2);
    Communicator again = *pair.split(0);
    EXPECT_TRUE(gives_way(again) || again.rank() == 1);
  }));
}

TEST_F(OversubscribedTest, PartsOfAFewKeepTheirCores) {
  expect_all_well(run(2, [](Communicator& comm) {
    Communicator pair = *comm.split(0);
    EXPECT_FALSE(gives_way(pair));
  }));
}

// What it spun it would compute less. It sleeps though it would have spun for a second, and asks
// for short slices before it does.
TEST_F(OversubscribedTest, ARankBesideAStrangerSleepsSoon) {
  const pid_t unauthenticated = ::fork();
  if (unauthenticated == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay_on(cores_[0]);
    for (;;) ::getppid();
  }
  expect_all_well(run(
      2,
      [](Communicator& comm) {
        std::vector<int> sleeps(1, 0);
        for (int tries = 0; tries < 200 && sleeps[0] == 0; ++tries) {
          sleeps[0] = gives_way(comm) && comm.rank() == 0 ? 1 : 0;
          comm.all_reduce<int>(sleeps);
        }
        EXPECT_EQ(sleeps[0], 1);
      },
      "off"));
  ::kill(unauthenticated, SIGKILL);
  ::waitpid(unauthenticated, nullptr, 0);
}

TEST_F(OversubscribedTest, ThoseThatStayWhereTheOthersAreGoneKeepTheirCores) {
  expect_all_well(run(4, [](Communicator& comm) {
    if (comm.rank() > 1) return;
    Communicator rest = comm.shrink(std::vector<Rank>{2, 3});
    EXPECT_FALSE(gives_way(rest));
  }));
}

}  // namespace
}  // namespace chorus::testing
