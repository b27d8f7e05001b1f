// Connections that carry the control protocol: frames in, frames out, and the time. Whoever speaks
// it (WireEnd) does not see what lies below: sockets (SocketWires), or a simulation of them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/control/net.hpp"
#include "runtime/control/table.hpp"
#include "runtime/control/wire.hpp"

namespace chorus {

/// The connections of one end.
class Wires {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Token = std::uint64_t;  ///< of a connection; never used twice, never 0

  virtual ~Wires() = default;
  virtual void send(Token to, const wire::Frame& frame) = 0;
  /// `rest` behind `head`, whose length counts both: what is sent to many is kept once.
  virtual void send(Token to, const wire::Frame& head, std::span<const std::byte> rest,
                    std::shared_ptr<const void> owner) = 0;
  /// The other end has proved the secret: it stays, and may send frames of up to `limit` bytes.
  /// `shares`: its process can open what this one has open.
  virtual void trust(Token of, std::size_t limit, bool shares) = 0;
  /// To be closed once all that was sent has gone. What comes from there is heard no more.
  virtual void finish(Token of) = 0;
  /// Bytes that the other end has not taken yet.
  [[nodiscard]] virtual std::size_t unsent(Token of) const = 0;
  /// Where it comes from, for the log.
  [[nodiscard]] virtual std::string peer(Token of) const = 0;
};

/// Who speaks. Called from one thread.
class WireEnd {
 public:
  using Time = Wires::Time;
  using Token = Wires::Token;

  virtual ~WireEnd() = default;
  /// Somebody has connected.
  virtual void opened(Token from, Time now) = 0;
  /// Throws wire::Malformed.
  virtual void heard(Token from, wire::Type type, std::span<const std::byte> body, Time now) = 0;
  /// A trusted connection has ended, not by finish().
  virtual void closed(Token from, std::string_view how, Time now) = 0;
  /// Over a trusted connection came what nobody sends.
  virtual void malformed(Token from, const std::string& what, Time now) = 0;
  /// Whoever connects finds no descriptor left here, for longer than a moment.
  virtual void cannot_take(const std::string& why, Time now) = 0;
  /// After each round of the others, and at deadline().
  virtual void settle(Time now) = 0;
  [[nodiscard]] virtual std::optional<Time> deadline() const = 0;
  /// Nothing will happen here any more, once no trusted connection is left.
  [[nodiscard]] virtual bool over() const = 0;
};

class SocketWires final : public Wires {
 public:
  /// `end` outlives this object.
  explicit SocketWires(WireEnd& end);
  SocketWires(const SocketWires&) = delete;
  SocketWires& operator=(const SocketWires&) = delete;

  void listen(net::Socket listener);
  /// A trusted connection that this end made.
  Token adopt(net::Socket socket, wire::Inbox inbox);
  /// Until `stop`, or the end is over. Then all connections and listeners are closed.
  void run(const std::atomic<bool>& stop);
  /// Lets run() look again. From any thread.
  void wake() const;
  /// How many connections are expected, for the limit of descriptors.
  void expect(std::size_t connections) { expected_ = connections; }

  void send(Token to, const wire::Frame& frame) override;
  void send(Token to, const wire::Frame& head, std::span<const std::byte> rest,
            std::shared_ptr<const void> owner) override;
  void trust(Token of, std::size_t limit, bool shares) override;
  void finish(Token of) override;
  [[nodiscard]] std::size_t unsent(Token of) const override;
  [[nodiscard]] std::string peer(Token of) const override;

 private:
  struct Connection {
    net::Socket socket;
    std::string peer;
    Time since{};  ///< when it was made, or was to be closed
    bool trusted = false;
    bool finishing = false;
    bool wants_output = false;
    bool touched = false;   ///< has output, in touched_
    bool overfull = false;  ///< more piles up than it reads
    bool shares = false;
    wire::Inbox inbox{wire::kMaxHandshake};
    wire::Outbox outbox;
    /// What it was referred to and has not answered yet.
    struct Referred {
      std::uint64_t number;
      std::shared_ptr<const SharedFrame> shared;
      wire::Frame frame;
    };
    std::deque<Referred> referred = {};
  };
  [[nodiscard]] bool is_unauthenticated(const Connection& connection) const {
    return !connection.trusted && !connection.finishing;
  }

  void watch(int fd, Token token, std::uint32_t events, int operation) const;
  [[nodiscard]] int wait_ms(Time now) const;
  void accept_all(int listener, Time now);
  void wait_for_descriptors(int error, Time now);
  void drop_oldest_unauthenticated();
  [[nodiscard]] std::map<Token, Connection>::iterator oldest_unauthenticated();
  [[nodiscard]] bool has_idle_unauthenticated(Time now);
  void let_queue(bool queue);
  void handle(Token token, std::uint32_t events, Time now);
  [[nodiscard]] bool read(Token token, Connection& connection, Time now);
  void hear(Token token, Connection& connection, const wire::Inbox::Item& item, Time now);
  void hear_of_shared(Token token, Connection& connection, wire::Reader body);
  void touch(Token token, Connection& connection);
  void flush(Token token, Time now);
  void lose(Token token, std::string_view how, Time now);
  void close_late(Time now);

  WireEnd& end_;
  net::Socket epoll_, wake_;
  net::Socket reserve_;  ///< a descriptor for the time when there are no more
  std::map<Token, net::Socket> listeners_;
  std::map<Token, Connection> connections_;
  std::vector<Token> touched_;
  Token next_token_ = 1;
  std::size_t num_unauthenticated_ = 0, num_finishing_ = 0;
  std::size_t expected_ = 0;
  bool queueing_ = false;  ///< nobody is let in for a moment
  std::uint64_t num_referred_ = 0;
  /// Frames that have memory of their own already, in this round.
  std::map<const wire::Bytes*, std::shared_ptr<const SharedFrame>> shared_;
  Time refusing_since_, refused_last_;  ///< for want of descriptors
};

}  // namespace chorus
