// One job to which one thing happens at a random moment, and what its ranks made of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus::campaign {

/// What the ranks are doing when it happens. In grow and take_in a process that has left the job
/// comes to it over and over: by an id that is handed to it, or by waiting where the job met.
enum class Phase : std::uint8_t { join, collectives, split, shrink, grow, take_in, leave };
constexpr int kNumPhases = 7;
/// What happens: a rank's process is killed; two are, one after the other; it is stopped; its
/// connection to the coordinator, or one to another rank, is cut, though its process lives; the
/// coordinator is lost that lived in no rank's process; the launcher is killed.
enum class Fault : std::uint8_t {
  kill,
  kill_two,
  stop,
  cut_control,
  cut_data,
  lose_coordinator,
  lose_launcher
};
constexpr int kNumFaults = 7;
/// Where the coordinator lives; `launcher`: that of `chorus run`, which starts the ranks.
enum class Place : std::uint8_t { rank_zero, elsewhere, launcher };
enum class Transport : std::uint8_t { shm, tcp };

constexpr int kMaxRanks = 8;

/// Plain data, which processes hand each other in memory.
struct Trial {
  int world_size = 2;
  Transport transport = Transport::shm;
  Phase phase = Phase::join;
  Fault fault = Fault::kill;
  Place place = Place::rank_zero;
  bool finishes = false;    ///< Options::on_loss "finish", else "error"
  bool relayed = false;     ///< a relay carries the ranks' connections, as in large worlds
  Rank victim = 0;          ///< `world_size`: the process that comes (grow, take_in)
  Rank second = 0;          ///< of kill_two
  std::uint32_t which = 0;  ///< of the victim's connections (cut_data)
  int after_us = 0;         ///< all ranks have come to the phase

  [[nodiscard]] bool grows() const { return phase == Phase::grow || phase == Phase::take_in; }
  /// Ranks, and the process that comes.
  [[nodiscard]] int processes() const { return world_size + (grows() ? 1 : 0); }
  [[nodiscard]] bool cuts() const {
    return fault == Fault::cut_control || fault == Fault::cut_data;
  }
  /// Who is not there any more afterwards.
  [[nodiscard]] std::vector<Rank> lost() const;
  [[nodiscard]] std::string text() const;
};

[[nodiscard]] const char* name_of(Phase phase);
[[nodiscard]] const char* name_of(Fault fault);

/// The same for the same seed and number.
[[nodiscard]] Trial draw(std::uint64_t seed, int number);

struct Result {
  std::optional<std::string> broken;  ///< the first promise that was
  double named_s = 0;  ///< until the last survivor had read who it was; 0: there was nobody to name
  double usable_s = 0;  ///< until the last survivor had the result of a call without it
};

/// Runs it in processes of its own, of which it is the only one that forks. Nothing outlives it.
[[nodiscard]] Result run(const Trial& trial);

/// Runs the trials of the numbers [first, end), `jobs` at once, and hands over each as it ends;
/// until `goes_on` says no, those that have begun to their ends.
void run_all(
    const std::function<Trial(int number)>& trial_of, int first, int end, int jobs,
    const std::function<void(int number, const Trial&, const Result&)>& ended,
    const std::function<bool()>& goes_on = [] { return true; },
    const std::function<bool(const Trial&)>& wanted = [](const Trial&) { return true; });

}  // namespace chorus::campaign
