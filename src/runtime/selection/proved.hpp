// A schedule proved and cut for all ranks: what every executor starts from.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/program/direct.hpp"
#include "model/program/program.hpp"

namespace chorus {

struct Proved {
  std::vector<Program> programs;                     ///< by rank
  std::optional<std::vector<DirectProgram>> direct;  ///< if asked for, and if there is one
};
/// Nothing runs unproved: neither the schedule nor what lowering made of it. `slots` messages may
/// be under way per port. Throws SynthesisError naming the first fault.
[[nodiscard]] Proved prove(const Schedule& schedule, int slots, bool wants_direct);

/// The direct form of a correct schedule, proved by itself; nothing if there is none.
[[nodiscard]] std::optional<std::vector<DirectProgram>> proved_direct(const Schedule& schedule);

/// Throws SynthesisError if the schedule is wrong.
void require_correct(const Schedule& schedule);

/// Of everything that decides what ranks do: those that run different schedules notice.
[[nodiscard]] std::uint32_t hash_of(const Schedule& schedule);

}  // namespace chorus
