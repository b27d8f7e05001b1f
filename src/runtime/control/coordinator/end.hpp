// What a coordinator does with its connections. Private to this folder and to its simulation.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/log.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/coordinator/waiting_room.hpp"
#include "runtime/control/net.hpp"
#include "runtime/control/wire.hpp"
#include "runtime/control/wires.hpp"

namespace chorus {

/// Who comes in, over which connection each rank is reached, and what the Judge says to it.
///
/// A rank has a connection of its own here, or one of a relay that carries those of many.
class CoordinatorEnd final : public WireEnd {
 public:
  /// Relays that have their connection here; others are sent to one of these.
  static constexpr std::size_t kRelays = 64;

  CoordinatorEnd(int world_size, const Secret& secret, Coordinator::Host host)
      : world_size_(world_size), secret_(secret), host_(host) {}
  /// Before anything else, once.
  void speak_over(Wires& wires) { wires_ = &wires; }

  void opened(Token from, Time now) override;
  void heard(Token from, wire::Type type, std::span<const std::byte> body, Time now) override;
  void closed(Token from, std::string_view how, Time now) override;
  void malformed(Token from, const std::string& what, Time now) override;
  void cannot_take(const std::string& why, Time now) override;
  void settle(Time now) override;
  [[nodiscard]] std::optional<Time> deadline() const override;
  [[nodiscard]] bool over() const override;

  /// The launcher saw the process of `rank` end.
  void ended(Rank rank, const std::string& how, Time now);
  /// Where it listens: all ranks are told where there are several places.
  void set_places(const std::vector<wire::Place>& places);
  /// Every rank has joined and said goodbye or died (in the last joining).
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// Processes that wait to be taken in.
  [[nodiscard]] int waiting(Time now) const { return room_.count(now); }

 private:
  /// One joining of all ranks.
  struct Session {
    Judge judge;
    std::vector<Token> connections;  ///< [world_size], 0: none
  };
  struct Connection {
    wire::Nonce nonce{};
    Session* session = nullptr;  ///< none until the secret is proved
    Rank rank = -1;              ///< of a relay: whose process it is in
    bool relay = false;
    std::string identity = {};  ///< of a relay's process
    std::string host = {};      ///< its machine
    std::string address = {};   ///< where other relays find it
    std::uint16_t port = 0;
    std::size_t sent_there = 0;  ///< other relays
  };
  /// Who says hello: over a connection of its own, or over a relay's.
  struct Caller {
    Token token;
    Connection& connection;
    const wire::Hello& hello;
    bool carried;
  };

  void greet(Token token, Connection& connection, const wire::Hello& hello, Time now);
  void greet_relay(const Caller& caller, Time now);
  void greet_proven(const Caller& caller, Time now);
  void greet_follower(const Caller& caller, Time now);
  void greet_guest(const Caller& caller, Time now);
  [[nodiscard]] bool joins_as_usual(const wire::Hello& hello) const;
  void let_in(const Caller& caller, Session& session);
  void hear_relay(Token token, Connection& connection, wire::Type type, wire::Reader body,
                  Time now);
  void hear_rank(Session& session, Rank rank, wire::Type type, wire::Reader body, Time now);
  void lose_relay(const Connection& relay, Token token, std::span<const Rank> ranks,
                  std::string_view how, Time now);
  void answer(const Caller& caller, const wire::Frame& frame, bool last);
  void refuse(const Caller& caller, const std::string& sentence, LogLevel level,
              bool gone_on = false);
  void refuse_secret(const Caller& caller);
  std::optional<std::string> why_refused(const wire::Hello& hello, Time now);
  [[nodiscard]] std::optional<std::string> why_join_failed() const;
  [[nodiscard]] bool comes_too_early(const wire::Hello& hello) const;
  Session* session_for(const wire::Hello& hello);
  Session* session_of(const wire::Hello& hello);
  Session& open_session(Time now);
  void expel(Session& session, Rank rank, const std::string& why, Time now);
  void send(Session& session, Rank rank, const wire::Frame& frame);
  void dismiss(Session& session, Rank rank);
  void drop_connection(Session& session, Rank rank);
  void carry_orders(Session& session);

  Wires* wires_ = nullptr;
  int world_size_;
  Secret secret_;
  Coordinator::Host host_;
  std::map<Token, Connection> connections_;
  std::vector<wire::Place> places_;
  std::size_t num_proven_ = 0;
  int num_wrong_secrets_ = 0;
  std::string refusals_;  ///< of wrong secrets, for those who wait
  int num_warnings_ = 0;
  std::vector<std::unique_ptr<Session>> sessions_;  ///< those that are not over, oldest first
  bool any_session_over_ = false;
  WaitingRoom room_;
  bool finished_ = false;
  std::map<Rank, std::string> gone_;  ///< processes that the launcher saw end
};

}  // namespace chorus
