#include "runtime/probing/probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/blob.hpp"
#include "base/counted.hpp"
#include "base/hash.hpp"
#include "base/index.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/price/cost.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/probe_cache.hpp"
#include "runtime/probing/batch.hpp"
#include "runtime/probing/flows.hpp"
#include "runtime/probing/inquiry.hpp"
#include "runtime/probing/networks.hpp"
#include "topology/probing/declared_networks.hpp"
#include "transports/tcp/endpoint.hpp"

namespace chorus {
namespace {

using Clock = std::chrono::steady_clock;
using probing::Flow;
using Kind = ProbeQuestion::Kind;

// Nothing of an experiment lasts this long unless a rank is stuck.
constexpr int kPatienceMs = 10'000;

std::string key_of(const std::string& text) {
  return fmt::format("{:016x}", Fnv1a().bytes(text).value());
}

// Of the time since it began a job that computes and calls gives this share to experiments that
// hold its calls, at first and once it has lasted: a job of seconds never gets back what a better
// plan costs, one of a minute does.
constexpr double kShareAtFirst = 0.01, kShareLater = 0.25, kLaterAfterS = 10;
// And for each second of experiments so many without, which need the ranks' processors, too.
constexpr double kPausesAtFirst = 9, kPausesLater = 2;
// Where its plan is for another network than this one, each call costs more than it need.
constexpr double kShareInAHurry = 0.5, kPausesInAHurry = 0.5;
// Calls that never rest leave nothing to measure.
constexpr int kMostAttempts = 100;

std::int64_t unix_time_s() { return static_cast<std::int64_t>(std::time(nullptr)); }

// One rank of each host asks and answers; rank 0 also thinks.
class Session {
 public:
  Session(Control& control, const GroupPlace& place, const HostList& hosts,
          const ProbeRequest& request)
      : control_(control), place_(place), request_(request), start_(Clock::now()) {
    for (std::size_t h = 0; h < hosts.parts.size(); ++h) {
      const Rank leader = hosts.parts[h].ranks[0];
      if (leader == place.rank) me_ = static_cast<int>(h);
      // exchange() wants one order of members on all ranks, and rank 0 to be found in it.
      if (leader == 0) thinker_ = h;
      leaders_.push_back(place.members[static_cast<std::size_t>(leader)]);
      ranks_.push_back(leader);
    }
  }

  /// Rank 0, after run(): what was found out.
  [[nodiscard]] const ProbeInquiry& inquiry() const { return *inquiry_; }
  /// The ranks that measure, by host, as a group.
  [[nodiscard]] GroupPlace leaders() const {
    return {.key = place_.key + "/leaders", .members = leaders_, .rank = me_};
  }
  [[nodiscard]] bool measures() const { return me_ >= 0; }
  [[nodiscard]] bool thinks() const { return place_.rank == 0; }

  /// Of all cables together if there are no `networks`, else of one network after the other.
  void run(FlowRunner& runner, std::span<const probing::HostNetwork> networks) {
    runner_ = &runner;
    networks_ = networks;
    if (thinks()) inquiry_.emplace(ranks_, networks, request_.budget_ms);
    while (true) {
      const ProbeBatch batch = next_batch();
      if (batch.empty()) return;
      Answers mine;
      for (std::size_t i = 0; i <= batch.size(); ++i) {
        const bool go_on = share(mine, batch, i);
        if (i == batch.size() || !go_on) break;
        mine = measure(batch[i]);
      }
    }
  }

 private:
  using Answers = std::vector<Received>;

  void throw_if_stopped() const {
    if (request_.stop.stop_requested()) throw ProbeStopped();
  }

  /// With the calls of these ranks at rest, if they make any.
  Answers measure(const ProbeQuestion& question) {
    for (int attempt = 0; !is_quiet(); ++attempt) {
      if (attempt == kMostAttempts) throw BootstrapError("the ranks' calls never come to rest");
    }
    const auto begin = Clock::now();
    Answers answers =
        question.kind == Kind::round_trip ? measure_trips(question.flows) : measure_flows(question);
    if (inquiry_) inquiry_->spent(seconds_since(begin));
    if (request_.gate != nullptr) request_.gate->open();
    return answers;
  }

