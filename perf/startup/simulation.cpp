#include "perf/startup/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <utility>

#include "chorus/error.hpp"
#include "runtime/control/coordinator/end.hpp"
#include "runtime/control/relay.hpp"
#include "runtime/control/table.hpp"
#include "runtime/control/wires.hpp"

namespace chorus::perf {
namespace {

using Token = Wires::Token;
using Time = Wires::Time;
using wire::Type;
using wire::Writer;

/// As SocketWires has it.
constexpr std::size_t kStrangers = 256;

class Process;

/// Both ends of a connection, and what is under way on it.
struct Cable {
  Process* ends[2];
  Token tokens[2];
  double arrives_s[2] = {0, 0};  ///< the last frame at that end
  bool local = false;
};

/// All processes, and the time.
class World {
 public:
  explicit World(const SimulatedJob& what) : job(what) {}

  void at(double when_s, std::function<void()> what) {
    events_.push({when_s, next_++, std::move(what)});
  }
  void run() {
    while (!events_.empty()) {
      // The queue gives what is on top as a constant; it is taken out at once.
      auto event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      now_s = std::max(now_s, event.when_s);
      event.what();
    }
  }
  [[nodiscard]] Time time() const {
    return Time(std::chrono::duration_cast<Wires::Clock::duration>(
        std::chrono::duration<double>(1 + now_s)));
  }
  Cable& cable() {
    cables_.push_back(std::make_unique<Cable>());
    return *cables_.back();
  }

  const SimulatedJob job;
  double now_s = 0;

 private:
  struct Event {
    double when_s;
    std::uint64_t number;  ///< of those at one time the oldest comes first
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(other.when_s, other.number) < std::pair(when_s, number);
    }
  };
  std::priority_queue<Event> events_;
  std::uint64_t next_ = 0;
  std::vector<std::unique_ptr<Cable>> cables_;
};

/// One process: its end of the protocol, its connections, its processor and its host's network.
class Process final : public Wires {
 public:
  Process(World& world, int host) : world_(world), host_(host) {}

  /// A connection to `other`, which hears of it after its latency. Its token here.
  Token connect(Process& other) {
    Cable& cable = world_.cable();
    cable.local = host_ == other.host_;
    cable.ends[0] = this;
    cable.ends[1] = &other;
    cable.tokens[0] = add(cable, 0);
    world_.at(world_.now_s + latency(cable), [&other, &cable] {
      other.waiting_.push_back(&cable);
      other.accept();
    });
    return cable.tokens[0];
  }

