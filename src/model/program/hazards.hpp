// What of a rank's order of instructions matters once they are cut into lanes. For model/ and
// formats/ only.
#pragma once

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

/// Which memory of one rank each instruction touches, visited in the rank's order.
///
/// Places can be told apart by chunk alone: a rank's input, output and scratch hold a chunk at most
/// once each, and in place only the input and output of the same chunk coincide. Input that has no
/// output beside it is never written and needs no care.
class Hazards {
 public:
  explicit Hazards(const Schedule& schedule) : schedule_(schedule) {}

  void begin_rank(Rank rank) {
    rank_ = rank;
    cells_.clear();
  }

  /// Items that must come before another: those whose result it reads, and those whose source or
  /// result it overwrites. May repeat.
  struct Before {
    std::vector<int> read;
    std::vector<int> overwritten;
  };

  /// For `instruction`, number `self` in the order.
  Before add(int self, const Instruction& instruction) {
    Before before;
    const bool copy = is_local_copy(instruction);
    for (ChunkId c = instruction.chunk; c < instruction.chunk + instruction.count; ++c) {
      Cell& cell = cells_[c];
      if (copy) {
        cell.copy = self;
        continue;
      }
      for (const Operand& source : instruction.sources) {
        if (source.incoming < 0) read(cell, c, self, source.local.buffer, before);
      }
      if (instruction.destination) write(cell, self, before);
    }
    return before;
  }

  static bool is_local_copy(const Instruction& instruction) {
    return instruction.destination && instruction.sends.empty() &&
           instruction.sources.size() == 1 && instruction.sources.front().incoming < 0;
  }

 private:
  struct Cell {
    int writer = -1;
    int copy = -1;  // from input to output; nothing to do in place
    std::vector<int> readers;
  };

  void read(Cell& cell, ChunkId chunk, int self, Buffer buffer, Before& before) const {
    if (buffer == Buffer::input && !aliased_in_place(schedule_, chunk, rank_)) return;
    if (cell.writer >= 0) before.read.push_back(cell.writer);
    if (cell.writer < 0 && cell.copy >= 0 && buffer == Buffer::output) {
      before.read.push_back(cell.copy);
    }
    cell.readers.push_back(self);
  }

  static void write(Cell& cell, int self, Before& before) {
    for (const int reader : cell.readers) {
      if (reader != self) before.overwritten.push_back(reader);
    }
    if (cell.writer >= 0) before.overwritten.push_back(cell.writer);
    if (cell.writer < 0 && cell.copy >= 0) before.overwritten.push_back(cell.copy);
    cell.readers.clear();
    cell.writer = self;
  }

  const Schedule& schedule_;
  Rank rank_ = 0;
  std::unordered_map<ChunkId, Cell> cells_;  // of chunks that the rank touches
};

/// Turns conflicts into what has to be waited for beyond the order within lanes.
///
/// In its own lane an earlier instruction has read its sources and stored its result, but its
/// messages may still need either, if they are sent from there. What is known to have been issued
/// because of other dependencies is left out.
class Dependencies {
 public:
  explicit Dependencies(std::size_t num_lanes)
      : length_(num_lanes), known_(num_lanes <= kMostLanes ? num_lanes : 0) {}

  /// For the next item of the order, which goes to `lane`.
  std::vector<Dependency> add(int lane, const Instruction& instruction,
                              const Hazards::Before& before) {
    std::vector<std::pair<int, bool>> needed;  // which, and whether its messages matter
    for (const int i : before.read) needed.emplace_back(i, false);
    for (const int i : before.overwritten) needed.emplace_back(i, holds_[i]);
    std::sort(needed.begin(), needed.end(), std::greater<>());
    needed.erase(std::unique(needed.begin(), needed.end(),
                             [](const auto& a, const auto& b) { return a.first == b.first; }),
                 needed.end());
    std::vector<int> clock = latest(lane);
    std::vector<Dependency> result;
    for (const auto& [i, messages_matter] : needed) {
      const Dependency& place = place_[i];
      const bool issued =
          place.lane == lane || (!clock.empty() && clock[place.lane] > place.instruction);
      if (issued && !messages_matter) continue;
      result.push_back(place);
      join(clock, i);
    }
    std::reverse(result.begin(), result.end());
    const bool from_memory = instruction.destination || (instruction.sources.size() == 1 &&
                                                         instruction.sources.front().incoming < 0);
    holds_.push_back(from_memory && !instruction.sends.empty());
    place_.push_back({lane, length_[lane]++});
    if (!known_.empty()) {
      clock[lane] = length_[lane];
      known_[lane] = clock;
      clocks_.push_back(std::move(clock));
    }
    return result;
  }

 private:
  // Clocks of all instructions take lanes² at least: worth it where lanes are few.
  static constexpr std::size_t kMostLanes = 64;

  [[nodiscard]] std::vector<int> latest(int lane) const {
    if (known_.empty()) return {};
    return known_[lane].empty() ? std::vector<int>(known_.size()) : known_[lane];
  }

  void join(std::vector<int>& clock, int item) const {
    for (std::size_t i = 0; i < clock.size(); ++i) {
      clock[i] = std::max(clock[i], clocks_[item][i]);
    }
  }

  std::vector<int> length_;               // [lane]
  std::vector<Dependency> place_;         // [item]
  std::vector<char> holds_;               // [item]: its messages are sent from memory
  std::vector<std::vector<int>> clocks_;  // [item][lane]: how many are issued once it is
  std::vector<std::vector<int>> known_;   // [lane]: clock of its latest item
};

}  // namespace chorus
