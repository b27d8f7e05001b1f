#include "model/direct.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "model/contract.hpp"

namespace chorus {
namespace {

using Key = std::pair<Rank, ChunkId>;

/// The contract functions ask for a Schedule; its steps do not matter to them.
Schedule without_steps(const DirectProgram& program) {
  return {.name = program.name,
          .collective = program.collective,
          .world_size = program.world_size,
          .num_chunks = program.num_chunks,
          .steps = {}};
}

/// Who finishes each chunk for each rank: (rank, chunk) -> the rank that folds (or copies) it.
/// Nothing if something is relayed.
std::optional<std::map<Key, Rank>> finishers(const Schedule& schedule) {
  const bool combining = is_combining(schedule.collective.kind);
  std::map<Key, int> contributions;  // reduced into (rank, chunk) so far
  std::map<Key, Rank> finisher;
  for (const Step& step : schedule.steps) {
    // A step reads what the steps before it left.
    const auto before = contributions;
    for (const Transfer& t : step) {
      const auto found = before.find({t.src, t.chunk});
      const int held = found == before.end() ? 0 : found->second;
      if (t.action == Action::reduce) {
        if (held > 0) return std::nullopt;  // a partial sum
        ++contributions[{t.dst, t.chunk}];
        continue;
      }
      const bool finished =
          combining ? held == schedule.world_size - 1 : starts_at(schedule, t.chunk, t.src);
      if (!finished || finisher.contains({t.dst, t.chunk})) return std::nullopt;
      finisher[{t.dst, t.chunk}] = combining ? t.src : t.dst;
    }
  }
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    for (Rank rank = 0; rank < schedule.world_size; ++rank) {
      if (!wanted_at(schedule, chunk, rank)) continue;
      const auto [it, is_new] = finisher.try_emplace({rank, chunk}, rank);
      if (!is_new || !combining) continue;
      // Not received, so folded here: from all.
      const auto own = contributions.find({rank, chunk});
      if (schedule.world_size > 1 &&
          (own == contributions.end() || own->second != schedule.world_size - 1)) {
        return std::nullopt;
      }
    }
  }
  return finisher;
}

Move move_of(const Schedule& schedule, ChunkId chunk) {
  Move move{.chunk = chunk, .count = 1, .sources = {}, .destinations = {}};
  for (Rank rank = 0; rank < schedule.world_size; ++rank) {
    if (starts_at(schedule, chunk, rank)) {
      move.sources.push_back({rank, input_index(schedule, chunk, rank)});
    }
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

void mark_copies_in_place(const Schedule& schedule, std::vector<DirectProgram>& programs) {
  std::map<Key, std::vector<Rank>> writers;  // of (rank, chunk)'s output
  for (const DirectProgram& program : programs) {
    for (const Move& move : program.moves) {
      for (const Place& place : move.destinations) {
        for (int i = 0; i < move.count; ++i) {
          writers[{place.rank, move.chunk + i}].push_back(program.rank);
        }
      }
    }
  }
  for (const DirectProgram& program : programs) {
    for (const Move& move : program.moves) {
      for (const Place& place : move.sources) {
        for (int i = 0; i < move.count; ++i) {
          if (!aliased_in_place(schedule, move.chunk + i, place.rank)) continue;
          for (const Rank writer : writers[{place.rank, move.chunk + i}]) {
            if (writer == program.rank) continue;
            programs[static_cast<std::size_t>(place.rank)].copy_in_place = true;
          }
        }
      }
    }
  }
}

}  // namespace

std::optional<std::vector<DirectProgram>> direct(const Schedule& schedule) {
  const auto finisher = finishers(schedule);
  if (!finisher) return std::nullopt;
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
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    std::map<Rank, Move> moves;
    for (Rank rank = 0; rank < n; ++rank) {
      if (!wanted_at(schedule, chunk, rank)) continue;
      const Rank by = finisher->at({rank, chunk});
      const auto it = moves.try_emplace(by, move_of(schedule, chunk)).first;
      it->second.destinations.push_back({rank, output_index(schedule, chunk, rank)});
    }
    for (auto& [by, move] : moves) {
      auto& list = programs[static_cast<std::size_t>(by)].moves;
      if (!list.empty() && continues(list.back(), move, k)) {
        ++list.back().count;
      } else {
        list.push_back(std::move(move));
      }
    }
  }
  mark_copies_in_place(schedule, programs);
  return programs;
}

std::optional<std::string> first_fault(std::span<const DirectProgram> programs) {
  if (programs.empty()) return "there are no programs";
  const Schedule schedule = without_steps(programs[0]);
  if (auto fault = malformed(schedule)) return fault;
  if (programs.size() != static_cast<std::size_t>(schedule.world_size)) {
    return fmt::format("{} programs for {} ranks", programs.size(), schedule.world_size);
  }
  std::map<Key, int> written;
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
          if (++written[{place.rank, chunk}] > 1) {
            return fmt::format("chunk {} is stored twice at rank {}", chunk, place.rank);
          }
        }
      }
    }
  }
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    for (Rank rank = 0; rank < schedule.world_size; ++rank) {
      if (wanted_at(schedule, chunk, rank) && !written.contains({rank, chunk})) {
        return fmt::format("nobody brings chunk {} to rank {}", chunk, rank);
      }
    }
  }
  return std::nullopt;
}

}  // namespace chorus
