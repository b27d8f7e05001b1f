// Symmetric schedules: that what is checked of cell 0 holds of the whole, and that a rank can cut
// its program out of them alone.
#include "model/schedule/symmetry.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/steps.hpp"

namespace chorus {
namespace {

using enum CollectiveKind;

struct Shape {
  int cell = 1;
  std::vector<int> radices;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{1, {2}},    {1, {5}},    {1, {2, 3}},    {2, {3}},
                                         {3, {2, 2}}, {4, {2, 2}}, {1, {2, 2, 2}}, {2, {2, 3}}};
  return all;
}

int ranks(const Shape& shape) {
  return std::accumulate(shape.radices.begin(), shape.radices.end(), shape.cell,
                         std::multiplies<>());
}

/// The chunks of cell 0 find their way to everybody at random: each step some holders send to some
/// that lack the chunk.
Schedule random_gather(const Shape& shape, int pieces, std::mt19937& random) {
  const int n = ranks(shape);
  Schedule schedule{"random", {all_gather, 0}, n, n * pieces, {}, shape.radices};
  for (ChunkId chunk = 0; chunk < shape.cell * pieces; ++chunk) {
    std::vector<Rank> holders = {chunk / pieces};
    std::vector<Rank> lacking;
    for (Rank rank = 0; rank < n; ++rank) {
      if (rank != holders.front()) lacking.push_back(rank);
    }
    std::shuffle(lacking.begin(), lacking.end(), random);
    for (std::size_t step = 0; !lacking.empty(); ++step) {
      if (schedule.steps.size() <= step) schedule.steps.emplace_back();
      const std::size_t held = holders.size();
      for (std::size_t i = 0; i < 1 + held / 2 && !lacking.empty(); ++i) {
        schedule.steps[step].push_back({holders[random() % held], lacking.back(), chunk});
        holders.push_back(lacking.back());
        lacking.pop_back();
      }
    }
  }
  return schedule;
}

Schedule mirrored(const Schedule& gather, CollectiveKind kind) {
  Schedule result = gather;
  result.collective.kind = kind;
  result.steps = reversed(gather.steps);
  if (kind == all_reduce) result.steps = joined(std::move(result.steps), gather.steps);
  return result;
}

Schedule exchange(const Shape& shape) {
  const int n = ranks(shape);
  Schedule schedule{"exchange", {all_to_all, 0}, n, n * n, {{}, {}}, shape.radices};
  for (Rank src = 0; src < shape.cell; ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      if (src == dst) continue;
      const Rank by = (dst + 1) % n;  // every other block goes by a third rank
      if (dst % 2 == 1 && by != src) {
        schedule.steps[0].push_back({src, by, src * n + dst});
        schedule.steps[1].push_back({by, dst, src * n + dst});
      } else {
        schedule.steps[0].push_back({src, dst, src * n + dst});
      }
    }
  }
  return schedule;
}

std::vector<Schedule> samples(const Shape& shape, std::mt19937& random) {
  std::vector<Schedule> all = {exchange(shape)};
  for (const int pieces : {1, 3}) {
    const Schedule gather = random_gather(shape, pieces, random);
    all.push_back(gather);
    all.push_back(mirrored(gather, reduce_scatter));
    all.push_back(mirrored(gather, all_reduce));
  }
  return all;
}

TEST(Symmetry, WhatIsProvedOfCellZeroIsProvedOfTheWholeSchedule) {
  std::mt19937 random(1);
  for (const Shape& shape : shapes()) {
    for (const Schedule& schedule : samples(shape, random)) {
      EXPECT_EQ(first_fault(schedule), std::nullopt);
      const Schedule whole = expanded(schedule);
      EXPECT_EQ(first_fault(whole), std::nullopt);
      EXPECT_TRUE(whole.symmetry.empty());
      std::size_t transfers = 0;
      for (const Step& step : whole.steps) transfers += step.size();
      EXPECT_EQ(num_transfers(schedule), transfers);
    }
  }
}

/// Changes one thing about one transfer, or drops or repeats it, or moves it to another step.
Schedule mutated(Schedule schedule, std::mt19937& random) {
  Step* step = nullptr;
  do {
    step = &schedule.steps[random() % schedule.steps.size()];
  } while (step->empty());
  const std::size_t i = random() % step->size();
  const auto n = static_cast<unsigned>(schedule.world_size);
  const Transfer chosen = (*step)[i];
  switch (random() % 6) {
    case 0:
      step->erase(step->begin() + static_cast<std::ptrdiff_t>(i));
      break;
    case 1:
      (*step)[i].src = static_cast<Rank>(random() % n);
      break;
    case 2:
      (*step)[i].dst = static_cast<Rank>(random() % n);
      break;
    case 3:
      (*step)[i].action = chosen.action == Action::copy ? Action::reduce : Action::copy;
      break;
    case 4:
      (*step)[i].chunk =
          static_cast<ChunkId>(random() % static_cast<unsigned>(num_named_chunks(schedule)));
      break;
    default:
      step->erase(step->begin() + static_cast<std::ptrdiff_t>(i));
      schedule.steps[random() % schedule.steps.size()].push_back(chosen);
  }
  return schedule;
}

