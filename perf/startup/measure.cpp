#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "perf/cpu_time.hpp"
#include "perf/startup/startup.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage);
}

/// Memory that no other process shares, as the kernel counts it.
double private_bytes() {
  const std::string text = read_file("/proc/self/smaps_rollup");
  double kib = 0;
  for (const std::string_view field : {"Private_Clean:", "Private_Dirty:"}) {
    const std::size_t at = text.find(field);
    if (at == text.npos) throw Error(fmt::format("/proc/self/smaps_rollup has no {}", field));
    kib += std::strtod(text.c_str() + at + field.size(), nullptr);
  }
  return kib * 1024;
}

double open_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) throw Error("/proc/self/fd cannot be read");
  int entries = 0;
  while (::readdir(folder.get()) != nullptr) ++entries;
  return entries - 3;  // ".", ".." and the folder's own
}

/// The first calls, each timed.
class FirstCalls {
 public:
  explicit FirstCalls(RankCost& cost, Clock::time_point began) : cost_(cost), from_(began) {}

  void done(std::size_t which) {
    const double cpu = cpu_now();
    cost_.wall_s[which] = std::chrono::duration<double>(Clock::now() - from_).count();
    cost_.cpu_s[which] = cpu - cpu_;
    from_ = Clock::now();
    cpu_ = cpu_now();
  }
  void expect(bool right) { cost_.wrong += right ? 0 : 1; }
  /// Checking takes nobody's time.
  void go_on() {
    from_ = Clock::now();
    cpu_ = cpu_now();
  }

 private:
  RankCost& cost_;
  Clock::time_point from_;
  double cpu_ = 0;
};

void first_calls(Communicator& communicator, FirstCalls& calls) {
  const int n = communicator.world_size();
  const int me = communicator.rank();
  const auto size = static_cast<std::size_t>(n);
  std::vector<int> all(size), sent(size), got(size), sum = {me};
  calls.go_on();
  communicator.barrier();
  calls.done(1);

  communicator.all_reduce<int>(sum);
  calls.done(2);
  calls.expect(sum[0] == n * (n - 1) / 2);

  calls.go_on();
  communicator.all_gather<int>(std::vector<int>{me}, all);
  calls.done(3);
  for (int r = 0; r < n; ++r) {
    calls.expect(all[static_cast<std::size_t>(r)] == r);
    sent[static_cast<std::size_t>(r)] = n * me + r;
  }

  calls.go_on();
  communicator.all_to_all<int>(sent, got);
  calls.done(4);
  for (int r = 0; r < n; ++r) calls.expect(got[static_cast<std::size_t>(r)] == n * r + me);
}

}  // namespace

StartupRow measure_startup(Clock::time_point began) {
  RankCost cost;
  FirstCalls calls(cost, began);
  Communicator communicator = Communicator::join();
  calls.done(0);
  first_calls(communicator, calls);
  cost.private_bytes = private_bytes();
  cost.descriptors = open_descriptors();

  std::vector<RankCost> costs(
      communicator.rank() == 0 ? static_cast<std::size_t>(communicator.world_size()) : 0);
  constexpr std::size_t kFields = sizeof(RankCost) / sizeof(double);
  communicator.gather<double>({reinterpret_cast<const double*>(&cost), kFields},
                              {reinterpret_cast<double*>(costs.data()), costs.size() * kFields}, 0);
  return costs.empty() ? StartupRow{} : summary(costs);
}

}  // namespace chorus::perf
