// Who is to blame: the coordinator's knowledge of one joining of all ranks, without its sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/control/wire.hpp"

namespace chorus {

/// One session: from the first hello to the last goodbye of the ranks 0 … world_size − 1.
///
/// Fed with what ranks say, with closed connections and with time; answers with frames to send.
/// The first cause of a failure wins. Every rank is told of deaths and verdicts in one order, so
/// that all members of a group come to the same sentence. Used from one thread.
class Judge {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Rules {
    int world_size = 1;
    /// Somebody will call ended() for every rank: wait a little for it, it knows the cause.
    bool launcher = false;
    /// The coordinator's own process: wire::Hello::identity, and "pid 12 on host".
    std::string host_identity, host_text;
    /// Whether the process of this identity is known to be stopped; null: nobody knows.
    std::function<bool(const std::string& identity)> is_stopped = {};
    std::uint64_t began_us = 0;  ///< unix time, told to all ranks: the name of this joining
    /// The ranks have met elsewhere, and come here because they lost their coordinator.
    bool successor = false;
    /// Whether the process of this identity is known to run (perhaps stopped), or to have ended;
    /// nothing, or null: nobody knows.
    std::function<std::optional<bool>(const std::string& identity)> is_running = {};
  };
  explicit Judge(Rules rules);

  // What happens.

  /// A rank that proved the secret. A refusal's sentence, or nothing if it is admitted.
  std::optional<std::string> admit(const wire::Hello& hello, Time now);
  /// A rank that proved the secret and comes to this successor. A refusal's sentence, or nothing.
  std::optional<std::string> follow(const wire::Hello& hello, Time now);
  /// Whether it has joined, and lost its connection before it was told that all have.
  [[nodiscard]] bool is_untold(const wire::Hello& hello) const;
  /// It is told now. No effect on others.
  void admit_untold(const wire::Hello& hello);
  /// A message after the hello. Throws wire::Malformed.
  void received(Rank rank, wire::Type type, wire::Reader body, Time now);
  /// The connection of `rank` is closed. `how`: "its connection closed".
  void closed(Rank rank, std::string_view how, Time now);
  /// The coordinator disconnects `rank`, whatever its process does. `why`: "it sent ...".
  void expelled(Rank rank, std::string_view why, Time now);
  /// `rank` has lost its connection and nothing else, with the relay that carried it or with the
  /// path: it comes again, unless its process has ended as well.
  void scattered(Rank rank, Time now);
  /// The launcher saw the process of `rank` end. `how`: "killed by signal 9 (SIGKILL)".
  void ended(Rank rank, std::string_view how, Time now);
  /// The ranks will never all meet. No effect once they have.
  void fail_join(const std::string& sentence, Time now);
  /// Whether its death is told, or will be: it may have lost its connection alone, and comes back.
  [[nodiscard]] bool is_out(Rank rank) const;
  /// Ranks come over relays: what they are told last is kept.
  void note_relays() { may_return_ = true; }
  /// Where this coordinator listens: all ranks are told where there are several.
  void set_places(std::vector<wire::Place> places);
  /// Who was not let in meanwhile: told with whom the ranks waited for in vain.
  void note_refusals(std::string sentence) { refusals_ = std::move(sentence); }
  /// Lets deadlines pass. To be called after the others, and at deadline().
  void tick(Time now);

  // What follows.

  [[nodiscard]] std::optional<Time> deadline() const;
  struct Order {
    Rank to = 0;
    wire::Frame frame;   ///< to send, or
    bool close = false;  ///< to close the connection after all that was sent
  };
  [[nodiscard]] std::vector<Order> take_orders();

  /// awaited: it was alive when the coordinator was lost, and has not come to its successor.
  enum class State : std::uint8_t { absent, joined, left, dead, awaited };
  [[nodiscard]] State state(Rank rank) const { return at(rank).state; }
  /// Hears what happens. Who comes to a successor, or again, first says all that it knows and is
  /// told the results that it missed.
  [[nodiscard]] bool is_served(Rank rank) const {
    return state(rank) == State::joined && !at(rank).arriving && !gathering_;
  }
  [[nodiscard]] bool forming() const { return !all_joined_ && !failure_; }
  /// Why the ranks never all met, or will not.
  [[nodiscard]] const std::optional<std::string>& join_failure() const { return failure_; }
  /// A rank that has lost its connection and nothing else is heard again.
  [[nodiscard]] bool may_return() const { return may_return_ || gathering_; }
  /// All ranks have joined, and none has left or died.
  [[nodiscard]] bool complete() const;
  /// Nothing will happen here any more.
  [[nodiscard]] bool over(Time now) const;
  /// Too few ranks came to this successor: they have been sent elsewhere.
  [[nodiscard]] bool gave_up() const { return gave_up_; }
  /// "rank 3 (pid 12 on host)"
  [[nodiscard]] std::string name(Rank rank) const;
  [[nodiscard]] const std::string& identity(Rank rank) const { return at(rank).identity; }
  [[nodiscard]] const std::string& host(Rank rank) const { return at(rank).host; }
  [[nodiscard]] std::uint64_t began_us() const { return rules_.began_us; }