TEST(Symmetry, AMutatedScheduleIsRefusedExactlyWhenItsWholeFormIs) {
  std::mt19937 random(2);
  int wrong = 0;
  int right = 0;
  for (int round = 0; round < 40; ++round) {
    for (const Shape& shape : shapes()) {
      for (const Schedule& schedule : samples(shape, random)) {
        const Schedule changed = mutated(schedule, random);
        const bool refused = first_fault(changed).has_value();
        EXPECT_EQ(refused, first_fault(expanded(changed)).has_value());
        ++(refused ? wrong : right);
      }
    }
  }
  EXPECT_GT(wrong, 1000);
  EXPECT_GT(right, 10);  // a transfer may move to a step in which it is as good
}

TEST(Symmetry, AnotherSymmetryThanTheSchedulesOwnIsRefusedExactlyWhenTheWholeFormIs) {
  std::mt19937 random(3);
  for (const Shape& shape : shapes()) {
    for (Schedule schedule : samples(shape, random)) {
      std::vector<int> other = schedule.symmetry;
      std::reverse(other.begin(), other.end());
      for (const std::vector<int>& radices : {other, std::vector<int>{2}, std::vector<int>{3}}) {
        schedule.symmetry = radices;
        if (malformed(schedule)) continue;
        EXPECT_EQ(first_fault(schedule).has_value(), first_fault(expanded(schedule)).has_value());
      }
    }
  }
}

/// The most chunks of any message that the program sends.
int longest_sent(const Program& program) {
  int most = 0;
  for (const Lane& lane : program.lanes) {
    for (const Instruction& instruction : lane.instructions) {
      if (!instruction.sends.empty()) most = std::max(most, instruction.count);
    }
  }
  return most;
}

TEST(Symmetry, ProgramsThatRanksCutAloneFitTogether) {
  std::mt19937 random(4);
  for (const Shape& shape : shapes()) {
    for (const Schedule& schedule : samples(shape, random)) {
      std::vector<Program> programs;
      for (Rank rank = 0; rank < schedule.world_size; ++rank) {
        const LoweredAlone alone = lower_alone(schedule, rank);
        programs.push_back(alone.program);
        EXPECT_LE(longest_sent(alone.program), alone.longest_message);
        if (schedule.collective.kind == all_to_all) continue;  // its messages are kept apart
        EXPECT_EQ(programs.back(), lower_alone(expanded(schedule), rank).program);
      }
      for (const bool in_place : {false, true}) {
        EXPECT_EQ(first_fault(programs, 2, in_place), std::nullopt)
            << schedule.world_size << " ranks, " << name_of(schedule.collective.kind);
      }
    }
  }
}

TEST(Symmetry, IsKeptInFiles) {
  std::mt19937 random(5);
  for (const Schedule& schedule : samples({2, {2, 3}}, random)) {
    EXPECT_EQ(schedule_from_json(to_json(schedule), "test"), schedule);
  }
}

TEST(Symmetry, WhatNoCollectiveCanHaveIsRefused) {
  const auto fault_of = [](Schedule schedule) { return first_fault(schedule).value_or("none"); };
  EXPECT_EQ(fault_of({"", {broadcast, 0}, 4, 4, {}, {2}}),
            "a symmetry is given, but broadcast cannot have one");
  EXPECT_EQ(fault_of({"", {all_gather, 0}, 6, 6, {}, {4}}),
            "6 ranks are not a multiple of the number of cells of the symmetry");
  EXPECT_EQ(fault_of({"", {all_gather, 0}, 6, 6, {}, {2, -3}}),
            "a radix of -3 in the symmetry: radices are 2 or more");
  EXPECT_EQ(fault_of({"", {all_reduce, 0}, 6, 3, {}, {2}}),
            "3 chunks of a symmetric schedule are not a multiple of the 6 ranks");
  EXPECT_EQ(fault_of({"", {all_gather, 0}, 4, 4, {{{0, 1, 3}}}, {4}}),
            "step 0: chunk 3 is not in [0, 1), the chunks of cell 0");
}

TEST(Symmetry, AScheduleOfSixteenThousandRanksIsProvedFromOneRanksChunks) {
  // Along a ring of 16 within rows, then one to all across the 1,024 rows.
  constexpr int kRow = 16;
  constexpr int kRanks = 16'384;
  Schedule gather{"rows", {all_gather, 0}, kRanks, kRanks, {}, {kRow, kRanks / kRow}};
  for (Rank rank = 0; rank + 1 < kRow; ++rank) gather.steps.push_back({{rank, rank + 1, 0}});
  gather.steps.emplace_back();
  for (Rank rank = 0; rank < kRow; ++rank) {
    for (Rank other = rank + kRow; other < kRanks; other += kRow) {
      gather.steps.back().push_back({rank, other, 0});
    }
  }
  EXPECT_EQ(first_fault(gather), std::nullopt);
  EXPECT_EQ(num_transfers(gather), std::size_t{kRanks} * (kRanks - 1));
  EXPECT_THROW((void)expanded(gather), InputError);
  const Program program = lower_alone(gather, 12'345).program;
  EXPECT_EQ(program.rank, 12'345);
  EXPECT_EQ(program.scratch_chunks, 0);

  gather.steps.back().pop_back();
  EXPECT_EQ(first_fault(gather),
            "rank 16383 never receives chunk 0, which all_gather promises it (from rank 0)");
}

}  // namespace
}  // namespace chorus
