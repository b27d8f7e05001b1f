// Every classic schedule keeps its contract, takes the steps and bytes it is known for, and leaves
// the same bits on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"
#include "tests/collectives/cases.hpp"

namespace chorus {
namespace {

TEST(Schedules, EveryAlgorithmKeepsItsContractUpTo33Ranks) {
  int proved = 0;
  for (int n = 1; n <= 33; ++n) {
    for_each_schedule(n, all_hierarchies(n),
                      [&](const Schedule& schedule, const std::string& what) {
                        ASSERT_EQ(first_fault(schedule), std::nullopt) << what;
                        EXPECT_EQ(schedule.world_size, n) << what;
                        EXPECT_THAT(what, testing::StartsWith(schedule.name));
                        ++proved;
                      });
  }
  EXPECT_GT(proved, 33 * 35);
}

TEST(Schedules, EveryAlgorithmKeepsItsContractOnHundredsOfRanks) {
  const std::map<int, std::vector<std::vector<int>>> hierarchies{
      {64, {{8, 8}, {4, 4, 4}, {2, 2, 2, 2, 2, 2}}},
      {100, {{4, 25}, {10, 10}, {5, 5, 4}}},
      {128, {{8, 16}, {2, 4, 16}}},
      {200, {{8, 25}, {4, 5, 10}}},
      {256, {{8, 32}, {8, 2, 16}}},
  };
  for (const auto& [n, levels] : hierarchies) {
    for_each_schedule(n, levels, [&](const Schedule& schedule, const std::string& what) {
      // All-to-all has n² chunks: above 128 ranks proving takes longer than it teaches.
      if (schedule.collective.kind == CollectiveKind::all_to_all && n > 128) return;
      ASSERT_EQ(first_fault(schedule), std::nullopt) << what;
    });
  }
}

TEST(Schedules, CompactFormsKeepTheirContractAndAreTheSameSchedules) {
  const auto check = [](const Schedule& schedule, const std::string& what) {
    ASSERT_EQ(first_fault(schedule), std::nullopt) << what;
    if (schedule.world_size > 33 || schedule.symmetry.empty()) return;
    const bool chunks_renamed = schedule.symmetry.size() > 1 && schedule.name != "pairwise" &&
                                schedule.collective.kind == CollectiveKind::all_reduce;
    if (chunks_renamed) return;
    Schedule whole = expanded(schedule);
    const auto all = all_hierarchies(schedule.world_size);
    const bool same = std::any_of(all.begin(), all.end(), [&](const auto& levels) {
      const AlgorithmInput input{schedule.collective.kind, schedule.world_size, levels};
      if (algorithm(schedule.name).why_not(input)) return false;
      Schedule full = algorithm(schedule.name).make(input);
      for (Schedule* each : {&whole, &full}) {
        for (Step& step : each->steps) {
          std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
            return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
          });
        }
      }
      return full == whole;
    });
    EXPECT_TRUE(same || all.empty()) << what;
  };
  for (int n = 1; n <= 33; ++n) for_each_schedule(n, all_hierarchies(n), check, true);
  for (const int n : {64, 100, 128, 1000, 1024}) {
    for_each_schedule(n, {{8, n / 8}, {n / 4, 4}}, check, true);
  }
}

TEST(Schedules, CompactFormsGrowWithTheRanksAndNotWithTheirSquare) {
  for (const int n : {1000, 1024, 4096}) {
    const auto count = [n](const Schedule& schedule, const std::string& what) {
      std::size_t named = 0;
      for (const Step& step : schedule.steps) named += step.size();
      EXPECT_LE(named, static_cast<std::size_t>(n) * 128) << what;
    };
    for_each_schedule(n, {{8, n / 8}}, count, true);
  }
}

TEST(Schedules, EveryCollectiveIsServedAtAnyWorldSize) {
  for (const CollectiveKind kind : kKinds) {
    for (int n = 1; n <= 33; ++n) {
      for (const bool compact : {false, true}) {
        const auto list = algorithms();
        const bool served = std::any_of(list.begin(), list.end(), [&](const Algorithm& algorithm) {
          return !algorithm.why_not({kind, n, {}, compact});
        });
        EXPECT_TRUE(served) << name_of(kind) << " on " << n;
      }
    }
  }
}

TEST(Schedules, OneRankHasNothingToDo) {
  for_each_schedule(1, {}, [](const Schedule& schedule, const std::string& what) {
    EXPECT_TRUE(schedule.steps.empty()) << what;
  });
}

TEST(Schedules, SameInputGivesTheSameSchedule) {
  for_each_schedule(12, {{3, 4}}, [](const Schedule& schedule, const std::string& what) {
    const AlgorithmInput input{schedule.collective.kind, 12, {3, 4}};
    EXPECT_EQ(algorithm(schedule.name).make(input), schedule) << what;
  });
}

