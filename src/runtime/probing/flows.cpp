#include "runtime/probing/flows.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "chorus/error.hpp"
#include "topology/probing/steady_rate.hpp"

namespace chorus {
namespace {

using probing::ArrivalSample;
using probing::steady_rate;

// A message's tag says how long it is and whether it is the last of its flow.
constexpr std::uint32_t kLast = 0x80000000;
// First message of a flow. Later ones grow with what was sent, so that a slow link never holds more
// than half a flow in its slots.
constexpr std::size_t kFirstMessage = 8 << 10;
constexpr std::uint64_t kGrowth = 24;
// Nor more than it brings in this time: what is in its slots has to arrive before the next
// experiment can begin, and fills the queues in which others' acknowledgements wait.
constexpr double kUnderWayS = 0.008;
// Spinning on a core that the peer needs costs both; sleeping costs a wake-up.
constexpr std::int64_t kSpinNs = 60'000;
constexpr int kRoundTrips = 24;
// The one that counts, from the fastest: most are spoilt where hosts share a machine.
constexpr int kFastTrip = 2;
constexpr std::size_t kSmall = 8;
constexpr int kChannel = 0;

}  // namespace

struct FlowRunner::Outgoing {
  Rank peer = 0;
  OutPort* port = nullptr;
  std::int64_t begun_ns = 0;
  std::uint64_t sent = 0;
  bool done = false;
};

struct FlowRunner::Incoming {
  Rank peer = 0;
  InPort* port = nullptr;
  std::vector<ArrivalSample> samples;
  bool done = false;

  [[nodiscard]] Received result(const FlowSize& size) const {
    if (samples.empty()) return {};
    return {steady_rate(samples, size.duration_s, size.most_bytes), samples.back().bytes};
  }
};

FlowRunner::FlowRunner(Control& control, Connections& connections, Engine& engine,
                       const GroupPlace& place, const SlotLayout& layout, int patience_ms,
                       std::stop_token stop)
    : control_(control),
      connections_(connections),
      engine_(engine),
      place_(place),
      layout_(layout),
      patience_ms_(patience_ms),
      stop_(std::move(stop)),
      source_(layout.slot_bytes),
      sink_(layout.slot_bytes) {
  // Not all alike, should something on the way compress.
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i + sizeof state <= source_.size(); i += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::memcpy(source_.data() + i, &state, sizeof state);
  }
}

bool FlowRunner::progress(std::span<Link* const> links) {
  bool flushed = true;
  for (Link* link : links) flushed = link->progress() && flushed;
  return flushed;
}

// Announces sleep, looks once more, and polls for a short while.
void FlowRunner::sleep(std::span<Link* const> links, const std::function<bool()>& step) {
  for (const auto& transport : connections_.transports()) transport->prepare_to_sleep();
  std::vector<pollfd> fds;
  progress(links);
  if (!step()) {
    for (const auto& transport : connections_.transports()) {
      transport->append_wake_fds(fds);
    }
    fds.push_back(wake_fd(control_.fd()));
    ::poll(fds.data(), fds.size(), 20);
  }
  for (const auto& transport : connections_.transports()) transport->woke();
  connections_.progress();
}

// Calls `step`, which says whether anything moved, until it sets `done`.
template <class Done>
void FlowRunner::drive(std::span<Link* const> links, const Rank& waiting_for,
                       const std::string& what, Done step) {
  std::int64_t idle_since = steady_ns();
  bool done = false;
  const std::function<bool()> once = [&] { return step(done); };
  try {
    while (!done) {
      progress(links);
      if (once() || done) {
        idle_since = steady_ns();
        continue;
      }
      const std::int64_t idle = steady_ns() - idle_since;
      if (idle < kSpinNs) {
        ::sched_yield();
        continue;
      }
      sleep(links, once);
      if (stop_.stop_requested()) throw ProbeStopped();
      engine_.check_now_and_then();
      if (idle <= std::int64_t{patience_ms_} * 1'000'000) continue;
      const std::string reason =
          fmt::format("probing: host {} waits for host {} to {}: nothing for {} ms", place_.rank,
                      waiting_for, what, patience_ms_);
      control_.abort(place_.key, reason);
      engine_.fail(control_.await_verdict(place_.key).value_or(reason));
    }
  } catch (const LinkError& error) {
    engine_.lost(error.peer(), error.what());
  }
}

