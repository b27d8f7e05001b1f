// Every algorithm × collective × type × operation × world size gives the reference result, over
// shared memory between threads and between processes, and over TCP.
#include "world.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "reference.hpp"

namespace chorus::testing {
namespace {

struct Setting {
  std::string name;
  Ranks ranks;
  std::string transports;
};

const Setting kSettings[] = {{"ShmThreads", Ranks::threads, "shm"},
                             {"ShmProcesses", Ranks::processes, "shm"},
                             {"TcpProcesses", Ranks::processes, "tcp"}};

class WorldTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  [[nodiscard]] World world() const {
    const Setting& setting = kSettings[std::get<0>(GetParam())];
    World world{.size = std::get<1>(GetParam()), .ranks = setting.ranks};
    world.options.transports = setting.transports;
    // Small slots make small data cross many of them.
    world.options.slot_bytes = 1024;
    world.options.timeout_ms = 60'000;
    world.options.flight_dir.clear();
    return world;
  }
};

// Sanitizers make everything ten times slower: there, a type of each width and half the sizes.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

bool skipped_type(DataType type) {
  return kSanitized && type != DataType::float8_e4m3 && type != DataType::bfloat16 &&
         type != DataType::float32 && type != DataType::int64;
}

bool is_combining_call(Call::Kind kind) {
  return kind == Call::Kind::all_reduce || kind == Call::Kind::reduce ||
         kind == Call::Kind::reduce_scatter;
}

void run_cases(Communicator& comm, Call::Kind kind) {
  const Rank last = comm.world_size() - 1;
  int turn = 0;
  for (int t = 0; t < kNumDataTypes; ++t) {
    if (skipped_type(static_cast<DataType>(t))) continue;
    for (int o = 0; o < (is_combining_call(kind) ? kNumReduceOps : 1); ++o) {
      if (!applies(static_cast<ReduceOp>(o), static_cast<DataType>(t))) continue;
      for (const std::size_t count : {0, 1, 37}) {
        run_case(comm, {.kind = kind,
                        .type = static_cast<DataType>(t),
                        .op = static_cast<ReduceOp>(o),
                        .count = count,
                        .root = turn % 2 == 0 ? 0 : last,
                        .in_place = turn % 3 == 0,
                        .misalignment = turn % 4 == 1 ? 1U : 0U});
        ++turn;
      }
    }
  }
  for (const bool in_place : {false, true}) {
    run_case(comm, {.kind = kind,
                    .type = DataType::float32,
                    .count = 3001,
                    .root = last,
                    .in_place = in_place});
  }
}

void run_every_algorithm(Communicator& comm) {
  const int n = comm.world_size();
  for (const Algorithm& algorithm : algorithms()) {
    for (int k = 0; k <= static_cast<int>(CollectiveKind::scatter); ++k) {
      AlgorithmInput input{.kind = static_cast<CollectiveKind>(k), .world_size = n, .levels = {}};
      for (const std::vector<int>& levels :
           {std::vector<int>{}, std::vector<int>{2, n / 2}, std::vector<int>{n / 2, 2}}) {
        if (!levels.empty() &&
            (n % 2 != 0 || algorithm.name.find("hier") == std::string_view::npos)) {
          continue;
        }
        input.levels = levels;
        if (algorithm.why_not(input)) continue;
        comm.use({.world_size = n,
                  .entries = {{.max_bytes = UINT64_MAX, .schedule = algorithm.make(input)}}});
        try {
          run_cases(comm, static_cast<Call::Kind>(k));
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{}: {}", algorithm.name, error.what()));
        }
      }
    }
  }
}

TEST_P(WorldTest, EveryAlgorithmGivesTheReferenceResult) {
  expect_all_well(run_world(world(), run_every_algorithm));
}

TEST_P(WorldTest, BarrierHoldsBackTheFastUntilTheSlowHaveCome) {
  const World w = world();
  expect_all_well(run_world(w, [](Communicator& comm) {
    for (int i = 0; i < 20; ++i) comm.barrier();
  }));
}

INSTANTIATE_TEST_SUITE_P(Settings, WorldTest,
                         ::testing::Combine(::testing::Range(0, 3),
                                            kSanitized
                                                ? ::testing::ValuesIn(std::vector<int>{2, 3, 6})
                                                : ::testing::ValuesIn(std::vector<int>{
                                                      1, 2, 3, 4, 5, 6, 7, 8, 9})),
                         [](const auto& param) {
                           return fmt::format("{}{}", kSettings[std::get<0>(param.param)].name,
                                              std::get<1>(param.param));
                         });

}  // namespace
}  // namespace chorus::testing