 private:
  struct Member {
    State state = State::absent;
    std::string who;       ///< "pid 12 on host", once it has said hello
    std::string identity;  ///< of its process
    bool local = false;    ///< lives in the coordinator's process
    Time left_at{};
    std::string goodbye;  ///< a sentence, once it has left
    // On its way to being declared dead.
    bool disconnected = false;
    bool expelled = false;                 ///< by the coordinator
    std::optional<std::string> how_ended;  ///< the launcher's word
    std::string how_closed;
    Time dead_at{};  ///< when the better cause is waited for no longer
    // Succession.
    std::string host;                      ///< name of its machine
    bool may_succeed = false;              ///< it can hold the coordinator
    bool appointed = false;                ///< it was asked to be ready for that
    std::optional<wire::Successor> place;  ///< where it is
    bool arriving = false;                 ///< at this successor, and has not said all it knows
    std::size_t deaths_told = 0;           ///< of deaths_
    std::uint64_t last_result = 0;         ///< that it has
    Time scattered_at{};                   ///< when its connection was lost
    bool ran_elsewhere = false;            ///< while others gathered here, its process was running
  };
  struct Group {
    struct Seat {
      std::uint64_t last_call = 0;
      std::string message;  ///< that it waited in by its last report; empty: a collective
      bool reported = false, closed = false;
      bool opened = false;
      Time closed_at{};
      std::deque<wire::Frame> notes = {};  ///< to it, where they could be lost: the latest
      struct Messages {
        std::uint32_t sent = 0, received = 0;
      };
      /// Once it will begin no more: how many it has, by the seat of the peer.
      std::optional<std::map<std::size_t, Messages>> ending;
    };
    struct Called {
      std::string signature;
      std::size_t seat;
    };
    RankList members;
    std::vector<Seat> seats;                ///< [members]
    std::map<std::uint64_t, Called> calls;  ///< first report of the latest calls
    std::optional<std::string> verdict;

    [[nodiscard]] std::optional<std::size_t> seat_of(Rank rank) const {
      return members.index_of(rank);
    }
    /// The seat that will never begin its part of message `call`, which `seat` waits for.
    [[nodiscard]] std::optional<std::size_t> never_begins(std::size_t seat,
                                                          std::uint64_t call) const;
  };
  struct Exchange {
    RankList members;
    std::vector<std::optional<wire::Bytes>> blobs;  ///< [members]
    std::size_t arrived = 0;
    std::string group = {};  ///< whose verdict ends it, or empty
  };
  /// While the ranks come to this successor.
  struct Gathering {
    Time last_came{}, next_look{};
    wire::Loss loss = wire::Loss::silent;
    Rank host_rank = -1;  ///< whose process held the coordinator
    std::string host_text;
    std::optional<Time> results_by;  ///< that ranks were asked for
  };
  /// "My connection to this peer broke", until it is known why.
  struct Claim {
    std::string key;
    std::size_t claimant = 0, peer = 0;  ///< seats
    std::string why;
    Time due{};
  };

  [[nodiscard]] Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Member& at(Rank rank) const {
    return members_[static_cast<std::size_t>(rank)];
  }
  void send(Rank to, const wire::Frame& frame) { orders_.push_back({to, frame, false}); }
  void send_all(const wire::Frame& frame);
  void send_members(const RankList& members, const wire::Frame& frame);

  void on_join_query(Rank rank);
  void on_exchange(Rank rank, wire::Reader& body);
  void on_withdraw(Rank rank, wire::Reader& body);
  void on_open_group(Rank rank, wire::Reader& body);
  void on_close_group(Rank rank, wire::Reader& body, Time now);
  void on_lost(Rank rank, wire::Reader& body, Time now);
  void on_waiting(Rank rank, wire::Reader& body, Time now);
  void on_abort(Rank rank, wire::Reader& body);
  void on_ending(Rank rank, wire::Reader& body);
  void on_note(Rank rank, wire::Reader& body);
  void on_goodbye(Rank rank, wire::Reader& body, Time now);
  void on_listening(Rank rank, wire::Reader& body, Time now);
  void on_follow(Rank rank, wire::Reader& body, Time now);
  void on_roster(Rank rank, wire::Reader& body);
  void on_exchange_done(Rank rank, wire::Reader& body);
  void on_exchange_held(Rank rank, wire::Reader& body);
  void on_followed(Rank rank, Time now);

