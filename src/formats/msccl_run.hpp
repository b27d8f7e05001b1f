// In which order the steps of all threadblocks can run. For formats/ only.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/msccl_replay.hpp"

namespace chorus::formats {

/// Issues steps until none can go on. An order in which one can is as good as another: a step that
/// can issue stays able to, as each connection belongs to one threadblock at either end.
class MscclRun {
 public:
  /// Throws ProgramFault for a wait that no step ever ends. `algo` must outlive the run.
  MscclRun(const MscclAlgo& algo, std::vector<Connection> connections, int slots,
           std::string_view where);

  /// `visit` sees each step once, with the connections it takes from and puts into (-1: none) and
  /// the step that really ends its wait (or -1).
  struct Issued {
    StepRef at;
    int incoming = -1;
    int outgoing = -1;
    int waited_step = -1;
  };
  void run(const std::function<void(const Issued&)>& visit);

  [[nodiscard]] std::vector<StepRef> stuck() const;
  /// What a stuck step waits for, as a clause.
  [[nodiscard]] std::string obstacle(const StepRef& at) const;

 private:
  struct BlockState {
    int position = 0;
    int incoming = -1;
    int outgoing = -1;
    bool queued = false;
    std::vector<int> waiters;    // blocks of the same rank
    std::vector<int> signal_at;  // [step]: first step from it on that tells the others
  };

  [[nodiscard]] const MscclStep& step_of(const StepRef& at) const;
  [[nodiscard]] bool dependency_met(Rank rank, const MscclStep& step) const;
  bool advance(Rank rank, int block, const std::function<void(const Issued&)>& visit);
  void wake(Rank rank, int block);

  const MscclAlgo& algo_;
  std::vector<Connection> connections_;
  std::vector<int> in_flight_;  // [connection]
  int slots_;
  std::vector<std::vector<BlockState>> blocks_;  // [rank][block]
  std::vector<std::pair<Rank, int>> queue_;
};

}  // namespace chorus::formats
