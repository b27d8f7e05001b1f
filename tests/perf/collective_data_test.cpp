#include "perf/worker/collective_data.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace chorus::perf {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 37;

/// All ranks' buffers in one process, and a collective performed on them by its definition alone.
class World {
 public:
  World(Kind kind, bool in_place, int root) : kind_(kind), root_(root) {
    const Job job{.kind = kind, .root = root, .count = kCount, .in_place = in_place};
    for (int rank = 0; rank < kRanks; ++rank) ranks_.emplace_back(job, rank, kRanks);
  }

  void fill_and_poison(std::uint32_t seed) {
    for (CollectiveData& data : ranks_) {
      data.fill_input(seed);
      data.poison_output();
    }
  }

  /// The definition of the collective, on copies of the inputs, since some are in place.
  void perform() {
    std::vector<std::vector<float>> in(kRanks);
    for (int r = 0; r < kRanks; ++r) {
      const auto* from = static_cast<const float*>(op(r).input);
      if (from != nullptr) in[at(r)].assign(from, from + input_size(r));
    }
    for (int r = 0; r < kRanks; ++r) {
      auto* out = static_cast<float*>(op(r).output);
      const bool root = r == root_;
      switch (kind_) {
        case Kind::all_reduce:
          sum(in, 0, out);
          break;
        case Kind::reduce:
          if (root) sum(in, 0, out);
          break;
        case Kind::reduce_scatter:
          sum(in, at(r) * kCount, out);
          break;
        case Kind::all_gather:
          for (int b = 0; b < kRanks; ++b) copy(in[at(b)], 0, out + at(b) * kCount);
          break;
        case Kind::gather:
          for (int b = 0; root && b < kRanks; ++b) copy(in[at(b)], 0, out + at(b) * kCount);
          break;
        case Kind::all_to_all:
          for (int b = 0; b < kRanks; ++b) copy(in[at(b)], at(r) * kCount, out + at(b) * kCount);
          break;
        case Kind::scatter:
          copy(in[at(root_)], at(r) * kCount, out);
          break;
        case Kind::broadcast:
          if (!root) copy(in[at(root_)], 0, out);
          break;
        default:
          break;
      }
    }
  }

  [[nodiscard]] std::uint64_t wrong(std::uint32_t seed) const {
    Sample sample;
    for (const CollectiveData& data : ranks_) data.check_output(seed, sample);
    return sample.wrong;
  }

  [[nodiscard]] const Operation& op(int rank) const { return ranks_[at(rank)].operation(); }
  [[nodiscard]] bool keeps_input() const { return ranks_[0].keeps_input(); }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t input_size(int rank) const {
    const bool all = kind_ == Kind::reduce_scatter || kind_ == Kind::all_to_all ||
                     (kind_ == Kind::scatter && rank == root_);
    return all ? kCount * kRanks : kCount;
  }
  static void copy(const std::vector<float>& from, std::size_t first, float* to) {
    std::memcpy(to, from.data() + first, kCount * sizeof(float));
  }
  static void sum(const std::vector<std::vector<float>>& in, std::size_t first, float* to) {
    for (std::size_t i = 0; i < kCount; ++i) {
      to[i] = 0;
      for (const auto& one : in) to[i] += one[first + i];
    }
  }

  Kind kind_;
  int root_;
  std::vector<CollectiveData> ranks_;
};

TEST(CollectiveData, AcceptsEveryCollectivePerformedByItsDefinition) {
  for (const Benchmark& entry : benchmarks()) {
    if (entry.point_to_point) continue;
    for (const bool in_place : {false, true}) {
      for (const int root : {0, kRanks - 1}) {
        World world(entry.kind, in_place, root);
        world.fill_and_poison(5);
        world.perform();
        EXPECT_EQ(world.wrong(5), 0U) << entry.name << (in_place ? " in place" : "");
      }
    }
  }
}

TEST(CollectiveData, RejectsEveryCollectiveThatWasNotPerformed) {
  for (const Benchmark& entry : benchmarks()) {
    if (entry.point_to_point || entry.kind == Kind::barrier) continue;
    for (const bool in_place : {false, true}) {
      World world(entry.kind, in_place, 1);
      world.fill_and_poison(5);
      EXPECT_GT(world.wrong(5), 0U) << entry.name << (in_place ? " in place" : "");
    }
  }
}

TEST(CollectiveData, RejectsTheResultOfEarlierData) {
  for (const Benchmark& entry : benchmarks()) {
    if (entry.point_to_point || entry.kind == Kind::barrier) continue;
    World world(entry.kind, false, 0);
    world.fill_and_poison(5);
    world.perform();
    EXPECT_GT(world.wrong(6), 0U) << entry.name;
  }
}

TEST(CollectiveData, KeepsItsInputUnlessAnOperationInPlaceDestroysIt) {
  for (const Benchmark& entry : benchmarks()) {
    if (entry.point_to_point) continue;
    for (const bool in_place : {false, true}) {
      World world(entry.kind, in_place, 0);
      world.fill_and_poison(5);
      world.perform();
      world.perform();
      EXPECT_EQ(world.keeps_input(), world.wrong(5) == 0)
          << entry.name << (in_place ? " in place" : "");
    }
  }
}

TEST(CollectiveData, InPlaceSharesMemoryAsTheContractSays) {
  const auto own = [](int rank) { return static_cast<std::size_t>(rank) * kCount; };
  for (int rank = 0; rank < kRanks; ++rank) {
    const Operation gather = World(Kind::all_gather, true, 0).op(rank);
    EXPECT_EQ(gather.input, static_cast<float*>(gather.output) + own(rank));
    const Operation scatter = World(Kind::reduce_scatter, true, 0).op(rank);
    EXPECT_EQ(scatter.output, static_cast<const float*>(scatter.input) + own(rank));
    const Operation reduce = World(Kind::all_reduce, true, 0).op(rank);
    EXPECT_EQ(reduce.input, reduce.output);
  }
}

}  // namespace
}  // namespace chorus::perf
