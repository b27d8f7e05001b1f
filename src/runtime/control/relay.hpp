// The control connections of many ranks over one: those of a host, or of many hosts.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.hpp"
#include "runtime/control/meet.hpp"
#include "runtime/control/wires.hpp"

namespace chorus {

/// What a relay does with its connections: one leads up, to the coordinator or to another relay;
/// ranks and other relays come to it from below.
///
/// It judges nothing. It checks the secret of those who come, so that nobody else reaches the
/// coordinator through it, says who came, and hands on what each says and is told; what many are
/// told comes once. With its connection up all below it end, and come another way.
class RelayEnd final : public WireEnd {
 public:
  /// Ranks that one carries; more go to the next of their host.
  static constexpr std::size_t kRanks = 512;
  /// Other relays; more are sent on to one of these.
  static constexpr std::size_t kRelays = 64;

  RelayEnd(int world_size, const Secret& secret) : world_size_(world_size), secret_(secret) {}
  void speak_over(Wires& wires) { wires_ = &wires; }
  /// The connection up, which both ends trust, and the address of this end of it.
  void rises(Token up, std::string address) {
    up_ = up;
    address_ = std::move(address);
  }
  /// There is none, and why: whoever comes is told.
  void cannot_rise(const std::string& sentence) { refusal_ = sentence; }
  /// Connections from below, those that arrive included. From any thread.
  [[nodiscard]] std::size_t carried() const { return carried_.load(); }

  void opened(Token from, Time now) override;
  void heard(Token from, wire::Type type, std::span<const std::byte> body, Time now) override;
  void closed(Token from, std::string_view how, Time now) override;
  void malformed(Token from, const std::string& what, Time now) override;
  void cannot_take(const std::string&, Time) override {}
  void settle(Time) override { carried_ = num_ranks_ + num_relays_; }
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }
  [[nodiscard]] bool over() const override { return over_; }

 private:
  struct Below {
    wire::Nonce nonce{};
    enum class Kind : std::uint8_t {
      unauthenticated,
      arriving,
      rank,
      relay
    } kind = Kind::unauthenticated;
    Rank rank = -1;  ///< of a relay: whose process it is in
    wire::Nonce its_nonce{};
    std::string identity = {}, host = {};
    // Of a relay.
    std::string address = {};
    std::uint16_t port = 0;
    std::size_t sent_there = 0;
  };

  void greet(Token from, Below& below, const wire::Hello& hello, std::span<const std::byte> said);
  void greet_relay(Token from, Below& below, const wire::Hello& hello);
  void welcome(Token to, const Below& below, const wire::Hello& hello,
               std::span<const std::byte> rest);
  void hear_relay(Token from, wire::Type type, std::span<const std::byte> body);
  void hear_from_above(wire::Type type, std::span<const std::byte> body);
  void hand_down(Token to, const RankList& ranks, std::span<const std::byte> content,
                 const wire::Frame& whole);
  void refuse(Token to, const std::string& sentence);
  void drop(Token token);
  void say_above(wire::Type type, std::span<const std::byte> body);

  Wires* wires_ = nullptr;
  int world_size_;
  Secret secret_;
  Token up_ = 0;
  std::optional<std::string> refusal_;
  std::map<Token, Below> below_;
  std::map<Rank, Token> reached_;               ///< over which connection each rank is
  std::map<Rank, std::deque<Token>> arriving_;  ///< who is to be answered, oldest first
  std::string host_text_, address_;
  std::size_t num_ranks_ = 0, num_relays_ = 0;
  std::atomic<std::size_t> carried_{0};
  bool over_ = false;
};

/// A relay in this process: a thread and its sockets.
class Relay {
 public:
  /// Where the ranks of this machine find the relay number `index` to `up` of the joining `session`
  /// (wire::Hello::session): a name that nobody can guess who does not know the secret.
  static std::string name(const Secret& secret, const net::Endpoint& up, std::uint64_t session,
                          int index);
  /// A listener of that name; none if there is one.
  static net::Socket listen(const std::string& name);
  /// A connection to the one of that name; none if nobody listens there.
  static net::Socket connect(const std::string& name);

  /// Carries those who come to `listener`, and other relays that come to `others`, over `up`.
  Relay(net::Socket listener, net::Socket others, net::Meeting&& up, int world_size,
        const Secret& secret);
  /// Tells those who come to `listener` why there is no way up.
  Relay(net::Socket listener, const std::string& why, int world_size, const Secret& secret);
  /// Waits a moment for those that it carries to leave; the others come another way.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus
