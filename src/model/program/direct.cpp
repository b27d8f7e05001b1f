#include "model/program/direct.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/replay.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

/// The contract functions ask for a Schedule; its steps do not matter to them.
Schedule without_steps(const DirectProgram& program) {
  return {.name = program.name,
          .collective = program.collective,
          .world_size = program.world_size,
          .num_chunks = program.num_chunks,
          .steps = {}};
}

/// Who finishes one chunk for each rank: the rank that folds (or copies) it.
class Finishers {
 public:
  explicit Finishers(const Schedule& schedule)
      : schedule_(schedule),
        combining_(is_combining(schedule.collective.kind)),
        contributions_(static_cast<std::size_t>(schedule.world_size)),
        finisher_(contributions_.size(), kNobody) {}

  /// False if something of the chunk is relayed.
  bool run(ChunkId chunk, std::span<TimedTransfer> transfers) {
    const auto relayed = for_each_step(
        transfers, [&](std::span<const TimedTransfer> step) { return play(chunk, step); });
    return !relayed && complete(chunk);
  }

  [[nodiscard]] Rank of(Rank rank) const { return finisher_[static_cast<std::size_t>(rank)]; }

  /// For the next chunk.
  void forget() {
    for (const Rank rank : touched_) {
      contributions_[static_cast<std::size_t>(rank)] = 0;
      finisher_[static_cast<std::size_t>(rank)] = kNobody;
    }
    touched_.clear();
  }

 private:
  static constexpr Rank kNobody = -1;

  /// Nothing, or a mark that the chunk is relayed. A step reads what the steps before it left.
  std::optional<std::string> play(ChunkId chunk, std::span<const TimedTransfer> step) {
    std::optional<std::string> relayed("relayed");
    const int all_others = schedule_.world_size - 1;
    for (const TimedTransfer& t : step) {
      const int held = contributions_[static_cast<std::size_t>(t.src)];
      if (t.action == Action::reduce) {
        if (held > 0) return relayed;  // a partial sum
        continue;
      }
      const bool finished = combining_ ? held == all_others : starts_at(schedule_, chunk, t.src);
      if (!finished || of(t.dst) != kNobody) return relayed;
      finisher_[static_cast<std::size_t>(t.dst)] = combining_ ? t.src : t.dst;
      touched_.push_back(t.dst);
    }
    for (const TimedTransfer& t : step) {
      if (t.action != Action::reduce) continue;
      ++contributions_[static_cast<std::size_t>(t.dst)];
      touched_.push_back(t.dst);
    }
    return std::nullopt;
  }

  /// Who receives nothing finishes the chunk itself: it holds it, or has folded it from all.
  bool complete(ChunkId chunk) {
    const Rank one = destination_of(schedule_, chunk);
    const Rank end = one < 0 ? schedule_.world_size : one + 1;
    for (Rank rank = std::max(one, 0); rank < end; ++rank) {
      if (of(rank) != kNobody) continue;
      finisher_[static_cast<std::size_t>(rank)] = rank;
      touched_.push_back(rank);
      if (combining_ &&
          contributions_[static_cast<std::size_t>(rank)] != schedule_.world_size - 1) {
        return false;
      }
    }
    return true;
  }

  const Schedule& schedule_;
  bool combining_;
  std::vector<int> contributions_;  // reduced into each rank's so far
  std::vector<Rank> finisher_;
  std::vector<Rank> touched_;
};

Move move_of(const Schedule& schedule, ChunkId chunk) {
  Move move{.chunk = chunk, .count = 1, .sources = {}, .destinations = {}};
  const Rank one = origin(schedule, chunk);
  const Rank end = one < 0 ? schedule.world_size : one + 1;
  for (Rank rank = std::max(one, 0); rank < end; ++rank) {
    move.sources.push_back({rank, input_index(schedule, chunk, rank)});
  }
  return move;
}

/// True if `next` goes on where `move` ends, everywhere, and in the same block.
bool continues(const Move& move, const Move& next, int chunks_per_block) {
  const auto after = [&](const std::vector<Place>& a, const std::vector<Place>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](Place x, Place y) {
      return x.rank == y.rank && x.index + move.count == y.index;
    });
  };
  return move.chunk / chunks_per_block == next.chunk / chunks_per_block &&
         move.chunk + move.count == next.chunk && after(move.sources, next.sources) &&
         after(move.destinations, next.destinations);
}

