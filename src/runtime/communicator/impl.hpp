// What a Communicator is made of.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/communicator/loss_agreement.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/net.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/flight_recorder.hpp"
#include "runtime/probing/drift.hpp"
#include "runtime/probing/survey.hpp"
#include "runtime/selection/planner.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus {

/// A call of a group, with its own copy of counts and offsets: those of the caller may be gone by
/// the end of the group.
struct GroupedCall {
  explicit GroupedCall(const Call& given);
  GroupedCall(GroupedCall&&) noexcept = default;

  Call call;

 private:
  std::vector<std::size_t> counts_;
};

struct Communicator::Impl {
  /// Joins the job that the environment names (Launch::from_env()), as all its ranks do.
  static std::unique_ptr<Impl> join(const Options& options);
  using InVain = std::function<std::optional<std::string>(int grace_ms)>;
  /// The same with what the environment would say; `keep_alive` lives as long as the communicator.
  /// `is_in_vain`: Control::Joining.
  static std::unique_ptr<Impl> join(const std::string& id, Rank rank, int world_size,
                                    std::shared_ptr<void> keep_alive, const Options& options,
                                    const InVain& is_in_vain = {});
  /// `survey`: of the communicator that this one is split from.
  Impl(std::shared_ptr<void> keep_alive, std::shared_ptr<Control> control, GroupPlace place,
       const Options& options, std::shared_ptr<Survey> survey = nullptr);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Checks the call, prepares it, and runs it or queues it behind calls that use the same ports.
  /// all_to_all_v becomes several jobs.
  void launch(const Call& call, std::vector<Job*>& jobs);
  /// Runs the call to its end.
  void run(const Call& call);
  /// Runs group_calls to their ends.
  void run_group();
  /// Drives all jobs to completion and gives them back.
  void finish(std::vector<Job*>& jobs);
  /// One round; true, and the jobs given back, if all are complete. A rank that computes in between
  /// keeps its core.
  [[nodiscard]] bool test(std::vector<Job*>& jobs, bool give_way);
  /// True, and the jobs given back, if all are complete.
  [[nodiscard]] bool collect(std::vector<Job*>& jobs);
  [[nodiscard]] Traffic traffic() const;
  /// Collective; the plan has been judged.
  void use(const Plan& plan);
  /// How a collective's ordinary buffers reach the ranks that share memory with this one.
  [[nodiscard]] std::string explain_buffers(const Call& call) const;
  /// Collective: probes again and synthesizes for what is found. False where nothing was probed.
  [[nodiscard]] bool reprobe();
  /// Collective: the plan that is being made begins with the next call.
  void await_plan();
  /// Whether one is being made.
  [[nodiscard]] bool is_planning() const {
    return planner && planner->state() == Planner::State::making;
  }
  /// Some ranks of this communicator, this one among them, as a communicator of their own.
  /// `timeout_ms` 0: that of this one.
  [[nodiscard]] std::unique_ptr<Impl> part(GroupPlace members, int timeout_ms = 0) const;

  /// Collective: with the processes that come to `id`, which one rank gives at least.
  [[nodiscard]] std::unique_ptr<Impl> grow(const std::string& id, int world_size,
                                           const Options& with);
  /// Collective: with `count` of those that wait where the job met.
  [[nodiscard]] std::unique_ptr<Impl> take_in(int count);
  [[nodiscard]] int num_waiting() const;
  [[nodiscard]] Options options_of_grown() const;

  /// What the survivors of a loss have agreed on.
  struct Survived {
    std::unique_ptr<Impl> smaller;
    std::vector<Rank> alive = {};  ///< its ranks, by their numbers here
    Agreed agreed = {};
    Rank holder = -1;  ///< the lowest with a whole result of the call that met it
    std::string why = {};
  };
  /// Of a loss that this rank's next call meets, as it is for others that are in that already.
  std::unique_ptr<Survived> pending;
  /// Collective among the ranks that are left: how far each was, and what becomes of the calls.
  /// Nothing if this communicator has failed for another cause than a death. Throws CollectiveError
  /// where they cannot agree: one has left.
  [[nodiscard]] std::optional<Survived> survive(CallPhase phase, const Call* call);

  Job& prepare_collective(const Call& call);
  void launch_message(const Call& call, std::vector<Job*>& jobs);
  /// Tells the others, once, that this rank makes no further call.
  void announce_end();
  /// True if a message like the last one to, or from, the same peer has been sent or received
  /// without anything to wait for. `blocking`: the caller has nothing else to do.
  [[nodiscard]] bool message_at_once(const Call& call, bool blocking);
  /// Wakes the peer of a message of the group, if it sleeps.
  void announce(const Call& call);
  void launch_all_to_all_v(const Call& call, std::vector<Job*>& jobs);
  /// True if a message of `from` is here that nothing under way takes.
  [[nodiscard]] bool has_message(Rank from);

