// What ranks do together: exchanges, groups, calls that do not match.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/table.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Malformed;
using wire::Type;
using wire::Writer;

/// How long a broken link waits for the death that explains it.
constexpr milliseconds kClaimHold{300};
/// A rank waiting for one that left at least this long ago waits in vain: what the latter sent
/// has arrived.
constexpr milliseconds kLeftHold{500};
constexpr std::size_t kCallsRemembered = 64;
/// To one rank, which may have lost them with its relay.
constexpr std::size_t kNotesForReturn = 64;
constexpr std::size_t kMaxOpen = 65536;  ///< groups, and exchanges

}  // namespace

std::optional<std::size_t> Judge::Group::never_begins(std::size_t seat, std::uint64_t call) const {
  if (!MessageNumber::is_message(call)) return std::nullopt;
  const auto [from, to, index] = MessageNumber::unpack(call);
  const bool sending = static_cast<std::size_t>(from) == seat;
  const auto peer = static_cast<std::size_t>(sending ? to : from);
  if (peer >= seats.size() || peer == seat || !seats[peer].ending) return std::nullopt;
  const auto found = seats[peer].ending->find(seat);
  const Seat::Messages begun =
      found == seats[peer].ending->end() ? Seat::Messages{} : found->second;
  const std::uint32_t beyond = (index - (sending ? begun.received : begun.sent)) & 0x7fffffff;
  if (beyond == 0 || beyond >= 1U << 30) return std::nullopt;
  return peer;
}

std::string Judge::seat_name(const Group& group, std::size_t seat, bool with_who) const {
  const Rank world_rank = group.members[seat];
  const bool differs = static_cast<std::size_t>(world_rank) != seat;
  const std::string& who = at(world_rank).who;
  const std::string world = differs ? fmt::format("world rank {}", world_rank) : "";
  if (!with_who || who.empty()) {
    return differs ? fmt::format("rank {} ({})", seat, world) : fmt::format("rank {}", seat);
  }
  return fmt::format("rank {} ({}{}{})", seat, world, differs ? ", " : "", who);
}

// Exchanges.

void Judge::on_exchange(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  const RankList members = body.ranks(rules_.world_size);
  const auto blob = body.blob(wire::kMaxBlob);
  const std::string group = body.text(wire::kMaxKey);
  body.end();
  const auto seat = members.index_of(rank);
  if (!seat) throw Malformed("an exchange among others");
  const auto fail = [&](const RankList& whom, const std::string& why) {
    send_members(whom, Writer(Type::exchange_failed).text(key).text(why).share());
    exchanges_.erase(key);
  };
  const auto known = exchanges_.find(key);
  if (known == exchanges_.end()) {  // else nobody has died or left since: that ends an exchange
    // Of a rank that arrives it may be one whose result others have.
    if (!at(rank).arriving) {
      if (end_in_vain(key, members, RankList(std::span(&rank, 1)))) return;
      if (has_failed(group)) return;  // of which it is told
    }
    if (exchanges_.size() >= kMaxOpen) throw Malformed("too many exchanges at once");
  } else if (known->second.members != members) {
    RankList all = known->second.members;
    if (!all.contains(rank)) all.add(rank, 1);
    return fail(
        all, fmt::format("{} names other ranks for this exchange than the others do", name(rank)));
  }
  Exchange& exchange = exchanges_[key];
  if (exchange.members.empty()) {
    exchange.members = members;
    exchange.blobs.resize(members.size());
    exchange.group = group;
  }
  auto& slot = exchange.blobs[*seat];
  if (!slot) ++exchange.arrived;
  slot.emplace(blob.begin(), blob.end());
  // Of a rank that arrives at a successor it may be one whose result others have: first that.
  if (!gathering_ && !at(rank).arriving) complete(key);
}

void Judge::complete(const std::string& key) {
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end() || found->second.arrived < found->second.members.size()) return;
  Exchange& exchange = found->second;
  if (has_failed(exchange.group)) return;
  std::vector<std::span<const std::byte>> blobs;
  for (const auto& each : exchange.blobs) blobs.emplace_back(*each);
  Writer result(Type::exchange_result);
  result.text(key).u64(++num_results_);
  Table::write(result, blobs);
  send_members(exchange.members, result.share());
  if (may_return_) keep_finished(key, num_results_, std::move(exchange));
  exchanges_.erase(found);
}