/// Marks the ranks whose input of `chunk` is read by a rank that does not write their output of it.
void mark_copies_in_place(const Schedule& schedule, const std::map<Rank, Move>& moves,
                          const Finishers& finishers, std::vector<DirectProgram>& programs) {
  for (const auto& [by, move] : moves) {
    for (const Place& place : move.sources) {
      if (!aliased_in_place(schedule, move.chunk, place.rank)) continue;
      const Rank writer = finishers.of(place.rank);
      if (writer >= 0 && writer != by) {
        programs[static_cast<std::size_t>(place.rank)].copy_in_place = true;
      }
    }
  }
}

}  // namespace

std::optional<std::vector<DirectProgram>> direct(const Schedule& schedule) {
  if (!schedule.symmetry.empty()) return direct(expanded(schedule));
  const int n = schedule.world_size;
  const int k = schedule.num_chunks / num_blocks(schedule.collective.kind, n);
  std::vector<DirectProgram> programs;
  for (Rank rank = 0; rank < n; ++rank) {
    programs.push_back({.name = schedule.name,
                        .collective = schedule.collective,
                        .world_size = n,
                        .rank = rank,
                        .num_chunks = schedule.num_chunks,
                        .moves = {},
                        .copy_in_place = false});
  }
  ByChunk transfers(schedule);
  Finishers finishers(schedule);
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    if (!finishers.run(chunk, transfers.of(chunk))) return std::nullopt;
    std::map<Rank, Move> moves;
    const Rank one = destination_of(schedule, chunk);
    const Rank end = one < 0 ? n : one + 1;
    for (Rank rank = std::max(one, 0); rank < end; ++rank) {
      const auto [it, is_new] = moves.try_emplace(finishers.of(rank));
      if (is_new) it->second = move_of(schedule, chunk);
      it->second.destinations.push_back({rank, output_index(schedule, chunk, rank)});
    }
    mark_copies_in_place(schedule, moves, finishers, programs);
    for (auto& [by, move] : moves) {
      auto& list = programs[static_cast<std::size_t>(by)].moves;
      if (!list.empty() && continues(list.back(), move, k)) {
        ++list.back().count;
      } else {
        list.push_back(std::move(move));
      }
    }
    finishers.forget();
  }
  return programs;
}

std::optional<std::string> first_fault(std::span<const DirectProgram> programs) {
  if (programs.empty()) return "there are no programs";
  const Schedule schedule = without_steps(programs[0]);
  if (auto fault = malformed(schedule)) return fault;
  if (programs.size() != static_cast<std::size_t>(schedule.world_size)) {
    return fmt::format("{} for {}", counted(static_cast<long long>(programs.size()), "program"),
                       counted(schedule.world_size, "rank"));
  }
  // By chunk where one rank wants it, else by rank and chunk.
  const bool one_destination = destination_of(schedule, 0) >= 0;
  const auto chunks = static_cast<std::size_t>(schedule.num_chunks);
  std::vector<std::uint8_t> written(one_destination ? chunks : programs.size() * chunks);
  const auto place_of = [&](Rank rank, ChunkId chunk) -> std::uint8_t& {
    return written[(one_destination ? 0 : static_cast<std::size_t>(rank) * chunks) +
                   static_cast<std::size_t>(chunk)];
  };
  for (const DirectProgram& program : programs) {
    for (const Move& move : program.moves) {
      for (ChunkId chunk = move.chunk; chunk < move.chunk + move.count; ++chunk) {
        if (chunk < 0 || chunk >= schedule.num_chunks) {
          return fmt::format("rank {} moves chunk {}, which does not exist", program.rank, chunk);
        }
        const Move right = move_of(schedule, chunk);
        std::vector<Place> sources = move.sources;
        for (Place& place : sources) place.index += chunk - move.chunk;
        if (sources != right.sources) {
          return fmt::format("rank {} does not fold every contribution to chunk {} once",
                             program.rank, chunk);
        }
        for (const Place& place : move.destinations) {
          if (place.rank < 0 || place.rank >= schedule.world_size ||
              !wanted_at(schedule, chunk, place.rank) ||
              place.index + chunk - move.chunk != output_index(schedule, chunk, place.rank)) {
            return fmt::format("rank {} stores chunk {} where rank {} does not want it",
                               program.rank, chunk, place.rank);
          }
          if (std::exchange(place_of(place.rank, chunk), 1) != 0) {
            return fmt::format("chunk {} is stored twice at rank {}", chunk, place.rank);
          }
        }
      }
    }
  }
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    const Rank one = destination_of(schedule, chunk);
    const Rank end = one < 0 ? schedule.world_size : one + 1;
    for (Rank rank = std::max(one, 0); rank < end; ++rank) {
      if (place_of(rank, chunk) == 0) {
        return fmt::format("no rank stores chunk {} at rank {}", chunk, rank);
      }
    }
  }
  return std::nullopt;
}

}  // namespace chorus
