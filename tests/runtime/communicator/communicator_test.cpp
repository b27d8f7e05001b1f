// What the Communicator promises beyond single collectives: groups, requests, messages, parts of
// the world, one order of reduction, and arguments judged before anything is sent.
#include "chorus/communicator.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "runtime/calls.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

class TransportTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TransportTest, GroupedMessagesCannotBlockEachOther) {
  expect_all_well(run_world(threads(4, GetParam()), [](Communicator& comm) {
    const int n = comm.world_size();
    // Far more than the slots hold, everybody to everybody, receives last.
    std::vector<std::vector<int>> out, in;
    for (int r = 0; r < n; ++r) {
      out.emplace_back(50'000, comm.rank() * n + r);
      in.emplace_back(50'000, -1);
    }
    comm.group_start();
    for (int r = 0; r < n; ++r) {
      if (r != comm.rank()) comm.send<int>(out[r], r);
    }
    for (int r = 0; r < n; ++r) {
      if (r != comm.rank()) comm.recv<int>(in[r], r);
    }
    comm.group_end();
    for (int r = 0; r < n; ++r) {
      if (r == comm.rank()) continue;
      for (const int value : in[r]) ASSERT_EQ(value, r * n + comm.rank());
    }
  }));
}

TEST_P(TransportTest, MessagesOfOnePairKeepTheirOrder) {
  expect_all_well(run_world(threads(2, GetParam()), [](Communicator& comm) {
    for (int i = 0; i < 300; ++i) {
      std::vector<int> data(static_cast<std::size_t>(i % 7 * 500 + 1), i);
      if (comm.rank() == 0) {
        comm.send<int>(data, 1);
      } else {
        std::vector<int> got(data.size());
        comm.recv<int>(got, 0);
        ASSERT_EQ(got, data);
      }
    }
  }));
}

TEST_P(TransportTest, RequestsCompleteInAnyOrderOfWaiting) {
  expect_all_well(run_world(threads(3, GetParam()), [](Communicator& comm) {
    constexpr int kCalls = 20;
    std::vector<std::vector<double>> data;
    std::vector<Request> requests;
    for (int i = 0; i < kCalls; ++i) data.emplace_back(1 + i * 100, comm.rank() + i);
    for (auto& values : data) {
      requests.push_back(comm.start({.kind = Call::Kind::all_reduce,
                                     .input = values.data(),
                                     .output = values.data(),
                                     .count = values.size(),
                                     .type = DataType::float64}));
    }
    std::reverse(requests.begin(), requests.end());
    while (!requests[0].test()) {
    }
    for (Request& request : requests) request.wait();
    for (int i = 0; i < kCalls; ++i) {
      for (const double value : data[i]) ASSERT_EQ(value, 3 + 3 * i);
    }
  }));
}

TEST_P(TransportTest, AllToAllVPutsEveryPieceWhereItsOffsetsSay) {
  expect_all_well(run_world(threads(5, GetParam()), [](Communicator& comm) {
    const auto n = static_cast<std::size_t>(comm.world_size());
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto size = [](std::size_t from, std::size_t to) {
      return (from * 3 + to * 7) % 5 * 600;
    };
    std::vector<std::size_t> sc(n), so(n), rc(n), ro(n);
    std::size_t sent = 0, received = 3;  // offsets need not begin at 0
    for (std::size_t r = 0; r < n; ++r) {
      sc[r] = size(me, r);
      so[r] = sent;
      sent += sc[r];
      rc[r] = size(r, me);
      ro[r] = received;
      received += rc[r] + 1;
    }
    std::vector<int> in(sent), out(received, -1);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < sc[r]; ++i) in[so[r] + i] = static_cast<int>(me * 100 + r);
    }
    comm.all_to_all_v<int>(in, sc, so, out, rc, ro);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i < rc[r]; ++i) {
        ASSERT_EQ(out[ro[r] + i], static_cast<int>(r * 100 + me));
      }
      ASSERT_EQ(out[ro[r] + rc[r]], -1) << "wrote past a piece";
    }
  }));
}

TEST_P(TransportTest, PartsOfTheWorldWorkBesideEachOther) {
  expect_all_well(run_world(threads(6, GetParam()), [](Communicator& world) {
    auto part = world.split(world.rank() % 2 == 0 ? 7 : 3, -world.rank());
    ASSERT_TRUE(part);
    ASSERT_EQ(part->world_size(), 3);
    ASSERT_EQ(part->rank(), 2 - world.rank() / 2) << "keys order the ranks";
    std::vector<int> sum{world.rank()};
    part->all_reduce<int>(sum);
    ASSERT_EQ(sum[0], world.rank() % 2 == 0 ? 6 : 9);
    auto pair = part->split(part->rank() == 0 ? -1 : 0);
    ASSERT_EQ(pair.has_value(), part->rank() != 0);
    if (pair) {
      std::vector<int> one{1};
      pair->all_reduce<int>(one);
      ASSERT_EQ(one[0], 2);
    }
    world.all_reduce<int>(sum);
    ASSERT_EQ(sum[0], 45);
  }));
}

