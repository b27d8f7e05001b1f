#include "perf/worker/loop.hpp"

#include <algorithm>
#include <chrono>

#include "perf/worker/collective_data.hpp"
#include "perf/worker/point_to_point.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t ns_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count();
}

/// Warm-up iterations run until both job.warmup of them and a tenth of the budget are spent, so
/// that a short operation meets warm caches and clocks. Rank 0 decides after each batch whether
/// another follows; agreeing costs about as much as a small operation, so batches double. Returns
/// how many timed iterations fit the budget at the pace of the last batch: the mean, since on a
/// busy machine the fastest would promise far too many.
template <class Once, class Agree>
std::uint64_t warm_up(const Job& job, Once once, Agree agree) {
  const Clock::time_point start = Clock::now();
  int done = 0;
  double pace_ns = 1;
  for (int batch = std::max(1, job.warmup); batch > 0;) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < batch; ++i) once();
    pace_ns = std::max(1.0, static_cast<double>(ns_between(begin, Clock::now())) / batch);
    done += batch;
    const bool enough =
        ns_between(start, Clock::now()) >= job.budget_us * 100 || done >= job.max_iterations;
    batch = static_cast<int>(agree(enough ? 0 : static_cast<std::uint64_t>(done)));
  }
  const double fit = static_cast<double>(job.budget_us) * 1000 / pace_ns;
  const double least = std::min(job.min_iterations, job.max_iterations);
  return agree(
      static_cast<std::uint64_t>(std::clamp(fit, least, static_cast<double>(job.max_iterations))));
}

/// Runs `one` up to `iterations` times, in eight parts. After each, rank 0 may decide to stop: when
/// other work on the machine has made the block take four times its budget.
template <class One, class Agree>
void timed_loop(const Job& job, std::uint64_t iterations, One one, Agree agree) {
  const Clock::time_point start = Clock::now();
  const auto least = static_cast<std::uint64_t>(std::max(1, job.min_iterations));
  const std::uint64_t part = std::max(least, iterations / 8);
  for (std::uint64_t done = 0; done < iterations;) {
    const std::uint64_t end = std::min(iterations, done + part);
    for (; done < end; ++done) one();
    const bool go_on = ns_between(start, Clock::now()) < job.budget_us * 4000;
    if (agree(go_on ? 1 : 0) == 0) return;
  }
}

Sample measure_collective(Backend& backend, StartLine& line, const Job& job) {
  CollectiveData data(job, backend.rank(), backend.world_size(), &backend);
  Sample sample;
  sample.refused = backend.refuse(data.operation());
  if (!sample.refused.empty()) return sample;

  const auto operation = backend.prepare(data.operation());
  sample.note = backend.note();
  const auto fence = backend.prepare({.kind = Kind::barrier});
  const auto bring = [&] {
    if (job.kind != Kind::barrier) backend.bring_buffers();
  };
  const auto fetch = [&] {
    if (job.kind != Kind::barrier) backend.fetch_buffers();
  };
  const auto once = [&] {
    fence();
    line.wait_all();
    const Clock::time_point begin = Clock::now();
    operation();
    return ns_between(begin, Clock::now());
  };
  const auto checked_once = [&](std::uint32_t seed) {
    data.fill_input(seed);
    data.poison_output();
    bring();
    once();
    fence();
    fetch();
    data.check_output(seed, sample);
  };

  checked_once(job.seed);
  std::uint32_t seed = job.seed + 1;
  data.fill_input(seed);
  bring();
  const auto agree = [&](std::uint64_t mine) {
    fence();
    return line.agree_all(mine);
  };
  const std::uint64_t iterations = warm_up(job, once, agree);
  data.poison_output();
  bring();
  sample.times_ns.reserve(iterations);
  timed_loop(
      job, iterations,
      [&] {
        if (job.dirty) {
          data.fill_input(++seed);
          bring();
        }
        sample.times_ns.push_back(once());
      },
      agree);
  if (data.keeps_input() || job.dirty) {
    fetch();
    data.check_output(seed, sample);
  } else {
    checked_once(seed + 1);
  }
  return sample;
}

Sample measure_point_to_point(Backend& backend, StartLine& line, const Job& job) {
  Sample sample;
  sample.refused = backend.refuse({.kind = job.kind, .type = job.type, .count = job.count});
  if (!sample.refused.empty() || backend.rank() > 1) return sample;

  PointToPointData data(job, backend.rank());
  const auto once = [&] {
    data.drain(backend);
    line.wait_pair();
    const Clock::time_point begin = Clock::now();
    data.exchange(backend);
    return ns_between(begin, Clock::now());
  };

  data.fill_and_poison(job.seed);
  once();
  data.drain(backend);
  data.check(job.seed, sample);
  data.fill_and_poison(job.seed + 1);
  const auto agree = [&](std::uint64_t mine) {
    data.drain(backend);
    return line.agree_pair(mine);
  };
  const std::uint64_t iterations = warm_up(job, once, agree);
  data.fill_and_poison(job.seed + 2);
  std::uint32_t seed = job.seed + 2;
  timed_loop(
      job, iterations,
      [&] {
        if (job.dirty) data.fill_and_poison(++seed);
        const std::int64_t took = once();
        if (backend.rank() == 0) sample.times_ns.push_back(took);
      },
      agree);
  data.check(seed, sample);
  return sample;
}

}  // namespace

Sample measure(Backend& backend, StartLine& line, const Job& job) {
  return benchmark(job.kind).point_to_point ? measure_point_to_point(backend, line, job)
                                            : measure_collective(backend, line, job);
}

}  // namespace chorus::perf