// What it said would else stand for what it says in a later exchange of the same key.
void Judge::on_withdraw(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  body.end();
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end()) return;
  Exchange& exchange = found->second;
  const auto seat = exchange.members.index_of(rank);
  if (!seat) return;
  auto& slot = exchange.blobs[*seat];
  if (!slot) return;
  slot.reset();
  if (--exchange.arrived == 0) exchanges_.erase(found);
}

/// Where one of its members is gone: `told` are told, but of a death, which every rank learns by
/// itself. False if all may still come.
bool Judge::end_in_vain(const std::string& key, const RankList& members, const RankList& told) {
  const auto is = [&](State wanted) {
    return members.find_if([&](Rank other) { return state(other) == wanted; });
  };
  if (is(State::dead)) return true;
  const auto left = is(State::left);
  if (!left) return false;
  send_members(told, Writer(Type::exchange_failed).text(key).text(at(*left).goodbye).share());
  return true;
}

void Judge::fail_exchanges_of(Rank rank, const std::string& why) {
  for (auto entry = exchanges_.begin(); entry != exchanges_.end();) {
    const Exchange& exchange = entry->second;
    if (!exchange.members.contains(rank) || awaits_result(exchange)) {
      ++entry;
      continue;
    }
    if (!why.empty()) {
      send_members(exchange.members,
                   Writer(Type::exchange_failed).text(entry->first).text(why).share());
    }
    entry = exchanges_.erase(entry);
  }
}

bool Judge::has_failed(const std::string& group) const {
  const auto found = groups_.find(group);
  return found != groups_.end() && found->second.verdict;
}

/// By the verdict on it, which ends the exchange for those that have read it: so for all.
void Judge::end_exchanges_in(const std::string& group) {
  std::erase_if(exchanges_, [&](const auto& entry) {
    return entry.second.group == group && !awaits_result(entry.second);
  });
}

// Groups.

void Judge::on_open_group(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  RankList members = body.ranks(rules_.world_size);
  body.end();
  if (groups_.size() >= kMaxOpen) throw Malformed("too many groups at once");
  Group& group = groups_[key];
  if (group.members.empty()) {
    group.seats.resize(members.size());
    group.members = std::move(members);
  } else if (group.members != members) {
    decide(
        key, group,
        fmt::format("{} names other ranks for this communicator than the others do", name(rank)));
  }
  const auto seat = group.seat_of(rank);
  if (!seat) throw Malformed("a group of others");
  group.seats[*seat].opened = true;
  group.seats[*seat].closed = false;
  const auto brought = verdicts_.find(key);
  if (brought != verdicts_.end() && !group.verdict) group.verdict = brought->second;
  if (group.verdict && is_served(rank)) send(rank, verdict_frame(key, group));
}

void Judge::on_close_group(Rank rank, wire::Reader& body, Time now) {
  const std::string key = body.text(wire::kMaxKey);
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  if (const auto seat = found->second.seat_of(rank)) {
    found->second.seats[*seat].closed = true;
    found->second.seats[*seat].closed_at = now;
  }
  forget_if_closed(key);
}

void Judge::forget_if_closed(const std::string& key) {
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  const Group& group = found->second;
  for (std::size_t seat = 0; seat < group.members.size(); ++seat) {
    const State member = state(group.members[seat]);
    if (group.seats[seat].closed) continue;
    if (member == State::joined || member == State::awaited) return;
  }
  groups_.erase(found);
}

// Verdicts.

void Judge::decide(const std::string& key, Group& group, const std::string& sentence) {
  if (group.verdict) return;
  group.verdict = sentence;
  const wire::Frame frame = verdict_frame(key, group);
  group.members.for_each([&](Rank rank) {  // the others when they have come: tell_verdicts()
    if (is_served(rank)) send(rank, frame);
  });
  end_exchanges_in(key);
}

wire::Frame Judge::verdict_frame(const std::string& key, const Group& group) {
  return Writer(Type::verdict).text(key).text(*group.verdict).share();
}

