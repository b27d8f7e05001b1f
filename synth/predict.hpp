// What simulate() says about a schedule, for those who have a network but no topology.
#pragma once

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/cost.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Simulates on a topology in which every edge of the network is a link and every resource a port
/// group: edge for edge the same alphas, and the same sharing.
class Predictor {
 public:
  explicit Predictor(const Network& network);

  /// Seconds of `schedule`, all of whose transfers are edges of the network.
  [[nodiscard]] double seconds(const Schedule& schedule, double size_bytes) const;

 private:
  Topology topology_;
  Routes routes_;
};

}  // namespace chorus::synth
