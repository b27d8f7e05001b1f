#include "model/schedule/contract.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "chorus/error.hpp"
#include "schedules.hpp"

namespace chorus {
namespace {

using test::all_pairs;
using test::kAllKinds;
using test::random_schedule;
using test::recursive_doubling_all_reduce;
using test::ring_all_gather;
using test::ring_all_reduce;
using test::ring_reduce_scatter;
using test::star;
using testing::HasSubstr;

TEST(Contract, NamesAndParsesEveryKind) {
  for (const CollectiveKind kind : kAllKinds) {
    EXPECT_EQ(parse_collective_kind(name_of(kind)), kind);
  }
  try {
    (void)parse_collective_kind("allreduce");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'allreduce' is unknown"));
    EXPECT_THAT(error.what(), HasSubstr("all_reduce, all_gather"));
  }
}

TEST(Contract, CountsBlocks) {
  EXPECT_EQ(num_blocks(CollectiveKind::all_reduce, 5), 1);
  EXPECT_EQ(num_blocks(CollectiveKind::gather, 5), 5);
  EXPECT_EQ(num_blocks(CollectiveKind::all_to_all, 5), 25);
  EXPECT_EQ(input_blocks({CollectiveKind::broadcast, 2}, 5, 2), 1);
  EXPECT_EQ(input_blocks({CollectiveKind::broadcast, 2}, 5, 1), 0);
  EXPECT_EQ(output_blocks({CollectiveKind::broadcast, 2}, 5, 1), 1);
  EXPECT_EQ(input_blocks({CollectiveKind::scatter, 2}, 5, 2), 5);
  EXPECT_EQ(output_blocks({CollectiveKind::scatter, 2}, 5, 2), 1);
  EXPECT_EQ(output_blocks({CollectiveKind::gather, 2}, 5, 2), 5);
  EXPECT_EQ(output_blocks({CollectiveKind::gather, 2}, 5, 3), 0);
  EXPECT_EQ(input_blocks({CollectiveKind::reduce_scatter, 0}, 5, 3), 5);
  EXPECT_EQ(output_blocks({CollectiveKind::reduce_scatter, 0}, 5, 3), 1);
  EXPECT_EQ(input_blocks({CollectiveKind::all_to_all, 0}, 5, 3), 5);
  EXPECT_EQ(output_blocks({CollectiveKind::all_to_all, 0}, 5, 3), 5);
  EXPECT_EQ(output_blocks({CollectiveKind::reduce, 1}, 5, 3), 0);
}

// Whatever the kind, the chunks that a rank starts with (must end with) fill its buffer exactly.
TEST(Contract, IndicesFillEveryBufferWithoutGapOrOverlap) {
  for (const CollectiveKind kind : kAllKinds) {
    const int n = 4;
    Schedule schedule{.name = "",
                      .collective = {kind, is_rooted(kind) ? 2 : 0},
                      .world_size = n,
                      .num_chunks = 0,
                      .steps = {}};
    const int k = kind == CollectiveKind::barrier ? 1 : 3;
    schedule.num_chunks = num_blocks(kind, n) * k;
    for (Rank rank = 0; rank < n; ++rank) {
      std::set<int> inputs, outputs;
      for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
        const int in = input_index(schedule, chunk, rank);
        const int out = output_index(schedule, chunk, rank);
        EXPECT_EQ(in >= 0, starts_at(schedule, chunk, rank));
        EXPECT_EQ(out >= 0, wanted_at(schedule, chunk, rank));
        if (in >= 0) {
          EXPECT_EQ(input_chunk(schedule, in, rank), chunk);
          EXPECT_TRUE(inputs.insert(in).second);
        }
        if (out >= 0) {
          EXPECT_EQ(output_chunk(schedule, out, rank), chunk);
          EXPECT_TRUE(outputs.insert(out).second);
        }
      }
      const int in_size = input_blocks(schedule.collective, n, rank) * k;
      const int out_size = output_blocks(schedule.collective, n, rank) * k;
      EXPECT_EQ(static_cast<int>(inputs.size()), in_size) << name_of(kind);
      EXPECT_EQ(static_cast<int>(outputs.size()), out_size) << name_of(kind);
      if (in_size > 0) {
        EXPECT_EQ(*inputs.rbegin(), in_size - 1) << name_of(kind);
      }
      if (out_size > 0) {
        EXPECT_EQ(*outputs.rbegin(), out_size - 1) << name_of(kind);
      }
    }
  }
}

TEST(Contract, AllToAllTransposesBlocks) {
  Schedule schedule{.name = "",
                    .collective = {CollectiveKind::all_to_all, 0},
                    .world_size = 3,
                    .num_chunks = 0,
                    .steps = {}};
  schedule.num_chunks = 18;                   // k = 2
  const ChunkId chunk = (1 * 3 + 2) * 2 + 1;  // second piece of what rank 1 sends to rank 2
  EXPECT_EQ(origin(schedule, chunk), 1);
  EXPECT_EQ(destination_of(schedule, chunk), 2);
  EXPECT_EQ(input_index(schedule, chunk, 1), 2 * 2 + 1);
  EXPECT_EQ(output_index(schedule, chunk, 2), 1 * 2 + 1);
  EXPECT_EQ(input_index(schedule, chunk, 2), -1);
  EXPECT_EQ(output_index(schedule, chunk, 1), -1);
}

TEST(Malformed, NamesWhatIsOutOfRange) {
  struct Case {
    const char* expected;
    void (*spoil)(Schedule&);
  };
  const Case cases[] = {
      {"world size 0 is not in [1, 32767]", [](Schedule& s) { s.world_size = 0; }},
      {"root 4 is not in [0, 4)", [](Schedule& s) { s.collective.root = 4; }},
      {"root 1 is given, but all_reduce has no root", [](Schedule& s) { s.collective.root = 1; }},
      {"a schedule of 0 chunks: must be in", [](Schedule& s) { s.num_chunks = 0; }},
      {"5 chunks cannot be shared equally by the 4 blocks of all_gather on 4 ranks",
       [](Schedule& s) {
         s.collective.kind = CollectiveKind::all_gather;
         s.num_chunks = 5;
       }},
      {"4 chunks, but barrier has one token",
       [](Schedule& s) { s.collective.kind = CollectiveKind::barrier; }},
      {"step 1: rank 4 is not in [0, 4)", [](Schedule& s) { s.steps[1][0].dst = 4; }},
      {"step 1: rank -1 is not in [0, 4)", [](Schedule& s) { s.steps[1][0].src = -1; }},
      {"step 0: chunk 4 is not in [0, 4)", [](Schedule& s) { s.steps[0][0].chunk = 4; }},
      {"step 0: rank 1 sends chunk 0 to itself", [](Schedule& s) { s.steps[0][0].dst = 1; }},
      {"step 0: rank 1 reduces chunk 0 into rank 2, but broadcast only copies",
       [](Schedule& s) { s.collective.kind = CollectiveKind::broadcast; }},
      {"action 7 of chunk 0", [](Schedule& s) { s.steps[0][0].action = Action{7}; }},
      {"collective kind 99 is unknown",
       [](Schedule& s) { s.collective.kind = CollectiveKind{99}; }},
  };
  for (const Case& c : cases) {
    Schedule schedule = ring_all_reduce(4);
    ASSERT_EQ(malformed(schedule), std::nullopt);
    c.spoil(schedule);
    const auto fault = malformed(schedule);
    ASSERT_TRUE(fault) << c.expected;
    EXPECT_THAT(*fault, HasSubstr(c.expected));
    EXPECT_EQ(first_fault(schedule), fault);
  }
}

TEST(FirstFault, AcceptsCorrectSchedulesOfEveryKind) {
  for (const int n : {1, 2, 3, 4, 7, 8}) {
    EXPECT_EQ(first_fault(ring_all_reduce(n)), std::nullopt) << n;
    EXPECT_EQ(first_fault(ring_all_gather(n, 3)), std::nullopt) << n;
    EXPECT_EQ(first_fault(ring_reduce_scatter(n, 2)), std::nullopt) << n;
    for (const auto kind :
         {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
          CollectiveKind::all_to_all, CollectiveKind::barrier}) {
      EXPECT_EQ(first_fault(all_pairs(kind, n)), std::nullopt) << name_of(kind) << n;
    }
    for (const auto kind : {CollectiveKind::broadcast, CollectiveKind::reduce,
                            CollectiveKind::gather, CollectiveKind::scatter}) {
      for (Rank root = 0; root < n; ++root) {
        EXPECT_EQ(first_fault(star(kind, n, root, 2)), std::nullopt) << name_of(kind) << n;
      }
    }
  }
  EXPECT_EQ(first_fault(recursive_doubling_all_reduce(16)), std::nullopt);
}

TEST(FirstFault, AcceptsRandomCorrectSchedules) {
  for (const CollectiveKind kind : kAllKinds) {
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
      const Schedule schedule = random_schedule(kind, 1 + static_cast<int>(seed % 9), seed);
      EXPECT_EQ(first_fault(schedule), std::nullopt) << name_of(kind) << " seed " << seed;
    }
  }
}

