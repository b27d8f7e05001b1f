// The Schedule: who sends which chunk to whom, in which order, copied or reduced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chorus/export.hpp"

namespace chorus {

/// A member of a group of ranks, [0, world_size).
using Rank = int;
/// A piece of the data of one collective, [0, Schedule::num_chunks).
using ChunkId = int;

// clang-format off
/// What a collective promises. Below, n is the world size and a "block" is what one rank
/// contributes to (or takes from) the whole; k = num_chunks / number of blocks.
///
///   kind            blocks  chunk c is                 before            afterwards
///   all_reduce      1       piece c                    all contribute    all hold the reduction
///   reduce          1       piece c                    all contribute    root holds the reduction
///   broadcast       1       piece c                    root holds        all hold
///   all_gather      n       piece c%k of block c/k     rank c/k holds    all hold
///   gather          n       piece c%k of block c/k     rank c/k holds    root holds
///   scatter         n       piece c%k of block c/k     root holds        rank c/k holds
///   reduce_scatter  n       piece c%k of block c/k     all contribute    rank c/k: reduction
///   all_to_all      n·n     piece c%k of block b=c/k,
///                           from rank b/n to rank b%n  rank b/n holds    rank b%n holds
///   barrier         1       a token (no bytes)         all contribute    all heard from all
// clang-format on
enum class CollectiveKind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
};

/// A collective and, for the rooted kinds (broadcast, reduce, gather, scatter), its root.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  Rank root = 0;

  bool operator==(const Collective&) const = default;
};

/// What the receiver does with an arriving chunk: overwrite its own copy, or reduce into it.
enum class Action : std::uint8_t { copy, reduce };

/// One chunk going from one rank to another, once.
struct Transfer {
  Rank src = 0;
  Rank dst = 0;
  ChunkId chunk = 0;
  Action action = Action::copy;

  bool operator==(const Transfer&) const = default;
};

/// Transfers that happen at the same time: each sends what its source held when the step began.
///
/// Reductions that arrive at one rank for one chunk in one step are folded, together with the
/// rank's own value, in the order of ranks: ((v₀ ⊕ v₁) ⊕ v₂) …, whoever does the folding. So a
/// one-step reduction gives the same bits on every rank.
/// Steps order transfers; they are no barrier. A rank waits only for the chunks it needs next.
using Step = std::vector<Transfer>;

/// Who sends which chunk to whom, in which order: the one value every module meets in.
///
/// synth/ and collectives/ make it; first_fault() judges it, cost() prices it, simulate() times
/// it, lower() cuts it into one Program per rank. It is plain data: no pointers, byte counts or
/// device ids, so it can be compared, printed, diffed and saved (format: docs/formats.md).
struct Schedule {
  std::string name;  ///< how it was made: "ring", "recursive_doubling", …
  Collective collective = {};
  int world_size = 0;
  int num_chunks = 0;
  std::vector<Step> steps = {};
  /// Not empty: the schedule repeats itself from cell to cell, and `steps` name only what happens
  /// to the chunks of cell 0. m₁·m₂·… cells of n/(m₁·m₂·…) consecutive ranks each; a cell's number
  /// has one digit per member, the first one least significant. The whole schedule is the images of
  /// `steps`: for each cell g, src, dst and the rank that the chunk belongs to move on by g, digit
  /// by digit, modulo m₁, m₂, …. Of all_reduce, chunk c belongs to rank c / (num_chunks/n); rooted
  /// kinds and barriers have no such form. A schedule of 16,384 ranks so takes 16,383 transfers
  /// instead of 268 million.
  std::vector<int> symmetry = {};

  bool operator==(const Schedule&) const = default;
};

/// Runs `schedule` on contribution counts instead of data. Returns the first way it breaks its
/// collective's contract, as a sentence naming step, rank and chunk; nothing if it is correct.
///
/// Counts rather than flags: a share reduced twice is wrong, and presence alone cannot show it.
[[nodiscard]] CHORUS_API std::optional<std::string> first_fault(const Schedule& schedule);

}  // namespace chorus
