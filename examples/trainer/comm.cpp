#include "comm.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace trainer {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Bytes of the whole vector and bytes that this rank must send.
std::pair<std::uint64_t, std::uint64_t> volume(const chorus::Call& call, std::uint64_t ranks,
                                               std::size_t rank) {
  const std::uint64_t size = size_of(call.type);
  const std::uint64_t block = call.count * size;
  switch (call.kind) {
    case Kind::all_reduce:
      return {block, 2 * block * (ranks - 1) / ranks};
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return {block * ranks, block * (ranks - 1)};
    case Kind::all_to_all_v:
      return {sum(call.send_counts) * size,
              (sum(call.send_counts) - call.send_counts[rank]) * size};
    case Kind::broadcast:
      return {block, static_cast<std::size_t>(call.peer) == rank ? block : 0};
    case Kind::send:
      return {block, block};
    default:
      return {block, 0};
  }
}

}  // namespace

const char* name_of(Kind kind) {
  static constexpr const char* kNames[kKinds] = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all",   "broadcast", "reduce",
      "gather",     "scatter",    "barrier",        "all_to_all_v", "send",      "recv"};
  return kNames[static_cast<int>(kind)];
}

std::uint64_t CommLog::sent_bytes(Axis axis) const {
  std::uint64_t bytes = 0;
  for (const Traffic& t : table[static_cast<std::size_t>(axis)]) bytes += t.sent_bytes;
  return bytes;
}

double CommLog::exposed_s() const {
  double total = 0;
  for (const auto& axis : table) {
    for (const Traffic& t : axis) total += t.exposed_s;
  }
  return total;
}

Pending Flights::start(chorus::Communicator& on, const chorus::Call& call, Axis axis,
                       std::uint64_t message_bytes, std::uint64_t sent_bytes) {
  const int at = take_slot(call, axis, message_bytes, sent_bytes);
  Slot& slot = slots_[static_cast<std::size_t>(at)];
  slot.request = on.start(call);
  slot.busy = true;
  busy_.push_back(at);
  return {at, slot.generation, axis};
}

Pending Flights::start(Wire& on, const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                       std::uint64_t sent_bytes) {
  const int at = take_slot(call, axis, message_bytes, sent_bytes);
  Slot& slot = slots_[static_cast<std::size_t>(at)];
  slot.ticket = on.start(call);
  slot.busy = true;
  wired_.push_back(at);
  return {at, slot.generation, axis};
}

/// A free slot, with the call in it and in the log.
int Flights::take_slot(const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                       std::uint64_t sent_bytes) {
  if (busy_.capacity() < slots_.size()) {
    busy_.reserve(slots_.size());
    wired_.reserve(slots_.size());
    waited_.reserve(slots_.size());
  }
  if (busy_.size() + wired_.size() == slots_.size()) wait_all();
  do {
    next_ = (next_ + 1) % static_cast<int>(slots_.size());
  } while (slots_[static_cast<std::size_t>(next_)].busy);
  Slot& slot = slots_[static_cast<std::size_t>(next_)];
  slot.ticket = {};
  slot.axis = axis;
  slot.kind = call.kind;
  slot.started = Clock::now();
  Traffic& traffic = log_.at(axis, call.kind);
  ++traffic.calls;
  traffic.sent_bytes += sent_bytes;
  ++traffic.sizes[std::min<std::size_t>(std::bit_width(message_bytes | 1U) - 1U, 39U)];
  return next_;
}

void Flights::complete(Slot& slot) {
  const Clock::time_point now = Clock::now();
  log_.at(slot.axis, slot.kind).in_flight_s += seconds(now - slot.started);
  const bool wired = slot.ticket.lane != nullptr;
  trace.add(Span::Lane::in_flight, name_of(slot.kind),
            kAxisNames[static_cast<std::size_t>(slot.axis)],
            wired ? Trace::Mark(slot.ticket.begin) : slot.started,
            wired ? Trace::Mark(slot.ticket.end) : now);
  slot.busy = false;
  ++slot.generation;
}

void Flights::poll() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < busy_.size(); ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(busy_[i])];
    if (slot.request.poll()) {
      complete(slot);
    } else {
      busy_[kept++] = busy_[i];
    }
  }
  busy_.resize(kept);
}

