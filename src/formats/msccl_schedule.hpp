// From what a replay saw to a Schedule. For formats/ only.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "formats/msccl_replay.hpp"

namespace chorus::formats {

/// That one transfer (or message) must be in an earlier step than another, or in no later one.
struct Precedence {
  int before = 0;
  int after = 0;
  bool strict = true;
};

/// The steps, from 0, each as early as can be; nothing if the precedences are circular.
[[nodiscard]] std::optional<std::vector<int>> earliest_levels(int count,
                                                              const std::vector<Precedence>& all);

/// The moves as transfers of a Schedule.
struct Versions {
  std::vector<char> live;            ///< [move]: some result depends on it
  std::vector<Action> action;        ///< [move]
  std::vector<Precedence> ordering;  ///< of live moves, by index
};

/// A Schedule keeps one value of a chunk per rank. So the values of one chunk that a rank sends on
/// or ends with are put into a row, each made from the one before by what arrives; what arrives
/// must come after all that is sent of the value it replaces.
///
/// Throws ProgramFault where a rank keeps two values side by side that cannot follow each other.
[[nodiscard]] Versions versions(const MscclAlgo& algo, const Schedule& outline, const Trace& trace,
                                std::string_view where);

/// The step of each message that the order of steps within threadblocks and their waits asks for,
/// as precedences between messages [0, messages) and further, auxiliary ones; `count` becomes how
/// many there are in all.
[[nodiscard]] std::vector<Precedence> program_order(const MscclAlgo& algo, const Trace& trace,
                                                    int& count);

}  // namespace chorus::formats