TEST(Algorithms, RefusesWhatItCannotServeWithAReason) {
  EXPECT_THAT(*algorithm("ring").why_not({CollectiveKind::broadcast, 4, {}}),
              testing::HasSubstr("broadcast"));
  const Algorithm& levels = algorithm("blueconnect");
  EXPECT_THAT(*levels.why_not({CollectiveKind::all_reduce, 8, {}}), testing::HasSubstr("levels"));
  EXPECT_THAT(*levels.why_not({CollectiveKind::all_reduce, 8, {8, 1}}),
              testing::HasSubstr("levels"));
  EXPECT_THAT(*levels.why_not({CollectiveKind::all_reduce, 8, {4, 3}}),
              testing::HasSubstr("4 x 3 do not multiply to 8"));
  EXPECT_NE(levels.why_not({CollectiveKind::all_reduce, 8, {0, 8}}), std::nullopt);
  EXPECT_NE(levels.why_not({CollectiveKind::all_reduce, 8, {1 << 30, 1 << 30, 1 << 30}}),
            std::nullopt);
  EXPECT_EQ(levels.why_not({CollectiveKind::all_reduce, 8, {4, 2}}), std::nullopt);
}

TEST(Algorithms, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  try {
    static_cast<void>(algorithm("rnig"));
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("rnig"), testing::HasSubstr("ring"),
                                             testing::HasSubstr("dissemination")));
  }
}

TEST(Algorithms, NamesAreUniqueAndSummariesAreThere) {
  std::set<std::string_view> names;
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_TRUE(names.insert(algorithm.name).second) << algorithm.name;
    EXPECT_GT(algorithm.summary.size(), 40U) << algorithm.name;
  }
}

/// Replays a schedule on expressions: leaf r is rank r's contribution, a fold of two expressions
/// is a new one, the same for both orders where `commutative`.
class Expressions {
 public:
  Expressions(const Schedule& schedule, bool commutative)
      : schedule_(schedule), commutative_(commutative), next_(schedule.world_size) {}

  /// Of `chunk`, per rank, after the last step.
  std::vector<int> after(ChunkId chunk) {
    std::vector<int> values(schedule_.world_size);
    std::iota(values.begin(), values.end(), 0);
    for (const Step& step : schedule_.steps) {
      std::map<Rank, std::set<Rank>> folds;  // into the key, its own value included
      std::vector<int> next = values;
      for (const Transfer& t : step) {
        if (t.chunk != chunk) continue;
        if (t.action == Action::copy) {
          next[t.dst] = values[t.src];
        } else {
          folds[t.dst].insert({t.src, t.dst});
        }
      }
      for (const auto& [dst, ranks] : folds) {
        next[dst] = fold(values, ranks);
      }
      values = next;
    }
    return values;
  }

  /// ((0 ⊕ 1) ⊕ 2) ….
  int in_rank_order() {
    int result = 0;
    for (Rank rank = 1; rank < schedule_.world_size; ++rank) result = node(result, rank);
    return result;
  }

 private:
  int fold(const std::vector<int>& values, const std::set<Rank>& ranks) {
    int result = values[*ranks.begin()];
    for (auto it = std::next(ranks.begin()); it != ranks.end(); ++it) {
      result = node(result, values[*it]);
    }
    return result;
  }

  int node(int left, int right) {
    if (commutative_ && right < left) std::swap(left, right);
    const auto [it, added] = nodes_.try_emplace({left, right}, next_);
    if (added) ++next_;
    return it->second;
  }

  const Schedule& schedule_;
  bool commutative_;
  int next_;
  std::map<std::pair<int, int>, int> nodes_;
};

TEST(Schedules, AllReduceLeavesTheSameBitsOnEveryRank) {
  for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 27, 32, 33}) {
    for_each_schedule(
        n, all_hierarchies(n), [&](const Schedule& schedule, const std::string& what) {
          if (schedule.collective.kind != CollectiveKind::all_reduce) return;
          Expressions expressions(schedule, true);
          for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
            const std::vector<int> values = expressions.after(chunk);
            EXPECT_THAT(values, testing::Each(values[0])) << what << ", chunk " << chunk;
          }
        });
  }
}

