// The coordinator: a thread, its connections, and what goes in and out over them. Who is to blame
// is Judge's business.
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/impl.hpp"

namespace chorus {

WireThread::WireThread(const char* name, SocketWires& wires) : wires_(wires) {
  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Detached, because one that ends by itself may never be joined: the process just ends.
  std::thread([this, name, end = end_] {
    ::pthread_setname_np(::pthread_self(), name);
    wires_.run(stop_);
    const std::lock_guard lock(end->mutex);
    end->reached = true;
    end->changed.notify_all();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

WireThread::~WireThread() {
  stop_ = true;
  wires_.wake();
  std::unique_lock lock(end_->mutex);
  end_->changed.wait(lock, [this] { return end_->reached; });
}

/// Besides the end of the connections: what the launcher reports, and what others ask.
struct Coordinator::Impl final : WireEnd {
  Impl(int world_size, const Secret& secret, Coordinator::Host host)
      : coordinator(world_size, secret, host), wires(*this) {
    coordinator.speak_over(wires);
  }

  void opened(Token from, Time now) override { coordinator.opened(from, now); }
  void heard(Token from, wire::Type type, std::span<const std::byte> body, Time now) override {
    coordinator.heard(from, type, body, now);
  }
  void closed(Token from, std::string_view how, Time now) override {
    coordinator.closed(from, how, now);
  }
  void malformed(Token from, const std::string& what, Time now) override {
    coordinator.malformed(from, what, now);
  }
  void cannot_take(const std::string& why, Time now) override { coordinator.cannot_take(why, now); }
  void settle(Time now) override {
    std::vector<std::pair<Rank, std::string>> taken;
    {
      const std::lock_guard lock(mutex);
      taken.swap(reports);
      for (net::Socket& listener : new_listeners) wires.listen(std::move(listener));
      if (!new_listeners.empty()) coordinator.set_places(places);
      new_listeners.clear();
    }
    for (const auto& [rank, how] : taken) coordinator.ended(rank, how, now);
    coordinator.settle(now);
    wires.expect(static_cast<std::size_t>(coordinator.world_size()));
    finished = coordinator.finished();
    waiting = coordinator.waiting(now);
  }
  [[nodiscard]] std::optional<Time> deadline() const override { return coordinator.deadline(); }
  [[nodiscard]] bool over() const override { return coordinator.over(); }

  net::Id id;
  int owner_generation = net::fork_generation();
  std::atomic<bool> finished{false};
  std::atomic<int> waiting{0};  ///< in the waiting room
  std::mutex mutex;             ///< guards what follows, up to `coordinator`
  std::vector<std::pair<Rank, std::string>> reports;
  std::vector<wire::Place> places;         ///< where it listens
  std::vector<net::Socket> new_listeners;  ///< at the last of them
  CoordinatorEnd coordinator;
  SocketWires wires;
  std::optional<WireThread> thread;
};

Coordinator::Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                         const Secret& secret, Host host) {
  if (world_size < 0 || world_size > wire::kMaxWorld) {
    throw InputError(
        fmt::format("a world of {} ranks: must be in [0, {}]", world_size, wire::kMaxWorld));
  }
  impl_ = std::make_unique<Impl>(world_size, secret, host);
  net::Socket listener = net::listen_on(net::local_endpoint(interface_name, port));
  impl_->id = {net::local_end(listener.get()), secret};
  impl_->places = {{impl_->id.endpoint.host(), impl_->id.endpoint.port()}};
  impl_->coordinator.set_places(impl_->places);
  impl_->wires.expect(static_cast<std::size_t>(world_size));
  impl_->wires.listen(std::move(listener));
  impl_->thread.emplace("chorus-coord", impl_->wires);
}

Coordinator::Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                         const Secret& secret)
    : Coordinator(world_size, interface_name, port, secret, Host{}) {}

Coordinator::~Coordinator() {
  // In a forked child there is no thread to join: what is left of it is the parent's.
  if (impl_->owner_generation != net::fork_generation()) (void)impl_.release();
}

std::string Coordinator::id() const { return impl_->id.text(); }

void Coordinator::report_death(Rank rank, std::string_view how) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->reports.emplace_back(rank, how);
  }
  impl_->wires.wake();
}

int Coordinator::waiting() const { return impl_->waiting.load(); }

std::vector<wire::Place> Coordinator::listen_also(std::span<const std::string> addresses) {
  const std::lock_guard lock(impl_->mutex);
  auto& places = impl_->places;
  for (const std::string& address : addresses) {
    const auto is_there = [&](const wire::Place& place) { return place.address == address; };
    if (std::any_of(places.begin(), places.end(), is_there)) continue;
    if (places.size() == wire::kMaxPlaces) break;
    net::Endpoint endpoint;
    if (!net::Endpoint::parse(address, 0, endpoint)) continue;
    try {
      net::Socket listener = net::listen_on(endpoint);
      places.push_back({address, net::local_end(listener.get()).port()});
      impl_->new_listeners.push_back(std::move(listener));
    } catch (const BootstrapError& error) {
      log(LogLevel::info, "",
          fmt::format("the coordinator is reached by one address less: {}", error.what()));
    }
  }
  impl_->wires.wake();
  return places;
}