  /// Whether it is on all hosts at once.
  bool is_quiet() {
    if (request_.gate == nullptr) return true;
    if (thinks()) wait_for_turn();
    static_cast<void>(exchange({}));  // hosts close their gates together
    BlobWriter blob;
    const bool rests = request_.gate->close(request_.stop);
    throw_if_stopped();
    blob.u32(rests ? 1 : 0);
    blob.u64(std::bit_cast<std::uint64_t>(request_.gate->held_s()));
    blob.u64(request_.gate->calls());
    blob.u32(request_.gate->is_calling() ? 1 : 0);
    bool all_rest = true;
    bool is_calling = false;  // one that waits for a lost packet rests, but has to get on
    double held_s = 0;
    std::uint64_t calls = 0;
    for (const auto& theirs : exchange(blob.view())) {
      BlobReader reader(theirs);
      all_rest = reader.u32() == 1 && all_rest;
      held_s = std::max(held_s, std::bit_cast<double>(reader.u64()));
      calls += reader.u64();
      is_calling = reader.u32() == 1 || is_calling;
      if (!reader.ok()) throw BootstrapError("a rank sent a malformed word on its calls");
    }
    if (!all_rest) request_.gate->open();
    calls_are_made_ = calls != calls_ || is_calling;
    calls_ = calls;
    held_s_ = held_s;
    return all_rest;
  }