TEST(Schedules, RankOrderAlgorithmsFoldInTheOrderOfRanks) {
  std::set<CollectiveKind> kinds;
  for (int n = 2; n <= 17; ++n) {
    for_each_schedule(n, {}, [&](const Schedule& made, const std::string& what) {
      const CollectiveKind kind = made.collective.kind;
      if (!algorithm(made.name).rank_order || !is_combining(kind)) return;
      kinds.insert(kind);
      // Another root must not change the order.
      for (const Schedule& schedule : {made, is_rooted(kind) ? rotated(made, n / 2) : made}) {
        Expressions expressions(schedule, false);
        const int expected = expressions.in_rank_order();
        for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
          const std::vector<int> values = expressions.after(chunk);
          for (Rank rank = 0; rank < n; ++rank) {
            if (!wanted_at(schedule, chunk, rank)) continue;
            EXPECT_EQ(values[rank], expected) << what << ", chunk " << chunk << ", rank " << rank;
          }
        }
      }
    });
  }
  EXPECT_THAT(kinds, testing::IsSupersetOf({CollectiveKind::all_reduce, CollectiveKind::reduce,
                                            CollectiveKind::reduce_scatter}));
}

/// What the literature promises.
struct Promise {
  const char* name;
  CollectiveKind kind;
  std::function<int(int n)> steps;
  std::function<double(int n)> bytes;  ///< of the busiest rank, in units of the whole data
  std::function<bool(int n)> holds = [](int) { return true; };
};

int log2_up(int n) { return std::bit_width(static_cast<unsigned>(n) - 1U); }
int root_up(int n) { return static_cast<int>(std::ceil(std::sqrt(n))); }
int log2_down(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
bool power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }
double share(int n) { return (n - 1.0) / n; }
/// Extra steps before and after where the world size is no power of two.
int folds(int n) { return power_of_two(n) ? 0 : 2; }

/// What the busiest rank sends or receives, whichever is more, as a multiple of the whole data.
double busiest(const Schedule& schedule) {
  std::vector<int> sent(schedule.world_size);
  std::vector<int> received(schedule.world_size);
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      ++sent[transfer.src];
      ++received[transfer.dst];
    }
  }
  const int most = std::max(*std::max_element(sent.begin(), sent.end()),
                            *std::max_element(received.begin(), received.end()));
  return static_cast<double>(most) / schedule.num_chunks;
}

const std::vector<Promise>& promises() {
  using enum CollectiveKind;
  const auto one = [](int) { return 1; };
  const auto two = [](int) { return 2; };
  const auto rounds = [](int n) { return n - 1; };
  const auto data = [](int) { return 1.0; };
  const auto twice = [](int n) { return 2 * share(n); };
  static const std::vector<Promise> kPromises{
      {"ring", all_reduce, [](int n) { return 2 * (n - 1); }, twice},
      {"ring", all_gather, rounds, share},
      {"ring", reduce_scatter, rounds, share},
      {"chain", broadcast, [](int n) { return n == 2 ? 1 : 3 * n - 4; }, data},
      {"chain", reduce, [](int n) { return n == 2 ? 1 : 3 * n - 4; }, data},
      {"recursive_doubling", all_reduce, [](int n) { return log2_down(n) + folds(n); },
       [](int n) { return log2_down(n) + (power_of_two(n) ? 0 : 1); }},
      {"recursive_doubling", all_gather, [](int n) { return log2_down(n) + folds(n); }, share,
       power_of_two},
      {"recursive_halving", reduce_scatter, log2_up, share, power_of_two},
      {"recursive_halving_doubling", all_reduce, [](int n) { return 2 * log2_down(n) + folds(n); },
       twice, power_of_two},
      {"recursive_halving_doubling", all_reduce, [](int n) { return 2 * log2_down(n) + folds(n); },
       [](int n) { return 2 * share(1 << log2_down(n)) + 1; },
       [](int n) { return !power_of_two(n); }},
      {"binomial_tree", broadcast, log2_up, log2_up},
      {"binomial_tree", reduce, log2_up, log2_up},
      {"binomial_tree", all_reduce, [](int n) { return 2 * log2_up(n); }, log2_up},
      {"binomial_tree", scatter, log2_up, share},
      {"binomial_tree", gather, log2_up, share},
      {"bruck", all_gather, log2_up, share},
      {"bruck", reduce_scatter, log2_up, share},
      {"bruck", all_reduce, [](int n) { return 2 * log2_up(n); }, twice},
      {"bruck", all_to_all, log2_up, [](int n) { return log2_up(n) / 2.0 / n; }, power_of_two},
      {"two_hop", all_to_all, [](int n) { return root_up(n) + (n - 1) / root_up(n) - 1; },
       [](int n) { return 2 * (1 - 1 / std::sqrt(n)) / n; },
       [](int n) { return root_up(n) * root_up(n) == n; }},
      {"pairwise", all_to_all, rounds, [](int n) { return share(n) / n; }},
      {"pairwise", all_gather, rounds, share},
      {"one_shot", all_reduce, one, [](int n) { return n - 1.0; }},
      {"one_shot", all_gather, one, share},
      {"one_shot", reduce_scatter, one, share},
      {"one_shot", all_to_all, one, [](int n) { return share(n) / n; }},
      {"one_shot", gather, one, share},
      {"two_shot", all_reduce, two, twice},
      {"two_shot", broadcast, two, data, [](int n) { return n > 2; }},
      {"two_shot", reduce, two, twice},
      {"dissemination", barrier, log2_up, log2_up},
  };
  return kPromises;
}

