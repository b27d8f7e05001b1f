#include "formats/msccl_run.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace chorus::formats {

std::string describe(const MscclAlgo& algo, const StepRef& at, std::string_view where) {
  const MscclStep& step = algo.gpus[at.rank].blocks[at.block].steps[at.step];
  return fmt::format("{}:{}: rank {} threadblock {} step {} ({})", where, step.line, at.rank,
                     at.block, at.step, name_of(step.type));
}

namespace {

/// The steps of one end of a connection, and the threadblock they are in.
struct End {
  int block = -1;
  std::vector<StepRef> steps;
};

struct Ends {
  End sender;
  End receiver;
};

using Key = std::tuple<Rank, Rank, int>;  // src, dst, channel

class StepWiring {
 public:
  StepWiring(const MscclAlgo& algo, std::string_view where) : algo_(algo), where_(where) {}

  std::vector<Connection> connections() {
    for (Rank rank = 0; rank < static_cast<Rank>(algo_.gpus.size()); ++rank) {
      const auto& blocks = algo_.gpus[rank].blocks;
      for (int b = 0; b < static_cast<int>(blocks.size()); ++b) add(rank, b);
    }
    std::vector<Connection> result;
    for (const auto& [key, ends] : ends_) {
      const auto [src, dst, channel] = key;
      check(key, ends);
      result.push_back({src, dst, channel, ends.sender.block, ends.receiver.block});
    }
    return result;
  }

 private:
  void add(Rank rank, int b) {
    const MscclBlock& block = algo_.gpus[rank].blocks[b];
    for (int s = 0; s < static_cast<int>(block.steps.size()); ++s) {
      const StepRef at{rank, b, s};
      const MscclStep& step = block.steps[s];
      if (sends(step.type)) {
        add(ends_[{rank, block.send, block.channel}].sender, at, "sends to", block.send);
      }
      if (receives(step.type)) {
        add(ends_[{block.receive, rank, block.channel}].receiver, at, "receives from",
            block.receive);
      }
    }
  }

  void add(End& end, const StepRef& at, const char* does, Rank peer) {
    if (end.block >= 0 && end.block != at.block) {
      throw ProgramFault(fmt::format(
          "{} {} rank {} on channel {}, as threadblock {} does: messages of a connection keep "
          "their order only within one threadblock",
          describe(algo_, at, where_), does, peer, algo_.gpus[at.rank].blocks[at.block].channel,
          end.block));
    }
    end.block = at.block;
    end.steps.push_back(at);
  }

  void check(const Key& key, const Ends& ends) const {
    const auto [src, dst, channel] = key;
    const auto& sent = ends.sender.steps;
    const auto& received = ends.receiver.steps;
    for (std::size_t i = 0; i < std::max(sent.size(), received.size()); ++i) {
      if (i >= received.size()) {
        throw ProgramFault(
            fmt::format("{} sends message {} to rank {} on channel {}, where rank {} receives {}",
                        describe(algo_, sent[i], where_), i, dst, channel, dst, received.size()));
      }
      if (i >= sent.size()) {
        throw ProgramFault(
            fmt::format("{} receives message {} from rank {} on channel {}, where rank {} sends {}",
                        describe(algo_, received[i], where_), i, src, channel, src, sent.size()));
      }
      const int out = count(sent[i]);
      const int in = count(received[i]);
      if (out == in) continue;
      throw ProgramFault(fmt::format("{} takes {} chunks, but {} sends {}",
                                     describe(algo_, received[i], where_), in,
                                     describe(algo_, sent[i], where_), out));
    }
  }

  [[nodiscard]] int count(const StepRef& at) const {
    return algo_.gpus[at.rank].blocks[at.block].steps[at.step].count;
  }

  const MscclAlgo& algo_;
  std::string_view where_;
  std::map<Key, Ends> ends_;
};

}  // namespace

std::vector<Connection> connections(const MscclAlgo& algo, std::string_view where) {
  return StepWiring(algo, where).connections();
}

MscclRun::MscclRun(const MscclAlgo& algo, std::vector<Connection> connections, int slots,
                   std::string_view where)
    : algo_(algo),
      connections_(std::move(connections)),
      in_flight_(connections_.size()),
      slots_(slots),
      blocks_(algo.gpus.size()) {
  for (std::size_t rank = 0; rank < algo.gpus.size(); ++rank) {
    const auto& blocks = algo.gpus[rank].blocks;
    blocks_[rank].resize(blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      auto& signal_at = blocks_[rank][b].signal_at;
      signal_at.assign(blocks[b].steps.size(), -1);
      int next = -1;
      for (std::size_t s = blocks[b].steps.size(); s-- > 0;) {
        if (blocks[b].steps[s].awaited) next = static_cast<int>(s);
        signal_at[s] = next;
      }
    }
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      for (std::size_t s = 0; s < blocks[b].steps.size(); ++s) {
        const MscclStep& step = blocks[b].steps[s];
        if (step.waits_block < 0) continue;
        if (blocks_[rank][step.waits_block].signal_at[step.waits_step] >= 0) continue;
        throw ProgramFault(fmt::format(
            "{} waits forever for threadblock {} step {}: neither it nor a later step there has "
            "hasdep=\"1\"",
            describe(algo, {static_cast<Rank>(rank), static_cast<int>(b), static_cast<int>(s)},
                     where),
            step.waits_block, step.waits_step));
      }
    }
  }
  for (std::size_t c = 0; c < connections_.size(); ++c) {
    const Connection& connection = connections_[c];
    blocks_[connection.src][connection.sender].outgoing = static_cast<int>(c);
    blocks_[connection.dst][connection.receiver].incoming = static_cast<int>(c);
  }
}

