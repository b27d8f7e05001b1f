#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "perf/selection/selection.hpp"
#include "runtime/host/assumed_topology.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMoreTakes = 3;
// Until the kernel has given each rank a core of its own.
constexpr double kWarmUpS = 0.3;

struct Candidate {
  Schedule schedule;
  double predicted_s = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What a collective of a whole size means for one rank's buffers, of 32-bit integers.
class Buffers {
 public:
  Buffers(CollectiveKind kind, std::uint64_t size_bytes, int ranks, Rank rank) : kind_(kind) {
    const auto blocks = static_cast<std::size_t>(num_blocks(kind, ranks) == 1 ? 1 : ranks);
    count_ = std::max<std::size_t>(1, size_bytes / sizeof(std::int32_t) / blocks);
    const Collective collective{.kind = kind};
    in_.resize(count_ * static_cast<std::size_t>(input_blocks(collective, ranks, rank)));
    out_.resize(count_ * static_cast<std::size_t>(output_blocks(collective, ranks, rank)));
    fill(rank);
  }

  void fill(Rank rank) {
    for (std::size_t i = 0; i < in_.size(); ++i) {
      in_[i] = static_cast<std::int32_t>(i % 1009) + 31 * rank;
    }
    std::fill(out_.begin(), out_.end(), -1);
    if (kind_ == CollectiveKind::broadcast && rank == 0) {
      for (std::size_t i = 0; i < out_.size(); ++i) out_[i] = static_cast<std::int32_t>(i % 997);
    }
  }

  [[nodiscard]] Call call() {
    const bool broadcast = kind_ == CollectiveKind::broadcast;
    return {.kind = static_cast<Call::Kind>(kind_),
            .input = broadcast ? out_.data() : in_.data(),
            .output = out_.data(),
            .count = count_,
            .type = DataType::int32};
  }
  [[nodiscard]] const std::vector<std::int32_t>& out() const { return out_; }

 private:
  CollectiveKind kind_;
  std::size_t count_ = 0;
  std::vector<std::int32_t> in_, out_;
};

class Bench {
 public:
  explicit Bench(Communicator::Impl& communicator) : c_(communicator) {}

  void run(const Call& call) {
    c_.launch(call, jobs_);
    c_.finish(jobs_);
  }

  void use(const Schedule& schedule) {
    Plan plan;
    plan.world_size = static_cast<int>(c_.place.members.size());
    plan.entries.push_back({.min_bytes = 0,
                            .max_bytes = std::numeric_limits<std::uint64_t>::max(),
                            .schedule = schedule});
    c_.use(plan);
  }

  // The slowest rank's figure, on every rank.
  double slowest(double mine) {
    double all = 0;
    run({.kind = Call::Kind::all_reduce,
         .input = &mine,
         .output = &all,
         .count = 1,
         .type = DataType::float64,
         .reduction = {ReduceOp::max}});
    return all;
  }

  void warm_up(double seconds) {
    const auto start = Clock::now();
    while (slowest(seconds_since(start)) < seconds) run({.kind = Call::Kind::barrier});
  }

  // Median over iterations; as many as fit, the same number on all ranks.
  double time(const Call& call, double seconds) {
    run(call);
    const auto start = Clock::now();
    run(call);
    const double once = slowest(seconds_since(start));
    const int iterations = std::clamp(static_cast<int>(seconds / std::max(once, 1e-7)), 5, 400);
    std::vector<double> times;
    for (int i = 0; i < iterations; ++i) {
      run({.kind = Call::Kind::barrier});
      const auto begin = Clock::now();
      run(call);
      times.push_back(seconds_since(begin));
    }
    std::nth_element(times.begin(), times.begin() + iterations / 2, times.end());
    return slowest(times[static_cast<std::size_t>(iterations) / 2]);
  }

 private:
  Communicator::Impl& c_;
  std::vector<Job*> jobs_;
};

// What could run: the entries of the plan, whatever sizes they are meant for, and the classic
// schedules; by name, the first of each.
std::vector<Candidate> candidates(const Considered& considered, const Topology& topology,
                                  CollectiveKind kind, const std::vector<int>& levels) {
  std::vector<Candidate> found;
  const auto add = [&](Schedule schedule) {
    const bool known = std::any_of(found.begin(), found.end(), [&](const Candidate& other) {
      return other.schedule == schedule;
    });
    if (!known) found.push_back({std::move(schedule), 0});
  };
  for (const PlanEntry& entry : considered.entries) add(entry.schedule);
  const AlgorithmInput input{.kind = kind, .world_size = topology.world_size(), .levels = levels};
  for (const Algorithm& algorithm : algorithms()) {
    if (!algorithm.why_not(input)) add(algorithm.make(input));
  }
  return found;
}

}  // namespace

