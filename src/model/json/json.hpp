// Versioned JSON of Topology, Schedule, Program and Plan (formats: docs/formats.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "chorus/plan.hpp"
#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/program/program.hpp"

namespace chorus {

/// The newest format this build writes; it reads this and all earlier ones.
inline constexpr int kFormatVersion = 1;

/// Indented text that ends in a newline. Same value, same bytes; from_json gives it back equal.
[[nodiscard]] std::string to_json(const Topology& topology);
[[nodiscard]] std::string to_json(const Schedule& schedule);
[[nodiscard]] std::string to_json(std::span<const Program> programs);
[[nodiscard]] std::string to_json(const Plan& plan);

/// The same text piece by piece, where the whole would not fit into memory beside the schedule.
void write_json(const Schedule& schedule, const std::function<void(std::string_view)>& take);

/// `where` (a file name) begins every message. Throws InputError with line and column or the path
/// of the offending member, and the remedy; a file of a later version is refused by name. What
/// comes back is well formed: every index in range, every figure finite.
[[nodiscard]] Topology topology_from_json(std::string_view text, std::string_view where);
[[nodiscard]] Schedule schedule_from_json(std::string_view text, std::string_view where);
[[nodiscard]] Plan plan_from_json(std::string_view text, std::string_view where);

/// 16 hex digits that are equal for equal topologies (provenance and details left out) and plans.
[[nodiscard]] std::string fingerprint(const Topology& topology);
[[nodiscard]] std::string fingerprint(const Plan& plan);

/// In which way `other` is not `topology`, as a clause: ranks, nodes, the first link that is
/// missing or whose figures differ. "nothing" if their fingerprints are equal.
[[nodiscard]] std::string difference(const Topology& topology, const Topology& other);

/// What any wiring stays below: an hour, and a byte per second. Sums and products of figures stay
/// finite.
inline constexpr double kMostLinkSeconds = 3600;
inline constexpr double kMostLinkSecondsPerByte = 1;

/// First way in which a topology contradicts itself, as a sentence; nothing if sound.
[[nodiscard]] std::optional<std::string> malformed(const Topology& topology);

/// `topology`, which was made from what `where` says. Throws InputError if it is malformed(). Every
/// reader of files, names and machines returns through here, because all other code takes the
/// indices of a topology for granted.
[[nodiscard]] Topology sound(Topology topology, std::string_view where);

}  // namespace chorus