  /// Rank 0: the others wait for it. Where nobody calls there is nothing to wait for; else
  /// experiments take their share of the time at most.
  void wait_for_turn() {
    if (!calls_are_made_) return;
    const auto begin = Clock::now();
    const double pauses = request_.in_a_hurry                    ? kPausesInAHurry
                          : seconds_since(start_) < kLaterAfterS ? kPausesAtFirst
                                                                 : kPausesLater;
    const double pause_s = pauses * seconds_since(began_turn_);
    for (auto now = begin;; now = Clock::now()) {
      const double lasted_s = seconds_since(start_);
      const double share_s =
          request_.in_a_hurry
              ? kShareInAHurry * lasted_s
              : kShareAtFirst * lasted_s + kShareLater * std::max(0.0, lasted_s - kLaterAfterS);
      if (held_s_ <= share_s && seconds_since(begin) >= pause_s) break;
      throw_if_stopped();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    began_turn_ = Clock::now();
  }

  static double seconds_since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  ProbeBatch next_batch() {
    BlobWriter blob;
    if (inquiry_) write(blob, inquiry_->next());
    const auto blobs = exchange(blob.view());
    return read_batch(blobs[thinker_], static_cast<std::uint32_t>(leaders_.size()),
                      static_cast<std::uint32_t>(networks_.size()));
  }

  // Tells all what came of question `index` - 1 and waits until everybody is ready for the next;
  // false once rank 0 says that time is up.
  bool share(const Answers& mine, const ProbeBatch& batch, std::size_t index) {
    BlobWriter blob;
    blob.u32(!inquiry_ || inquiry_->goes_on() ? 1 : 0);
    blob.u32(static_cast<std::uint32_t>(mine.size()));
    for (const Received& received : mine) {
      blob.u64(std::bit_cast<std::uint64_t>(received.bytes_per_s));
      blob.u64(received.bytes);
    }
    const auto blobs = exchange(blob.view());
    BlobReader from_thinker(blobs[thinker_]);
    const bool go_on = from_thinker.u32() == 1;
    if (inquiry_ && index > 0) {
      inquiry_->take(blobs, batch[index - 1]);
      if (request_.progress) {
        request_.progress(inquiry_->done(), inquiry_->total(), inquiry_->phase());
      }
    }
    return go_on;
  }

  Answers measure_flows(const ProbeQuestion& question) {
    std::vector<Rank> to;
    std::vector<Rank> from;
    for (const Flow& flow : question.flows) {
      if (flow.src == me_) to.push_back(flow.dst);
      if (flow.dst == me_) from.push_back(flow.src);
    }
    if (to.empty() && from.empty()) return {};
    std::optional<std::string_view> network;
    if (question.network > 0) network = networks_[question.network - 1].name;
    FlowSize size{.duration_s = 1e-3 * question.ms};
    // Of the host that most flows have in common: a slow cable would take long for all of them.
    size.least_bytes /= most_at_one_host(question.flows);
    return runner_->exchange(to, from, size, network);
  }

  static std::uint64_t most_at_one_host(const std::vector<Flow>& flows) {
    std::map<int, std::uint64_t> out, in;
    std::uint64_t most = 1;
    for (const Flow& flow : flows) most = std::max({most, ++out[flow.src], ++in[flow.dst]});
    return most;
  }

  Answers measure_trips(const std::vector<Flow>& flows) {
    Answers answers;
    for (const Flow& flow : flows) {
      if (flow.src > flow.dst || (flow.src != me_ && flow.dst != me_)) continue;
      const bool first = flow.src == me_;
      const int peer = first ? flow.dst : flow.src;
      const double alpha_s = runner_->half_round_trip(peer, first);
      if (first) answers.push_back({alpha_s, 0});
    }
    return answers;
  }

  Table exchange(std::span<const std::byte> mine) {
    return control_.exchange(fmt::format("{}/{}", place_.key, exchanges_++), leaders_, mine,
                             Control::kNoDeadlineMs, place_.key, [this] { throw_if_stopped(); });
  }

  Control& control_;
  const GroupPlace& place_;
  const ProbeRequest& request_;
  Clock::time_point start_;
  Clock::time_point began_turn_ = Clock::now();
  double held_s_ = 0;        // calls were, on the rank where they were for longest
  std::uint64_t calls_ = 0;  // of these ranks so far
  bool calls_are_made_ = false;
  FlowRunner* runner_ = nullptr;
  std::span<const probing::HostNetwork> networks_;
  std::optional<ProbeInquiry> inquiry_;  // rank 0
  std::vector<Rank> leaders_;            // by host: world rank
  std::vector<Rank> ranks_;              // the same, in the group
  std::size_t thinker_ = 0;              // the host of rank 0
  int me_ = -1;                          // this rank's host, if it is its leader
  int exchanges_ = 0;
};

// Everything that makes a network another one: machines, interfaces, transports.
std::string cache_key(Control& control, const GroupPlace& place, const HostList& hosts,
                      const Options& options) {
  std::string mine;
  for (const Rail& rail : tcp_interfaces(control, options)) {
    if (!mine.empty()) mine += " ";
    mine += interface_identity(rail.interface.empty() ? rail.address.ip_text() : rail.interface);
  }
  const auto all = control.exchange(place.key + "/probe/interfaces", place.members,
                                    std::as_bytes(std::span(mine)), options.join_timeout_ms);
  std::string text = options.transports + "/" + std::to_string(options.tcp_sockets);
  for (std::size_t h = 0; h < hosts.parts.size(); ++h) {
    const auto interface = all[static_cast<std::size_t>(hosts.parts[h].ranks[0])];
    text += "\n" + hosts.identities[h] + " ";
    text.append(reinterpret_cast<const char*>(interface.data()), interface.size());
  }
  return key_of(text);
}

// A group of ranks that do something the job can do without: whoever cannot go on tells the others.
class Aside {
 public:
  Aside(Control& control, const GroupPlace& place) : control_(control), key_(place.key) {
    control.open_group(key_, place.members, true);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  ~Aside() {
    if (std::uncaught_exceptions() > exceptions_) control_.abort(key_, "it has given up");
    control_.close_group(key_);
  }

 private:
  Control& control_;
  const std::string key_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Rank 0 gives what it knows to all, who check that they make the same of it.
void agree(Control& control, const GroupPlace& place, const HostList& hosts,
           const std::stop_token& stop, Probed& probed) {
  const auto meet = [&](const char* what, const std::string& mine) {
    return control.exchange(fmt::format("{}/{}", place.key, what), place.members,
                            std::as_bytes(std::span(mine)), Control::kNoDeadlineMs, place.key, [&] {
                              if (stop.stop_requested()) throw ProbeStopped();
                            });
  };
  const auto said = meet("result", place.rank == 0 ? to_json(probed.network) : std::string());
  const std::string_view theirs(reinterpret_cast<const char*>(said[0].data()), said[0].size());
  try {
    probed.network = probed_network_from_json(theirs, "what rank 0 probed");
  } catch (const InputError& error) {
    throw BootstrapError(error.what());
  }
  if (probed.network.hosts != hosts.names) {
    throw BootstrapError("rank 0 probed other hosts than this communicator has");
  }
  probed.topology = probing::topology_of(probed.network, probed.parts);
  const std::string hash = fingerprint(probed.topology);
  const auto hashes = meet("agreed", hash);
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    const std::string other(reinterpret_cast<const char*>(hashes[r].data()), hashes[r].size());
    if (other != hash) {
      throw BootstrapError(
          fmt::format("ranks {} and {} understood different topologies from one probe: {} and {}",
                      place.rank, r, hash, other));
    }
  }
}

// The ranks that measure have links of their own: those of the communicator may be in use.
void measure(Control& control, const GroupPlace& leaders, const Options& options,
             const SlotLayout& layout, const ProbeRequest& request,
             std::span<const probing::HostNetwork> networks, Session& session, Probed& probed) {
  SlotLayout one_channel = layout;
  one_channel.data_channels = 1;
  Connections connections(control, leaders, options, one_channel, "a probe",
                          Connections::Memory::of_links);
  Engine engine(control, connections, leaders, options, one_channel);
  FlowRunner runner(control, connections, engine, leaders, one_channel,
                    std::min(options.timeout_ms, kPatienceMs), request.stop);
  session.run(runner, networks);
  if (session.thinks()) session.inquiry().conclude(probed);
}

}  // namespace

HostList hosts_of(const Connections& connections) {
  std::map<std::string, probing::HostPart> by_host;  // ascending, whatever the order of ranks
  const auto& members = connections.members();
  for (std::size_t r = 0; r < members.size(); ++r) {
    probing::HostPart& part = by_host[members[r].host];
    part.ranks.push_back(static_cast<Rank>(r));
    part.memory = {.cores = members[r].host_cores,
                   .is_shared = connections.hosts_share_memory(),
                   .rates = *members[r].rates,
                   .places = std::move(part.memory.places),
                   .adapter_numa = members[r].adapter_numa};
    part.memory.places.push_back(members[r].place);
  }
  HostList hosts;
  std::map<std::string, int> used;
  for (auto& [identity, part] : by_host) {
    std::string name = identity.substr(0, identity.find('/'));
    if (name.empty()) name = "host";
    const int number = used[name]++;
    if (number > 0) name += fmt::format("#{}", number + 1);
    part.host = static_cast<int>(hosts.parts.size());
    hosts.identities.push_back(identity);
    hosts.names.push_back(std::move(name));
    hosts.parts.push_back(std::move(part));
  }
  return hosts;
}

Probed recall_network(Control& control, const GroupPlace& place, const Options& options,
                      const HostList& hosts, bool use_cache) {
  Probed probed;
  probed.parts = hosts.parts;
  probed.network.hosts = hosts.names;
  probed.key = cache_key(control, place, hosts, options);

  // Only rank 0's cache counts: all must know the same.
  std::string known;
  if (place.rank == 0 && use_cache) {
    const auto cached =
        load_probe(options.probe_cache, probed.key, options.probe_max_age_s, unix_time_s());
    if (cached && cached->hosts == hosts.names) known = to_json(*cached);
  }
  const auto said =
      control.exchange(place.key + "/probe/cached", place.members, std::as_bytes(std::span(known)),
                       options.join_timeout_ms, place.key);
  if (said[0].empty()) return probed;
  const std::string_view theirs(reinterpret_cast<const char*>(said[0].data()), said[0].size());
  try {
    probed.network = probed_network_from_json(theirs, "what rank 0 has kept of a probe");
  } catch (const InputError& error) {
    throw BootstrapError(error.what());
  }
  if (probed.network.hosts != hosts.names) {
    throw BootstrapError("rank 0 knows other hosts than this communicator has");
  }
  probed.topology = probing::topology_of(probed.network, probed.parts);
  probed.cached = true;
  return probed;
}

Probed measure_network(Control& control, const GroupPlace& place, const Options& options,
                       const SlotLayout& layout, const HostList& hosts, const ProbeRequest& request,
                       Probed recalled) {
  const auto start = Clock::now();
  Probed probed = std::move(recalled);
  const GroupPlace all{.key = place.key + "/probe", .members = place.members, .rank = place.rank};
  const Aside group(control, all);
  Session session(control, all, hosts, request);
  const GroupPlace leaders = session.leaders();
  // Before they meet: who is stopped as soon as they have tells those that wait for its links.
  std::optional<Aside> among_leaders;
  if (session.measures()) among_leaders.emplace(control, leaders);
  // Ranks come here each at a call of its own, or never where reprobe() takes its place.
  std::vector<std::byte> mine;
  if (session.measures()) mine = interfaces_told(tcp_interfaces(control, options));
  const Table told =
      control.exchange(all.key + "/begin", all.members, mine, Control::kNoDeadlineMs, all.key, [&] {
        if (request.stop.stop_requested()) throw ProbeStopped();
      });
  if (session.measures()) {
    std::vector<std::span<const std::byte>> by_host;
    for (const probing::HostPart& part : hosts.parts) by_host.emplace_back(told[at(part.ranks[0])]);
    std::vector<probing::HostNetwork> networks = networks_of(by_host);
    if (layout.slot_bytes < FlowRunner::kLeastOfNetwork) networks.clear();
    measure(control, leaders, options, layout, request, networks, session, probed);
  }
  among_leaders.reset();
  agree(control, all, hosts, request.stop, probed);
  if (place.rank == 0 && request.write_cache) {
    save_probe(options.probe_cache, probed.key, probed.network);
  }
  probed.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return probed;
}

std::string disagreement(const Topology& declared, const Topology& measured,
                         const std::vector<probing::HostPart>& parts,
                         const std::vector<std::string>& names) {
  if (declared.world_size() != measured.world_size()) {
    return fmt::format("it is for {}, not {}", counted(declared.world_size(), "rank"),
                       measured.world_size());
  }
  const Topology joined = probing::with_joined_networks(declared);
  const Routes joined_routes(joined);
  const Routes measured_routes(measured);
  const auto rate = [](const Topology& topology, const Routes& routes, Rank a, Rank b) {
    double beta = 0;
    for (const int link : routes.path(a, b)) {
      beta = std::max(beta, topology.links[static_cast<std::size_t>(link)].beta_s_per_byte);
    }
    return beta > 0 ? 1 / beta : 0;
  };
  constexpr double kWorthSaying = 1.33;
  double worst = kWorthSaying;
  std::string text;
  for (const auto& from : parts) {
    for (const auto& to : parts) {
      if (from.host == to.host) continue;
      const double said = rate(joined, joined_routes, from.ranks[0], to.ranks[0]);
      const double seen = rate(measured, measured_routes, from.ranks[0], to.ranks[0]);
      if (said <= 0 || seen <= 0) continue;
      const double factor = std::max(said / seen, seen / said);
      if (factor <= worst) continue;
      worst = factor;
      text = fmt::format(
          "from {} to {} {:.1f} MB/s were measured, {:.1f} x {} than the {:.1f} MB/s declared",
          names[static_cast<std::size_t>(from.host)], names[static_cast<std::size_t>(to.host)],
          seen * 1e-6, factor, seen < said ? "slower" : "faster", said * 1e-6);
    }
  }
  return text;
}

}  // namespace chorus
