#include "trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace chorus::campaign {

const char* name_of(Phase phase) {
  static constexpr const char* kNames[kNumPhases] = {"join", "collectives", "split", "shrink",
                                                     "grow", "take_in",     "leave"};
  return kNames[static_cast<int>(phase)];
}

const char* name_of(Fault fault) {
  static constexpr const char* kNames[kNumFaults] = {
      "a rank killed",       "two killed",       "stopped",        "control cut",
      "data connection cut", "coordinator lost", "launcher killed"};
  return kNames[static_cast<int>(fault)];
}

std::vector<Rank> Trial::lost() const {
  switch (fault) {
    case Fault::kill:
    case Fault::stop:
    case Fault::cut_control:
      return {victim};
    case Fault::kill_two:
      return {victim, second};
    default:
      return {};
  }
}

std::string Trial::text() const {
  static constexpr const char* kPlaces[] = {"in rank 0", "elsewhere", "in the launcher"};
  return fmt::format("{} (rank {}) of {} over {}{}{}, coordinator {}: in {} after {} us",
                     name_of(fault),
                     fault == Fault::kill_two ? fmt::format("{} and {}", victim, second)
                                              : fmt::format("{}", victim),
                     world_size, transport == Transport::shm ? "shm" : "tcp",
                     relayed ? " by relay" : "", finishes ? ", survivors finish" : "",
                     kPlaces[static_cast<int>(place)], name_of(phase), after_us);
}

Trial draw(std::uint64_t seed, int number) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(number));
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  Trial trial;
  trial.world_size = 2 + below(5);
  trial.transport = below(2) == 0 ? Transport::shm : Transport::tcp;
  trial.phase = static_cast<Phase>(below(kNumPhases));
  const int place = below(6);
  trial.place = place < 3 ? Place::rank_zero : place < 5 ? Place::elsewhere : Place::launcher;
  trial.relayed = below(4) == 0;
  // Half of them hit the process that holds the coordinator, or would under mpirun.
  trial.victim = below(2) == 0 ? 0 : below(trial.processes());
  trial.second = (trial.victim + 1 + below(trial.world_size - 1)) % trial.world_size;
  trial.which = static_cast<std::uint32_t>(below(1'000));
  trial.after_us = below(30'000);
  const int kind = below(20);
  const bool works = trial.phase != Phase::join && trial.phase != Phase::leave;
  const bool is_ranks = trial.victim < trial.world_size;
  if (kind < 3 && works && is_ranks && trial.world_size > 3) trial.fault = Fault::kill_two;
  if (kind == 3 && works) trial.fault = Fault::stop;
  if (kind >= 4 && kind < 7 && is_ranks) trial.fault = Fault::cut_control;
  const bool calls = trial.phase == Phase::collectives || trial.phase == Phase::split;
  const bool has_data = trial.transport == Transport::tcp && calls;
  if (kind >= 7 && kind < 10 && has_data) trial.fault = Fault::cut_data;
  // Whoever waits to be taken in waits where the coordinator was.
  const bool may_lose = trial.place == Place::elsewhere && works && trial.phase != Phase::take_in;
  if (kind >= 10 && kind < 15 && may_lose) trial.fault = Fault::lose_coordinator;
  if (kind >= 10 && kind < 15 && trial.place == Place::launcher) {
    trial.fault = Fault::lose_launcher;
  }
  const bool may_finish = trial.phase == Phase::collectives && trial.fault <= Fault::cut_control;
  trial.finishes = may_finish && trial.fault != Fault::stop && below(2) == 0;
  return trial;
}

}  // namespace chorus::campaign
