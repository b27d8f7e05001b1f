// Runs the programs of all ranks against each other without data. For model/ only.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/program/program.hpp"

namespace chorus {

/// First way in which a program of the set refers to something that is not there; nothing if all
/// is in place: index = rank, ranges within buffers, each port in one lane and known to its peer.
[[nodiscard]] std::optional<std::string> malformed(std::span<const Program> programs);

/// One execution of one instruction.
struct Issue {
  Rank rank = 0;
  int lane = 0;
  int instruction = 0;
  int tile = 0;
};

/// How far the lanes of all ranks come with `slots` messages in flight per port.
///
/// The order of issue does not matter for how far: an instruction that can issue stays able to, as
/// each port belongs to one lane at either end. So one run shows every deadlock; and since nothing
/// in a tile waits for a later tile, one tile does too.
class AbstractRun {
 public:
  /// `programs` must be well formed and outlive the run.
  AbstractRun(std::span<const Program> programs, int slots, int tiles);

  /// Issues what can be issued until nothing can; `visit` sees each once, messages having been
  /// taken from and put into ports in this order.
  void run(const std::function<void(const Issue&)>& visit);

  /// First instruction that could not issue, per stuck lane.
  [[nodiscard]] std::vector<Issue> stuck() const;
  /// What it waits for: "a message from rank 3 on channel 0 (lane 1 instruction 2 there)".
  [[nodiscard]] std::string obstacle(const Issue& issue) const;
  /// Messages on the outgoing `port` of `rank` that nobody took.
  [[nodiscard]] int pending(Rank rank, int port) const;

  /// Index of the peer's incoming (outgoing) port at the other end.
  [[nodiscard]] int far_end_of_outgoing(Rank rank, int port) const;
  [[nodiscard]] int far_end_of_incoming(Rank rank, int port) const;

 private:
  struct Port {
    Rank peer = 0;
    int far_port = 0;
    int lane = -1;
    int* in_flight = nullptr;
  };
  struct LaneState {
    long long position = 0;  // instructions issued, all tiles
    bool queued = false;
    std::vector<int> waiters;  // lanes of the same rank
  };
  struct RankState {
    std::vector<Port> incoming;
    std::vector<Port> outgoing;
    std::vector<int> in_flight;  // [outgoing]: messages sent and not taken
    std::vector<LaneState> lanes;
  };

  void connect();
  [[nodiscard]] bool done(Rank rank, const Dependency& dependency, int tile) const;
  [[nodiscard]] bool finished(Rank rank, int lane) const;
  [[nodiscard]] Issue next(Rank rank, int lane) const;
  [[nodiscard]] const Instruction& at(const Issue& issue) const;
  /// The first lane that `issue` is held back for (held_to_steps), or -1.
  [[nodiscard]] int lane_behind(const Issue& issue) const;
  bool can_issue(const Issue& issue);
  [[nodiscard]] bool messages_there(const Issue& issue) const;
  [[nodiscard]] bool slots_free(const Issue& issue) const;
  void issue(const Issue& issue);
  void wake(Rank rank, int lane);

  std::span<const Program> programs_;
  int slots_;
  int tiles_;
  std::vector<RankState> ranks_;
  std::vector<std::pair<Rank, int>> queue_;
};

}  // namespace chorus
