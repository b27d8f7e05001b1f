// Communicators that go on without ranks that died, and calls that survivors finish: the result of
// a call is of the same contributors on all of them, or it throws on all.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "chorus/error.hpp"
#include "runtime/control/control.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;
using Number = std::int64_t;

constexpr std::size_t kCount = 3'000;
constexpr int kKinds = 11;

Number input_of(Rank rank, int call, std::size_t i) {
  return (Number{1} << (8 * (rank % 6))) * (1 + (call + static_cast<int>(i)) % 3) + rank;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// A rank that makes calls, knows by which numbers of the first communicator the ranks of the
/// present one went, and checks each result against what losses() says of it.
class Caller {
 public:
  explicit Caller(Communicator comm) : comm_(std::move(comm)) {
    world_.resize(static_cast<std::size_t>(comm_.world_size()));
    std::iota(world_.begin(), world_.end(), 0);
  }

  Communicator& comm() { return comm_; }
  [[nodiscard]] const std::vector<Rank>& world() const { return world_; }

  /// The ranks whose inputs are in the result, as bits; 0: it threw.
  unsigned call(int number, bool bare = false) {
    const int before = comm_.losses().count;
    const std::vector<Rank> world = world_;
    try {
      make(number, bare);
    } catch (const LossError&) {
      require(comm_.losses().count > before, "a loss that did not make it smaller");
      forget_lost(world);
      return 0;
    }
    std::vector<Rank> contributors(world.size());
    std::iota(contributors.begin(), contributors.end(), 0);
    if (comm_.losses().count > before) {
      contributors = comm_.losses().contributors;
      forget_lost(world);
    }
    unsigned bits = 0;
    for (const Rank r : contributors) bits |= 1U << world.at(static_cast<std::size_t>(r));
    check(number, world, bits);
    return bits;
  }

  /// Whether any rank says so.
  bool any(bool mine) {
    const int before = comm_.losses().count;
    const std::vector<Rank> world = world_;
    std::vector<int> all{mine ? 1 : 0};
    comm_.all_reduce<int>(all, ReduceOp::max);
    if (comm_.losses().count > before) forget_lost(world);
    return all[0] != 0;
  }

 private:
  void forget_lost(const std::vector<Rank>& world) {
    world_.clear();
    const auto& lost = comm_.losses().lost;
    for (std::size_t r = 0; r < world.size(); ++r) {
      if (std::ranges::find(lost, static_cast<Rank>(r)) == lost.end()) world_.push_back(world[r]);
    }
    require(world_.size() == static_cast<std::size_t>(comm_.world_size()),
            fmt::format("{} ranks are left of {} without {}", comm_.world_size(), world.size(),
                        lost.size()));
  }

  [[nodiscard]] Rank me() const { return own_; }

  void make(int number, bool bare) {
    own_ = world_[static_cast<std::size_t>(comm_.rank())];
    const auto n = world_.size();
    const Rank root = static_cast<Rank>(static_cast<std::size_t>(number) % n);
    const std::size_t all = kCount * n;
    in_.resize(all);
    for (std::size_t i = 0; i < all; ++i) in_[i] = input_of(me(), number, i);
    out_.assign(all, -1);
    Call call{.input = in_.data(), .output = out_.data(), .count = kCount, .type = DataType::int64};
    call.peer = root;
    switch (number % kKinds) {
      case 0:
        call.kind = Call::Kind::all_reduce;
        break;
      case 1:
        call.kind = Call::Kind::all_reduce;
        call.output = in_.data();
        break;
      case 2:
        call.kind = Call::Kind::reduce_scatter;
        break;
      case 3:
        call.kind = Call::Kind::reduce_scatter;
        call.output = in_.data() + kCount * static_cast<std::size_t>(comm_.rank());
        break;
      case 4:
        call.kind = Call::Kind::all_gather;
        break;
      case 5:
        call.kind = Call::Kind::all_to_all;
        break;
      case 6:
        call.kind = Call::Kind::all_to_all;
        call.output = in_.data();
        break;
      case 7:
        call.kind = Call::Kind::broadcast;
        call.output = in_.data();
        break;
      case 8:
        call.kind = Call::Kind::reduce;
        break;
      case 9:
        call.kind = Call::Kind::gather;
        break;
      default:
        call.kind = Call::Kind::scatter;
        break;
    }
    was_ = comm_.rank();
    root_ = root;
    // Within a group there is no barrier behind a call: whoever makes it so has executed it alone.
    if (bare) comm_.group_start();
    comm_.run(call);
    if (bare) comm_.group_end();
  }

  void expect(Number got, Number wanted, const char* what, std::size_t at) const {
    require(got == wanted,
            fmt::format("{}: element {} is {} in place of {}", what, at, got, wanted));
  }

  void check(int number, const std::vector<Rank>& world, unsigned bits) const {
    const std::size_t n = world.size();
    const auto is_in = [&](std::size_t r) { return (bits >> world[r] & 1U) != 0; };
    const auto sum = [&](std::size_t i) {
      Number total = 0;
      for (std::size_t r = 0; r < n; ++r) total += is_in(r) ? input_of(world[r], number, i) : 0;
      return total;
    };
    const std::size_t own = static_cast<std::size_t>(was_) * kCount;
    const bool is_root = was_ == root_;
    const auto blocks = [&](const std::vector<Number>& of, std::size_t offset, const char* what) {
      for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < kCount; ++i) {
          expect(of[r * kCount + i], is_in(r) ? input_of(world[r], number, offset + i) : 0, what,
                 r * kCount + i);
        }
      }
    };
    const auto sums = [&](const Number* of, std::size_t offset, const char* what) {
      for (std::size_t i = 0; i < kCount; ++i) expect(of[i], sum(offset + i), what, i);
    };
    const auto root_world = world[static_cast<std::size_t>(root_)];
    switch (number % kKinds) {
      case 0:
        return sums(out_.data(), 0, "all_reduce");
      case 1:
        return sums(in_.data(), 0, "all_reduce in place");
      case 2:
        return sums(out_.data(), own, "reduce_scatter");
      case 3:
        return sums(in_.data() + own, own, "reduce_scatter in place");
      case 4:
        return blocks(out_, 0, "all_gather");
      case 5:
        return blocks(out_, own, "all_to_all");
      case 6:
        return blocks(in_, own, "all_to_all in place");
      case 7:
        for (std::size_t i = 0; i < kCount; ++i) {
          expect(in_[i], input_of(root_world, number, i), "broadcast", i);
        }
        return;
      case 8:
        if (is_root) sums(out_.data(), 0, "reduce");
        return;
      case 9:
        if (is_root) blocks(out_, 0, "gather");
        return;
      default:
        for (std::size_t i = 0; i < kCount; ++i) {
          expect(out_[i], input_of(root_world, number, own + i), "scatter", i);
        }
    }
  }

  Communicator comm_;
  std::vector<Rank> world_;
  std::vector<Number> in_, out_;
  Rank was_ = 0, own_ = 0, root_ = 0;
};

