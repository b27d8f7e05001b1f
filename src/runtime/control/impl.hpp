// What a Control holds. Private to this folder.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/control/control.hpp"
#include "runtime/control/meet.hpp"
#include "runtime/control/net.hpp"
#include "runtime/control/relay.hpp"
#include "runtime/control/wire.hpp"

namespace chorus {

struct Control::Impl {
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Death : wire::Death {
    std::uint64_t order = 0;  ///< among all deaths and verdicts
  };
  struct Verdict {
    std::string sentence;
    std::uint64_t order;
  };
  struct Group {
    std::vector<Rank> members;
    std::optional<std::string> verdict = {};
    bool by_death = false;  ///< that verdict
    std::uint64_t status_call = 0;
    std::string status = {};  ///< who is missing in status_call
    bool speaks = false;      ///< this rank is the one that logs it
    std::vector<Note> notes = {};
    std::map<Rank, std::uint64_t> notes_heard = {};  ///< number of the last, by whom
    // What this rank said and a successor of the coordinator has to hear again.
    wire::Frame last_call = {};     ///< `waiting` of the last collective that it reported
    wire::Frame last_message = {};  ///< the same of a message, if that came later
    wire::Frame ending = {}, aborting = {};
    std::vector<wire::Frame> claims = {};
    std::deque<wire::Frame> notes_said = {};  ///< the latest
    bool is_aside = false;                    ///< its failure is no reason to leave
  };
  struct Exchange {
    std::optional<Table> blobs;
    std::optional<Verdict> failure;
    std::optional<std::string> missing;  ///< answer to a query
    wire::Frame asked;                   ///< what this rank gave
  };
  /// An exchange whose result this rank has, and others may have missed.
  struct Finished {
    std::uint64_t number;  ///< of the result
    wire::Frame asked;
    std::shared_ptr<const void> owner;  ///< of the result
    std::span<const std::byte> result;  ///< as the coordinator told it
  };

  /// A group that this rank has left and others have not yet.
  struct Parting {
    std::string group;
    std::vector<Rank> members;
    std::function<void()> keep_up;  ///< owns what the others may still need
    int timeout_ms;
    Time deadline;
  };

  Impl() = default;
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Set by join(), constant afterwards.
  net::Socket polled;  ///< an epoll instance: readable when there is something to read
  net::Socket nudge;   ///< in it: what was to be read has been, by another thread
  std::atomic<bool> nudged{false};
  int owner_generation = net::fork_generation();
  Rank rank = 0;
  int world_size = 1;
  bool taken_in = false;  ///< by a job that had begun
  Secret secret;
  std::string address;      ///< of this end
  std::string coordinator;  ///< its address
  int most_direct = 0;      ///< join()
  OwnAddresses own_addresses;
  bool by_relay = false;  ///< a relay of this host carries the connection

  std::mutex mutex;                 ///< guards what follows, and reading and writing the socket
  std::string host_text;            ///< the coordinator's process, "pid 12 on host"
  bool launcher = false;            ///< it lives in a launcher
  bool hosting = false;             ///< it lives in this process
  std::vector<wire::Place> places;  ///< of the coordinator: all that are known
  net::Socket socket;               ///< none while there is no connection
  wire::Inbox inbox{wire::kMaxHandshake};
  wire::Outbox outbox;
  Rank host_rank = -1;  ///< lives in the coordinator's process; known once all have joined
  bool joined = false;
  bool host_left = false;
  std::optional<std::string> join_failure;
  std::optional<std::string> join_missing;
  bool join_speaks = false;                 ///< this rank is the one that logs who is missing
  std::string join_refusals;                ///< who was refused meanwhile, or empty
  std::uint64_t began_us = 0;               ///< unix time of this joining, alike on all ranks
  std::optional<std::string> expelled;      ///< why the coordinator disconnects this rank
  std::optional<std::string> disconnected;  ///< how
  std::optional<std::string> failure;       ///< the first one here: the reason of the goodbye
  std::uint64_t next_order = 0;
  std::vector<Death> deaths;
  std::map<std::string, Group> groups;
  std::map<std::string, Verdict> early;  ///< verdicts on groups that are not open here yet
  std::map<std::string, Exchange> exchanges;
  std::vector<Parting> partings;  ///< oldest first
  std::size_t sleepers = 0;       ///< threads in sleep()
  net::Socket doorbell;           ///< what one of them reads for another, rung once for each

  // Succession: succession.cpp.
  enum class Following : std::uint8_t {
    no,
    seeking,   ///< no connection: the follower looks for a successor of the coordinator
    gathering  ///< connected to one to which not enough ranks have come yet
  };
  Following following = Following::no;
  bool newly_lost = false;  ///< the follower begins anew with the first
  wire::Loss loss = wire::Loss::closed;
  std::string next_host_text;  ///< as host_text, of the successor that ranks gather at
  std::string loss_how;        ///< of the coordinator's connection
  std::vector<wire::Successor> successors;
  std::unique_ptr<Coordinator> own_successor;  ///< ready here, or in service
  std::vector<wire::Known> roster;             ///< of all ranks, where this one is a successor
  bool goodbye_heard = false;                  ///< the goodbye was heard
  wire::Frame goodbye;                         ///< once it is said
  std::optional<std::string> last_word;        ///< why this rank has no coordinator any more
  std::pair<std::uint32_t, std::uint32_t> too_few{};  ///< came, of how many alive
  bool sent_on = false;                               ///< by the successor that it came to last
  std::uint64_t last_result = 0, last_note = 0;
  std::deque<Finished> finished;                             ///< the latest
  std::size_t finished_bytes = 0;                            ///< of their results
  std::deque<std::pair<std::string, std::string>> verdicts;  ///< the latest, of all groups
  /// The thread that notices the loss of the coordinator though this rank computes.
  struct Follower {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    std::atomic<bool> stop{false};
    net::Socket wake;
    // Its own: the successors that it goes to in turn.
    std::vector<wire::Successor> places;
    std::size_t next = 0, round = 0;
    std::string why;          ///< one refused
    bool gone_on = false;     ///< the others did, without this rank
    bool unanswered = false;  ///< the last place to which it went, where something listens
    Time decided_by;          ///< while ranks gather
    bool hurries = false;     ///< the coordinator is not yet reached by another path
    static constexpr std::chrono::milliseconds kHeartbeatEvery{1'000};
    Time beat_at;                    ///< the last heartbeat
    std::uint64_t acknowledged = 0;  ///< bytes then
    int unacknowledged = 0;          ///< heartbeats in a row since which that is no more
  };
  std::shared_ptr<Follower> follower;
  /// Of other ranks of this host, where this one was the first to look for one.
  std::unique_ptr<Relay> relay;