// The checker is why anything else may be trusted, so it must also say no.
TEST(FirstFault, NoticesAnySingleMistake) {
  std::vector<Schedule> good = {ring_all_reduce(4), ring_all_gather(4), ring_reduce_scatter(4),
                                recursive_doubling_all_reduce(4)};
  for (const CollectiveKind kind : kAllKinds) {
    good.push_back(random_schedule(kind, 5, 17));
    good.push_back(random_schedule(kind, 6, 18));
  }
  for (const Schedule& schedule : good) {
    ASSERT_EQ(first_fault(schedule), std::nullopt);
    const bool counted = schedule.collective.kind != CollectiveKind::barrier;
    for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
      for (std::size_t i = 0; i < schedule.steps[step].size(); ++i) {
        const Transfer& transfer = schedule.steps[step][i];
        SCOPED_TRACE(std::string(name_of(schedule.collective.kind)) + " " + schedule.name +
                     " step " + std::to_string(step) + " transfer " + std::to_string(i));
        Schedule dropped = schedule;
        dropped.steps[step].erase(dropped.steps[step].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(first_fault(dropped), std::nullopt);

        Schedule flipped = schedule;
        Action& action = flipped.steps[step][i].action;
        action = action == Action::copy ? Action::reduce : Action::copy;
        if (counted) {
          EXPECT_NE(first_fault(flipped), std::nullopt);
        }

        if (transfer.action == Action::reduce && counted) {
          Schedule doubled = schedule;
          doubled.steps[step].push_back(transfer);
          EXPECT_NE(first_fault(doubled), std::nullopt);
        }
      }
    }
  }
}

