#include "synth/exact/frontier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/counted.hpp"

namespace chorus::synth::exact {
namespace {

constexpr double kSlack = 1e-6;

double ratio(const Instance& instance) {
  return static_cast<double>(instance.rounds) / instance.chunks;
}

/// The least number of chunks that can reach the bandwidth bound with whole rounds: its
/// denominator, if that is small.
int chunks_of_bound(double rounds_per_chunk, int unit) {
  constexpr int kMost = 16;
  for (int k = 1; k <= kMost; ++k) {
    const double rounds = rounds_per_chunk * k * unit;
    if (std::abs(rounds - std::round(rounds)) < kSlack) return k * unit;
  }
  return 8 * unit;
}

class Walker {
 public:
  Walker(const FrontierFacts& facts, const Walk& walk, const Budget& budget, std::string_view what,
         const std::function<Result(const Instance&)>& solve)
      : facts_(facts), walk_(walk), budget_(budget), what_(what), solve_(solve) {
    frontier_.least_steps = facts.least_steps;
    frontier_.least_rounds_per_chunk = facts.least_rounds_per_chunk;
    frontier_.most_chunks = walk.most_chunks > 0
                                ? walk.most_chunks
                                : chunks_of_bound(facts.least_rounds_per_chunk, facts.chunk_unit);
  }

  Frontier run() {
    double best = std::numeric_limits<double>::infinity();
    int idle = 0;
    for (int steps = std::max(1, facts_.least_steps); !reached(best) && !given_up(); ++steps) {
      if (walk_.most_steps > 0 && steps > walk_.most_steps) break;
      // More steps than a bandwidth-optimal schedule of these chunks has rounds cannot help.
      if (steps > most_rounds()) break;
      const std::size_t before = frontier_.points.size();
      best = std::min(best, at_steps(steps, best));
      // What the solver cannot answer at several numbers of steps it will not answer at more.
      idle = frontier_.points.size() == before ? idle + 1 : 0;
      if (idle == 8) break;
    }
    frontier_.complete =
        reached(best) &&
        std::all_of(frontier_.points.begin(), frontier_.points.end(), [](const Point& point) {
          return point.steps_optimal != Proof::none && point.rounds_optimal != Proof::none;
        });
    return std::move(frontier_);
  }

 private:
  [[nodiscard]] bool given_up() const {
    return budget_.spent() || (walk_.most_questions > 0 && questions_ >= walk_.most_questions);
  }

  [[nodiscard]] bool reached(double best) const {
    return best <= facts_.least_rounds_per_chunk + kSlack ||
           (facts_.least_rounds_per_chunk == 0 && !frontier_.points.empty());
  }

  [[nodiscard]] int most_rounds() const {
    // Nobody needs more than this: every chunk on its way alone, four times over.
    const double most = 4 * facts_.least_rounds_per_chunk * frontier_.most_chunks;
    return static_cast<int>(most) + 4 * facts_.least_steps + 4;
  }

  /// Instances of `steps` steps with fewer rounds per chunk than `best`, the fewest first, of equal
  /// ones that of fewest chunks.
  [[nodiscard]] std::vector<Instance> candidates(int steps, double best) const {
    std::vector<Instance> result;
    for (int chunks = facts_.chunk_unit; chunks <= frontier_.most_chunks;
         chunks += facts_.chunk_unit) {
      const auto least =
          static_cast<int>(std::ceil(facts_.least_rounds_per_chunk * chunks - kSlack));
      for (int rounds = std::max(steps, least); rounds <= most_rounds(); ++rounds) {
        const Instance instance{chunks, steps, rounds};
        if (ratio(instance) >= best - kSlack) break;
        result.push_back(instance);
      }
    }
    std::stable_sort(result.begin(), result.end(), [](const Instance& a, const Instance& b) {
      return static_cast<long>(a.rounds) * b.chunks < static_cast<long>(b.rounds) * a.chunks;
    });
    return result;
  }

  /// True if the instance is harder than a refuted one: no fewer chunks, no more steps or rounds.
  [[nodiscard]] bool refuted(const Instance& instance) const {
    return std::any_of(refuted_.begin(), refuted_.end(), [&](const Instance& known) {
      return instance.chunks >= known.chunks && instance.rounds <= known.rounds &&
             instance.steps <= known.steps;
    });
  }

  /// Adds the point of `steps` steps, if there is one better than `best`, and returns its rounds
  /// per chunk.
  double at_steps(int steps, double best) {
    Proof proof = Proof::bound;  // that nothing better than the next candidate exists
    for (const Instance& instance : candidates(steps, best)) {
      if (refuted(instance)) {
        proof = proof == Proof::none ? Proof::none : Proof::unsatisfiable;
        continue;
      }
      if (given_up()) return best;
      budget_.say(fmt::format("{}: frontier at {}, {} for {}", what_, counted(steps, "step"),
                              counted(instance.rounds, "round"),
                              counted(instance.chunks, "chunk")));
      ++questions_;
      Result result = solve_(instance);
      if (result.answer == Answer::found) return add(instance, std::move(result), proof);
      if (result.answer == Answer::impossible) {
        refuted_.push_back(instance);
        if (proof != Proof::none) proof = std::max(proof, result.proof);
      } else {
        proof = Proof::none;
      }
    }
    return best;
  }

  double add(const Instance& instance, Result result, Proof rounds_optimal) {
    Point point;
    point.instance = instance;
    point.schedule = std::move(result.schedule);
    point.rounds = std::move(result.rounds);
    point.rounds_optimal = rounds_optimal;
    const Instance shorter{instance.chunks, instance.steps - 1, instance.rounds};
    if (instance.steps <= facts_.least_steps) {
      point.steps_optimal = Proof::bound;
    } else if (refuted(shorter)) {
      point.steps_optimal = Proof::unsatisfiable;
    }
    point.bandwidth_share = facts_.least_rounds_per_chunk / ratio(instance);
    frontier_.points.push_back(std::move(point));
    return ratio(instance);
  }

  const FrontierFacts& facts_;
  const Walk& walk_;
  const Budget& budget_;
  std::string_view what_;
  const std::function<Result(const Instance&)>& solve_;
  Frontier frontier_;
  std::vector<Instance> refuted_;
  int questions_ = 0;
};

}  // namespace

Frontier walk_frontier(const FrontierFacts& facts, const Walk& walk, const Budget& budget,
                       std::string_view what, const std::function<Result(const Instance&)>& solve) {
  return Walker(facts, walk, budget, what, solve).run();
}

}  // namespace chorus::synth::exact
