// The engine: owns ports and running executions, makes progress, waits, notices failures.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/control/control.hpp"
#include "runtime/control/coordinator/lateness.hpp"
#include "runtime/engine/call_gate.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/engine/eager_queue.hpp"
#include "runtime/engine/wait_policy.hpp"
#include "runtime/executors/direct_execution.hpp"
#include "runtime/executors/execution.hpp"

namespace chorus {

/// One started call, or messages that were started together, until complete.
struct Job {
  enum class Way : std::uint8_t { slots, direct, eager_ring };

  Execution execution;
  DirectExecution direct;
  EagerQueue eager_queue;
  Way way = Way::slots;          ///< which of the three runs it
  EagerRing* watched = nullptr;  ///< of a message that comes by slots: where it must not come
  std::uint64_t sequence = 0;
  std::uint64_t part_of = 0;  ///< the number of the all_to_all_v that this message belongs to
  Call call;                  ///< for its signature; of several messages, the one awaited
  Rank self = 0;
  std::size_t resource = 0;  ///< jobs of one resource run one after another
  std::uint64_t flight_record = 0;
  bool timed = false;      ///< what it takes is compared with what was predicted
  bool drifts = false;     ///< and shows how the network is
  double predicted_s = 0;  ///< where it is timed
  std::chrono::steady_clock::time_point begun = {};
  bool running = false;
  bool complete = false;
  std::vector<std::byte> copy;  ///< of the input, where the call needs one

  bool step() {
    return way == Way::direct       ? direct.step()
           : way == Way::eager_ring ? step_eager_queue()
                                    : execution.step() || step_where_short();
  }
  [[nodiscard]] bool finished() const {
    return way == Way::direct       ? direct.finished()
           : way == Way::eager_ring ? eager_queue.finished()
                                    : execution.finished();
  }
  [[nodiscard]] Rank mismatch() const {
    return way == Way::direct       ? direct.mismatch()
           : way == Way::eager_ring ? eager_queue.mismatch()
           : comes_short_           ? call.peer
                                    : execution.mismatch();
  }
  [[nodiscard]] Waiting waiting() const {
    return way == Way::direct       ? direct.waiting()
           : way == Way::eager_ring ? eager_queue.waiting()
                                    : execution.waiting();
  }
  /// Makes the message that the eager queue waits for the one that this job is about.
  void name_current();
  /// The call as its peers must have made it too.
  [[nodiscard]] std::string describe() const;

 private:
  bool step_eager_queue();
  [[nodiscard]] bool step_where_short();

  bool comes_short_ = false;
};

/// Runs executions over a Connections. One thread at a time.
class Engine final : public Execution::Ports {
 public:
  Engine(Control& control, Connections& connections, const GroupPlace& place,
         const Options& options, const SlotLayout& layout);

  OutPort& out(Rank peer, int channel) override;
  InPort& in(Rank peer, int channel) override;

  /// Runs a prepared job, after those of the same Job::resource that were queued before.
  void enqueue(Job& job);

  /// True if nothing of this Job::resource is under way.
  [[nodiscard]] bool is_free(std::size_t resource) const {
    return queues_.size() <= resource || queues_[resource].empty();
  }
  /// The last job of a resource that is not free.
  [[nodiscard]] Job& last_of(std::size_t resource) { return *queues_[resource].back(); }
  /// More ranks than cores on this machine: spinning only harms.
  [[nodiscard]] bool oversubscribed() const { return wait_.oversubscribed(); }

  /// True if nothing runs: then run_alone() may run a prepared job that needs no links.
  [[nodiscard]] bool idle_now() const { return running_.empty() && leaving_.empty() && !failure_; }
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
  /// The same, at most every few milliseconds: for callers that poll, when nothing moved. What
  /// they wait for is reported as it is for those that sit in a call.
  void check_now_and_then();
  /// Something did.
  void moved_by_polling() { next_polled_report_ns_ = 0; }
  /// Whether the call that completes has been waited for long enough to look at a clock, or ran
  /// beside others.
  [[nodiscard]] bool waited() const { return waited_; }
  /// Lets another rank have this core, if ranks share cores: for callers that poll.
  void give_way() const { wait_.give_way(); }
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
  /// Is told when calls move bytes, and when collectives are complete; null: nobody.
  CallGate* gate = nullptr;

 private:
  void run(Job& job);
  void complete(Job& job);
  void free_resource(const Job& job);
  void tell_links(const Job& job, bool followed);
  [[nodiscard]] bool settled(bool flushed);
  void idle(std::span<const Pending> all);
  void sleep(std::span<const Pending> all);
  void look_around();
  void check_stall(std::span<const Pending> all);
  /// As check(), unless something has come that may be all a call waits for: true then.
  bool check_while_waiting();
  void report(const Job& job, Rank waiting_for);
  void report_polled(std::int64_t now);
  void mention(const Job& job, std::int64_t waited_ns);
  [[noreturn]] void mismatched(const Job& job);
  [[nodiscard]] std::string describe_waiting(const Job& job) const;

  Control& control_;
  Connections& connections_;
  const GroupPlace& place_;
  const Options& options_;
  SlotLayout layout_;
  std::vector<std::unique_ptr<OutPort>> outs_;  // [peer · data_channels + channel], null until used
  std::vector<std::unique_ptr<InPort>> ins_;
  std::vector<InPort*> in_use_;
  std::vector<std::vector<Job*>> queues_;  // by resource; the first of each runs
  std::vector<Job*> running_;
  std::vector<Job*> leaving_;      // finished, but for what peers wait for that is still here
  bool begun_ = false;             // jobs with everything still before them, and nothing else
  std::vector<Link*> busy_links_;  // links of running jobs that need progress() calls
  std::optional<std::string> failure_;
  WaitPolicy wait_;
  std::vector<pollfd> wake_fds_;  // of the last sleep(): kept, as calls are to allocate nothing
  std::uint32_t idle_rounds_ = 0;
  bool waited_ = true;
  std::int64_t idle_since_ns_ = 0;
  std::int64_t next_report_ns_ = 0;
  std::int64_t next_check_ns_ = 0;
  std::int64_t next_polled_report_ns_ = 0;  // 0: something has moved
  std::int64_t polled_since_ns_ = 0;
  std::size_t polled_reports_ = 0;
  Lateness lateness_;
};

}  // namespace chorus