bool Coordinator::finished() const { return impl_->finished.load(); }

// Connections.

void CoordinatorEnd::set_places(const std::vector<wire::Place>& places) {
  places_ = places;
  for (const auto& session : sessions_) session->judge.set_places(places_);
}

void CoordinatorEnd::opened(Token from, Time) {
  Connection& connection = connections_[from];
  connection.nonce = wire::random_nonce();
  wires_->send(from, wire::greeting_frame(connection.nonce));
}

void CoordinatorEnd::heard(Token from, wire::Type type, std::span<const std::byte> body, Time now) {
  Connection& connection = connections_[from];
  if (connection.relay) return hear_relay(from, connection, type, wire::Reader(body), now);
  if (connection.session != nullptr) {
    return hear_rank(*connection.session, connection.rank, type, wire::Reader(body), now);
  }
  if (type != wire::Type::hello) throw wire::Malformed("no hello");
  greet(from, connection, wire::read_hello(body), now);
}

void CoordinatorEnd::hear_rank(Session& session, Rank rank, wire::Type type, wire::Reader body,
                               Time now) {
  // After its goodbye a rank says nothing that matters.
  if (session.judge.state(rank) != Judge::State::joined) return;
  session.judge.received(rank, type, body, now);
}

void CoordinatorEnd::hear_relay(Token token, Connection& connection, wire::Type type,
                                wire::Reader body, Time now) {
  Session& session = *connection.session;
  if (type == wire::Type::arrive) {
    const wire::Hello hello = wire::read_hello(body.rest());
    return greet_proven({token, connection, hello, true}, now);
  }
  if (type == wire::Type::scattered) {
    Connection lost;
    lost.session = &session;
    lost.identity = body.text();
    lost.host = body.text();
    const std::string how = body.text();
    std::vector<Rank> ranks;
    body.ranks(world_size_).for_each([&](Rank rank) {
      if (session.connections[static_cast<std::size_t>(rank)] == token) ranks.push_back(rank);
    });
    return lose_relay(lost, token, ranks, how, now);
  }
  const Rank rank = body.i32();
  if (rank < 0 || rank >= world_size_) throw wire::Malformed("a rank outside the world");
  Token& reached = session.connections[static_cast<std::size_t>(rank)];
  if (reached != token) return;  // it has come another way since
  if (type == wire::Type::gone) {
    reached = 0;
    return session.judge.closed(rank, body.text(), now);
  }
  if (type != wire::Type::carried) throw wire::Malformed("what no relay sends");
  const auto inner = static_cast<wire::Type>(body.u8());
  try {
    hear_rank(session, rank, inner, body, now);
  } catch (const wire::Malformed& malformed) {
    expel(session, rank, fmt::format("it sent what no rank sends: {}", malformed.what()), now);
  }
}

void CoordinatorEnd::malformed(Token from, const std::string& what, Time now) {
  Connection& connection = connections_[from];
  const std::string why = fmt::format("it sent what no rank sends: {}", what);
  if (!connection.relay) return expel(*connection.session, connection.rank, why, now);
  wires_->finish(from);
  closed(from, why, now);
}

/// The rank is told why before its connection closes; what else it sends is not read.
void CoordinatorEnd::expel(Session& session, Rank rank, const std::string& why, Time now) {
  send(session, rank, wire::Writer(wire::Type::expelled).text(why).share());
  session.judge.expelled(rank, why, now);
  dismiss(session, rank);
}

void CoordinatorEnd::closed(Token from, std::string_view how, Time now) {
  const auto found = connections_.find(from);
  if (found == connections_.end()) return;
  const Connection connection = std::move(found->second);
  connections_.erase(found);
  if (connection.session == nullptr) return;
  Session& session = *connection.session;
  if (!connection.relay) {
    Token& reached = session.connections[static_cast<std::size_t>(connection.rank)];
    if (reached != from) return;  // it has come another way since
    reached = 0;
    return session.judge.closed(connection.rank, how, now);
  }
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world_size_; ++rank) {
    if (session.connections[static_cast<std::size_t>(rank)] == from) ranks.push_back(rank);
  }
  lose_relay(connection, from, ranks, how, now);
}

