// The machine a measurement was taken on, and who else used it meanwhile.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace chorus::perf {

/// What a reader must know to judge a figure. No host names.
struct Machine {
  std::string cpu;     ///< model name
  int cpus = 0;        ///< usable by this process
  std::string memory;  ///< "24 GB"
  std::string kernel;  ///< release
  std::string system;  ///< distribution
  std::string tcp_congestion_control;

  bool operator==(const Machine&) const = default;
};

[[nodiscard]] Machine this_machine();
/// Now, as "2025-01-31T12:34:56Z".
[[nodiscard]] std::string utc_now();

/// Shares of the machine's CPU time while blocks ran, each [0, 1].
struct Load {
  double idle = 0;
  /// Used by neither us nor the measured processes, and time the hypervisor gave to others.
  double others = 0;
};

/// CPU time of all CPUs, of which `ours` was used by us and the measured processes.
struct Ticks {
  std::int64_t total = 0, idle = 0, ours = 0;
};

/// Adds up over any number of intervals who used the CPUs (/proc/stat, /proc/PID/stat; a tick is
/// 10 ms, so short intervals only tell something together).
class LoadMeter {
 public:
  /// `measured`: the processes whose use is not that of others.
  void begin(std::vector<pid_t> measured);
  void end() { add(lap()); }
  /// What there was since begin(), without adding it up.
  [[nodiscard]] Ticks lap() const;
  void add(const Ticks& ticks);
  [[nodiscard]] Load load() const;

 private:
  [[nodiscard]] Ticks now() const;

  std::vector<pid_t> measured_;
  Ticks begin_, sum_;
};

/// Load from others above which a row is flagged.
inline constexpr double kDisturbedShare = 0.10;

}  // namespace chorus::perf