/// The definition written down naively, all chunks at once: counts[rank][chunk][contributor].
bool naively_correct(const Schedule& schedule) {
  const int n = schedule.world_size;
  using Value = std::vector<int>;  // empty: holds nothing
  std::vector<std::vector<Value>> state(n, std::vector<Value>(schedule.num_chunks));
  for (Rank r = 0; r < n; ++r) {
    for (ChunkId c = 0; c < schedule.num_chunks; ++c) {
      if (!starts_at(schedule, c, r)) continue;
      state[r][c].assign(n, 0);
      state[r][c][r] = 1;
    }
  }
  for (const Step& step : schedule.steps) {
    const auto before = state;
    std::set<std::pair<Rank, ChunkId>> copied, reduced;
    for (const Transfer& t : step) {
      const Value& value = before[t.src][t.chunk];
      Value& into = state[t.dst][t.chunk];
      if (value.empty()) return false;
      if (t.action == Action::copy) {
        if (!copied.insert({t.dst, t.chunk}).second && into != value) return false;
        into = value;
      } else {
        reduced.insert({t.dst, t.chunk});
        if (into.empty() || !is_combining(schedule.collective.kind)) return false;
        for (int i = 0; i < n; ++i) into[i] += value[i];
      }
      if (copied.contains({t.dst, t.chunk}) && reduced.contains({t.dst, t.chunk})) return false;
    }
  }
  for (Rank r = 0; r < n; ++r) {
    for (ChunkId c = 0; c < schedule.num_chunks; ++c) {
      if (!wanted_at(schedule, c, r)) continue;
      if (state[r][c].empty()) return false;
      for (Rank i = 0; i < n; ++i) {
        const int count = state[r][c][i];
        if (!is_combining(schedule.collective.kind)) continue;
        const bool barrier = schedule.collective.kind == CollectiveKind::barrier;
        if (barrier ? count < 1 : count != 1) return false;
      }
    }
  }
  return true;
}