TEST(Schedules, StepsAndBytesAreThoseOfTheLiterature) {
  for (const Promise& promise : promises()) {
    for (int n = 2; n <= 33; ++n) {
      if (!promise.holds(n)) continue;
      const Schedule schedule = algorithm(promise.name).make({promise.kind, n, {}});
      const std::string what = schedule_name(schedule);
      EXPECT_EQ(static_cast<int>(schedule.steps.size()), promise.steps(n)) << what;
      EXPECT_NEAR(busiest(schedule), promise.bytes(n), 1e-9) << what;
    }
  }
}

TEST(Schedules, HierarchiesSendLeastBytesBetweenHosts) {
  // 4 hosts of 8: of every rank's data a rank's share of 1/8 goes around between hosts.
  const std::vector<int> levels{8, 4};
  for (const char* name : {"blueconnect", "hierarchical"}) {
    const Schedule schedule = algorithm(name).make({CollectiveKind::all_reduce, 32, levels});
    EXPECT_NEAR(busiest(schedule), 2 * share(32), 1e-9) << name;
    std::vector<int> across(32);
    for (const Step& step : schedule.steps) {
      for (const Transfer& t : step) across[t.src] += t.src / 8 != t.dst / 8;
    }
    EXPECT_THAT(across, testing::Each(32 / 8 * 2 * 3 / 4)) << name;
  }
  EXPECT_EQ(algorithm("blueconnect").make({CollectiveKind::all_reduce, 32, levels}).steps.size(),
            2U * (7 + 3));
  EXPECT_EQ(algorithm("hierarchical").make({CollectiveKind::all_reduce, 32, levels}).steps.size(),
            4U);
}

TEST(Schedules, TwinTreesNeverSendOrReceiveTwiceInAStep) {
  for (int n = 2; n <= 64; ++n) {
    for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::reduce}) {
      const Schedule schedule = algorithm("double_binary_tree").make({kind, n, {}});
      for (const Step& step : schedule.steps) {
        std::set<Rank> senders;
        std::set<Rank> receivers;
        for (const Transfer& t : step) {
          EXPECT_TRUE(senders.insert(t.src).second) << schedule_name(schedule);
          EXPECT_TRUE(receivers.insert(t.dst).second) << schedule_name(schedule);
        }
      }
      // Depth 2·(log2 n + 1) at most, then two steps per further pair of chunks.
      EXPECT_LE(static_cast<int>(schedule.steps.size()),
                2 * (log2_down(n) + 1) + schedule.num_chunks - 2)
          << schedule_name(schedule);
      EXPECT_LE(busiest(schedule), n == 2 ? 1.0 : 1.01) << schedule_name(schedule);
    }
  }
}

/// Messages of a schedule if runs of consecutive chunks of a step travel together.
int messages(const Schedule& schedule) {
  int count = 0;
  for (const Step& step : schedule.steps) {
    const Transfer* last = nullptr;
    for (const Transfer& t : step) {
      const bool joins =
          last != nullptr && last->src == t.src && last->dst == t.dst && last->chunk + 1 == t.chunk;
      count += joins ? 0 : 1;
      last = &t;
    }
  }
  return count;
}

TEST(Schedules, ChunksThatTravelTogetherAreNeighbours) {
  using enum CollectiveKind;
  const auto of = [](const char* name, CollectiveKind kind, std::vector<int> levels = {}) {
    return messages(algorithm(name).make({kind, 16, std::move(levels)}));
  };
  EXPECT_EQ(of("recursive_doubling", all_gather), 16 * 4);
  EXPECT_EQ(of("recursive_halving_doubling", all_reduce), 16 * 4 * 2);
  EXPECT_EQ(of("binomial_tree", scatter), 15);
  // Where a run wraps around from rank 15 to rank 0 it takes two.
  EXPECT_EQ(of("bruck", all_gather), 16 * 4 + 1 + 3 + 7);
  EXPECT_EQ(of("blueconnect", all_reduce, {4, 4}), 16 * 2 * (3 + 3));
  EXPECT_EQ(of("hierarchical", all_reduce, {4, 4}), 16 * 2 * (3 + 3));
  EXPECT_EQ(of("hierarchical", scatter, {4, 4}), 15);
}

}  // namespace
}  // namespace chorus
