// More ranks than one fold has operands for: no schedule may fold, or send, to all of them at once.
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device/layout.hpp"
#include "device_floats.hpp"
#include "device_rank.hpp"

namespace chorus::testing {
namespace {

using Kind = Call::Kind;

constexpr int kRanks = static_cast<int>(device::kMostOperands) + 2;

World many_ranks(int ranks) {
  World world = device_world_of(ranks);
  world.options.slot_bytes = 1024;  // arenas of all ranks are in this process
  return world;
}

/// Blocks for each rank on its GPU, of which there are two, enough for the lanes of an all-to-all.
constexpr int kBlocks = 3;

TEST(DeviceManyRanks, EveryRankReducesGathersExchangesAndSends) {
  fake_cuda_multiprocessors(kRanks / 2 * kBlocks * 2 / kFakeBlocksPerMultiprocessor);
  expect_all_well(run_devices(many_ranks(kRanks), Gpus::two, {}, [](DeviceRank& rank) {
    const auto n = static_cast<std::size_t>(kRanks);
    const Rank me = rank.comm().rank();
    float* const one = floats(rank, 1, 1.0F);
    rank.device().enqueue(sum(one, one, 1, rank.stream()));
    rank.finish();
    expect_all(rank, one, 1, static_cast<float>(kRanks));

    float* const in = floats(rank, n, static_cast<float>(me));
    float* const out = floats(rank, n, -1.0F);
    for (const Kind kind : {Kind::all_gather, Kind::all_to_all}) {
      fill(rank, out, std::vector<float>(n, -1.0F));
      DeviceCall call = sum(in, out, 1, rank.stream());
      call.call.kind = kind;
      rank.device().enqueue(call);
      rank.finish();
      for (std::size_t r = 0; r < n; ++r) expect_all(rank, out + r, 1, static_cast<float>(r));
    }

    const Rank left = (me + kRanks - 1) % kRanks;
    const std::vector<DeviceCall> ring = {{.call = {.kind = Kind::send,
                                                    .input = in,
                                                    .count = n,
                                                    .type = DataType::float32,
                                                    .peer = (me + 1) % kRanks},
                                           .stream = rank.stream()},
                                          {.call = {.kind = Kind::recv,
                                                    .output = out,
                                                    .count = n,
                                                    .type = DataType::float32,
                                                    .peer = left},
                                           .stream = rank.stream()}};
    rank.device().enqueue(ring);
    rank.finish();
    expect_all(rank, out, n, static_cast<float>(left));
  }));
  fake_cuda_multiprocessors(0);
}

// A lane that no block has room for would never run, and others would wait for it.
TEST(DeviceManyRanks, ACallWhoseLanesNoBlockHoldsIsRefusedByAllRanks) {
  constexpr int kMoreThanLanes = static_cast<int>(device::kMostWorks) + 6;
  DeviceTuning tuning;
  tuning.blocks = 1;
  fake_cuda_multiprocessors(kMoreThanLanes / 2);
  const Outcomes outcomes =
      run_devices(many_ranks(kMoreThanLanes), Gpus::two, tuning, [](DeviceRank& rank) {
        float* const data = floats(rank, kMoreThanLanes, 1.0F);
        DeviceCall call = sum(data, data, 1, rank.stream());
        call.call.kind = Kind::all_to_all;
        call.schedule = "one_shot";  // a lane for each other rank
        std::string why;
        try {
          rank.device().enqueue(call);
        } catch (const InputError& error) {
          why = error.what();
        }
        if (why.find("need more than the 1 blocks") == why.npos) {
          throw std::runtime_error("not refused for its lanes, but: " + why);
        }
      });
  fake_cuda_multiprocessors(0);
  expect_all_well(outcomes);
}

}  // namespace
}  // namespace chorus::testing