/// Ranks of the process that carried the others are dead with it, and where its machine fell
/// silent, those of the machine. The others have lost no more than their connection.
void CoordinatorEnd::lose_relay(const Connection& relay, Token token, std::span<const Rank> ranks,
                                std::string_view how, Time now) {
  Session& session = *relay.session;
  const auto is_dead = [&](Rank rank) {
    return session.judge.identity(rank) == relay.identity ||
           (how == kSilent && session.judge.host(rank) == relay.host);
  };
  for (const Rank rank : ranks) {
    session.connections[static_cast<std::size_t>(rank)] = 0;
    if (is_dead(rank)) session.judge.closed(rank, how, now);
  }
  for (const Rank rank : ranks) {
    if (!is_dead(rank)) session.judge.scattered(rank, now);
  }
  log(LogLevel::info, "",
      fmt::format("a relay of {} ranks has ended ({}): {}", ranks.size(), token, how));
}

void CoordinatorEnd::cannot_take(const std::string& reason, Time now) {
  const std::string why =
      fmt::format("the coordinator (pid {} on {}) can take no more connections: {}", ::getpid(),
                  host_name(), reason);
  if (sessions_.empty() && !any_session_over_ && world_size_ > 0) open_session(now);
  for (const auto& session : sessions_) session->judge.fail_join(why, now);
}

void CoordinatorEnd::ended(Rank rank, const std::string& how, Time now) {
  if (rank < 0 || rank >= world_size_) return;
  gone_[rank] = how;
  if (sessions_.empty() && !any_session_over_) open_session(now);
  for (const auto& session : sessions_) {
    if (session->judge.state(rank) != Judge::State::dead) session->judge.ended(rank, how, now);
  }
}

// What the Judge says.

namespace {

/// `frame` for those ranks, over their relay.
void carry(Wires& wires, Wires::Token token, const RankList& ranks, const wire::Frame& frame) {
  const std::span<const std::byte> content = wire::content_of(*frame);
  wires.send(token, wire::Writer(wire::Type::carry).ranks(ranks).share(content.size()), content,
             frame);
}

const wire::Frame& dismissed() {
  static const wire::Frame frame = wire::Writer(wire::Type::dismissed).share();
  return frame;
}

}  // namespace

void CoordinatorEnd::send(Session& session, Rank rank, const wire::Frame& frame) {
  const Token token = session.connections[static_cast<std::size_t>(rank)];
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  if (!found->second.relay) return wires_->send(token, frame);
  carry(*wires_, token, RankList(std::span(&rank, 1)), frame);
}

void CoordinatorEnd::dismiss(Session& session, Rank rank) {
  const Token token = std::exchange(session.connections[static_cast<std::size_t>(rank)], 0);
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  if (found->second.relay) {
    return carry(*wires_, token, RankList(std::span(&rank, 1)), dismissed());
  }
  wires_->finish(token);
  connections_.erase(found);
}

/// What many ranks behind one relay are told goes there once.
void CoordinatorEnd::carry_orders(Session& session) {
  struct Bundle {
    RankList ranks;
    wire::Frame frame;
  };
  std::map<Token, Bundle> bundles;
  for (const Judge::Order& order : session.judge.take_orders()) {
    Token& token = session.connections[static_cast<std::size_t>(order.to)];
    const auto found = connections_.find(token);
    if (found == connections_.end()) continue;
    if (!found->second.relay) {
      if (order.close) {
        dismiss(session, order.to);
      } else {
        wires_->send(token, order.frame);
      }
      continue;
    }
    const wire::Frame& frame = order.close ? dismissed() : order.frame;
    Bundle& bundle = bundles[token];
    if (bundle.frame != frame) {
      if (bundle.frame) carry(*wires_, token, bundle.ranks, bundle.frame);
      bundle = {{}, frame};
    }
    bundle.ranks.add(order.to, 1);
    if (order.close) token = 0;
  }
  for (const auto& [token, bundle] : bundles) carry(*wires_, token, bundle.ranks, bundle.frame);
}

void CoordinatorEnd::settle(Time now) {
  room_.tick(now);
  for (const auto& session : sessions_) {
    session->judge.tick(now);
    carry_orders(*session);
  }
  while (!sessions_.empty() && sessions_.front()->judge.over(now)) {
    const Session* ended = sessions_.front().get();
    const bool connected =
        std::any_of(connections_.begin(), connections_.end(),
                    [&](const auto& entry) { return entry.second.session == ended; });
    if (connected) break;
    // Of a successor that too few came to nothing is over: they may come again.
    any_session_over_ = any_session_over_ || !ended->judge.gave_up();
    sessions_.erase(sessions_.begin());
  }
  finished_ = sessions_.empty() && any_session_over_;
}

std::optional<WireEnd::Time> CoordinatorEnd::deadline() const {
  std::optional<Time> next;
  for (const auto& session : sessions_) {
    const auto deadline = session->judge.deadline();
    if (deadline) next = next ? std::min(*next, *deadline) : *deadline;
  }
  // Who no longer asks has left the waiting room.
  if (const auto deadline = room_.deadline()) next = next ? std::min(*next, *deadline) : *deadline;
  return next;
}

bool CoordinatorEnd::over() const { return !host_.joined_often && finished_; }

}  // namespace chorus
