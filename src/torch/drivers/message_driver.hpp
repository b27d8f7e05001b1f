// Runs sends and receives of one process group, all at the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "drivers/driver_threads.hpp"
#include "drivers/envelope.hpp"
#include "drivers/task.hpp"

namespace chorus_torch {

/// A receive may wait for what its peer sends only after a send of ours that has yet to come, so
/// nobody may sit in one call: all are started as they come and polled. Envelopes come in the order
/// of sending; each is for the first of the receives that wait for its tag and source, and those
/// that none waits for yet are kept. What a rank sends itself is copied at once. What the end of a
/// message brings about may wait for the future of another: then a further thread takes the
/// driver's turn.
class MessageDriver {
 public:
  using Clock = std::chrono::steady_clock;

  MessageDriver(chorus::Communicator communicator, Amend amend);
  ~MessageDriver();

  void submit(std::shared_ptr<Task> task);
  void wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit);
  void kick();
  void abort(const std::string& reason);
  /// Communicator::set_timeout_ms; messages have limits of their own besides.
  void set_timeout_ms(int timeout_ms);
  /// No further message comes from this rank, which those that wait for one are told. Those under
  /// way go on. Never blocks.
  void end();
  /// The same, and leaves the communicator, collectively, from the calling thread, when the
  /// messages under way are over.
  void leave();

 private:
  // Requests come last, so that they end before what they use.
  struct Sending {
    std::shared_ptr<Task> task;
    std::unique_ptr<Envelope> envelope;
    std::vector<chorus::Request> requests;
  };
  /// What waits for the next envelope of a peer: there is one while a receive names that peer, and
  /// when one is known to have come.
  struct Listening {
    Envelope envelope;
    chorus::Request request;
  };
  /// A message of which the envelope has come.
  struct Arriving {
    std::shared_ptr<Task> task;  ///< null: nobody has asked for it yet
    chorus::Rank source = -1;
    Envelope envelope;
    bool in_place = false;        ///< it goes straight where the task wants it
    std::vector<std::byte> kept;  ///< where it goes else, unless the envelope has it all
    bool whole = false;           ///< all of it is here
    chorus::Request request;
  };

  [[nodiscard]] bool idle() const;
  void begin_send(const std::shared_ptr<Task>& task);
  void send_to_itself(const std::shared_ptr<Task>& task, const Envelope& envelope);
  void begin_receive(const std::shared_ptr<Task>& task);
  void listen();
  void listen_to(chorus::Rank peer);
  void arrived(chorus::Rank source, const Envelope& envelope);
  void require_alike(const Task& task, const Arriving& message) const;
  void finish(Arriving& message);
  bool poll();
  bool move();
  void move_sending();
  void move_listening();
  void move_arriving();
  void check_timeouts();
  void note_progress();
  std::vector<std::shared_ptr<Task>> take_quiet();
  static void tell(Task& task);
  void fail_all(const std::string& why);
  void give_up_in_vain();
  void rest(std::unique_lock<std::mutex>& lock);
  bool work(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // of everything below
  std::condition_variable work_;
  std::vector<Sending> sending_;
  std::vector<std::shared_ptr<Task>> posted_;  // receives whose envelope has not come, in order
  std::vector<std::unique_ptr<Listening>> listening_;  // by peer
  std::vector<std::unique_ptr<Arriving>> arriving_;    // in the order of their envelopes
  std::shared_ptr<Task> blamed_;                       // what the step under way is for
  std::string aborted_;                                // why, once somebody has
  std::vector<std::shared_ptr<Task>> ended_;
  int pollers_ = 0;                           // threads in wait(): they move everything on
  bool napping_ = false;                      // the driver's thread looks by itself, soon
  Clock::time_point submitted_at_, seen_at_;  // the last message, and that at the last nap
  std::uint64_t moved_messages_ = 0;
  bool leaving_ = false;
  bool alone_ = false;  // no further thread could be had: the group has failed
  Amend amend_;
  std::optional<chorus::Communicator> communicator_;
  std::atomic<Clock::time_point> moved_at_{Clock::time_point()};  // read without it
  DriverThreads threads_;  // last; the first is made with the first message
};

}  // namespace chorus_torch