void Judge::on_abort(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  const std::string reason = body.text();
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  const auto seat = found->second.seat_of(rank);
  if (!seat) throw Malformed("an abort of others");
  decide(key, found->second,
         fmt::format("{} aborted: {}", seat_name(found->second, *seat, false), reason));
}

void Judge::on_lost(Rank rank, wire::Reader& body, Time now) {
  const std::string key = body.text(wire::kMaxKey);
  const Rank peer = body.i32();
  const std::string why = body.text();
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  const auto seat = found->second.seat_of(rank);
  if (!seat || peer < 0 || static_cast<std::size_t>(peer) >= found->second.members.size()) {
    throw Malformed("a lost peer outside the group");
  }
  claims_.push_back({key, *seat, static_cast<std::size_t>(peer), why, now + kClaimHold});
}

void Judge::settle_claims(Time now) {
  for (Claim& claim : claims_) {
    const auto found = groups_.find(claim.key);
    if (found == groups_.end()) continue;
    const Member& peer = at(found->second.members[claim.peer]);
    // Its death is being looked into, or whether it comes to this successor.
    if (peer.state == State::joined && (peer.disconnected || peer.how_ended)) {
      claim.due = std::max(claim.due, peer.dead_at + milliseconds(1));
    } else if (peer.state == State::awaited) {
      claim.due = std::max(claim.due, now + kClaimHold);
    }
  }
  const auto due = std::stable_partition(claims_.begin(), claims_.end(),
                                         [&](const Claim& claim) { return claim.due > now; });
  const std::vector<Claim> settled(due, claims_.end());
  claims_.erase(due, claims_.end());
  for (const Claim& claim : settled) {
    const auto found = groups_.find(claim.key);
    if (found == groups_.end()) continue;
    Group& group = found->second;
    // Who has left needs the connection no more.
    if (group.seats[claim.claimant].closed) continue;
    const std::string claimant = seat_name(group, claim.claimant, false);
    const std::string peer = seat_name(group, claim.peer, true);
    decide(claim.key, group,
           group.seats[claim.peer].closed
               ? fmt::format("{} left while {} still needed it: {}", peer, claimant, claim.why)
               : fmt::format("{} lost its connection to {}, though both are alive: {}", claimant,
                             peer, claim.why));
  }
}

void Judge::on_waiting(Rank rank, wire::Reader& body, Time now) {
  const std::string key = body.text(wire::kMaxKey);
  const std::uint64_t call = body.u64();
  const std::string signature = body.text();
  const Rank waiting_for = body.i32();
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  Group& group = found->second;
  const auto seat = group.seat_of(rank);
  if (!seat || waiting_for < -1 || waiting_for >= static_cast<Rank>(group.members.size())) {
    throw Malformed("a rank waited for outside the group");
  }
  Group::Seat& mine = group.seats[*seat];
  const bool message = MessageNumber::is_message(call);
  mine.message = message ? signature : "";
  if (!message) {
    mine.reported = true;
    mine.last_call = std::max(mine.last_call, call);
  }
  const auto [first, is_first] = group.calls.try_emplace(call, Group::Called{signature, *seat});
  if (!is_first && first->second.signature != signature) {
    const auto say = [&](std::size_t who, const std::string& what) {
      return fmt::format("{} called {}", seat_name(group, who, false), what);
    };
    const std::string theirs = say(first->second.seat, first->second.signature);
    const std::string ours = say(*seat, signature);
    const bool they_first = first->second.seat < *seat;
    decide(key, group,
           fmt::format("{} but {} as {} of this communicator", they_first ? theirs : ours,
                       they_first ? ours : theirs, name_of_call(call)));
  }
  // The oldest of its kind: messages, of which many may wait, do not make collectives forgotten.
  const auto messages = group.calls.lower_bound(MessageNumber::kMark);
  const auto first_alike = MessageNumber::is_message(call) ? messages : group.calls.begin();
  const auto end_alike = MessageNumber::is_message(call) ? group.calls.end() : messages;
  if (std::distance(first_alike, end_alike) > static_cast<std::ptrdiff_t>(kCallsRemembered)) {
    group.calls.erase(first_alike);
  }
  std::optional<std::size_t> gone = group.never_begins(*seat, call);
  if (waiting_for >= 0) {
    const auto other = static_cast<std::size_t>(waiting_for);
    if (group.seats[other].closed && group.seats[other].closed_at + kLeftHold <= now) gone = other;
  }
  if (gone) {
    decide(key, group,
           fmt::format("{} left while {} waited for it in {}, {}", seat_name(group, *gone, true),
                       seat_name(group, *seat, false), name_of_call(call), signature));
  }
  Writer status(Type::waiting_status);
  status.text(key).u64(call).text(not_in_call(group, call)).u8(speaks(group, *seat, call) ? 1 : 0);
  send(rank, status.share());
}