void Flights::poll_now_and_then() {
  if (busy_.empty()) return;
  const Clock::time_point now = Clock::now();
  if (now - polled_ < std::chrono::microseconds(500)) return;
  poll();
  polled_ = Clock::now();
}

bool Flights::done(const Pending& pending) const {
  if (pending.slot < 0) return true;
  return slots_[static_cast<std::size_t>(pending.slot)].generation != pending.generation;
}

void Flights::wait(Pending& pending) {
  const bool between = pending.axis == Axis::tensor || pending.axis == Axis::expert;
  if (give_way && pending.slot >= 0 && between) give_way();
  if (done(pending)) return;
  Slot& slot = slots_[static_cast<std::size_t>(pending.slot)];
  const Axis axis = slot.axis;
  const Kind kind = slot.kind;
  const Clock::time_point begin = Clock::now();
  if (slot.ticket.lane != nullptr) {
    // The host goes on; the computation stands still from what comes before the wait to its end.
    const Trace::Mark stands = trace.mark();
    slot.ticket.lane->join(slot.ticket.number);
    const Trace::Mark goes_on = trace.mark();
    complete(slot);
    std::erase(wired_, pending.slot);
    log_.at(axis, kind).exposed_s += seconds(Clock::now() - begin);
    trace.add(Span::Lane::exposed, name_of(kind), kAxisNames[static_cast<std::size_t>(axis)],
              stands, goes_on);
    return;
  }
  while (!done(pending)) {
    waited_.clear();
    for (const int i : busy_) waited_.push_back(&slots_[static_cast<std::size_t>(i)].request);
    const auto at = static_cast<std::ptrdiff_t>(chorus::wait_any(waited_));
    complete(slots_[static_cast<std::size_t>(busy_[static_cast<std::size_t>(at)])]);
    busy_.erase(busy_.begin() + at);
  }
  const Clock::time_point end = Clock::now();
  log_.at(axis, kind).exposed_s += seconds(end - begin);
  trace.add(Span::Lane::exposed, name_of(kind), kAxisNames[static_cast<std::size_t>(axis)], begin,
            end);
}

void Flights::wait_all() {
  while (!busy_.empty() || !wired_.empty()) {
    const int first = wired_.empty() ? busy_.front() : wired_.front();
    Pending pending{first, slots_[static_cast<std::size_t>(first)].generation, Axis::world};
    wait(pending);
  }
}

void Flights::finish() noexcept {
  try {
    wait_all();
  } catch (const chorus::Error&) {
    // The failure was reported where it was first seen.
  }
  for (Slot& slot : slots_) slot.request = chorus::Request();
}

void Flights::log_call(const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                       std::uint64_t sent_bytes, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  Slot& slot = slots_[static_cast<std::size_t>(take_slot(call, axis, message_bytes, sent_bytes))];
  slot.started = begin;
  complete(slot);
  log_.at(axis, call.kind).exposed_s += seconds(end - begin);
  trace.add(Span::Lane::exposed, name_of(call.kind), kAxisNames[static_cast<std::size_t>(axis)],
            begin, end);
}

void Group::run_elastic(const chorus::Call& call) {
  if (call.kind != Kind::all_reduce || call.reduction.op != chorus::ReduceOp::sum) {
    throw chorus::InputError("--elastic: replicas that come and go only add up");
  }
  const auto begin = Flights::Clock::now();
  const int losses = members_->losses().count;
  auto contributors = static_cast<std::size_t>(members_->world_size());
  members_->run(call);
  if (members_->losses().count != losses) contributors = members_->losses().contributors.size();
  const double share = static_cast<double>(size_) / static_cast<double>(contributors);
  const auto scale = [&]<class T>(T* values) {
    for (std::size_t i = 0; i < call.count; ++i) values[i] *= static_cast<T>(share);
  };
  if (share != 1 && call.type == chorus::DataType::float32) scale(static_cast<float*>(call.output));
  if (share != 1 && call.type == chorus::DataType::float64) {
    scale(static_cast<double*>(call.output));
  }
  const auto [message, sent] =
      volume(call, static_cast<std::uint64_t>(size()), static_cast<std::size_t>(rank()));
  flights_->log_call(call, axis_, message, sent, begin);
}