const Contender& Point::fastest() const {
  return *std::min_element(
      contenders.begin(), contenders.end(),
      [](const Contender& a, const Contender& b) { return a.measured_s < b.measured_s; });
}

double Point::regret() const {
  return contenders.empty() ? 0 : contenders[0].measured_s / fastest().measured_s - 1;
}

double share_of_errors(const std::vector<Point>& points, double tolerated) {
  const auto wrong = std::count_if(points.begin(), points.end(),
                                   [&](const Point& point) { return point.regret() > tolerated; });
  return points.empty() ? 0 : static_cast<double>(wrong) / static_cast<double>(points.size());
}

std::vector<Point> measure(
    Communicator::Impl& communicator, const Grid& grid,
    const std::function<void(int done, int total, std::string_view what)>& progress) {
  const int ranks = static_cast<int>(communicator.place.members.size());
  const Topology topology = communicator.selector->topology();
  const Routes routes(topology);
  const std::vector<int> levels = levels_of(communicator.connections->members());
  const Plan original = communicator.selector->plan();
  Bench bench(communicator);
  bench.warm_up(kWarmUpS);
  std::vector<Point> points;
  const auto total = static_cast<int>(grid.kinds.size() * grid.sizes.size());
  int done = -1;
  for (const CollectiveKind kind : grid.kinds) {
    communicator.use(original);
    const Considered considered = communicator.selector->considered(kind);
    const std::vector<Candidate> all = candidates(considered, topology, kind, levels);
    for (const std::uint64_t size : grid.sizes) {
      ++done;
      Point point{.kind = kind, .size_bytes = size, .chosen = {}, .contenders = {}};
      const auto entry = std::find_if(
          considered.entries.begin(), considered.entries.end(),
          [&](const PlanEntry& e) { return size >= e.min_bytes && size <= e.max_bytes; });
      if (entry == considered.entries.end()) continue;
      point.chosen = entry->schedule.name;
      const auto predicted = [&](const Schedule& schedule) {
        for (const chorus::Candidate& priced : considered.candidates) {
          const bool direct = communicator.shared_machine && priced.why_not.empty();
          if (direct && priced.name == schedule.name) {
            return priced.price.seconds(static_cast<double>(size));
          }
        }
        return simulate(schedule, topology, routes, static_cast<double>(size)).seconds;
      };
      std::vector<Candidate> order = {{entry->schedule, predicted(entry->schedule)}};
      for (const Candidate& candidate : all) {
        if (candidate.schedule == entry->schedule) continue;
        const double seconds = predicted(candidate.schedule);
        if (seconds <= grid.hopeless * order[0].predicted_s) {
          order.push_back({candidate.schedule, seconds});
        }
      }
      std::vector<std::int32_t> expected;
      for (const Candidate& candidate : order) {
        progress(done, total,
                 fmt::format("{} of {} bytes: {}", name_of(kind), size, candidate.schedule.name));
        bench.use(candidate.schedule);
        Buffers buffers(kind, size, ranks, communicator.place.rank);
        bench.run(buffers.call());
        if (expected.empty()) expected = buffers.out();
        if (buffers.out() != expected) {
          throw CollectiveError(
              fmt::format("rank {}: '{}' of {} bytes gives another result than '{}'",
                          communicator.place.rank, candidate.schedule.name, size, point.chosen));
        }
        point.contenders.push_back({candidate.schedule.name, candidate.predicted_s,
                                    bench.time(buffers.call(), grid.seconds_per_contender)});
      }
      // Again, in turn: what looked like an error may have been somebody else's work.
      for (int take = 0; take < kMoreTakes && point.regret() > 0.05; ++take) {
        for (std::size_t i = 0; i < order.size(); ++i) {
          bench.use(order[i].schedule);
          Buffers buffers(kind, size, ranks, communicator.place.rank);
          point.contenders[i].measured_s =
              std::min(point.contenders[i].measured_s,
                       bench.time(buffers.call(), grid.seconds_per_contender));
        }
      }
      points.push_back(std::move(point));
    }
  }
  communicator.use(original);
  return points;
}

}  // namespace chorus::perf