  void send(Token to, const wire::Frame& frame) override { send(to, frame, {}, nullptr); }
  void send(Token to, const wire::Frame& head, std::span<const std::byte> rest,
            std::shared_ptr<const void> owner) override {
    const auto found = cables_.find(to);
    if (found == cables_.end()) return;
    Cable& cable = *found->second.cable;
    const int there = 1 - found->second.side;
    double bytes = static_cast<double>(head->size() + rest.size());
    const auto type = static_cast<Type>((*head)[4]);
    const auto blob = static_cast<double>(world_.job.blob_bytes);
    const bool is_table =
        type == Type::exchange_result ||
        (type == Type::carry && static_cast<Type>(rest[0]) == Type::exchange_result);
    if (is_table) bytes += blob * world_.job.ranks;
    const bool gives = type == Type::exchange ||
                       (type == Type::carried && static_cast<Type>((*head)[9]) == Type::exchange);
    if (gives) bytes += blob;
    const SimulatedCosts& costs = world_.job.costs;
    busy_until_s = std::max(busy_until_s, world_.now_s) + costs.send_s;
    double& line_free = cable.local ? busy_until_s : line_free_s_;
    line_free = std::max(line_free, busy_until_s) +
                bytes / (cable.local ? costs.local_bytes_per_s : costs.bytes_per_s);
    bytes_out += bytes;
    ++frames;
    double& arrives = cable.arrives_s[there];
    arrives = std::max(arrives, line_free + latency(cable));
    // Blobs weigh what the job says, and nobody stores them.
    world_.at(arrives, [&cable, there, head, rest, keep = std::move(owner), bytes] {
      Process& receiver = *cable.ends[there];
      receiver.work(bytes, [&receiver, &cable, there, head, rest, keep] {
        receiver.deliver(cable.tokens[there], *head, rest);
      });
    });
  }
  void trust(Token of, std::size_t, bool) override {
    is_known(of);
    busy_until_s = std::max(busy_until_s, world_.now_s) + world_.job.costs.prove_s;
  }
  void finish(Token of) override {
    const auto found = cables_.find(of);
    if (found == cables_.end()) return;
    Cable& cable = *found->second.cable;
    const int there = 1 - found->second.side;
    cables_.erase(found);
    is_known(of);
    world_.at(cable.arrives_s[there], [&cable, there, this] {
      Process& other = *cable.ends[there];
      other.work(0, [&other, &cable, there, this] {  // behind what came before
        if (other.cables_.erase(cable.tokens[there]) == 0) return;
        other.end->closed(cable.tokens[there], "its connection closed", world_.time());
      });
    });
  }
  [[nodiscard]] std::size_t unsent(Token) const override { return 0; }
  [[nodiscard]] std::string peer(Token) const override { return "the simulation"; }

  std::unique_ptr<WireEnd> end;
  double busy_until_s = 0;
  double bytes_in = 0, bytes_out = 0;
  std::uint64_t frames = 0;
  std::size_t most_connections = 0;

 private:
  struct Plug {
    Cable* cable;
    int side;
  };
  Token add(Cable& cable, int side) {
    const Token token = ++last_token_;
    cables_[token] = {&cable, side};
    most_connections = std::max(most_connections, cables_.size());
    return token;
  }
  [[nodiscard]] double latency(const Cable& cable) const {
    return cable.local ? world_.job.costs.local_latency_s : world_.job.costs.latency_s;
  }
  /// As SocketWires: more than so many that have not proved the secret wait outside.
  void accept() {
    while (!waiting_.empty() && strangers_.size() < kStrangers) {
      Cable& cable = *waiting_.front();
      waiting_.pop_front();
      const Token token = cable.tokens[1] = add(cable, 1);
      strangers_.insert(token);
      work(0, [this, token] { end->opened(token, world_.time()); });
    }
  }
  void is_known(Token token) {
    if (strangers_.erase(token) > 0) accept();
  }
  /// Once its processor has got to it.
  void work(double bytes, std::function<void()> what) {
    busy_until_s = std::max(busy_until_s, world_.now_s) + world_.job.costs.receive_s;
    bytes_in += bytes;
    ++frames;
    world_.at(busy_until_s, [this, what = std::move(what)] {
      what();
      end->settle(world_.time());
    });
  }
  void deliver(Token token, const wire::Bytes& head, std::span<const std::byte> rest) {
    if (!cables_.contains(token)) return;
    const auto type = static_cast<Type>(head[4]);
    if (rest.empty()) return end->heard(token, type, std::span(head).subspan(5), world_.time());
    wire::Bytes whole(head.begin() + 5, head.end());
    whole.insert(whole.end(), rest.begin(), rest.end());
    end->heard(token, type, whole, world_.time());
  }

