// rails-campaign CLUSTER FAULTS SEED [FILE]: cables that fail at random under a job, one after the
// other, and what that did to its calls. Writes a record to FILE.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "faults.hpp"
#include "perf/commit.hpp"
#include "perf/report/machine.hpp"

namespace chorus::perf {
namespace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Event {
  Fault fault = Fault::cut;
  int host = 0;
  int network = 0;
  std::int64_t begin_us = 0;
  std::int64_t mended_us = 0;
  std::int64_t used_us = 0;  // 0: not again
  double stall_s = 0;
};

double at_share(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

/// What the slowest call that was under way during the fault took beyond the usual.
void find_stalls(std::vector<Event>& events, const FaultyJob& job) {
  const std::vector<Round> rounds = job.rounds_of(0);
  std::vector<double> reduce, gather, small;
  for (const Round& round : rounds) {
    reduce.push_back(static_cast<double>(round.reduce_us));
    gather.push_back(static_cast<double>(round.gather_us));
    small.push_back(static_cast<double>(round.small_us));
  }
  const double usual[] = {at_share(reduce, 0.5), at_share(gather, 0.5), at_share(small, 0.5)};
  for (Event& event : events) {
    const std::int64_t until = std::max(event.mended_us, event.used_us);
    for (const Round& round : rounds) {
      const std::int64_t end = round.begin_us + round.reduce_us + round.gather_us + round.small_us;
      if (end < event.begin_us || round.begin_us > until) continue;
      const double beyond = std::max({static_cast<double>(round.reduce_us) - usual[0],
                                      static_cast<double>(round.gather_us) - usual[1],
                                      static_cast<double>(round.small_us) - usual[2]});
      event.stall_s = std::max(event.stall_s, beyond * 1e-6);
    }
  }
}

int run(const std::string& cluster, int faults, unsigned seed, const std::string& file,
        const std::string& command) {
  std::mt19937 random(seed);
  const auto draw = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  std::vector<Event> events;
  std::string failure;
  FaultyJob job(cluster);
  try {
    for (int i = 0; i < faults; ++i) {
      Event event{.fault = kFaults[draw(static_cast<int>(std::size(kFaults)))],
                  .host = draw(job.num_hosts()),
                  .network = draw(job.num_networks())};
      while (!job.has_cable(event.host, event.network)) event.host = draw(job.num_hosts());
      const auto rounds = static_cast<std::size_t>(1 + draw(8));
      event.begin_us = now_us();
      job.inflict(event.fault, event.host, event.network);
      job.await_rounds(rounds);
      event.mended_us = now_us();
      job.mend(event.host, event.network);
      if (job.await_use(event.host, event.network, 4 << 20, 30)) event.used_us = now_us();
      events.push_back(event);
      fmt::print("{:4} {:<8} host{} {} away {:.2f} s, used again {:.2f} s later\n", i,
                 name_of(event.fault), event.host, host_interface(event.network),
                 1e-6 * static_cast<double>(event.mended_us - event.begin_us),
                 1e-6 * static_cast<double>(event.used_us - event.mended_us));
      std::fflush(stdout);
    }
    failure = job.end();
  } catch (const Error& error) {
    failure = error.what();
  }
  find_stalls(events, job);
  std::vector<double> stalls, away;
  nlohmann::json rows = nlohmann::json::array();
  std::size_t unused = 0;
  for (const Event& event : events) {
    stalls.push_back(event.stall_s);
    if (event.used_us == 0) ++unused;
    away.push_back(1e-6 * static_cast<double>(event.used_us - event.mended_us));
    rows.push_back(
        {{"fault", name_of(event.fault)},
         {"host", event.host},
         {"cable", event.network},
         {"stall_s", event.stall_s},
         {"mended_after_s", 1e-6 * static_cast<double>(event.mended_us - event.begin_us)},
         {"used_after_s", event.used_us == 0 ? -1.0 : away.back()}});
  }
  fmt::print(
      "{} faults, {} rounds of 3 calls; failed: {}; wrong elements: {}; stall median {:.3f} s, 95 "
      "% "
      "{:.3f} s, worst {:.3f} s; used again after {:.2f} s in the median, {:.2f} s at worst; not "
      "used again: {}\n",
      events.size(), job.rounds_of(0).size(), failure.empty() ? "none" : failure, job.wrong(),
      at_share(stalls, 0.5), at_share(stalls, 0.95), at_share(stalls, 1), at_share(away, 0.5),
      at_share(away, 1), unused);
  if (!file.empty()) {
    const Machine machine = this_machine();
    std::ofstream(file) << nlohmann::json{{"format", "chorus-rails-campaign"},
                                          {"command", command},
                                          {"commit", kCommit},
                                          {"cpu", machine.cpu},
                                          {"cpus", machine.cpus},
                                          {"kernel", machine.kernel},
                                          {"cluster", cluster},
                                          {"seed", seed},
                                          {"faults", rows},
                                          {"rounds", job.rounds_of(0).size()},
                                          {"failed", failure},
                                          {"wrong_elements", job.wrong()},
                                          {"stall_median_s", at_share(stalls, 0.5)},
                                          {"stall_worst_s", at_share(stalls, 1)}}
                               .dump(1)
                        << "\n";
  }
  return failure.empty() && job.wrong() == 0 && unused == 0 ? 0 : 1;
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) try {
  if (argc < 4 || argc > 5) {
    fmt::print(stderr, "rails-campaign CLUSTER FAULTS SEED [FILE]\n");
    return 2;
  }
  std::string command = "rails-campaign";
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  chorus::perf::stop_on_signals();
  return chorus::perf::run(argv[1], std::stoi(argv[2]), static_cast<unsigned>(std::stoul(argv[3])),
                           argc == 5 ? argv[4] : "", command);
} catch (const std::exception& error) {
  fmt::print(stderr, "rails-campaign: {}\n", error.what());
  return 3;
}
