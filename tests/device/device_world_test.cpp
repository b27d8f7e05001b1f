// Every collective × type × operation × number of ranks gives the reference result when schedules
// run as kernels: by words, by slots and directly; ranks as threads and as processes, on
// one GPU and on two.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "collectives/algorithms.hpp"
#include "device_rank.hpp"
#include "runtime/reference.hpp"

namespace chorus::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// One way that calls go, whatever their size.
struct Way {
  std::string name;
  DeviceTuning tuning;
  Ranks ranks = Ranks::threads;
  Gpus gpus = Gpus::one;
  std::string transports = "shm,tcp";
  std::string algorithm = {};  ///< where it serves
};

constexpr std::size_t kAll = std::size_t{1} << 40;

std::vector<Way> ways() {
  return {
      {"Words", {.words_bytes = kAll, .direct_bytes = kAll}},
      {.name = "Slots",
       .tuning = {.words_bytes = 0, .direct_bytes = kAll},
       .algorithm = "two_shot"},
      {.name = "Direct", .tuning = {.words_bytes = 0, .direct_bytes = 0}, .algorithm = "two_shot"},
      {"Chosen", {}},
      {"Processes", {}, Ranks::processes},
      {"TwoGpus", {.direct_bytes = 64}, Ranks::threads, Gpus::two},
      {"ApartShm", {.direct_bytes = 0, .reach = false}},
      {"ApartTcp", {.reach = false}, Ranks::processes, Gpus::one, "tcp"},
      // Ranks of one GPU reach each other, those of the other one they do not.
      {"PartlyApart", {.direct_bytes = 0}, Ranks::threads, Gpus::two_apart},
  };
}

bool is_combining_call(Call::Kind kind) {
  return kind == Call::Kind::all_reduce || kind == Call::Kind::reduce ||
         kind == Call::Kind::reduce_scatter;
}

bool skipped_type(DataType type) {
  return kSanitized && type != DataType::float8_e4m3 && type != DataType::bfloat16 &&
         type != DataType::float32 && type != DataType::int64;
}

World world_of(const Way& way, int size) {
  World world{.size = size, .ranks = way.ranks};
  world.options.transports = way.transports;
  world.options.algorithm = way.algorithm;
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  world.options.slot_bytes = 1024;  // small data crosses many slots
  return world;
}

void run_kind(DeviceRank& rank, Call::Kind kind, int& turn) {
  const auto n = static_cast<std::size_t>(rank.comm().world_size());
  const auto run = [&](const Case& test) {
    run_case(rank.comm().rank(), n, test, [&](const Call& call) { rank.run(call); });
  };
  const Rank last = static_cast<Rank>(n) - 1;
  for (int t = 0; t < kNumDataTypes; ++t) {
    if (skipped_type(static_cast<DataType>(t))) continue;
    for (int o = 0; o < (is_combining_call(kind) ? kNumReduceOps : 1); ++o) {
      if (is_bitwise(static_cast<ReduceOp>(o))) continue;  // not on GPUs
      ++turn;
      run({.kind = kind,
           .type = static_cast<DataType>(t),
           .op = static_cast<ReduceOp>(o),
           .count = turn % 5 == 0   ? 1U
                    : turn % 7 == 0 ? 0U
                                    : 37U,
           .root = turn % 2 == 0 ? 0 : last,
           .in_place = turn % 3 == 0,
           .misalignment = turn % 4 == 1 ? 1U : 0U});
    }
  }
  for (const bool in_place : {false, true}) {
    run({.kind = kind,
         .type = DataType::float32,
         .count = 3001,
         .root = last,
         .in_place = in_place});
  }
  run({.kind = kind, .type = DataType::bfloat16, .count = 4096, .root = 0});
}

class DeviceWorld : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(DeviceWorld, EveryCollectiveGivesTheReferenceResult) {
  const Way way = ways()[static_cast<std::size_t>(std::get<0>(GetParam()))];
  const World world = world_of(way, std::get<1>(GetParam()));
  expect_all_well(run_devices(world, way.gpus, way.tuning, [](DeviceRank& rank) {
    int turn = 0;
    for (int k = 0; k <= static_cast<int>(CollectiveKind::scatter); ++k) {
      run_kind(rank, static_cast<Call::Kind>(k), turn);
    }
    for (int i = 0; i < 3; ++i) rank.run({.kind = Call::Kind::barrier});
  }));
}

// What lies behind a buffer is another's, or nothing at all: a copy of so much ended the program,
// now and then. The fake driver refuses it always.
TEST(DeviceInPlace, NoMoreIsCopiedOfTheInputThanThereIs) {
  World world{.size = 4};
  world.options.flight_dir.clear();
  expect_all_well(run_devices(world, Gpus::one, {.direct_bytes = 0}, [](DeviceRank& rank) {
    constexpr std::size_t kCount = 3000;
    for (const Call::Kind kind : {Call::Kind::all_reduce, Call::Kind::reduce}) {
      std::byte* const data = rank.memory(kCount * sizeof(float));
      rank.device().enqueue({.call = {.kind = kind,
                                      .input = data,
                                      .output = data,
                                      .count = kCount,
                                      .type = DataType::float32},
                             .stream = rank.stream()});
      rank.finish();
    }
  }));
}

std::vector<int> sizes() {
  return kSanitized ? std::vector<int>{2, 3} : std::vector<int>{1, 2, 3, 4, 5, 8};
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceWorld,
                         ::testing::Combine(::testing::Range(0, 9), ::testing::ValuesIn(sizes())),
                         [](const auto& param) {
                           return ways()[static_cast<std::size_t>(std::get<0>(param.param))].name +
                                  std::to_string(std::get<1>(param.param));
                         });

}  // namespace
}  // namespace chorus::testing