  // Declared in the order of construction; destroyed in reverse: the connections before the control
  // connection that watches over it.
  std::shared_ptr<void> keep_alive;  // the coordinator, where this process hosts it
  std::shared_ptr<Control> control;
  Options options;
  std::string met_at;       ///< the id by which the job was started
  int joined_probe_ms = 0;  ///< Options::probe_ms as joined with: parts have 0 where nobody probed
  GroupPlace place;
  SlotLayout layout;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Selector> selector;
  /// Of the schedule that calls take in place of the selected one; empty: the selected one. See
  /// ScheduleByName.
  std::string schedule_name;
  std::optional<SharedMachine> shared_machine;  // where all ranks share memory
  // The network, where hosts are several and nobody described it. Other threads split parts from
  // this communicator meanwhile.
  std::shared_ptr<Survey> survey;
  mutable std::mutex survey_mutex;
  std::shared_ptr<Survey> next_survey;  // while a network that has changed is measured again
  std::unique_ptr<Planner> planner;     // while schedules are made beside calls
  std::optional<Drift> drift;           // rank 0, where it was probed for this communicator
  FlightRecorder flight;
  std::string flight_job;  // of the records that this rank leaves
  int instances = 1;
  bool tells_calls = false;  // each to the log

  int group_depth = 0;
  int detours = 0;  ///< > 0: calls do not simply run: within a group, or losses are to be survived
  bool survives = false;          ///< a death of others, as Options::on_loss says
  bool finishes = false;          ///< calls that a death meets, too
  std::uint64_t calls_begun = 0;  ///< of those that survivors can finish
  Losses losses;
  std::vector<GroupedCall> group_calls;
  std::vector<Job*> blocking_jobs;  // of the blocking call under way; kept for its memory
  std::uint64_t sequence = 0;       // collectives started
  int splits = 0;
  /// By the hash of the members: where a death ends a shrink(), some ranks had begun it and others
  /// had not, and all agree on how often there was one without the dead.
  std::map<std::uint64_t, int> shrinks;
  int grows = 0;
  std::atomic<bool> aborted{false};  // by this rank: nobody expects a goodbye
  bool end_announced = false;
  bool left_alone = false;           // the others have not ended it yet
  std::atomic<bool> visited{false};  // a thread is in a call (see Visit)
  int owner_generation = net::fork_generation();
  int plans = 0;
  int planners = 0;
  int surveys = 0;
  std::uint32_t changes = 0;  // of the network, so far: rank 0

  /// Control::exchange() among the members, during which links are kept up. It counts as a
  /// collective: `as` names it where others wait in another.
  Table exchange(const std::string& what, std::string_view as, std::span<const std::byte> mine);

  Request::Impl* open_requests = nullptr;  // that refer to this communicator

  /// Throws CollectiveError if this communicator has failed or was aborted by this rank,
  /// InputError after announce_end().
  void require_sound();
  /// Throws InputError in a child that was forked since: the communicator is its parent's.
  void require_own_process() const;
  [[nodiscard]] bool of_this_process() const { return owner_generation == net::fork_generation(); }

 private:
  Table meet(const std::string& what, std::span<const std::byte> mine,
             const std::function<void()>& meanwhile = {});
  [[nodiscard]] std::unique_ptr<Impl> join_grown(const std::string& id, int world_size,
                                                 const Options& with) const;
  [[nodiscard]] Survived try_to_survive(const std::vector<Rank>& lost,
                                        std::span<const std::byte> state);
  void learn_failure() noexcept;
  void launch_judged(const Call& call, std::vector<Job*>& jobs);
  Job& take_job(const Call& call, std::size_t resource);
  void give_back(std::vector<Job*>& jobs);
  void leave() noexcept;
  void report_history();
  void begin_survey(std::shared_ptr<Survey> known, bool use_cache);
  /// What the network is for the hosts of this communicator.
  struct Surveyed {
    Topology topology;
    std::shared_ptr<const NetworkDivision> division;  ///< null where one network joins all
  };
  [[nodiscard]] Surveyed described_network(Topology described, const Plan& plan) const;
  [[nodiscard]] Surveyed surveyed(const probing::ProbedNetwork& network) const;
  [[nodiscard]] Planned make_plan(const GroupPlace& as, Surveyed network,
                                  const std::shared_ptr<Survey>& awaited,
                                  const std::stop_token& stop) const;
  void begin_planning(const Topology& topology);
  void begin_planning(const std::string& key, const Topology& topology,
                      std::shared_ptr<Survey> awaited);
  void end_planning();
  void tell_change();
  void hear_of_change();
  void replan(std::uint32_t change);
  void follow_planner();
  void adopt(Planned planned);
  void connect(const Topology& described, const Plan& plan);
  void listen_to_engine();
  void learn_machines();
  void use_machine();
  void choose_first(Topology described, Plan plan, std::shared_ptr<Survey> known);
  void tell_plan(const Plan& plan, const Topology& found) const;
  void tell_begin(const Job& job, const std::string& schedule, std::uint64_t size_bytes);
  void note_time(const Job& job);
  void choose_by(Surveyed network, Plan plan);
  [[nodiscard]] std::unique_ptr<Selector> make_selector(const GroupPlace& as, Surveyed network,
                                                        Plan plan) const;
  void prepare_input(Job& job, Work& work, const Call& call, std::size_t blocks_in,
                     std::size_t blocks_out);
  struct PointToPoint;
  void launch_message(const Call& call, std::uint32_t salt, std::uint64_t part_of,
                      std::vector<Job*>& jobs);
  [[nodiscard]] PointToPoint& point_to_point(const Call& call);
  [[nodiscard]] std::size_t resource_of(const Call& message) const;
  [[nodiscard]] std::uint64_t number_of(const Call& message, std::uint64_t index) const;
  [[nodiscard]] bool move_now(const Call& call, PointToPoint& with, bool blocking);
  void join_eager_queue(const Call& call, PointToPoint& with, std::uint64_t part_of,
                        std::vector<Job*>& jobs);
  [[nodiscard]] bool run_again(const Call& call);
  [[nodiscard]] bool keep_for_next(Job& job);
  void forget_calls();

