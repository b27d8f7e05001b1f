#include "model/program/abstract_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.hpp"

namespace chorus {
namespace {

/// How often `port` occurs among the first operands (sends): a message or slot for each is needed.
int occurrence(const std::vector<int>& ports, std::size_t index) {
  return static_cast<int>(std::count(ports.begin(), ports.begin() + index, ports[index]));
}

int occurrence(const std::vector<Operand>& sources, std::size_t index) {
  return static_cast<int>(
      std::count_if(sources.begin(), sources.begin() + index,
                    [&](const Operand& o) { return o.incoming == sources[index].incoming; }));
}

}  // namespace

AbstractRun::AbstractRun(std::span<const Program> programs, int slots, int tiles)
    : programs_(programs), slots_(slots), tiles_(tiles), ranks_(programs.size()) {
  connect();
}

void AbstractRun::connect() {
  for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
    const Program& program = programs_[rank];
    RankState& state = ranks_[rank];
    for (const auto& port : program.incoming) state.incoming.push_back({.peer = port.peer});
    for (const auto& port : program.outgoing) state.outgoing.push_back({.peer = port.peer});
    state.in_flight.resize(program.outgoing.size());
    state.lanes.resize(program.lanes.size());
    for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
      for (const Instruction& instruction : program.lanes[lane].instructions) {
        for (const Operand& source : instruction.sources) {
          if (source.incoming >= 0) state.incoming[source.incoming].lane = static_cast<int>(lane);
        }
        for (const int port : instruction.sends) {
          state.outgoing[port].lane = static_cast<int>(lane);
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
    for (std::size_t i = 0; i < programs_[rank].outgoing.size(); ++i) {
      ranks_[rank].outgoing[i].in_flight = &ranks_[rank].in_flight[i];
    }
  }
  std::vector<std::tuple<Rank, Rank, int, int>> incoming;  // from, to, channel, index
  for (const Program& program : programs_) {
    for (std::size_t i = 0; i < program.incoming.size(); ++i) {
      const auto& [peer, channel] = program.incoming[i];
      incoming.emplace_back(peer, program.rank, channel, static_cast<int>(i));
    }
  }
  std::sort(incoming.begin(), incoming.end());
  for (const Program& program : programs_) {
    for (std::size_t i = 0; i < program.outgoing.size(); ++i) {
      const Rank from = program.rank;
      const auto& [to, channel] = program.outgoing[i];
      const auto match =
          std::lower_bound(incoming.begin(), incoming.end(), std::tuple(from, to, channel, 0));
      CHORUS_CHECK(match != incoming.end(), "an outgoing port without its other end");
      const int far = std::get<3>(*match);
      ranks_[from].outgoing[i].far_port = far;
      ranks_[to].incoming[far].far_port = static_cast<int>(i);
      ranks_[to].incoming[far].in_flight = ranks_[from].outgoing[i].in_flight;
    }
  }
}

bool AbstractRun::finished(Rank rank, int lane) const {
  const auto length = programs_[rank].lanes[lane].instructions.size();
  return ranks_[rank].lanes[lane].position == static_cast<long long>(length) * tiles_;
}

Issue AbstractRun::next(Rank rank, int lane) const {
  const auto length = static_cast<long long>(programs_[rank].lanes[lane].instructions.size());
  const long long position = ranks_[rank].lanes[lane].position;
  return {.rank = rank,
          .lane = lane,
          .instruction = static_cast<int>(position % length),
          .tile = static_cast<int>(position / length)};
}

const Instruction& AbstractRun::at(const Issue& issue) const {
  return programs_[issue.rank].lanes[issue.lane].instructions[issue.instruction];
}

bool AbstractRun::done(Rank rank, const Dependency& dependency, int tile) const {
  const auto length = programs_[rank].lanes[dependency.lane].instructions.size();
  return ranks_[rank].lanes[dependency.lane].position >
         static_cast<long long>(length) * tile + dependency.instruction;
}

int AbstractRun::lane_behind(const Issue& issue) const {
  const Program& program = programs_[issue.rank];
  const int step = at(issue).step - kLeastRunAhead;
  if (step <= 0 || !held_to_steps(program, at(issue))) return -1;
  for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
    if (finished(issue.rank, static_cast<int>(lane))) continue;
    const Issue come_to = next(issue.rank, static_cast<int>(lane));
    if (is_behind(program.lanes[lane], come_to.tile, come_to.instruction, issue.tile, step)) {
      return come_to.lane;
    }
  }
  return -1;
}

bool AbstractRun::messages_there(const Issue& issue) const {
  const auto& sources = at(issue).sources;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].incoming < 0) continue;
    const Port& port = ranks_[issue.rank].incoming[sources[i].incoming];
    if (*port.in_flight <= occurrence(sources, i)) return false;
  }
  return true;
}

