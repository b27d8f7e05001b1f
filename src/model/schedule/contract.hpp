// What each collective promises, as data: blocks, contributors, who must hold what afterwards.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chorus/schedule.hpp"

namespace chorus {

[[nodiscard]] std::string_view name_of(CollectiveKind kind);
/// Throws InputError listing the known names.
[[nodiscard]] CollectiveKind parse_collective_kind(std::string_view name);

[[nodiscard]] bool is_rooted(CollectiveKind kind);
/// all_reduce, reduce_scatter, reduce and barrier combine contributions of all ranks.
[[nodiscard]] bool is_combining(CollectiveKind kind);

/// Blocks of a collective: 1, n or n·n (see CollectiveKind).
[[nodiscard]] int num_blocks(CollectiveKind kind, int world_size);
/// The same for one rank's input and output buffer: 1 or n. 0 where the rank has none.
[[nodiscard]] int input_blocks(Collective collective, int world_size, Rank rank);
[[nodiscard]] int output_blocks(Collective collective, int world_size, Rank rank);

/// The rank whose data the chunk is before the collective, or -1 if all ranks contribute to it.
[[nodiscard]] Rank origin(const Schedule& schedule, ChunkId chunk);
/// The one rank that must hold the finished chunk afterwards, or -1 if all ranks must.
[[nodiscard]] Rank destination_of(const Schedule& schedule, ChunkId chunk);
/// True if `rank` holds (its contribution to) `chunk` before the collective.
[[nodiscard]] bool starts_at(const Schedule& schedule, ChunkId chunk, Rank rank);
/// True if `rank` must hold the finished `chunk` afterwards.
[[nodiscard]] bool wanted_at(const Schedule& schedule, ChunkId chunk, Rank rank);
/// Index of `chunk` within `rank`'s input (output) buffer counted in chunks; -1 if not there.
[[nodiscard]] int input_index(const Schedule& schedule, ChunkId chunk, Rank rank);
[[nodiscard]] int output_index(const Schedule& schedule, ChunkId chunk, Rank rank);
/// The inverse: the chunk at `index` of `rank`'s input (output) buffer.
[[nodiscard]] ChunkId input_chunk(const Schedule& schedule, int index, Rank rank);
[[nodiscard]] ChunkId output_chunk(const Schedule& schedule, int index, Rank rank);
/// True if the in-place form keeps `rank`'s input and output of `chunk` at one address. Never for
/// all_to_all, whose in-place form reads a copy of the input; for broadcast's root always.
[[nodiscard]] bool aliased_in_place(const Schedule& schedule, ChunkId chunk, Rank rank);

/// First way in which `schedule` is not even well formed (ranks, chunks, counts out of range), as a
/// sentence; nothing if it is.
[[nodiscard]] std::optional<std::string> malformed(const Schedule& schedule);

/// The same schedule with rank r renamed (r + shift) mod n, chunks following their ranks: turns a
/// schedule for root 0 into one for root `shift`.
[[nodiscard]] Schedule rotated(const Schedule& schedule, int shift);

}  // namespace chorus