// Some changes leave a schedule correct (a share may take another way), so the judge is compared
// with the definition.
TEST(FirstFault, AgreesWithANaiveReplayOnSpoiledSchedules) {
  std::mt19937 random(3);
  const auto below = [&](std::size_t bound) { return static_cast<int>(random() % bound); };
  int faulty = 0;
  int correct = 0;
  for (int round = 0; round < 6000; ++round) {
    const auto kind = kAllKinds[below(std::size(kAllKinds))];
    Schedule schedule = random_schedule(kind, 2 + below(4), random() & 0xffff);
    if (schedule.num_chunks > 40) continue;
    for (int changes = 1 + below(2); changes > 0; --changes) {
      Step& step = schedule.steps[below(schedule.steps.size())];
      if (step.empty()) continue;
      Transfer& transfer = step[below(step.size())];
      switch (below(6)) {
        case 0:
          transfer.dst = (transfer.src + 1 + below(schedule.world_size - 1)) % schedule.world_size;
          break;
        case 1:
          transfer.src = (transfer.dst + 1 + below(schedule.world_size - 1)) % schedule.world_size;
          break;
        case 2:
          transfer.action = transfer.action == Action::copy ? Action::reduce : Action::copy;
          break;
        case 3:
          schedule.steps[below(schedule.steps.size())].push_back(Transfer(transfer));
          break;
        case 4:
          std::swap(step, schedule.steps[below(schedule.steps.size())]);
          break;
        default:
          transfer.chunk = below(schedule.num_chunks);
      }
    }
    const bool expected = naively_correct(schedule);
    ++(expected ? correct : faulty);
    EXPECT_EQ(!first_fault(schedule).has_value(), expected)
        << name_of(kind) << " round " << round << ": " << first_fault(schedule).value_or("");
  }
  EXPECT_GT(faulty, 1000);
  EXPECT_GT(correct, 300);
}

TEST(FirstFault, SaysWhichStepRankAndChunk) {
  Schedule late = ring_all_gather(3);
  std::swap(late.steps[0], late.steps[1]);
  EXPECT_EQ(first_fault(late), "step 0: rank 1 sends chunk 0 to rank 2 but does not hold it");

  Schedule short_one = ring_all_gather(3);
  short_one.steps.pop_back();
  EXPECT_EQ(first_fault(short_one),
            "rank 2 never receives chunk 0, which all_gather promises it (from rank 0)");

  Schedule twice = all_pairs(CollectiveKind::all_reduce, 3);
  twice.steps[0].push_back({1, 0, 0, Action::reduce});
  EXPECT_EQ(first_fault(twice),
            "rank 0 ends with the contribution of rank 1 to chunk 0 reduced 2 times");

  Schedule mixed = all_pairs(CollectiveKind::all_reduce, 3);
  mixed.steps[0].push_back({1, 0, 0, Action::copy});
  EXPECT_EQ(first_fault(mixed),
            "step 0: chunk 0 is both copied and reduced into rank 0 (from ranks 1 and 1)");

  Schedule unequal = all_pairs(CollectiveKind::all_reduce, 3);
  unequal.steps.push_back({{0, 2, 0, Action::copy}, {1, 2, 0, Action::copy}});
  EXPECT_EQ(first_fault(unequal), std::nullopt) << "equal values may arrive twice";
  unequal.steps.insert(unequal.steps.begin(), {{0, 2, 0, Action::copy}, {1, 2, 0, Action::copy}});
  EXPECT_EQ(first_fault(unequal),
            "step 0: ranks 0 and 1 copy different values of chunk 0 to rank 2");
}