TEST_P(TransportTest, ScaledSumsMultiplyEveryContribution) {
  expect_all_well(run_world(threads(3, GetParam()), [](Communicator& comm) {
    const double factor = comm.rank() + 1;
    std::vector<float> data(5000, 2.0F), out(5000);
    comm.all_reduce<float>(data, out, Reduction{ReduceOp::sum, factor});
    for (const float value : out) ASSERT_EQ(value, 12.0F);
    ASSERT_EQ(data[0], 2.0F);
    std::vector<float> block(1000), all(3000, 1.0F);
    comm.reduce_scatter<float>(all, block, Reduction{ReduceOp::sum, factor});
    for (const float value : block) ASSERT_EQ(value, 6.0F);
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportTest, ::testing::Values("shm", "tcp"),
                         [](const auto& param) { return param.param; });

// Sums of numbers that round differently in every order.
std::vector<float> awkward(Rank rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank));
  std::vector<float> data(count);
  for (float& value : data) {
    value = std::ldexp(static_cast<float>(random() % 1000) / 7, static_cast<int>(random() % 20));
  }
  return data;
}

TEST(Communicator, DeterministicSumsFoldInTheOrderOfRanksAtEverySize) {
  for (const int n : {2, 3, 5, 8}) {
    World world = threads(n);
    world.options.deterministic = true;
    expect_all_well(run_world(world, [n](Communicator& comm) {
      for (const std::size_t count : {1, 100, 5000, 60'000}) {
        std::vector<float> expected = awkward(0, count);
        for (Rank r = 1; r < n; ++r) {
          const auto other = awkward(r, count);
          for (std::size_t i = 0; i < count; ++i) expected[i] += other[i];
        }
        auto data = awkward(comm.rank(), count);
        comm.all_reduce<float>(data);
        ASSERT_EQ(std::memcmp(data.data(), expected.data(), count * sizeof(float)), 0)
            << n << " ranks, count " << count;
      }
    }));
  }
}

TEST(Communicator, EveryRankGetsTheSameBits) {
  expect_all_well(run_world(threads(7), [](Communicator& comm) {
    for (const std::size_t count : {3, 3000, 100'000}) {
      auto data = awkward(comm.rank(), count);
      comm.all_reduce<float>(data);
      std::vector<std::uint8_t> mine(count * sizeof(float));
      std::memcpy(mine.data(), data.data(), mine.size());
      auto first = mine;
      comm.broadcast<std::uint8_t>(first, 0);
      ASSERT_EQ(mine, first) << "count " << count;
    }
  }));
}

TEST(Communicator, RefusesWhatCannotBeRightAndGoesOn) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    std::vector<int> data(4), three(3);
    EXPECT_THAT(refusal([&] { comm.broadcast<int>(data, 2); }), HasSubstr("rank 2 does not exist"));
    EXPECT_THAT(refusal([&] { comm.send<int>(data, comm.rank()); }), HasSubstr("itself"));
    EXPECT_THAT(refusal([&] { comm.all_reduce<int>(three, data); }), HasSubstr("differ in size"));
    EXPECT_THAT(refusal([&] { comm.all_to_all<int>(three, three); }), HasSubstr("equal blocks"));
    EXPECT_THAT(refusal([&] {
                  comm.all_reduce<int>(data, Reduction{ReduceOp::max, 2.0});
                }),
                HasSubstr("only sums"));
    std::vector<float> reals(3);
    EXPECT_THAT(
        refusal([&] { comm.all_reduce<float>(reals, ReduceOp::bxor); }),
        HasSubstr("bxor combines the bits of integers, and float32 is not an integer type"));
    EXPECT_THAT(refusal([&] { comm.group_end(); }), HasSubstr("group_start"));
    EXPECT_THAT(refusal([&] {
                  comm.start({.kind = Call::Kind::all_reduce, .count = 3, .type = DataType::int32});
                }),
                HasSubstr("input is null"));
    data.assign(4, 1);
    comm.all_reduce<int>(data);
    EXPECT_EQ(data[3], 2);
  }));
}

TEST(Communicator, MembersAloneMakeAGroupWhateverTheOthersDo) {
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    World world = threads(4);
    world.ranks = ranks;
    expect_all_well(run_world(world, [](Communicator& comm) {
      std::vector<int> waited = {comm.rank()};
      if (comm.rank() == 1) {  // takes no part, and is in a call that ends when the others are done
        comm.all_reduce<int>(waited);
        return;
      }
      for (const std::string name : {"one", "two"}) {
        const Rank members[] = {3, 0, 2};
        Communicator group = comm.group(members, name, 50'000);
        EXPECT_EQ(group.world_size(), 3);
        EXPECT_EQ(group.rank(), comm.rank() == 3 ? 0 : comm.rank() == 0 ? 1 : 2);
        std::vector<int> data = {comm.rank()};
        group.all_reduce<int>(data);
        EXPECT_EQ(data[0], 5);
      }
      const auto refusal = [&](std::vector<Rank> members) -> std::string {
        try {
          static_cast<void>(comm.group(members, "wrong"));
        } catch (const InputError& error) {
          return error.what();
        }
        return "accepted";
      };
      EXPECT_THAT(refusal({1}), HasSubstr("is not a member"));
      EXPECT_THAT(refusal({comm.rank(), 4}), HasSubstr("rank 4 does not exist"));
      EXPECT_THAT(refusal({comm.rank(), comm.rank()}), HasSubstr("is named twice"));
      comm.all_reduce<int>(waited);
      EXPECT_EQ(waited[0], 6);
    }));
  }
}

TEST(Communicator, AWrongPlanIsRefusedBeforeItRuns) {
  expect_all_well(run_world(threads(2), [](Communicator& comm) {
    Schedule schedule{.name = "half",
                      .collective = {.kind = CollectiveKind::all_gather},
                      .world_size = 2,
                      .num_chunks = 2,
                      .steps = {{{.src = 0, .dst = 1, .chunk = 0}}}};
    Plan plan{.world_size = 2, .entries = {{.max_bytes = UINT64_MAX, .schedule = schedule}}};
    try {
      comm.use(plan);
      FAIL() << "accepted";
    } catch (const SynthesisError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'half' is wrong"));
    }
  }));
}

}  // namespace
}  // namespace chorus::testing
