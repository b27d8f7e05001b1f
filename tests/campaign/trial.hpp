// One job to which one thing happens at a random moment, and what its ranks made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "chorus/communicator.hpp"

namespace chorus::campaign {

/// What the ranks are doing when it happens.
enum class Phase : std::uint8_t { join, collectives, split, shrink, leave };
/// What happens: a rank's process is killed; two are, one after the other; it is stopped; the
/// coordinator is lost that lived in no rank's process.
enum class Fault : std::uint8_t { kill, kill_two, stop, lose_coordinator };
/// Where the coordinator lives.
enum class Place : std::uint8_t { rank_zero, elsewhere };

struct Trial {
  int world_size = 2;
  std::string transports;
  Phase phase = Phase::join;
  Fault fault = Fault::kill;
  Place place = Place::rank_zero;
  Rank victim = 0;
  Rank second = 0;   ///< of kill_two
  int after_us = 0;  ///< all ranks have come to the phase

  [[nodiscard]] std::string text() const;
};

/// The same for the same seed and number.
[[nodiscard]] Trial draw(std::uint64_t seed, int number);

struct Result {
  std::optional<std::string> broken;  ///< the first promise that was
  double named_s = 0;  ///< until the last survivor had read who it was; 0: there was nobody to name
  double usable_s = 0;  ///< until the last survivor had the result of a call without it
};

/// Runs it in processes of its own. Nothing outlives it.
[[nodiscard]] Result run(const Trial& trial);

}  // namespace chorus::campaign