// A presence flag would accept this: rank 0's share comes back to it and is folded in again.
TEST(FirstFault, SeesAShareReducedTwiceOnADetour) {
  Schedule schedule{.name = "",
                    .collective = {CollectiveKind::all_reduce, 0},
                    .world_size = 2,
                    .num_chunks = 1,
                    .steps = {{{0, 1, 0, Action::reduce}}, {{1, 0, 0, Action::reduce}}}};
  EXPECT_EQ(first_fault(schedule),
            "rank 0 ends with the contribution of rank 0 to chunk 0 reduced 2 times");
  schedule.steps[1][0].action = Action::copy;
  EXPECT_EQ(first_fault(schedule), std::nullopt);
}

TEST(FirstFault, CountsDoNotWrapRound) {
  Schedule schedule{.name = "",
                    .collective = {CollectiveKind::all_reduce, 0},
                    .world_size = 2,
                    .num_chunks = 1,
                    .steps = {}};
  schedule.steps.assign(100, {{0, 1, 0, Action::reduce}, {1, 0, 0, Action::reduce}});
  EXPECT_NE(first_fault(schedule), std::nullopt);
}

TEST(FirstFault, ABarrierNeedsOnlyToHearFromAll) {
  Schedule schedule = recursive_doubling_all_reduce(4);
  schedule.collective.kind = CollectiveKind::barrier;
  schedule.steps.push_back(schedule.steps[0]);
  EXPECT_EQ(first_fault(schedule), std::nullopt);
  schedule.steps.resize(1);
  EXPECT_THAT(first_fault(schedule).value_or(""), HasSubstr("without the contribution of rank"));
}

TEST(FirstFault, RefusesManyChunksWithoutTransfersAtOnce) {
  const Schedule schedule{.name = "",
                          .collective = {CollectiveKind::broadcast, 0},
                          .world_size = 4,
                          .num_chunks = 1 << 26,
                          .steps = {}};
  EXPECT_THAT(first_fault(schedule).value_or(""), HasSubstr("cannot deliver"));
}

TEST(FirstFault, JudgesARingOf256RanksWithinASecond) {
  const Schedule schedule = ring_all_reduce(256);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(first_fault(schedule), std::nullopt);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  RecordProperty("milliseconds", static_cast<int>(took.count() * 1000));
  EXPECT_LT(took.count(), 10.0) << "slow even for a sanitizer on a busy machine";
}

TEST(Rotated, MovesTheRootAndStaysCorrect) {
  for (const CollectiveKind kind : kAllKinds) {
    for (std::uint32_t seed = 0; seed < 10; ++seed) {
      const Schedule schedule = random_schedule(kind, 5, seed);
      for (const int shift : {-7, -1, 0, 1, 3, 5}) {
        const Schedule turned = rotated(schedule, shift);
        EXPECT_EQ(first_fault(turned), std::nullopt) << name_of(kind) << " by " << shift;
        EXPECT_EQ(rotated(turned, -shift), schedule);
        if (is_rooted(kind)) {
          EXPECT_EQ(turned.collective.root, ((schedule.collective.root + shift) % 5 + 5) % 5);
        }
      }
      EXPECT_EQ(rotated(schedule, 5), schedule);
    }
  }
}

}  // namespace
}  // namespace chorus