Pending Group::collective(const chorus::Call& call, On on) {
  if (is_elastic_) {
    run_elastic(call);
    return {};
  }
  if (size() == 1) return {};
  const auto [message, sent] =
      volume(call, static_cast<std::uint64_t>(size()), static_cast<std::size_t>(rank()));
  if (wire_ && on == On::device) return flights_->start(*wire_, call, axis_, message, sent);
  return flights_->start(*members_, call, axis_, message, sent);
}

Place place_of(const Layout& layout, int rank) {
  Place place{};
  place.index = layout.elastic && layout.replica >= 0 ? layout.replica : rank;
  if (!layout.ranks.empty()) {
    const auto found = std::ranges::find(layout.ranks, rank);
    place.index = static_cast<int>(found - layout.ranks.begin());
  }
  place.tp = place.index % layout.tp;
  place.dp = place.index / layout.tp % layout.dp;
  place.pp = place.index / (layout.tp * layout.dp);
  place.ep = place.dp % layout.ep;
  place.edp = place.dp / layout.ep;
  return place;
}

Groups::Groups(const Layout& layout, int rank, CommLog& log)
    : flights(log),
      place(place_of(layout, rank)),
      world(layout.world_size(), place.index),
      data(layout.dp, place.dp),
      expert_data(layout.dp / layout.ep, place.edp),
      tensor(layout.tp, place.tp),
      expert(layout.ep, place.ep),
      node(layout.secondary, place.dp % std::max(1, layout.secondary)),
      across(layout.secondary > 0 ? layout.dp / layout.secondary : 1,
             layout.secondary > 0 ? place.dp / layout.secondary : 0),
      ahead(layout.pp, place.pp),
      back(layout.pp, place.pp) {}

Groups::Groups(chorus::Communicator& everyone, const Layout& layout, bool tied, CommLog& log,
               Gpu* gpu)
    : flights(log), place(place_of(layout, everyone.rank())) {
  const Place at = place;
  // Every rank takes part in every split, in the same order; axes of one rank need no group.
  const auto group = [&](Axis axis, int members, int color, Wire::Ways ways = Wire::Ways::all) {
    if (members == 1) return Group{};
    return Group(everyone.split(color, at.index), axis, flights, gpu, ways);
  };
  if (layout.elastic) {
    renew(everyone, layout);
    return;
  }
  const int columns = at.pp * layout.tp + at.tp;  // a replica's shard, counted over the world
  // What all ranks tell each other is of the host.
  if (everyone.world_size() > 1) {
    world = Group(everyone.split(0, at.index), Axis::world, flights, nullptr);
  }
  tensor = group(Axis::tensor, layout.tp, at.pp * layout.dp + at.dp);
  data = group(Axis::data, layout.dp, columns);
  expert = group(Axis::expert, layout.ep, columns * layout.dp + at.edp);
  expert_data = group(Axis::expert_data, layout.dp / layout.ep, columns * layout.dp + at.ep);
  if (layout.secondary > 0) {
    const int nodes = layout.dp / layout.secondary;
    node = group(Axis::node, layout.secondary, columns * layout.dp + at.dp / layout.secondary);
    across = group(Axis::across, nodes, columns * layout.dp + at.dp % layout.secondary);
  }
  const int line = at.dp * layout.tp + at.tp;
  ahead = group(Axis::pipeline, layout.pp, line, Wire::Ways::ahead);
  back = group(Axis::pipeline, layout.pp, line, Wire::Ways::back);
  const bool end = at.pp == 0 || at.pp == layout.pp - 1;
  if (tied && layout.pp > 1) {
    tie = Group(everyone.split(end ? line : -1, at.index), Axis::tie, flights, gpu);
  }
}

// Also where one replica is left: others may come.
void Groups::renew(chorus::Communicator& everyone, const Layout& layout) {
  for (const auto& [group, axis] : {std::pair(&world, Axis::world), std::pair(&data, Axis::data)}) {
    *group = Group(everyone.split(0, everyone.rank()), axis, flights, nullptr);
    group->make_elastic(layout.dp);
  }
}

}  // namespace trainer