World processes(int size, const std::string& transports, const std::string& on_loss) {
  World world = threads(size, transports);
  world.ranks = Ranks::processes;
  world.options.on_loss = on_loss;
  world.options.log_level = "error";
  world.options.host_probe = "off";  // in each process of each world it would be made anew
  return world;
}

[[noreturn]] void die() {
  ::raise(SIGKILL);
  std::abort();
}

class Loss : public ::testing::TestWithParam<std::string> {};

// Ranks see the same ranks in a call; 0 for a call that threw.
struct Shared {
  std::atomic<unsigned> of_call[6][4'000];
  std::atomic<bool> ready[6], enough;
};

std::shared_ptr<Shared> share() {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory");
  return {new (memory) Shared{}, [](Shared* shared) { ::munmap(shared, sizeof *shared); }};
}

constexpr unsigned kThrew = 1U << 31;

// Before the call, and after it was executed but before anybody knows that all are through.
TEST_P(Loss, EveryCollectiveIsFinishedByTheSurvivors) {
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const bool has_executed : {false, true}) {
      for (const Rank victim : {0, 2}) {
        const int number = kind + 3 * kKinds;  // its root is known by this number
        const World world = processes(4, GetParam(), "finish");
        const auto shared = share();
        const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
          Caller caller(Communicator::join(id, rank, world.size, world.options));
          require(caller.call(0) == 15, "nobody was lost yet");
          if (rank == victim) {
            if (has_executed) caller.call(number, true);
            die();
          }
          const unsigned bits = caller.call(number);
          shared->of_call[rank][0] = bits == 0 ? kThrew : bits;
          require(caller.call(0) == (15U & ~(1U << victim)), "one is lost");
          require(caller.comm().losses().why.find("died") != std::string::npos, "nobody died");
        });
        const std::string what =
            fmt::format("kind {}, victim {}, executed {}", kind, victim, has_executed);
        for (Rank rank = 0; rank < 4; ++rank) {
          if (rank == victim) continue;
          EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)], "") << what << ", rank " << rank;
          EXPECT_EQ(shared->of_call[rank][0], shared->of_call[1][0]) << what;
        }
        const Rank root = number % 4;
        const bool needs_root = kind >= 7 && root == victim;
        if (!needs_root) {
          EXPECT_NE(shared->of_call[1][0], kThrew) << what;
        }
        // Nobody can have the data of a root that never came.
        const bool is_hopeless = needs_root && !has_executed && kind != 8 && kind != 9;
        if (is_hopeless) {
          EXPECT_EQ(shared->of_call[1][0], kThrew) << what;
        }
      }
    }
  }
}

