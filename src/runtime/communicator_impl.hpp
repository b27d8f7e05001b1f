// What a Communicator is made of.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/control.hpp"
#include "runtime/drift.hpp"
#include "runtime/engine.hpp"
#include "runtime/flight_recorder.hpp"
#include "runtime/probe.hpp"
#include "runtime/selection.hpp"
#include "runtime/wiring.hpp"

namespace chorus {

struct Communicator::Impl {
  /// Joins the job that the environment names (Launch::from_env()), as all its ranks do.
  static std::unique_ptr<Impl> join(const Options& options);
  /// The same with what the environment would say; `keep_alive` lives as long as the communicator.
  static std::unique_ptr<Impl> join(const std::string& id, Rank rank, int world_size,
                                    std::shared_ptr<void> keep_alive, const Options& options);
  /// `known`: what the communicator that this one is split from knows of the network.
  Impl(std::shared_ptr<void> keep_alive, std::shared_ptr<Control> control, GroupPlace place,
       const Options& options, const Probed* known = nullptr);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Checks the call, prepares it, and runs it or queues it behind calls that use the same ports.
  /// all_to_all_v becomes several jobs.
  void launch(const Call& call, std::vector<Job*>& jobs);
  /// Runs the call to its end.
  void run(const Call& call);
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
  /// Collective: probes again and synthesizes for what is found. False where nothing was probed.
  [[nodiscard]] bool reprobe();
  /// Some ranks of this communicator, this one among them, as a communicator of their own.
  [[nodiscard]] std::unique_ptr<Impl> part(GroupPlace members) const;

  Job& prepare_collective(const Call& call);
  Job& launch_message(const Call& call, std::uint32_t salt);
  void launch_all_to_all_v(const Call& call, std::vector<Job*>& jobs);

  // Declared in the order of construction; destroyed in reverse: the wiring before the control
  // connection that watches over it.
  std::shared_ptr<void> keep_alive;  // the coordinator, where this process hosts it
  std::shared_ptr<Control> control;
  Options options;
  GroupPlace place;
  SlotLayout layout;
  std::unique_ptr<Wiring> wiring;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Selector> selector;
  std::optional<Probed> probed;  // the network, where hosts are several and nobody described it
  std::optional<Drift> drift;    // rank 0, where it was probed for this communicator
  FlightRecorder flight;
  std::string flight_name;
  int instances = 1;

  int group_depth = 0;
  std::vector<Call> group_calls;
  std::vector<Job*> blocking_jobs;  // of the blocking call under way; kept for its memory
  std::uint64_t sequence = 0;       // collectives started
  int splits = 0;
  int shrinks = 0;
  std::atomic<bool> aborted{false};  // by this rank: nobody expects a farewell
  int plans = 0;

  /// Control::exchange() among the members, during which links are kept up.
  std::vector<std::vector<std::byte>> exchange(const std::string& what,
                                               std::span<const std::byte> mine);

 private:
  [[nodiscard]] int shared_cores() const;
  Job& take_job(const Call& call, std::size_t resource);
  void give_back(std::vector<Job*>& jobs);
  void leave() noexcept;
  void report_history();
  void learn_network(const Probed* known);
  void probe(bool use_cache);
  void note_time(const Job& job);
  void choose_by(Topology topology, Plan plan);
  void prepare_input(Job& job, Work& work, const Call& call, std::size_t blocks_in,
                     std::size_t blocks_out);
  [[nodiscard]] std::shared_ptr<const Routine> message_routine(Rank peer, bool sending);

  DirectCount shared_calls_;
  std::uint32_t history_ = 0;  ///< of the collectives so far: alike on all ranks, or they differ
  std::vector<std::unique_ptr<Job>> all_jobs_;
  std::vector<Job*> free_jobs_;
  std::vector<std::shared_ptr<const Routine>> message_routines_;  // [2 · peer + sending]
  std::vector<std::uint64_t> messages_;                           // [2 · peer + sending]
};

struct Request::Impl {
  Communicator::Impl* communicator = nullptr;
  std::vector<Job*> jobs;
};

/// "[rank 0/4]", for the log.
[[nodiscard]] std::string who(const GroupPlace& place);

/// The data channel of messages from rank to rank; collectives use those before it.
[[nodiscard]] int message_channel();

/// Throws InputError, naming the argument, for a call that cannot be right on any rank.
/// `to_itself`: a rank may send to itself.
void check_call(const Call& call, Rank rank, int world_size, bool to_itself = false);

}  // namespace chorus
