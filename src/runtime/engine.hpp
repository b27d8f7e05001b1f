// The engine: owns ports and running executions, makes progress, waits, notices failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/control.hpp"
#include "runtime/direct_execution.hpp"
#include "runtime/execution.hpp"
#include "runtime/wiring.hpp"

namespace chorus {

/// One started call until it is complete.
struct Job {
  Execution execution;
  DirectExecution direct;
  bool is_direct = false;  ///< which of the two runs it
  std::uint64_t sequence = 0;
  std::uint64_t part_of = 0;  ///< the number of the all_to_all_v that this message belongs to
  Call call;                  ///< for its signature
  Rank self = 0;
  std::size_t resource = 0;  ///< jobs of one resource run one after another
  std::uint64_t flight_record = 0;
  double predicted_s = 0;  ///< where what it takes is compared with it; else 0
  std::chrono::steady_clock::time_point begun = {};  ///< set where it is compared
  bool running = false;
  bool complete = false;
  std::vector<std::byte> copy;  ///< of the input, where the call needs one

  bool step() { return is_direct ? direct.step() : execution.step(); }
  [[nodiscard]] bool finished() const {
    return is_direct ? direct.finished() : execution.finished();
  }
  [[nodiscard]] Rank mismatch() const {
    return is_direct ? direct.mismatch() : execution.mismatch();
  }
  [[nodiscard]] Waiting waiting() const {
    return is_direct ? direct.waiting() : execution.waiting();
  }
  /// The call as its peers must have made it too.
  [[nodiscard]] std::string describe() const;
};

/// Runs executions over a Wiring. One thread at a time.
class Engine final : public Execution::Ports {
 public:
  Engine(Control& control, Wiring& wiring, const GroupPlace& place, const Options& options,
         const SlotLayout& layout);

  OutPort& out(Rank peer, int channel) override;
  InPort& in(Rank peer, int channel) override;

  /// Runs a prepared job, after those of the same Job::resource that were queued before.
  void enqueue(Job& job);

  /// True if nothing runs: then run_alone() may run a prepared job that needs no links.
  [[nodiscard]] bool idle_now() const { return running_.empty() && !failure_; }
  /// Runs it to its end, without queues. Throws CollectiveError.
  void run_alone(Job& job);

  /// One round over all running jobs; true if anything moved. Throws CollectiveError.
  bool progress();

  /// A call that is not complete, and who runs it.
  struct Pending {
    Engine* engine = nullptr;
    const Job* job = nullptr;
  };
  /// One round over the running jobs of several engines, each named once; if nothing moved, spins,
  /// yields, then sleeps until something can on any of them. What it blames when nothing happens
  /// for the timeout is the first. Throws CollectiveError.
  static void turn(std::span<const Pending> all);

  /// Makes progress until `done`; spins, yields, then sleeps. `waiting_for` is what to blame when
  /// nothing happens for the timeout. Throws CollectiveError naming the culprit.
  template <class Done>
  void drive_until(const Job& waiting_for, Done done) {
    while (!done()) {
      if (progress()) {
        idle_rounds_ = 0;
      } else if (!done()) {
        const Pending only{this, &waiting_for};
        idle({&only, 1});
      }
    }
    idle_rounds_ = 0;
  }

  /// What links have carried so far.
  [[nodiscard]] Traffic traffic() const;

  /// Set once the communicator has failed: every call throws this.
  [[nodiscard]] const std::optional<std::string>& failure() const { return failure_; }
  /// Looks for a verdict; throws CollectiveError if there is one.
  void check();
  /// The same, at most every few milliseconds: for callers that poll.
  void check_now_and_then();
  /// Lets another rank have this core, if ranks share cores: for callers that poll.
  void give_way() const;
  [[noreturn]] void fail(const std::string& reason);
  /// The connection to `peer` broke: fails with the coordinator's word on whose fault it is.
  [[noreturn]] void lost(Rank peer, const std::string& why);
  /// There is no memory for `what`: a call, which other ranks may have begun.
  [[noreturn]] void out_of_memory(const std::string& what);
  /// Called before the engine reports what it waits for.
  std::function<void()> on_report;
  /// Called when a job completes.
  std::function<void(const Job& job)> on_complete;
  /// Called once, with the failure and what was being waited for.
  std::function<void(const std::string& failure, const std::string& waiting)> on_failure;

 private:
  void run(Job& job);
  void complete(Job& job);
  [[nodiscard]] bool settled(bool flushed);
  void idle(std::span<const Pending> all);
  void sleep(std::span<const Pending> all);
  void look_around();
  void check_stall(std::span<const Pending> all);
  void report(const Job& job, Rank waiting_for);
  [[noreturn]] void mismatched(const Job& job);
  [[nodiscard]] std::string describe_waiting(const Job& job) const;

  Control& control_;
  Wiring& wiring_;
  const GroupPlace& place_;
  const Options& options_;
  SlotLayout layout_;
  std::vector<std::unique_ptr<OutPort>> outs_;  // [peer · data_channels + channel], null until used
  std::vector<std::unique_ptr<InPort>> ins_;
  std::vector<InPort*> in_use_;
  std::vector<std::vector<Job*>> queues_;  // by resource; the first of each runs
  std::vector<Job*> running_;
  std::vector<Link*> busy_links_;  // links of running jobs that need progress() calls
  std::optional<std::string> failure_;
  bool crowded_ = false;  // more ranks than cores on this machine: spinning only harms
  int long_waits_ = 0;    // waits still to come that yield, since one lasted long
  std::uint32_t idle_rounds_ = 0;
  std::int64_t idle_since_ns_ = 0;
  std::int64_t next_report_ns_ = 0;
  std::int64_t next_check_ns_ = 0;
};

}  // namespace chorus