  // Succession: succession.cpp.
  [[nodiscard]] wire::Frame joined_frame() const;
  void appoint(Time now);
  [[nodiscard]] bool waits_for_successors(Time now);
  [[nodiscard]] std::vector<wire::Successor> successors() const;
  void send_roster(Rank rank);
  void acknowledge_goodbye(Rank rank);
  void await_again(Rank rank);
  [[nodiscard]] bool is_waited_for(Rank rank) const;
  void settle_gathering(Time now);
  void settle_awaited(Time now);
  void take_over(Time now);
  void begin_anew();
  void give_up(std::size_t came, std::size_t alive);
  void tell_deaths(Rank rank);
  void tell_verdicts(Rank rank);
  void welcome(Rank rank);
  [[nodiscard]] std::optional<bool> is_running(Rank rank) const;
  [[nodiscard]] bool is_stopped(Rank rank) const;
  void keep_finished(const std::string& key, std::uint64_t number, Exchange&& exchange);
  void tell_notes(Rank rank);
  [[nodiscard]] std::string did_not_come(std::chrono::milliseconds within) const;
  void host_has_gone(const Gathering& old, Time now);
  void close_seats_of(Rank rank, Time now);
  [[nodiscard]] bool waits_for_results(Time now);
  [[nodiscard]] bool asks_again(const Exchange& asked, std::size_t seat,
                                std::uint64_t number) const;
  [[nodiscard]] bool lacks_blobs(const std::string& key, std::uint64_t number,
                                 const Exchange& finished) const;
  [[nodiscard]] bool awaits_result(const Exchange& exchange) const;
  void answer_arrived();
  void answer_finished(const std::string& key, std::uint64_t number, const Exchange& finished);
  void complete(const std::string& key);
  [[nodiscard]] bool is_smaller_part(Rank rank, Time now);
  void end_smaller_part(Time now);

  void finish_join(Time now);
  void settle_deaths(Time now);
  void die(Rank rank, const std::string& how, Time now);
  void settle_claims(Time now);
  void release_hosts(Time now);
  void decide(const std::string& key, Group& group, const std::string& sentence);
  void fail_exchanges_of(Rank rank, const std::string& why);
  [[nodiscard]] bool has_failed(const std::string& group) const;
  void end_exchanges_in(const std::string& group);
  bool end_in_vain(const std::string& key, const RankList& members, const RankList& told);
  [[nodiscard]] static wire::Frame verdict_frame(const std::string& key, const Group& group);
  void forget_if_closed(const std::string& key);
  [[nodiscard]] std::string seat_name(const Group& group, std::size_t seat, bool with_who) const;
  [[nodiscard]] bool speaks(const Group& group, std::size_t seat, std::uint64_t call) const;
  [[nodiscard]] std::string not_in_call(const Group& group, std::uint64_t call) const;
  [[nodiscard]] std::string absent_ranks() const;

  Rules rules_;
  std::vector<Member> members_;  ///< [world_size]
  int num_joined_ = 0;           ///< said hello and are neither dead nor gone, while joining
  bool all_joined_ = false;
  std::optional<std::string> failure_;  ///< of the join
  std::string refusals_;
  std::vector<wire::Place> places_;
  bool given_up_ = false;          ///< it failed because a rank waited no longer
  std::optional<Time> failed_at_;  ///< the first failure of any kind
  std::map<std::string, Group> groups_;
  std::map<std::string, Exchange> exchanges_;
  std::vector<Claim> claims_;
  std::vector<Rank> dying_;  ///< in the order in which connections closed
  std::vector<Rank> ended_;  ///< in the launcher's words, and not dead yet
  std::vector<Rank> hosts_;  ///< local ranks that left and wait for the others
  bool host_let_go_ = false;
  Time look_at_others_{};  ///< whether those that they wait for are stopped
  // Succession.
  std::optional<Time> appointing_until_;  ///< ranks that were asked have not answered
  std::optional<Time> appoint_again_at_;
  bool ever_appointed_ = false;
  std::vector<Rank> appointed_;  ///< in the order in which they are gone to
  std::optional<Gathering> gathering_;
  bool gave_up_ = false;
  Time took_over_{}, look_again_{};
  std::vector<wire::Death> deaths_;              ///< in the order in which they were told
  std::map<std::string, std::string> verdicts_;  ///< brought, on groups
  /// Of key and number: results that some ranks have, and others may have missed.
  std::map<std::pair<std::string, std::uint64_t>, Exchange> finished_;
  /// What ranks are told may be lost with a relay, or on a path where there are others.
  bool may_return_ = false;
  std::map<std::uint64_t, std::string> wanted_;  ///< results asked for: number, key
  std::uint64_t num_results_ = 0;
  std::vector<Time> silenced_;  ///< deaths that may be the network's, the latest
  std::vector<Order> orders_;
};

/// How a connection ends whose other end may be alive behind a network that is cut.
constexpr std::string_view kSilent = "its machine stopped answering";

/// Sentences name no more ranks than this one by one.
constexpr std::size_t kMaxListed = 8;
/// "rank 3", "ranks 3 and 5", "ranks 1, 2 and 3", "ranks 1, 2, 3 and 12 more".
[[nodiscard]] std::string list_ranks(std::span<const Rank> ranks);
/// The sentence of a death, the same wherever it is written. `who` may be empty; `world_rank` is
/// said where it differs. `expelled`: the coordinator disconnected it.
[[nodiscard]] std::string death_sentence(Rank rank, Rank world_rank, std::string_view who,
                                         std::string_view how, bool expelled);

}  // namespace chorus