void Judge::on_ending(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  const std::uint32_t count = body.u32();
  std::map<std::size_t, Group::Seat::Messages> all;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t peer = body.u32();
    const std::uint32_t sent = body.u32();
    all[peer] = {.sent = sent, .received = body.u32()};
  }
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  const auto seat = found->second.seat_of(rank);
  if (!seat || (!all.empty() && all.rbegin()->first >= found->second.seats.size())) {
    throw Malformed("messages with a peer outside the group");
  }
  found->second.seats[*seat].ending = std::move(all);
}

void Judge::on_note(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  const auto to = static_cast<std::size_t>(body.u32());
  const auto blob = body.blob(wire::kMaxNote);
  const std::uint64_t number = body.u64();
  body.end();
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  const Group& group = found->second;
  const auto seat = group.seat_of(rank);
  if (!seat || to >= group.members.size()) throw Malformed("a note outside the group");
  Group::Seat& other = found->second.seats[to];
  const State there = state(group.members[to]);
  if (other.closed || (there != State::joined && there != State::awaited)) return;
  const wire::Frame frame =
      Writer(Type::noted).text(key).i32(static_cast<Rank>(*seat)).blob(blob).u64(number).share();
  if (may_return_) {
    other.notes.push_back(frame);
    if (other.notes.size() > kNotesForReturn) other.notes.pop_front();
  }
  if (there == State::joined) send(group.members[to], frame);
}

// Of those who wait in one collective the lowest tells people; of a message's two ends, who waits.
bool Judge::speaks(const Group& group, std::size_t seat, std::uint64_t call) const {
  if (MessageNumber::is_message(call)) return true;
  for (std::size_t lower = 0; lower < seat; ++lower) {
    const Group::Seat& each = group.seats[lower];
    if (!each.closed && each.reported && each.last_call == call && each.message.empty()) {
      return false;
    }
  }
  return true;
}

std::string Judge::not_in_call(const Group& group, std::uint64_t call) const {
  std::string text;
  std::size_t missing = 0;
  for (std::size_t seat = 0; seat < group.seats.size(); ++seat) {
    const Group::Seat& each = group.seats[seat];
    if (MessageNumber::is_message(call)) {  // concerns its ends alone, which may wait or compute
      const auto [from, to, index] = MessageNumber::unpack(call);
      const auto rank = static_cast<Rank>(seat);
      if (!each.closed || (rank != from && rank != to)) continue;
    }
    if (!each.closed && each.reported && each.last_call >= call) continue;
    if (++missing > kMaxListed) continue;
    if (!text.empty()) text += "; ";
    const bool stopped = rules_.is_stopped && rules_.is_stopped(at(group.members[seat]).identity);
    const bool silent = each.message.empty() && !each.reported;
    text += seat_name(group, seat, !each.closed && (stopped || silent));
    if (each.closed) {
      text += " has left this communicator";
    } else if (stopped) {
      text += " is stopped (kill -CONT resumes it)";
    } else if (!each.message.empty()) {
      text += fmt::format(" has not reported it: it last waited in {}", each.message);
    } else if (each.reported) {
      text += fmt::format(" has not reported it: its last reported call is {}", each.last_call);
    } else {
      text +=
          " has never waited for long, so it has reported no call: it computes, or stands still";
    }
  }
  if (missing > kMaxListed) text += fmt::format("; and {} more", missing - kMaxListed);
  return text;
}

}  // namespace chorus