  /// The coordinator's, as the id names it.
  [[nodiscard]] net::Endpoint first_endpoint() const;
  /// As go_to_coordinator(), without a relay; where to go in its place if the waiting room there
  /// says so.
  std::optional<net::RoomAnswer> go_or_wait(Time deadline, int timeout_ms);
  void meet(net::Meeting&& meeting);
  /// To the coordinator, or a relay that carries the connection there; throws what keeps it away,
  /// or why it would be in vain (Joining).
  void go_to_coordinator(Time deadline, int timeout_ms, const Joining& how);
  void go_to_coordinator(Time deadline, int timeout_ms);
  /// Of this host, where others reach this process by several; `first` is the one that is known.
  [[nodiscard]] std::vector<std::string> addresses(const std::string& first) const;
  /// For those who poll fd(), afterwards: wake_pollers() has had its effect.
  void be_awake();

  // All of these with the mutex held.

  [[nodiscard]] bool has_died(Rank of) const;
  void send(const wire::Frame& frame);
  /// Sends and receives what can be without blocking.
  void pump();
  /// Takes in a message of the coordinator's. Throws wire::Malformed. `owner`: of the body, where
  /// it stays.
  void hear(wire::Type type, wire::Reader body, std::shared_ptr<const void> owner = nullptr);
  void wait_for_all(Time deadline, int timeout_ms, const Joining& how);
  void ask_for_missing(std::unique_lock<std::mutex>& lock);
  void say_goodbye(std::unique_lock<std::mutex>& lock);
  /// Whether the exchange is over; if it failed, why.
  bool settled(const Exchange& exchange, std::span<const Rank> members, const std::string& group,
               std::optional<std::string>& why);
  void close_group(const std::string& key);
  /// Takes out the partings that are over, or whose time is up, which is logged.
  [[nodiscard]] std::vector<Parting> take_parted();
  /// Waits until at most `most` partings are left.
  void wait_for_partings(std::unique_lock<std::mutex>& lock, std::size_t most);
  /// What `judged(group)` says, as soon as it says something; nothing if the group is closed, or
  /// grace_ms have passed.
  template <typename Judged>
  std::optional<std::string> await(const std::string& key, int grace_ms, const Judged& judged);
  void judge(Group& group, const std::string& sentence);
  void judge_by_death(Group& group, const Death& death);
  void judge_by_disconnection(Group& group);
  [[nodiscard]] std::string disconnection(const std::vector<Rank>* members) const;

  /// Pumps, releasing the mutex while it sleeps, until `done()`; false at the deadline. `meanwhile`
  /// is called between sleeps of at most 50 ms.
  template <typename Done>
  bool wait(std::unique_lock<std::mutex>& lock, Time deadline, Done done,
            const std::function<void()>& meanwhile = {}) {
    for (;;) {
      pump();
      if (done()) return true;
      if (Clock::now() >= deadline) return false;
      sleep(lock, deadline);
      if (!meanwhile) continue;
      lock.unlock();
      meanwhile();
      lock.lock();
    }
  }

  /// Those that sleep look again.
  void wake_sleepers();

 private:
  void sleep(std::unique_lock<std::mutex>& lock, Time deadline);
  void hear_exchange(wire::Type type, wire::Reader& body, std::shared_ptr<const void> owner);
  void hear_shared(const wire::Reader& body);
  void hear_verdict(wire::Reader& body);
  void on_disconnect(const std::string& how);
  void watch_socket();
  void close_socket();
  void lose_for_good(const std::string& how);

  // Succession.
  [[nodiscard]] bool may_follow() const;
  void be_ready(std::uint64_t session);
  void start_follower();
  void stop_follower();
  void wake_follower() const;
  void follow_while_needed(Follower& own);
  void wait_for_loss(Follower& own);
  void seek(std::unique_lock<std::mutex>& lock, Follower& own);
  void seek_again();
  void wake_pollers();
  [[nodiscard]] int follower_wait_ms(const Follower& own) const;
  std::optional<net::Meeting> meet_at(const std::vector<wire::Place>& where, Time deadline,
                                      std::unique_lock<std::mutex>& lock, Follower& own);
  void seek_from(Follower& own, std::size_t next);
  void bring_all(net::Meeting&& meeting, const std::vector<wire::Place>& from);

  // By another path: resume.cpp.
  [[nodiscard]] bool has_other_paths() const { return !by_relay && places.size() > 1; }
  void hear_places(wire::Reader& body);
  void resume(std::unique_lock<std::mutex>& lock, Follower& own);
  void hear_successors(wire::Reader& body);
  void keep_result(Finished result);
  void give_result(std::uint64_t number);
  [[nodiscard]] std::optional<std::string> why_lost(const std::string& why) const;
};

}  // namespace chorus
