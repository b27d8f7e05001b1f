// Long random sequences of calls: blocking, started and waited for in any order, grouped, on parts
// of the world, between messages. What one call leaves behind must not disturb the next, whatever
// both are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>

#include "runtime/reference.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSteps = 15;
#else
constexpr int kSteps = 60;
#endif

/// The same numbers on every rank and machine. (The standard's distributions are not.)
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  std::size_t below(std::size_t limit) { return engine_() % limit; }
  bool one_in(std::size_t chances) { return below(chances) == 0; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }

 private:
  std::mt19937_64 engine_;
};

Case random_case(Dice& dice, int world_size) {
  Case test;
  test.kind = dice.of({Call::Kind::all_reduce, Call::Kind::all_gather, Call::Kind::reduce_scatter,
                       Call::Kind::all_to_all, Call::Kind::broadcast, Call::Kind::reduce,
                       Call::Kind::gather, Call::Kind::scatter});
  test.type = static_cast<DataType>(dice.below(kNumDataTypes));
  do {
    test.op = static_cast<ReduceOp>(dice.below(kNumReduceOps));
  } while (!applies(test.op, test.type));
  test.count = dice.of<std::size_t>({0, 1, 8, dice.below(100), dice.below(3000)});
  if (dice.one_in(8)) test.count = dice.below(40'000);
  test.root = static_cast<Rank>(dice.below(static_cast<std::size_t>(world_size)));
  test.in_place = dice.one_in(3);
  test.misalignment = dice.of<std::size_t>({0, 0, 0, 1, 4});
  test.shared = dice.one_in(3);
  return test;
}

/// What each rank sends to the next one around the ring, and gets from the one before.
struct Passed {
  std::vector<std::uint32_t> out, in;
  std::uint32_t expected;

  Passed(Dice& dice, Rank me, int n) : out(dice.below(5000)), in(out.size()) {
    std::fill(out.begin(), out.end(), static_cast<std::uint32_t>(me) + 77);
    expected = static_cast<std::uint32_t>((me + n - 1) % n) + 77;
  }
  void check() const {
    const auto right = [&](std::uint32_t value) { return value == expected; };
    if (!std::all_of(in.begin(), in.end(), right)) {
      throw std::runtime_error(fmt::format("a message of {} elements came wrong", in.size()));
    }
  }
};

/// Elements from `from` to `to`: known to both, some of them none.
std::size_t pieces(std::size_t size, std::size_t from, std::size_t to) {
  return (size * (3 * from + 5 * to + 1)) % 997 % (size + 1);
}

void exchange_unevenly(Communicator& comm, std::size_t size) {
  const auto n = static_cast<std::size_t>(comm.world_size());
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<std::size_t> send_counts(n), send_offsets(n), recv_counts(n), recv_offsets(n);
  std::vector<std::uint16_t> in, out, expected;
  for (std::size_t r = 0; r < n; ++r) {
    send_counts[r] = pieces(size, me, r);
    send_offsets[r] = in.size();
    in.insert(in.end(), send_counts[r], static_cast<std::uint16_t>(me * 100 + r));
    recv_counts[r] = pieces(size, r, me);
    recv_offsets[r] = expected.size();
    expected.insert(expected.end(), recv_counts[r], static_cast<std::uint16_t>(r * 100 + me));
  }
  out.resize(expected.size());
  comm.all_to_all_v<std::uint16_t>(in, send_counts, send_offsets, out, recv_counts, recv_offsets);
  if (out != expected) throw std::runtime_error(fmt::format("uneven exchange of {} wrong", size));
}

/// One rank's walk through a sequence. Every rank throws the same dice.
class Walk {
 public:
  Walk(Communicator& comm, Dice& dice) : comm_(comm), dice_(dice) {}

  void step() {
    const std::size_t choice = dice_.below(8);
    if (choice < 3) return run_case(comm_, next_case());
    if (choice == 3) return started_together(2 + dice_.below(6));
    if (choice == 4) return grouped(1 + dice_.below(4));
    if (choice == 5) return part_of_the_world();
    if (choice == 6) return exchange_unevenly(comm_, dice_.below(900));
    comm_.barrier();
  }

 private:
  Case next_case() { return random_case(dice_, comm_.world_size()); }

  Trial& prepare(std::deque<Trial>& trials) {
    return trials.emplace_back(comm_.rank(), static_cast<std::size_t>(comm_.world_size()),
                               next_case());
  }

  // Waited for in an order that each rank has for itself.
  void started_together(std::size_t count) {
    std::deque<Trial> trials;
    std::vector<Request> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back(comm_.start(prepare(trials).call()));
    }
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    Dice own(dice_.below(1000) * 64 + static_cast<std::size_t>(comm_.rank()));
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[own.below(i)]);
    for (const std::size_t i : order) {
      if (own.one_in(2)) {
        while (!requests[i].test()) {
        }
      } else {
        requests[i].wait();
      }
      trials[i].check();
    }
  }

  void grouped(std::size_t count) {
    std::deque<Trial> trials;
    std::deque<Passed> messages;
    const Rank me = comm_.rank();
    const int n = comm_.world_size();
    comm_.group_start();
    for (std::size_t i = 0; i < count; ++i) {
      if (n > 1 && dice_.one_in(2)) {
        Passed& passed = messages.emplace_back(dice_, me, n);
        comm_.send<std::uint32_t>(passed.out, (me + 1) % n);
        comm_.recv<std::uint32_t>(passed.in, (me + n - 1) % n);
      } else {
        comm_.run(prepare(trials).call());
      }
    }
    comm_.group_end();
    for (const Trial& trial : trials) trial.check();
    for (const Passed& passed : messages) passed.check();
  }

  void part_of_the_world() {
    const int parts = 1 + static_cast<int>(dice_.below(3));
    const bool reversed = dice_.one_in(2);
    const std::uint64_t seed = dice_.below(1'000'000);
    const Rank me = comm_.rank();
    // Now and then one rank has no part.
    const bool left_out = dice_.one_in(3) && me == 0;
    std::optional<Communicator> part = comm_.split(left_out ? -1 : me % parts, reversed ? -me : me);
    if (!part) return;
    Dice own(seed + static_cast<std::uint64_t>(me % parts));
    Walk walk(*part, own);
    for (std::size_t i = own.below(4); i > 0; --i) run_case(*part, walk.next_case());
    walk.started_together(2);
  }

  Communicator& comm_;
  Dice& dice_;
};

class SequenceTest : public ::testing::TestWithParam<int> {};

TEST_P(SequenceTest, OfRandomCallsGivesTheReferenceResults) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  Dice dice(seed * 7919 + 1);
  World world{.size = 1 + static_cast<int>(dice.below(7))};
  world.ranks = dice.of({Ranks::threads, Ranks::processes});
  world.options.transports = dice.of<const char*>({"shm", "tcp", "shm,tcp"});
  world.options.slot_bytes = dice.of<std::size_t>({1024, 4096, 8192, 128 * 1024});
  world.options.slots = dice.of({2, 3, 8});
  world.options.tcp_sockets = dice.of({1, 2, 3});
  world.options.spin_us = dice.of({0, 20, 200});
  world.options.deterministic = dice.one_in(3);
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  const std::uint64_t calls = dice.below(1'000'000'000);
  expect_all_well(run_world(world, [&](Communicator& comm) {
    Dice same(calls);
    Walk walk(comm, same);
    for (int i = 0; i < kSteps; ++i) {
      try {
        walk.step();
      } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("step {}: {}", i, error.what()));
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SequenceTest, ::testing::Range(0, 24));

}  // namespace
}  // namespace chorus::testing
