// The classic schedules, by name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus {

/// What an algorithm may know about the group it is made for.
struct AlgorithmInput {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int world_size = 1;
  /// Sizes of the levels of a hierarchy from the innermost out, product = world_size: {8, 4} is 4
  /// hosts of 8 ranks, rank = host · 8 + local. Empty or one level: flat.
  std::vector<int> levels = {};
  /// Asks for a schedule whose size grows with the ranks, not with their square: one that names
  /// only what happens to the chunks of one cell (Schedule::symmetry) or has few transfers anyway.
  bool compact = false;
};

/// A way to make schedules. Rooted kinds are made for root 0.
struct Algorithm {
  std::string_view name;  ///< "ring"
  std::string_view summary;  ///< one sentence with the paper: "n−1 steps … (Patarasuk & Yuan 2009)"
  /// Why it cannot serve `input`, as a clause: "needs a power of two"; nothing if it can. A compact
  /// form that there is not is such a reason.
  std::optional<std::string> (*why_not)(const AlgorithmInput& input);
  /// A correct schedule. Call only where why_not() says nothing.
  Schedule (*make)(const AlgorithmInput& input);
  /// Folds contributions in the order of ranks (Options::deterministic allows only these).
  bool rank_order = false;
  /// Every rank exchanges messages with every other, so each keeps world_size − 1 connections.
  bool all_pairs = false;
};

/// From so many ranks on schedules are made compact, and each rank lowers its own part alone: with
/// complete lists every one of 64 ranks took 140 ms of processor time for its first nine calls,
/// with compact forms 12 ms.
inline constexpr int kCompactRanks = 33;

[[nodiscard]] std::span<const Algorithm> algorithms();
/// Throws InputError listing the known names.
[[nodiscard]] const Algorithm& algorithm(std::string_view name);

}  // namespace chorus