bool AbstractRun::slots_free(const Issue& issue) const {
  const auto& sends = at(issue).sends;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const Port& port = ranks_[issue.rank].outgoing[sends[i]];
    if (*port.in_flight + occurrence(sends, i) >= slots_) return false;
  }
  return true;
}

bool AbstractRun::can_issue(const Issue& issue) {
  for (const Dependency& dependency : at(issue).after) {
    if (done(issue.rank, dependency, issue.tile)) continue;
    ranks_[issue.rank].lanes[dependency.lane].waiters.push_back(issue.lane);
    return false;
  }
  if (const int behind = lane_behind(issue); behind >= 0) {
    ranks_[issue.rank].lanes[behind].waiters.push_back(issue.lane);
    return false;
  }
  return messages_there(issue) && slots_free(issue);
}

void AbstractRun::wake(Rank rank, int lane) {
  LaneState& state = ranks_[rank].lanes[lane];
  if (std::exchange(state.queued, true)) return;
  queue_.emplace_back(rank, lane);
}

void AbstractRun::issue(const Issue& issue) {
  for (const Operand& source : at(issue).sources) {
    if (source.incoming < 0) continue;
    const Port& port = ranks_[issue.rank].incoming[source.incoming];
    --*port.in_flight;
    wake(port.peer, ranks_[port.peer].outgoing[port.far_port].lane);
  }
  for (const int send : at(issue).sends) {
    const Port& port = ranks_[issue.rank].outgoing[send];
    ++*port.in_flight;
    const int lane = ranks_[port.peer].incoming[port.far_port].lane;
    if (lane >= 0) wake(port.peer, lane);
  }
  LaneState& lane = ranks_[issue.rank].lanes[issue.lane];
  ++lane.position;
  for (const int waiter : std::exchange(lane.waiters, {})) wake(issue.rank, waiter);
}

void AbstractRun::run(const std::function<void(const Issue&)>& visit) {
  for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
    for (std::size_t lane = 0; lane < programs_[rank].lanes.size(); ++lane) {
      wake(static_cast<Rank>(rank), static_cast<int>(lane));
    }
  }
  // Breadth first, so that no port runs ahead for long and the queues of messages stay short.
  for (std::vector<std::pair<Rank, int>> round; !queue_.empty();) {
    round.clear();
    std::swap(round, queue_);
    for (const auto& [rank, lane] : round) {
      ranks_[rank].lanes[lane].queued = false;
      while (!finished(rank, lane)) {
        const Issue now = next(rank, lane);
        if (!can_issue(now)) break;
        issue(now);
        visit(now);
      }
    }
  }
}

std::vector<Issue> AbstractRun::stuck() const {
  std::vector<Issue> result;
  for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
    for (std::size_t lane = 0; lane < programs_[rank].lanes.size(); ++lane) {
      const auto [r, l] = std::pair(static_cast<Rank>(rank), static_cast<int>(lane));
      if (!finished(r, l)) result.push_back(next(r, l));
    }
  }
  return result;
}

std::string AbstractRun::obstacle(const Issue& issue) const {
  for (const Dependency& dependency : at(issue).after) {
    if (done(issue.rank, dependency, issue.tile)) continue;
    return fmt::format("its lane {} instruction {}", dependency.lane, dependency.instruction);
  }
  if (const int behind = lane_behind(issue); behind >= 0) {
    return fmt::format("its lane {} instruction {}, of an earlier step", behind,
                       next(issue.rank, behind).instruction);
  }
  const auto& sources = at(issue).sources;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].incoming < 0) continue;
    const Port& port = ranks_[issue.rank].incoming[sources[i].incoming];
    if (*port.in_flight > occurrence(sources, i)) continue;
    return fmt::format("a message from rank {} on channel {} (lane {} there)", port.peer,
                       programs_[issue.rank].incoming[sources[i].incoming].channel,
                       ranks_[port.peer].outgoing[port.far_port].lane);
  }
  for (const int send : at(issue).sends) {
    const Port& port = ranks_[issue.rank].outgoing[send];
    if (*port.in_flight < slots_) continue;
    return fmt::format("a free slot to rank {} on channel {} (lane {} there)", port.peer,
                       programs_[issue.rank].outgoing[send].channel,
                       ranks_[port.peer].incoming[port.far_port].lane);
  }
  return "more messages or slots of one port than can be in flight";
}

int AbstractRun::pending(Rank rank, int port) const { return ranks_[rank].in_flight[port]; }

int AbstractRun::far_end_of_outgoing(Rank rank, int port) const {
  return ranks_[rank].outgoing[port].far_port;
}

int AbstractRun::far_end_of_incoming(Rank rank, int port) const {
  return ranks_[rank].incoming[port].far_port;
}

}  // namespace chorus