  World& world_;
  int host_;
  double line_free_s_ = 0;
  Token last_token_ = 0;
  std::map<Token, Plug> cables_;
  std::set<Token> strangers_;
  std::deque<Cable*> waiting_;
};

/// What a rank, or the one that connects a relay, says until it is let in.
wire::Frame hello_to(std::span<const std::byte> greeting, Rank rank, int world_size,
                     const Secret& secret, int host, std::uint16_t relay_port) {
  const wire::Greeting heard = wire::read_greeting(greeting);
  wire::Hello hello;
  hello.version = wire::version();
  hello.nonce = heard.nonce;  // nobody is deceived here
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = static_cast<std::uint32_t>(1000 + rank);
  hello.host = fmt::format("host{}", host);
  hello.identity = fmt::format("simulated-{}/{}", host, rank);
  hello.relay_address = relay_port != 0 ? fmt::format("{}", host) : "";
  hello.relay_port = relay_port;
  return wire::hello_frame(hello, heard.nonce, secret);
}

/// A rank: joins, opens its communicator and exchanges, as Control does.
class RankEnd final : public WireEnd {
 public:
  RankEnd(World& world, Wires& wires, Rank rank, int host, const Secret& secret)
      : world_(world), wires_(wires), rank_(rank), host_(host), secret_(secret) {}
  void opened(Token, Time) override {}
  void heard(Token from, Type type, std::span<const std::byte> body, Time) override {
    switch (type) {
      case Type::greeting:
        return wires_.send(from, hello_to(body, rank_, world_.job.ranks, secret_, host_, 0));
      case Type::joined: {
        joined_s = world_.now_s;
        RankList all;
        all.add(0, static_cast<std::uint32_t>(world_.job.ranks));
        wires_.send(from, Writer(Type::open_group).text("world").ranks(all).share());
        return wires_.send(
            from, Writer(Type::exchange).text("wiring").ranks(all).blob({}).text("world").share());
      }
      case Type::exchange_result: {
        wire::Reader reader(body);
        (void)reader.text();
        (void)reader.u64();
        right = wire::Reader(reader.rest()).u32() == static_cast<std::uint32_t>(world_.job.ranks);
        exchanged_s = world_.now_s;
        return;
      }
      case Type::refused:
      case Type::job_failed:
        throw Error(fmt::format("rank {} is refused: {}", rank_, wire::Reader(body).text()));
      case Type::appoint:
        return wires_.send(from, Writer(Type::listening).text("127.0.0.1").u32(9).share());
      default:
        return;
    }
  }
  void closed(Token, std::string_view how, Time) override {
    throw Error(fmt::format("rank {} lost its connection: {}", rank_, how));
  }
  void malformed(Token, const std::string&, Time) override {}
  void cannot_take(const std::string&, Time) override {}
  void settle(Time) override {}
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }
  [[nodiscard]] bool over() const override { return false; }

  double joined_s = -1, exchanged_s = -1;
  bool right = false;

 private:
  World& world_;
  Wires& wires_;
  Rank rank_;
  int host_;
  Secret secret_;
};

/// A relay that first has to find its way up, to wherever it is sent.
class RisingRelay final : public WireEnd {
 public:
  RisingRelay(World& world, Process& process, Rank rank, int host, const Secret& secret,
              const std::vector<Process*>& relays, std::function<void()> risen)
      : relay_(world.job.ranks, secret),
        world_(world),
        process_(process),
        rank_(rank),
        host_(host),
        secret_(secret),
        relays_(relays),
        risen_(std::move(risen)) {
    relay_.speak_over(process);
  }
  void rise(Process& to) {
    ++depth;
    up_ = process_.connect(to);
  }
  void opened(Token from, Time now) override { relay_.opened(from, now); }
  void heard(Token from, Type type, std::span<const std::byte> body, Time now) override {
    if (from != up_ || has_risen_) return relay_.heard(from, type, body, now);
    if (type == Type::greeting) {
      process_.send(from, hello_to(body, rank_, world_.job.ranks, secret_, host_, 1));
    } else if (type == Type::go_to) {
      going_ = std::stoul(wire::Reader(body).text());
    } else if (type == Type::welcome) {
      has_risen_ = true;
      relay_.rises(from, "simulated");
      risen_();
    } else {
      throw Error(
          fmt::format("the relay of host {} is refused: {}", host_, wire::Reader(body).text()));
    }
  }
  void closed(Token from, std::string_view how, Time now) override {
    if (from == up_ && !has_risen_) return rise(*relays_[going_]);
    relay_.closed(from, how, now);
  }
  void malformed(Token from, const std::string& what, Time now) override {
    relay_.malformed(from, what, now);
  }
  void cannot_take(const std::string&, Time) override {}
  void settle(Time now) override { relay_.settle(now); }
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }
  [[nodiscard]] bool over() const override { return false; }

  int depth = 0;

 private:
  RelayEnd relay_;
  World& world_;
  Process& process_;
  Rank rank_;
  int host_;
  Secret secret_;
  const std::vector<Process*>& relays_;
  std::function<void()> risen_;
  Token up_ = 0;
  std::size_t going_ = 0;
  bool has_risen_ = false;
};

}  // namespace

