#include "runtime/selection/proved.hpp"

#include <fmt/format.h>

#include "base/hash.hpp"
#include "chorus/error.hpp"

namespace chorus {

// Over everything that decides what a rank does.
std::uint32_t hash_of(const Schedule& schedule) {
  Fnv1a hash;
  hash.word(static_cast<std::uint64_t>(schedule.collective.kind))
      .word(static_cast<std::uint64_t>(schedule.collective.root))
      .word(static_cast<std::uint64_t>(schedule.num_chunks));
  for (const int radix : schedule.symmetry) hash.word(static_cast<std::uint64_t>(radix));
  for (const Step& step : schedule.steps) {
    hash.word(step.size());
    for (const Transfer& transfer : step) {
      hash.word(static_cast<std::uint64_t>(transfer.src) << 40 ^
                static_cast<std::uint64_t>(transfer.dst) << 20 ^
                static_cast<std::uint64_t>(transfer.chunk) << 1 ^
                static_cast<std::uint64_t>(transfer.action));
    }
  }
  return static_cast<std::uint32_t>(hash.value() ^ hash.value() >> 32);
}

void require_correct(const Schedule& schedule) {
  if (const auto fault = first_fault(schedule)) {
    throw SynthesisError(fmt::format("schedule '{}' is wrong: {}", schedule.name, *fault));
  }
}

std::optional<std::vector<DirectProgram>> proved_direct(const Schedule& schedule) {
  auto programs = direct(schedule);
  if (!programs) return std::nullopt;
  if (const auto fault = first_fault(*programs)) {
    throw SynthesisError(
        fmt::format("the direct form of '{}' is wrong: {}", schedule.name, *fault));
  }
  return programs;
}

Proved prove(const Schedule& schedule, int slots, bool wants_direct) {
  require_correct(schedule);
  Proved proved{.programs = lower(schedule), .direct = std::nullopt};
  // Lanes repeat from tile to tile; two show whether one tile can block the next. Large groups are
  // checked for one tile and one form, in seconds instead of minutes.
  const bool large = schedule.world_size > 64;
  for (const bool in_place : {false, true}) {
    if (in_place && large) continue;
    if (const auto fault = first_fault(proved.programs, slots, in_place, large ? 1 : 2)) {
      throw SynthesisError(fmt::format("schedule '{}' cannot run: {}", schedule.name, *fault));
    }
  }
  if (wants_direct) proved.direct = proved_direct(schedule);
  return proved;
}

}  // namespace chorus