const MscclStep& MscclRun::step_of(const StepRef& at) const {
  return algo_.gpus[at.rank].blocks[at.block].steps[at.step];
}

bool MscclRun::dependency_met(Rank rank, const MscclStep& step) const {
  if (step.waits_block < 0) return true;
  const BlockState& other = blocks_[rank][step.waits_block];
  return other.position > other.signal_at[step.waits_step];
}

void MscclRun::wake(Rank rank, int block) {
  if (std::exchange(blocks_[rank][block].queued, true)) return;
  queue_.emplace_back(rank, block);
}

bool MscclRun::advance(Rank rank, int block, const std::function<void(const Issued&)>& visit) {
  BlockState& state = blocks_[rank][block];
  const auto& steps = algo_.gpus[rank].blocks[block].steps;
  if (state.position == static_cast<int>(steps.size())) return false;
  const MscclStep& step = steps[state.position];
  if (!dependency_met(rank, step)) {
    blocks_[rank][step.waits_block].waiters.push_back(block);
    return false;
  }
  Issued issued{.at = {rank, block, state.position}};
  if (receives(step.type)) issued.incoming = state.incoming;
  if (sends(step.type)) issued.outgoing = state.outgoing;
  if (issued.incoming >= 0 && in_flight_[issued.incoming] == 0) return false;
  if (issued.outgoing >= 0 && slots_ > 0 && in_flight_[issued.outgoing] >= slots_) return false;
  if (step.waits_block >= 0) {
    issued.waited_step = blocks_[rank][step.waits_block].signal_at[step.waits_step];
  }
  ++state.position;
  if (issued.incoming >= 0) {
    --in_flight_[issued.incoming];
    wake(connections_[issued.incoming].src, connections_[issued.incoming].sender);
  }
  if (issued.outgoing >= 0) {
    ++in_flight_[issued.outgoing];
    wake(connections_[issued.outgoing].dst, connections_[issued.outgoing].receiver);
  }
  for (const int waiter : std::exchange(state.waiters, {})) wake(rank, waiter);
  visit(issued);
  return true;
}

void MscclRun::run(const std::function<void(const Issued&)>& visit) {
  for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
    for (std::size_t b = 0; b < blocks_[rank].size(); ++b) {
      wake(static_cast<Rank>(rank), static_cast<int>(b));
    }
  }
  for (std::vector<std::pair<Rank, int>> round; !queue_.empty();) {
    round.clear();
    std::swap(round, queue_);
    for (const auto& [rank, block] : round) {
      blocks_[rank][block].queued = false;
      while (advance(rank, block, visit)) {
      }
    }
  }
}

std::vector<StepRef> MscclRun::stuck() const {
  std::vector<StepRef> result;
  for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
    for (std::size_t b = 0; b < blocks_[rank].size(); ++b) {
      const int position = blocks_[rank][b].position;
      if (position == static_cast<int>(algo_.gpus[rank].blocks[b].steps.size())) continue;
      result.push_back({static_cast<Rank>(rank), static_cast<int>(b), position});
    }
  }
  return result;
}

std::string MscclRun::obstacle(const StepRef& at) const {
  const MscclStep& step = step_of(at);
  if (!dependency_met(at.rank, step)) {
    return fmt::format("threadblock {} step {}", step.waits_block, step.waits_step);
  }
  const BlockState& state = blocks_[at.rank][at.block];
  if (receives(step.type) && in_flight_[state.incoming] == 0) {
    const Connection& from = connections_[state.incoming];
    return fmt::format("a message from rank {} on channel {} (threadblock {} there)", from.src,
                       from.channel, from.sender);
  }
  const Connection& to = connections_[state.outgoing];
  return fmt::format("room for a message to rank {} on channel {} (threadblock {} there)", to.dst,
                     to.channel, to.receiver);
}

std::vector<StepRef> stuck(const MscclAlgo& algo, int slots) {
  MscclRun run(algo, connections(algo, algo.name), slots, algo.name);
  run.run([](const MscclRun::Issued&) {});
  return run.stuck();
}

}  // namespace chorus::formats
