// What moving bytes between the cores of one machine costs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/discover/cpu_place.hpp"

namespace chorus {

/// Figures of one machine, as probe_host() measured them (docs/probing.md), or assumed.
struct HostRates {
  /// The core's own time for `bytes` that another core has just written.
  struct Sample {
    std::uint64_t bytes = 0;
    double stage_s = 0;   ///< copying them into slots, by the core that wrote them
    double fetch_s = 0;   ///< copying them out of slots that another core filled
    double kernel_s = 0;  ///< process_vm_readv(), all at once; 0: the kernel forbids it
    double mapped_s = 0;  ///< copying them from where they were written
    double together = 1;  ///< times as long a core copies its own while the other one does, too
    /// As stage_s, by stores that go past the caches, and fetch_s after that; 0: not measured.
    double stream_s = 0;
    double fetch_streamed_s = 0;

    bool operator==(const Sample&) const = default;
  };
  /// Two cores of each distance that this machine has.
  struct Pair {
    std::string distance;  ///< "siblings", "cache", "package" or "packages": what they share
    int cores[2] = {};
    double line_s = 0;            ///< until a core sees what the other one stored
    std::vector<Sample> samples;  ///< ascending bytes, at least two

    bool operator==(const Pair&) const = default;
  };

  /// Between two ranks that have a TCP connection within the machine.
  struct Loopback {
    double latency_s = 0;  ///< until what one sends has been received
    double message_s = 0;  ///< of a core, at either end, per message
    double byte_s = 0;     ///< while one sends and the other one receives

    bool operator==(const Loopback&) const = default;
  };

  std::string machine;             ///< boot id, kernel and processor; empty: assumed
  std::int64_t measured_at_s = 0;  ///< Unix time
  double turn_s = 0;               ///< until a rank that waits for the core of another one has it
  double system_call_s = 0;        ///< of one that does nothing
  double wake_s = 0;               ///< until a sleeping thread runs
  std::vector<Pair> pairs;         ///< nearest first; not empty
  std::optional<Loopback> loopback = std::nullopt;  ///< nothing: not to be had, so assumed

  [[nodiscard]] bool is_measured() const { return !machine.empty(); }
  [[nodiscard]] bool kernel_copies() const { return pairs.back().samples.back().kernel_s > 0; }

  /// Whether stores past the caches were measured.
  [[nodiscard]] bool streams() const { return pairs.back().samples.back().stream_s > 0; }

  bool operator==(const HostRates&) const = default;
};

/// Where nothing can be measured: of a processor of 2024. The kernel copies nothing.
[[nodiscard]] const HostRates& assumed_host_rates();

/// As measured, or assumed.
[[nodiscard]] const HostRates::Loopback& loopback_of(const HostRates& rates);

/// The cores that tell of this distance: the nearest that are as far apart; where none are, the
/// farthest.
[[nodiscard]] const HostRates::Pair& pair_at(const HostRates& rates, Distance distance);

/// Seconds for `bytes` between cores of this distance: lines from nothing through the samples, the
/// last one prolonged.
[[nodiscard]] double seconds(const HostRates& rates, double HostRates::Sample::*way, double bytes,
                             Distance distance = Distance::packages);
/// The same while other cores copy as much, too.
[[nodiscard]] double seconds_together(const HostRates& rates, double HostRates::Sample::*way,
                                      double bytes, Distance distance = Distance::packages);
/// Between the same cores, alone, at the size at which that is least; infinite for what the kernel
/// forbids.
[[nodiscard]] double least_seconds_per_byte(const HostRates& rates, double HostRates::Sample::*way,
                                            Distance distance = Distance::packages);

/// Format: docs/probing.md. Same value, same text.
[[nodiscard]] std::string to_json(const HostRates& rates);
/// Throws InputError beginning with `where` for anything that is not well formed.
[[nodiscard]] HostRates host_rates_from_json(std::string_view text, std::string_view where);

/// For people: a line per pair and size.
[[nodiscard]] std::string describe(const HostRates& rates);

}  // namespace chorus
