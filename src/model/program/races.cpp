#include "model/program/races.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/schedule/contract.hpp"

namespace chorus {

std::string name_of(const LocalRange& range) {
  const char* buffer = range.buffer == Buffer::input    ? "input"
                       : range.buffer == Buffer::output ? "output"
                                                        : "scratch";
  return fmt::format("{}[{}]", buffer, range.index);
}

Places::Places(const Program& program, const Schedule& outline, bool in_place) {
  const auto [kind, root] = program.collective;
  const int n = program.world_size;
  const int k = program.num_chunks / num_blocks(kind, n);
  output_ = program.scratch_chunks;
  input_ = output_ + output_blocks(program.collective, n, program.rank) * k;
  input_size_ = input_blocks(program.collective, n, program.rank) * k;
  if (!in_place) return;
  // What coincides is one run: the whole buffer, or the rank's own block of one of them.
  for (int i = 0; i < input_size_; ++i) {
    const ChunkId chunk = input_chunk(outline, i, program.rank);
    if (!aliased_in_place(outline, chunk, program.rank)) continue;
    if (end_aliased_ == 0) {
      first_aliased_ = i;
      alias_ = output_index(outline, chunk, program.rank);
    }
    end_aliased_ = i + 1;
  }
}

int Places::at(const LocalRange& range) const {
  switch (range.buffer) {
    case Buffer::scratch:
      return range.index;
    case Buffer::output:
      return output_ + range.index;
    case Buffer::input:
      break;
  }
  const bool aliased = range.index >= first_aliased_ && range.index < end_aliased_;
  return aliased ? output_ + alias_ + range.index - first_aliased_ : input_ + range.index;
}

namespace {

/// What is known to have been issued before each instruction.
class HappensBefore {
 public:
  HappensBefore(const Program& program, std::span<const Dependency> order)
      : program_(program), num_lanes_(program.lanes.size()) {
    std::size_t total = 0;
    for (const Lane& lane : program.lanes) {
      first_.push_back(total);
      total += lane.instructions.size();
    }
    clocks_.resize(total * num_lanes_);
    waiters_.resize(total);
    for (const Dependency& at : order) add(at);
  }

  /// `a` was issued before `b` could be.
  [[nodiscard]] bool issued(const Dependency& a, const Dependency& b) const {
    return clock(b)[a.lane] > a.instruction;
  }

  /// `a` was done, its messages included, before `b` could be issued.
  [[nodiscard]] bool done(const Dependency& a, const Dependency& b) const {
    if (instruction(a).sends.empty()) return issued(a, b);
    const auto& waiters = waiters_[number(a)];
    return std::any_of(waiters.begin(), waiters.end(),
                       [&](const Dependency& w) { return w == b || issued(w, b); });
  }

  [[nodiscard]] const Instruction& instruction(const Dependency& at) const {
    return program_.lanes[at.lane].instructions[at.instruction];
  }

 private:
  [[nodiscard]] std::size_t number(const Dependency& at) const {
    return first_[at.lane] + at.instruction;
  }
  [[nodiscard]] std::span<const int> clock(const Dependency& at) const {
    return std::span(clocks_).subspan(number(at) * num_lanes_, num_lanes_);
  }

  void add(const Dependency& at) {
    const auto mine = std::span(clocks_).subspan(number(at) * num_lanes_, num_lanes_);
    const auto join = [&](const Dependency& other) {
      const auto theirs = clock(other);
      for (std::size_t i = 0; i < num_lanes_; ++i) mine[i] = std::max(mine[i], theirs[i]);
      mine[other.lane] = std::max(mine[other.lane], other.instruction + 1);
    };
    if (at.instruction > 0) join({at.lane, at.instruction - 1});
    for (const Dependency& dependency : instruction(at).after) {
      join(dependency);
      waiters_[number(dependency)].push_back(at);
    }
  }

  const Program& program_;
  std::size_t num_lanes_;
  std::vector<std::size_t> first_;  // [lane]: number of its first instruction
  std::vector<int> clocks_;         // [instruction · lane]: how many of the lane are known issued
  std::vector<std::vector<Dependency>> waiters_;
};

class RaceCheck {
 public:
  RaceCheck(const Program& program, const Places& places, std::span<const Dependency> order)
      : places_(places), before_(program, order), cells_(places.size()) {}

  std::optional<std::string> visit(const Dependency& at) {
    const Instruction& instruction = before_.instruction(at);
    const auto& destination = instruction.destination;
    if (destination && instruction.sources.size() == 1 &&
        instruction.sources.front().incoming < 0 &&
        places_.at(instruction.sources.front().local) == places_.at(*destination)) {
      return std::nullopt;  // a copy onto itself is left out
    }
    for (const Operand& source : instruction.sources) {
      if (source.incoming >= 0) continue;
      for (int i = 0; i < instruction.count; ++i) {
        if (auto race = read(at, {source.local.buffer, source.local.index + i})) return race;
      }
    }
    for (int i = 0; destination && i < instruction.count; ++i) {
      if (auto race = write(at, {destination->buffer, destination->index + i})) return race;
    }
    return std::nullopt;
  }

 private:
  struct Cell {
    std::optional<Dependency> writer;
    std::vector<Dependency> readers;  // since the writer
  };

  static std::string conflict(const Dependency& a, const char* does, const Dependency& b,
                              const char* also, const LocalRange& range) {
    return fmt::format(
        "lane {} instruction {} {} {} and lane {} instruction {} {} it, with no "
        "order between them",
        a.lane, a.instruction, does, name_of(range), b.lane, b.instruction, also);
  }

  std::optional<std::string> read(const Dependency& at, const LocalRange& range) {
    Cell& cell = cells_[places_.at(range)];
    if (cell.writer && !before_.issued(*cell.writer, at)) {
      return conflict(*cell.writer, "writes", at, "reads", range);
    }
    cell.readers.push_back(at);
    return std::nullopt;
  }

  /// A message may need its source until it is done: what a lone local source or a destination
  /// beside sends is.
  [[nodiscard]] bool sends_from(const Dependency& at) const {
    const Instruction& instruction = before_.instruction(at);
    return !instruction.sends.empty() && instruction.sources.size() == 1 &&
           instruction.sources.front().incoming < 0;
  }

  std::optional<std::string> write(const Dependency& at, const LocalRange& range) {
    Cell& cell = cells_[places_.at(range)];
    for (const Dependency& reader : cell.readers) {
      if (reader == at) continue;
      if (!(sends_from(reader) ? before_.done(reader, at) : before_.issued(reader, at))) {
        return conflict(reader, "reads", at, "writes", range);
      }
    }
    if (cell.writer && !before_.done(*cell.writer, at)) {
      return conflict(*cell.writer, "writes", at, "writes", range);
    }
    cell.readers.clear();
    cell.writer = at;
    return std::nullopt;
  }

  const Places& places_;
  HappensBefore before_;
  std::vector<Cell> cells_;
};

}  // namespace

std::optional<std::string> first_race(const Program& program, const Places& places,
                                      std::span<const Dependency> order) {
  RaceCheck check(program, places, order);
  for (const Dependency& at : order) {
    if (auto race = check.visit(at)) return race;
  }
  return std::nullopt;
}

}  // namespace chorus