SimulatedJoin simulate_join(const SimulatedJob& job) {
  World world(job);
  const Secret secret = Secret::parse("000102030405060708090a0b0c0d0e0f");
  const int hosts = (job.ranks + job.ranks_per_host - 1) / job.ranks_per_host;
  std::vector<std::unique_ptr<Process>> processes;
  const auto process_on = [&](int host) -> Process& {
    processes.push_back(std::make_unique<Process>(world, host));
    return *processes.back();
  };
  Process& coordinator = process_on(-1);
  {
    auto end = std::make_unique<CoordinatorEnd>(job.ranks, secret, Coordinator::Host{});
    end->speak_over(coordinator);
    coordinator.end = std::move(end);
  }
  std::vector<RankEnd*> ranks;
  std::vector<Process*> relays, rank_processes;
  std::vector<RisingRelay*> rising;
  for (Rank rank = 0; rank < job.ranks; ++rank) {
    const int host = rank / job.ranks_per_host;
    if (job.by_relay && rank % job.ranks_per_host == 0) relays.push_back(&process_on(host));
    Process& process = process_on(host);
    auto end = std::make_unique<RankEnd>(world, process, rank, host, secret);
    ranks.push_back(end.get());
    process.end = std::move(end);
    rank_processes.push_back(&process);
  }
  for (int host = 0; host < hosts; ++host) {
    const Rank first = host * job.ranks_per_host;
    const Rank last = std::min(first + job.ranks_per_host, job.ranks);
    const auto connect = [&, first, last](Process& to) {
      for (Rank rank = first; rank < last; ++rank) {
        (void)rank_processes[static_cast<std::size_t>(rank)]->connect(to);
      }
    };
    if (!job.by_relay) {
      connect(coordinator);
      continue;
    }
    Process& relay = *relays[static_cast<std::size_t>(host)];
    auto end = std::make_unique<RisingRelay>(world, relay, first, host, secret, relays,
                                             [&relay, connect] { connect(relay); });
    rising.push_back(end.get());
    relay.end = std::move(end);
    rising.back()->rise(coordinator);
  }
  world.run();

  SimulatedJoin result{.ranks = job.ranks, .hosts = hosts};
  for (const RankEnd* rank : ranks) {
    if (rank->exchanged_s < 0) throw Error("a simulated rank never has its table");
    result.joined_s = std::max(result.joined_s, rank->joined_s);
    result.exchanged_s = std::max(result.exchanged_s, rank->exchanged_s);
    result.wrong += rank->right ? 0 : 1;
  }
  for (const auto& process : processes) {
    result.most_connections = std::max(result.most_connections, process->most_connections);
    result.most_bytes_out = std::max(result.most_bytes_out, process->bytes_out);
  }
  for (const RisingRelay* relay : rising) result.depth = std::max(result.depth, relay->depth);
  result.coordinator_connections = coordinator.most_connections;
  result.coordinator_frames = coordinator.frames;
  result.coordinator_bytes_in = coordinator.bytes_in;
  result.coordinator_bytes_out = coordinator.bytes_out;
  return result;
}

}  // namespace chorus::perf