std::vector<Received> FlowRunner::exchange(std::span<const Rank> to, std::span<const Rank> from,
                                           const FlowSize& size,
                                           std::optional<std::string_view> network) {
  std::vector<Outgoing> outs;
  std::vector<Incoming> ins;
  std::vector<Link*> links;
  for (const Rank peer : to) {
    outs.push_back({.peer = peer, .port = &engine_.out(peer, kChannel)});
    links.push_back(outs.back().port->link);
  }
  for (const Rank peer : from) {
    ins.push_back({.peer = peer, .port = &engine_.in(peer, kChannel), .samples = {}});
    links.push_back(ins.back().port->link);
  }
  std::sort(links.begin(), links.end());
  links.erase(std::unique(links.begin(), links.end()), links.end());
  if (network_ != network) {
    network_ = network;
    shares_.reset();
    if (network) {
      shares_ = std::make_shared<NetworkShares>(
          NetworkShares{{.network = std::string(*network), .share = 1}});
    }
  }
  for (Link* const link : links) link->divide(shares_);
  const std::size_t least = network ? kLeastOfNetwork : kFirstMessage;

  const auto send = [&](Outgoing& out) {
    if (out.done || !out.port->has_credit(layout_)) return false;
    const std::int64_t now = steady_ns();
    if (out.begun_ns == 0) out.begun_ns = now;
    const double elapsed_s = std::max(1e-3, static_cast<double>(now - out.begun_ns) * 1e-9);
    const double under_way = static_cast<double>(out.sent) / elapsed_s * kUnderWayS;
    const std::uint64_t fair =
        std::min(out.sent / kGrowth, static_cast<std::uint64_t>(under_way / layout_.slots));
    const std::size_t bytes = std::clamp<std::size_t>(fair / 64 * 64, least, layout_.slot_bytes);
    const std::size_t fitting = std::min(bytes, layout_.slot_bytes);
    const bool long_enough = static_cast<double>(now - out.begun_ns) * 1e-9 >= size.duration_s &&
                             out.sent + fitting >= size.least_bytes;
    const bool last = long_enough || out.sent + fitting >= size.most_bytes;
    const auto tag = static_cast<std::uint32_t>(fitting) | (last ? kLast : 0);
    if (!out.port->try_send(layout_, std::span(source_).first(fitting), false, tag)) return false;
    out.sent += fitting;
    out.done = last;
    return true;
  };
  // When the first bytes of any flow came. All are measured from then on, or the rates of those
  // that share a limit would be of different times and add up to more than it carries.
  double first_s = 0;
  const auto receive = [&](Incoming& in) {
    if (in.done || !in.port->has_message()) return false;
    const std::uint32_t tag = in.port->tag();
    const std::size_t bytes = tag & ~kLast;
    if (bytes > layout_.slot_bytes) {
      control_.abort(place_.key,
                     fmt::format("host {} probes with a message of {} bytes", in.peer, bytes));
      engine_.check();
    }
    std::memcpy(sink_.data(), in.port->message(layout_), bytes);
    in.port->take(layout_);
    const std::uint64_t before = in.samples.empty() ? 0 : in.samples.back().bytes;
    const double now_s = static_cast<double>(steady_ns()) * 1e-9;
    if (first_s == 0) first_s = now_s;
    if (in.samples.empty()) in.samples.push_back({first_s, 0});
    in.samples.push_back({now_s, before + bytes});
    in.done = (tag & kLast) != 0;
    return true;
  };
  Rank blame = !from.empty() ? from[0] : to.empty() ? place_.rank : to[0];
  drive(links, blame, "exchange bytes", [&](bool& done) {
    bool moved = false;
    done = true;
    for (Incoming& in : ins) {
      moved = receive(in) || moved;
      if (!in.done) blame = in.peer;
      if (in.port->owes_credit(layout_)) in.port->credit(layout_);
      done = done && in.done && !in.port->owes_credit(layout_);
    }
    for (Outgoing& out : outs) {
      moved = send(out) || moved;
      done = done && out.done;
    }
    done = done && progress(links);
    return moved;
  });
  std::vector<Received> results;
  for (const Incoming& in : ins) {
    const bool joined = !network || in.port->link->joined_by(*network);
    results.push_back(joined ? in.result(size) : Received{});
  }
  return results;
}

double FlowRunner::half_round_trip(Rank peer, bool first) {
  OutPort& out = engine_.out(peer, kChannel);
  InPort& in = engine_.in(peer, kChannel);
  Link* const link[] = {out.link};
  const auto send = [&] {
    drive(link, peer, "take a message", [&](bool& done) {
      return done =
                 out.has_credit(layout_) && out.try_send(layout_, std::span(source_).first(kSmall),
                                                         false, static_cast<std::uint32_t>(kSmall));
    });
  };
  const auto receive = [&] {
    drive(link, peer, "answer", [&](bool& done) {
      if (!in.has_message()) return false;
      in.take(layout_);
      return done = true;
    });
  };
  std::vector<double> trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    const std::int64_t begin = steady_ns();
    if (first) send();
    receive();
    if (!first) send();
    trips.push_back(static_cast<double>(steady_ns() - begin) * 1e-9);
  }
  drive(link, peer, "take a message", [&](bool& done) {
    if (in.owes_credit(layout_)) in.credit(layout_);
    done = progress(link) && !in.owes_credit(layout_);
    return done;
  });
  if (!first) return 0;
  std::nth_element(trips.begin(), trips.begin() + kFastTrip, trips.end());
  return trips[kFastTrip] / 2;
}

}  // namespace chorus