TEST_P(Loss, ShrinkThrowsOnceAndGoesOn) {
  const World world = processes(4, GetParam(), "shrink");
  const auto shared = share();
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    auto comm = Communicator::join(id, rank, world.size, world.options);
    std::vector<int> data(1'000);
    for (int left = 4;; --left) {
      require(comm.world_size() == left, "the size is not that of the survivors");
      data.assign(data.size(), comm.rank() + 1);
      comm.all_reduce<int>(data);
      require(data[0] == left * (left + 1) / 2, "a wrong sum");
      if (left == 1) return;
      // Whoever dies leaves nobody behind in the call.
      std::atomic<unsigned>& through = shared->of_call[0][left];
      ++through;
      while (comm.rank() == 0 && through < static_cast<unsigned>(left)) ::usleep(100);
      if (comm.rank() == 0) die();
      try {
        for (;;) comm.all_reduce<int>(data);
      } catch (const LossError& error) {
        require(std::string(error.what()).find("rank 0 (") != std::string::npos, error.what());
      }
      require(comm.losses().count == 5 - left && comm.losses().lost == std::vector<Rank>{0} &&
                  comm.losses().contributors.empty(),
              "losses() does not tell");
    }
  });
  EXPECT_EQ(outcomes[3], "");
}

TEST_P(Loss, MessagesAndRequestsThrowAndTheNextCallGoesOn) {
  const World world = processes(3, GetParam(), "finish");
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    auto comm = Communicator::join(id, rank, world.size, world.options);
    comm.barrier();
    if (rank == 2) die();
    std::vector<int> data(100'000, 1);
    try {
      auto request = comm.start({.kind = Call::Kind::all_reduce,
                                 .input = data.data(),
                                 .output = data.data(),
                                 .count = data.size(),
                                 .type = DataType::int32});
      request.wait();
      throw std::runtime_error("a request was completed without a rank");
    } catch (const CollectiveError& error) {
      require(std::string(error.what()).find("rank 2 (") != std::string::npos, error.what());
    }
    try {
      comm.recv<int>(data, 1 - rank);
      throw std::runtime_error("a message came that nobody sent");
    } catch (const LossError&) {
    }
    require(comm.world_size() == 2, "it goes on as another one");
    data.assign(data.size(), comm.rank());
    comm.all_reduce<int>(data);
    require(data.back() == 1, "a wrong sum");
  });
  EXPECT_EQ(outcomes[0], "");
  EXPECT_EQ(outcomes[1], "");
}

