#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/counted.hpp"
#include "base/host.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/relay.hpp"

namespace chorus {
namespace {

using wire::Malformed;
using wire::Type;
using wire::Writer;

}  // namespace

void RelayEnd::opened(Token from, Time) {
  if (over_) return wires_->finish(from);
  Below& below = below_[from];
  below.nonce = wire::random_nonce();
  wires_->send(from, wire::greeting_frame(below.nonce));
}

void RelayEnd::heard(Token from, Type type, std::span<const std::byte> body, Time) {
  if (from == up_) return hear_from_above(type, body);
  Below& below = below_[from];
  switch (below.kind) {
    case Below::Kind::unauthenticated:
      if (type != Type::hello) throw Malformed("no hello");
      return greet(from, below, wire::read_hello(body), body);
    case Below::Kind::arriving:
      throw Malformed("a message before it is welcome");
    case Below::Kind::relay:
      return hear_relay(from, type, body);
    case Below::Kind::rank:
      break;
  }
  const wire::Frame head = Writer(Type::carried)
                               .i32(below.rank)
                               .u8(static_cast<std::uint8_t>(type))
                               .append(body)
                               .share();
  wires_->send(up_, head);
}

/// Whoever proves the secret is told about above, where it is decided whether it may come in.
void RelayEnd::greet(Token from, Below& below, const wire::Hello& hello,
                     std::span<const std::byte> said) {
  const std::string who = fmt::format("rank {} (pid {} on {})", hello.rank, hello.pid, hello.host);
  const std::string here = fmt::format("pid {} on {}", ::getpid(), host_name());
  if (refusal_) return refuse(from, *refusal_);
  if (!wire::proven(hello, below.nonce, secret_)) {
    return refuse(from, fmt::format("{} has another secret than the relay ({})", who, here));
  }
  if (hello.version != wire::version() || hello.rank < 0 || hello.rank >= world_size_) {
    return refuse(from, fmt::format("{} has Chorus {} and a world of {}, the relay ({}) {} and {}",
                                    who, hello.version, counted(hello.world_size, "rank"), here,
                                    wire::version(), world_size_));
  }
  below.rank = hello.rank;
  below.identity = hello.identity;
  below.host = hello.host;
  below.its_nonce = hello.nonce;
  if (hello.relay_port != 0) return greet_relay(from, below, hello);
  if (num_ranks_ >= kRanks) {
    wires_->send(from, Writer(Type::full).share());
    wires_->finish(from);
    return drop(from);
  }
  ++num_ranks_;
  below.kind = Below::Kind::arriving;
  arriving_[hello.rank].push_back(from);
  wires_->trust(from, wire::kMaxFromRank, net::sees_processes_of(hello.identity));
  say_above(Type::arrive, said);
}

void RelayEnd::greet_relay(Token from, Below& below, const wire::Hello& hello) {
  if (num_relays_ >= kRelays) {
    Below* least = nullptr;
    for (auto& [token, each] : below_) {
      if (each.kind != Below::Kind::relay) continue;
      if (least == nullptr || each.sent_there < least->sent_there) least = &each;
    }
    ++least->sent_there;
    wires_->send(from, Writer(Type::go_to).text(least->address).u32(least->port).share());
    wires_->finish(from);
    return drop(from);
  }
  ++num_relays_;
  below.kind = Below::Kind::relay;
  below.address = hello.relay_address;
  below.port = hello.relay_port;
  wires_->trust(from, wire::kMaxFromRelay, false);
  Writer welcome(Type::welcome);
  welcome.raw(wire::server_proof(secret_, below.nonce, hello.nonce));
  wires_->send(from, welcome.text(host_text_).u8(0).u8(0).share());
}

void RelayEnd::refuse(Token to, const std::string& sentence) {
  wires_->send(to, Writer(Type::refused).text(sentence).share());
  wires_->finish(to);
  drop(to);
}

/// What a relay below says concerns ranks that come over it.
void RelayEnd::hear_relay(Token from, Type type, std::span<const std::byte> body) {
  wire::Reader reader(body);
  if (type == Type::arrive) {
    const wire::Hello hello = wire::read_hello(body);
    if (hello.rank < 0 || hello.rank >= world_size_) throw Malformed("a rank outside the world");
    arriving_[hello.rank].push_back(from);
  } else if (type == Type::carried || type == Type::gone) {
    const Rank rank = reader.i32();
    if (rank < 0 || rank >= world_size_) throw Malformed("a rank outside the world");
    const auto reached = reached_.find(rank);
    if (reached == reached_.end() || reached->second != from) return;
    if (type == Type::gone) reached_.erase(reached);
  } else if (type != Type::scattered) {
    throw Malformed("what no relay sends");
  }
  say_above(type, body);
}

void RelayEnd::say_above(Type type, std::span<const std::byte> body) {
  wires_->send(up_, Writer(type).append(body).share());
}

void RelayEnd::hear_from_above(Type type, std::span<const std::byte> body) {
  if (type != Type::carry) throw Malformed("what no coordinator tells a relay");
  wire::Reader reader(body);
  const RankList ranks = reader.ranks(world_size_);
  // As a frame of its own, from here on: for all of them.
  const auto inner = static_cast<Type>(wire::Reader(reader.rest()).u8());
  const wire::Frame whole = Writer(inner).append(reader.rest().subspan(1)).share();
  const bool answers = inner == Type::admitted || inner == Type::refused || inner == Type::later;
  std::map<Token, RankList> over;
  ranks.for_each([&](Rank rank) {
    const auto waiting = answers ? arriving_.find(rank) : arriving_.end();
    if (waiting == arriving_.end()) {
      const auto reached = reached_.find(rank);
      if (reached == reached_.end()) return;
      over[reached->second].add(rank, 1);
      if (inner == Type::dismissed) reached_.erase(reached);
      return;
    }
    const Token first = waiting->second.front();
    waiting->second.pop_front();
    if (waiting->second.empty()) arriving_.erase(waiting);
    if (!below_.contains(first)) return;  // it has gone meanwhile
    if (inner == Type::admitted) reached_[rank] = first;
    over[first].add(rank, 1);
  });
  for (const auto& [token, list] : over) hand_down(token, list, wire::content_of(*whole), whole);
}

void RelayEnd::hand_down(Token to, const RankList& ranks, std::span<const std::byte> content,
                         const wire::Frame& whole) {
  Below& below = below_[to];
  if (below.kind == Below::Kind::relay) {
    return wires_->send(to, Writer(Type::carry).ranks(ranks).share(content.size()), content, whole);
  }
  switch (static_cast<Type>(content[0])) {
    case Type::admitted: {
      below.kind = Below::Kind::rank;
      Writer welcome(Type::welcome);
      welcome.raw(wire::server_proof(secret_, below.nonce, below.its_nonce));
      wires_->send(to, welcome.append(content.subspan(1)).text(address_).share());
      if (host_text_.empty()) host_text_ = wire::Reader(content.subspan(1)).text();
      return;
    }
    case Type::dismissed:
      wires_->finish(to);
      return drop(to);
    case Type::refused:
    case Type::later:
      wires_->send(to, whole);
      wires_->finish(to);
      return drop(to);
    default:
      wires_->send(to, whole);
  }
}

/// It is known here no more; its connection is closed, or closes.
void RelayEnd::drop(Token token) {
  const auto found = below_.find(token);
  if (found == below_.end()) return;
  switch (found->second.kind) {
    case Below::Kind::rank:
    case Below::Kind::arriving:
      --num_ranks_;
      break;
    case Below::Kind::relay:
      --num_relays_;
      break;
    case Below::Kind::unauthenticated:
      break;
  }
  below_.erase(found);
}

void RelayEnd::closed(Token from, std::string_view how, Time) {
  if (from == up_) {  // those below come another way
    up_ = 0;
    over_ = true;
    for (const auto& [token, below] : below_) wires_->finish(token);
    below_.clear();
    num_ranks_ = num_relays_ = 0;
    return;
  }
  const auto found = below_.find(from);
  if (found == below_.end()) return;
  const Below below = found->second;
  drop(from);
  if (below.kind == Below::Kind::rank || below.kind == Below::Kind::arriving) {
    const auto reached = reached_.find(below.rank);
    if (reached != reached_.end() && reached->second == from) reached_.erase(reached);
    wires_->send(up_, Writer(Type::gone).i32(below.rank).text(how).share());
  } else if (below.kind == Below::Kind::relay) {
    RankList ranks;
    for (auto reached = reached_.begin(); reached != reached_.end();) {
      const bool lost = reached->second == from;
      if (lost) ranks.add(reached->first, 1);
      reached = lost ? reached_.erase(reached) : std::next(reached);
    }
    if (ranks.empty()) return;
    wires_->send(up_, Writer(Type::scattered)
                          .text(below.identity)
                          .text(below.host)
                          .text(how)
                          .ranks(ranks)
                          .share());
  }
}

void RelayEnd::malformed(Token from, const std::string& what, Time now) {
  if (from != up_) {
    wires_->send(
        from,
        Writer(Type::expelled).text(fmt::format("it sent what no rank sends: {}", what)).share());
  }
  wires_->finish(from);
  closed(from, fmt::format("it sent what no rank sends: {}", what), now);
}

}  // namespace chorus
