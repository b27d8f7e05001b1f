// Which schedule a call on GPU memory takes: the plan's, or the one that is cheapest on the wiring
// of the GPUs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "runtime/selection.hpp"

namespace chorus {

/// Where the GPUs of a communicator's ranks are.
struct GpuPlaces {
  std::vector<int> host;      ///< by rank; hosts are numbered by their first rank
  std::vector<bool> reaches;  ///< [a · ranks + b]: the two reach each other's memory

  [[nodiscard]] int num_hosts() const;
  [[nodiscard]] bool all_reach() const;
};

/// The GPUs' wiring: GPUs of a host that all reach each other around one switch, others behind
/// their host, hosts joined as `communicator` (a topology of the same ranks) says. If that has the
/// ranks on GPUs, somebody described them: it is returned as it is.
[[nodiscard]] Topology gpu_topology(const GpuPlaces& places, const Topology& communicator);

/// AlgorithmInput::levels: hosts of equally many GPUs, ranks numbered host by host; else empty.
[[nodiscard]] std::vector<int> gpu_levels(const GpuPlaces& places);

/// Chooses by kind and size, the same on all ranks.
class DeviceChoice {
 public:
  /// `one_shot_bytes`: not by cost, but one step for at most so many bytes times ranks, and two for
  /// more.
  DeviceChoice(Plan plan, const GpuPlaces& places, const Topology& communicator,
               const Options& options, std::optional<std::uint64_t> one_shot_bytes);

  struct Chosen {
    const Schedule* schedule;
    int index;  ///< the same for all sizes that take this schedule of this kind
  };
  /// `size_bytes` counted as PlanEntry does. Throws SynthesisError if nothing serves.
  [[nodiscard]] Chosen choose(CollectiveKind kind, std::uint64_t size_bytes);
  /// The schedule of this name, of the plan or of algorithms(). Throws InputError if there is none
  /// or it does not serve.
  [[nodiscard]] Schedule by_name(CollectiveKind kind, std::string_view name) const;
  /// What runs for this, and why not something else.
  [[nodiscard]] std::string explain(CollectiveKind kind, std::uint64_t size_bytes);

 private:
  [[nodiscard]] const Considered& considered(CollectiveKind kind);
  [[nodiscard]] Considered by_threshold(CollectiveKind kind) const;

  Plan plan_;
  Topology topology_;
  std::vector<int> levels_;
  bool all_reach_;
  Options options_;
  std::optional<std::uint64_t> one_shot_bytes_;
  std::optional<Routes> routes_;  ///< of topology_, once they are needed
  std::map<CollectiveKind, Considered> considered_;
};

}  // namespace chorus