// A death meets them where one has begun to make another communicator, and the other has not.
TEST_P(Loss, RanksOfWhichOneHadBegunAnotherShrinkMeetWithoutTheDead) {
  const World world = processes(3, GetParam(), "error");
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    auto comm = Communicator::join(id, rank, world.size, world.options);
    comm.barrier();
    std::vector<int> word(1);
    if (rank == 2) {  // not before the others have left the barrier, or that may fail, too
      for (const Rank other : {0, 1}) comm.recv<int>(word, other);
      die();
    }
    try {
      comm.send<int>(word, 2);
      while (rank == 1) comm.barrier();
      (void)comm.shrink(std::vector<Rank>{});
      throw std::runtime_error("a communicator was made with a rank that died");
    } catch (const Error&) {
    }
    auto smaller = comm.shrink(std::vector<Rank>{2});
    std::vector<int> data(1'000, rank + 1);
    smaller.all_reduce<int>(data);
    require(data.back() == 3, "a wrong sum");
  });
  EXPECT_EQ(outcomes[0], "");
  EXPECT_EQ(outcomes[1], "");
}

// What fails for another cause than a death is no loss.
TEST_P(Loss, CallsThatDoNotMatchFailAsEver) {
  World world = processes(2, GetParam(), "finish");
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    auto comm = Communicator::join(id, rank, world.size, world.options);
    std::vector<int> data(1'000, 1);
    try {
      if (rank == 0) {
        comm.all_reduce<int>(data);
      } else {
        comm.broadcast<int>(data, 0);
      }
      throw std::runtime_error("different calls went well");
    } catch (const LossError&) {
      throw std::runtime_error("nobody was lost");
    } catch (const CollectiveError& error) {
      require(std::string(error.what()).find(" called ") != std::string::npos, error.what());
    }
  });
  expect_all_well(outcomes);
}

/// Kills ranks at random moments of calls of every kind.
struct Storm {
  int ranks = 4, victims = 1;
  std::uint64_t seed = 0;
};

void run_storm(const Storm& storm, const std::string& transports) {
  std::mt19937_64 random(storm.seed);
  const auto shared = share();
  std::vector<Rank> order(static_cast<std::size_t>(storm.ranks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const std::vector<Rank> victims(order.begin(), order.begin() + storm.victims);
  World world = processes(storm.ranks, transports, "finish");
  world.meanwhile = [&](const std::vector<pid_t>& pids) {
    for (const Rank r : order) {
      while (!shared->ready[r]) ::usleep(100);
    }
    for (const Rank victim : victims) {
      ::usleep(static_cast<useconds_t>(random() % 20'000));
      ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
    }
    ::usleep(5'000);
    shared->enough = true;
  };
  const Outcomes outcomes = run_ranks(world, [&](const UniqueId& id, Rank rank) {
    Caller caller(Communicator::join(id, rank, world.size, world.options));
    require(caller.call(0) == (1U << storm.ranks) - 1, "nobody was lost yet");
    shared->ready[rank] = true;
    for (int number = 1; number < 4'000; ++number) {
      const unsigned bits = caller.call(number);
      shared->of_call[rank][number] = bits == 0 ? kThrew : bits;
      if (number % kKinds == 0 && caller.any(shared->enough)) return;
    }
  });
  const auto is_victim = [&](Rank r) { return std::ranges::find(victims, r) != victims.end(); };
  Rank witness = -1;
  for (Rank rank = 0; rank < storm.ranks; ++rank) {
    if (is_victim(rank)) continue;
    if (witness < 0) witness = rank;
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)], "")
        << "rank " << rank << ", seed " << storm.seed << " over " << transports;
    for (int number = 1; number < 4'000; ++number) {
      ASSERT_EQ(shared->of_call[rank][number], shared->of_call[witness][number])
          << "call " << number << " of ranks " << rank << " and " << witness << ", seed "
          << storm.seed << " over " << transports;
    }
  }
}

TEST_P(Loss, NoResultIsMixedWheneverRanksAreKilled) {
  // CHORUS_TEST_STORMS: a campaign of so many.
  const char* const asked = std::getenv("CHORUS_TEST_STORMS");
  const std::uint64_t storms = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 25;
  for (std::uint64_t seed = 0; seed < storms; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 4);
    run_storm({.ranks = ranks,
               .victims = ranks > 3 && seed % 2 == 0 ? 2 : 1,
               .seed = 2 * seed + (GetParam() == "tcp" ? 1 : 0)},
              GetParam());
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Loss, ::testing::Values("shm", "tcp"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace chorus::testing
