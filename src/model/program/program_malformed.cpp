// Whether the parts of a set of programs refer to each other as they should.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/counted.hpp"
#include "model/program/abstract_run.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using Fault = std::optional<std::string>;

/// The chunks of the collective without any transfer: what the contract functions need.
Schedule outline(const Program& program) {
  return {.name = program.name,
          .collective = program.collective,
          .world_size = program.world_size,
          .num_chunks = program.num_chunks,
          .steps = {}};
}

class ProgramParts {
 public:
  explicit ProgramParts(const Program& program) : program_(program) {
    const int k = program.num_chunks / num_blocks(program.collective.kind, program.world_size);
    input_size_ = input_blocks(program.collective, program.world_size, program.rank) * k;
    output_size_ = output_blocks(program.collective, program.world_size, program.rank) * k;
  }

  Fault check() {
    if (program_.scratch_chunks < 0)
      return fmt::format("scratch has {} places", program_.scratch_chunks);
    if (Fault fault = check_ports("incoming", program_.incoming)) return fault;
    if (Fault fault = check_ports("outgoing", program_.outgoing)) return fault;
    lane_of_incoming_.assign(program_.incoming.size(), -1);
    lane_of_outgoing_.assign(program_.outgoing.size(), -1);
    for (std::size_t lane = 0; lane < program_.lanes.size(); ++lane) {
      const auto& instructions = program_.lanes[lane].instructions;
      if (instructions.empty()) return fmt::format("lane {} is empty", lane);
      for (std::size_t i = 0; i < instructions.size(); ++i) {
        if (Fault fault = check(instructions[i], static_cast<int>(lane))) {
          return fmt::format("lane {} instruction {}: {}", lane, i, *fault);
        }
      }
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] Fault check_ports(const char* direction, const std::vector<Port>& ports) const {
    std::set<std::pair<Rank, int>> seen;
    for (const Port& port : ports) {
      if (port.peer < 0 || port.peer >= program_.world_size || port.peer == program_.rank) {
        return fmt::format("{} port of rank {}, which is not a peer", direction, port.peer);
      }
      if (port.channel < 0 || port.channel >= program_.num_channels) {
        return fmt::format("{} port on channel {}, not in [0, {})", direction, port.channel,
                           program_.num_channels);
      }
      if (!seen.insert({port.peer, port.channel}).second) {
        return fmt::format("two {} ports of rank {} on channel {}", direction, port.peer,
                           port.channel);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Fault check(const LocalRange& range, int count) const {
    const auto [name, size] = range.buffer == Buffer::input    ? std::pair("input", input_size_)
                              : range.buffer == Buffer::output ? std::pair("output", output_size_)
                              : range.buffer == Buffer::scratch
                                  ? std::pair("scratch", program_.scratch_chunks)
                                  : std::pair("unknown", 0);
    if (range.index >= 0 && range.index <= size - count) return std::nullopt;
    return fmt::format("{}[{}, {}) is not in [0, {})", name, range.index,
                       static_cast<long long>(range.index) + count, size);
  }

  static Fault claim(std::vector<int>& owner, int port, int lane, const char* direction) {
    if (port < 0 || port >= static_cast<int>(owner.size())) {
      return fmt::format("{} port {} does not exist", direction, port);
    }
    if (owner[port] != -1 && owner[port] != lane) {
      return fmt::format("{} port {} is used by lane {}, too", direction, port, owner[port]);
    }
    owner[port] = lane;
    return std::nullopt;
  }

  Fault check(const Instruction& instruction, int lane) {
    const auto& [chunk, count, sources, destination, sends, after, completes, step] = instruction;
    if (chunk < 0 || count < 1 || chunk > program_.num_chunks - count) {
      return fmt::format("chunks [{}, {}) are not in [0, {})", chunk,
                         static_cast<long long>(chunk) + count, program_.num_chunks);
    }
    if (sources.empty()) return "it has no source";
    for (const Operand& source : sources) {
      Fault fault = source.incoming == -1
                        ? check(source.local, count)
                        : claim(lane_of_incoming_, source.incoming, lane, "incoming");
      if (fault) return fault;
    }
    if (destination) {
      if (destination->buffer == Buffer::input) return "it writes to the input";
      if (Fault fault = check(*destination, count)) return fault;
    }
    for (const int port : sends) {
      if (Fault fault = claim(lane_of_outgoing_, port, lane, "outgoing")) return fault;
    }
    return check_dependencies(after);
  }

  [[nodiscard]] Fault check_dependencies(const std::vector<Dependency>& after) const {
    for (const auto& [lane, index] : after) {
      const bool there = lane >= 0 && lane < static_cast<int>(program_.lanes.size()) &&
                         index >= 0 &&
                         index < static_cast<int>(program_.lanes[lane].instructions.size());
      if (!there)
        return fmt::format("it waits for lane {} instruction {}, which is not there", lane, index);
    }
    return std::nullopt;
  }

  const Program& program_;
  int input_size_ = 0;
  int output_size_ = 0;
  std::vector<int> lane_of_incoming_;
  std::vector<int> lane_of_outgoing_;
};

/// Every outgoing port must be an incoming port of its peer, and the other way round.
Fault unmatched_ports(std::span<const Program> programs) {
  using End = std::tuple<Rank, Rank, int>;  // from, to, channel
  std::vector<End> out, in;
  for (const Program& program : programs) {
    for (const Port& port : program.outgoing) {
      out.emplace_back(program.rank, port.peer, port.channel);
    }
    for (const Port& port : program.incoming) {
      in.emplace_back(port.peer, program.rank, port.channel);
    }
  }
  std::sort(out.begin(), out.end());
  std::sort(in.begin(), in.end());
  std::vector<End> lone;
  std::set_symmetric_difference(out.begin(), out.end(), in.begin(), in.end(),
                                std::back_inserter(lone));
  if (lone.empty()) return std::nullopt;
  const auto& [from, to, channel] = lone.front();
  return fmt::format("only one end of the port from rank {} to rank {} on channel {} exists", from,
                     to, channel);
}

}  // namespace

std::optional<std::string> malformed(std::span<const Program> programs) {
  if (programs.empty()) return "there are no programs";
  const Program& first = programs.front();
  if (Fault fault = malformed(outline(first))) return fault;
  if (static_cast<int>(programs.size()) != first.world_size) {
    return fmt::format("{} for {}", counted(static_cast<long long>(programs.size()), "program"),
                       counted(first.world_size, "rank"));
  }
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const Program& program = programs[i];
    if (program.rank != static_cast<Rank>(i)) {
      return fmt::format("program {} is of rank {}", i, program.rank);
    }
    if (program.collective != first.collective || program.world_size != first.world_size ||
        program.num_chunks != first.num_chunks || program.num_channels != first.num_channels) {
      return fmt::format("the programs of ranks 0 and {} are of different collectives", i);
    }
    if (Fault fault = ProgramParts(program).check()) return fmt::format("rank {}: {}", i, *fault);
  }
  return unmatched_ports(programs);
}

}  // namespace chorus