  /// A call over shared memory, as it was made before, ready for the next like it.
  struct Repeated {
    Job* job = nullptr;  ///< not in free_jobs_; null: none
    Call::Kind kind = Call::Kind::barrier;
    std::size_t count = 0;
    std::uint64_t shape = 0;  ///< shape_of()
    FlightRecorder::Label label;
  };
  [[nodiscard]] Repeated* repeated(const Call& call);

  DirectCount shared_calls_;
  std::uint32_t history_ = 0;  ///< of the collectives so far: alike on all ranks, or they differ
  std::vector<std::unique_ptr<Job>> all_jobs_;
  std::vector<Job*> free_jobs_;
  std::vector<Job*> group_jobs_;  // kept for its memory
  std::array<Repeated, 8> repeated_;
  std::size_t oldest_repeated_ = 0;

  /// Messages to a peer, or from it.
  struct PointToPoint {
    std::uint64_t messages = 0;       ///< so far
    EagerRing* eager_ring = nullptr;  ///< for the short ones; null before the first, or without one
    std::shared_ptr<const Routine> routine = nullptr;  ///< of those through slots
    // The last message: what the next one like it has in common with it.
    std::size_t count = 0;
    DataType type = DataType::uint8;
    std::uint32_t salt = 0;
    bool is_short = false;
    std::uint64_t shape = 0;  ///< shape_of()
  };
  std::vector<PointToPoint> point_to_point_;  // [2 · peer + sending]
};

/// A call that its caller has not seen complete. One that outlives its communicator is told how it
/// ended.
struct Request::Impl {
  explicit Impl(Communicator::Impl& owner);
  ~Impl() { let_go(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The communicator ends. `failure`: why calls that are not complete never will be.
  void outlive(const std::string& failure);
  /// Throws CollectiveError if the communicator ended before the call was complete.
  void require_complete() const;

  Communicator::Impl* communicator;  ///< null once it has ended
  std::vector<Job*> jobs;

 private:
  void let_go();

  std::string failure_;
  Impl* next_ = nullptr;
  Impl* previous_ = nullptr;
};

/// One thread's stay in a communicator. A second thread's is refused, as far as it is noticed
/// without making every call dearer: the two of them do not wait for each other here.
class Visit {
 public:
  explicit Visit(Communicator::Impl& communicator);
  ~Visit() { communicator_.visited.store(false, std::memory_order_relaxed); }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Communicator::Impl& communicator_;
};

/// Runs calls; where they fail by a death that the communicator survives, it goes on as the smaller
/// one, and LossError says so.
template <typename Calls>
void Communicator::survivably(const Calls& calls) {
  try {
    const Visit visit(impl());
    calls();
  } catch (const CollectiveError&) {
    go_on_or_rethrow();
  }
}

/// Moves its links forward, for peers; what breaks is told where it is used.
void keep_up(Connections& connections);

/// "[rank 0/4]", for the log.
[[nodiscard]] std::string who(const GroupPlace& place);

/// The data channel of messages from rank to rank; collectives use those before it.
[[nodiscard]] int message_channel();

/// The name of a communicator made from the one named `parent`: short however long the line of
/// ancestors, alike on all ranks, and (as far as 64 bits tell) no other's.
[[nodiscard]] std::string child_key(const std::string& parent, std::string_view suffix);

/// The same without files that describe one certain world.
[[nodiscard]] Options without_files(Options options);

/// Refuses a call of a kind that there is not, as other languages may make one.
void check_kind(const Call& call);
/// Throws InputError, naming the argument, for a call that cannot be right on any rank.
/// `on_gpu`: there a rank may send to itself, and bits are not combined.
void check_call(const Call& call, Rank rank, int world_size, bool on_gpu = false);

}  // namespace chorus
