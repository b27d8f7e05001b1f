#include "runtime/control/coordinator/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Malformed;
using wire::Type;
using wire::Writer;

/// How long a closed connection waits for the launcher to say how the process ended.
constexpr milliseconds kLauncherHold{300};
/// How long an ended process may keep its connection (in a child of its own) before it is dead.
constexpr milliseconds kConnectionHold{500};
/// How long the process of the coordinator stays for the others.
constexpr milliseconds kHostStay{10'000}, kHostStayAfterFailure{1'000}, kHostStayForJoin{500};
/// How often it looks whether those are stopped.
constexpr milliseconds kLookAtOthers{100};
/// A failed join is told to late ranks this long.
constexpr milliseconds kFailureMemory{30'000};
/// How long after a successor has left another is appointed: mostly the others leave, too.
constexpr milliseconds kReplaceAfter{1'000};

}  // namespace

std::string list_ranks(std::span<const Rank> ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  const std::size_t listed = ranks.size() > kMaxListed ? kMaxListed : ranks.size() - 1;
  const std::string last = ranks.size() > kMaxListed
                               ? fmt::format("{} more", ranks.size() - kMaxListed)
                               : fmt::format("{}", ranks.back());
  return fmt::format("ranks {} and {}", fmt::join(ranks.first(listed), ", "), last);
}

std::string death_sentence(Rank rank, Rank world_rank, std::string_view who, std::string_view how,
                           bool expelled) {
  const std::string world = rank == world_rank ? "" : fmt::format("world rank {}", world_rank);
  const std::string_view comma = world.empty() || who.empty() ? "" : ", ";
  const std::string detail =
      world.empty() && who.empty() ? "" : fmt::format(" ({}{}{})", world, comma, who);
  return fmt::format("rank {}{} {}: {}", rank, detail, expelled ? "was disconnected" : "died", how);
}

Judge::Judge(Rules rules)
    : rules_(std::move(rules)), members_(static_cast<std::size_t>(rules_.world_size)) {
  if (!rules_.successor) return;
  all_joined_ = true;
  ever_appointed_ = true;
  for (Member& member : members_) member.state = State::awaited;
}

std::string Judge::name(Rank rank) const {
  const Member& member = at(rank);
  return member.who.empty() ? fmt::format("rank {}", rank)
                            : fmt::format("rank {} ({})", rank, member.who);
}

std::string Judge::absent_ranks() const {
  std::vector<Rank> absent;
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) == State::absent) absent.push_back(rank);
  }
  return absent.empty() ? "" : list_ranks(absent);
}

void Judge::send_all(const wire::Frame& frame) {
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) == State::joined && !at(rank).arriving) send(rank, frame);
  }
}

void Judge::send_members(const RankList& members, const wire::Frame& frame) {
  members.for_each([&](Rank rank) {
    if (state(rank) == State::joined) send(rank, frame);
  });
}

std::vector<Judge::Order> Judge::take_orders() { return std::exchange(orders_, {}); }

// Joining.

std::optional<std::string> Judge::admit(const wire::Hello& hello, Time now) {
  Member& member = at(hello.rank);
  member.who = fmt::format("pid {} on {}", hello.pid, hello.host);
  member.identity = hello.identity;
  member.host = hello.host;
  member.may_succeed = hello.may_succeed;
  if (failure_) {
    member.state = State::left;
    member.left_at = now;
    return *failure_;
  }
  member.state = State::joined;
  member.local = hello.identity == rules_.host_identity;
  ++num_joined_;
  return std::nullopt;
}

bool Judge::is_untold(const wire::Hello& hello) const {
  return hello.session == 0 && state(hello.rank) == State::awaited && !rules_.successor &&
         at(hello.rank).identity == hello.identity;
}

void Judge::admit_untold(const wire::Hello& hello) {
  at(hello.rank).state = State::joined;
  send(hello.rank, wire::successors_frame(successors()));
  if (places_.size() > 1) send(hello.rank, wire::places_frame(Type::places, places_));
  send(hello.rank, joined_frame());
  if (at(hello.rank).place) send_roster(hello.rank);
  tell_deaths(hello.rank);
}

wire::Frame Judge::joined_frame() const {
  Rank host = -1;
  for (Rank rank = 0; rank < rules_.world_size && host < 0; ++rank) {
    if (at(rank).local) host = rank;
  }
  return Writer(Type::joined).i32(host).u64(rules_.began_us).share();
}

void Judge::finish_join(Time now) {
  if (all_joined_ || failure_ || num_joined_ < rules_.world_size) return;
  if (waits_for_successors(now)) return;
  all_joined_ = true;
  const std::vector<wire::Successor> ready = successors();
  if (!ready.empty()) send_all(wire::successors_frame(ready));
  // Before `joined`, after which a rank that computes reads nothing for a while: where its path
  // fell silent meanwhile, it would know of no other.
  if (places_.size() > 1) send_all(wire::places_frame(Type::places, places_));
  send_all(joined_frame());
  for (const wire::Successor& each : ready) send_roster(each.rank);
}

void Judge::set_places(std::vector<wire::Place> places) {
  places_ = std::move(places);
  if (places_.size() < 2) return;
  may_return_ = true;
  if (all_joined_) send_all(wire::places_frame(Type::places, places_));
}

void Judge::fail_join(const std::string& sentence, Time now) {
  if (!forming()) return;
  failure_ = sentence;
  failed_at_ = now;
  send_all(Writer(Type::job_failed).text(sentence).share());
}

// What ranks say.

void Judge::received(Rank rank, Type type, wire::Reader body, Time now) {
  if (type == Type::heartbeat) return body.end();
  if (state(rank) != State::joined) throw Malformed("a message after its goodbye");
  switch (type) {
    case Type::exchange:
      return on_exchange(rank, body);
    case Type::withdraw:
      return on_withdraw(rank, body);
    case Type::exchange_query: {
      const std::string key = body.text(wire::kMaxKey);
      const auto found = exchanges_.find(key);
      std::vector<Rank> missing;
      for (std::size_t i = 0; found != exchanges_.end() && i < found->second.members.size(); ++i) {
        if (!found->second.blobs[i]) missing.push_back(found->second.members[i]);
      }
      return send(
          rank,
          Writer(Type::missing).text(key).text(missing.empty() ? "" : list_ranks(missing)).share());
    }
    case Type::join_query:
      return on_join_query(rank);
    case Type::open_group:
      return on_open_group(rank, body);
    case Type::close_group:
      return on_close_group(rank, body, now);
    case Type::lost:
      return on_lost(rank, body, now);
    case Type::waiting:
      return on_waiting(rank, body, now);
    case Type::abort:
      return on_abort(rank, body);
    case Type::ending:
      return on_ending(rank, body);
    case Type::note:
      return on_note(rank, body);
    case Type::goodbye:
      return on_goodbye(rank, body, now);
    case Type::listening:
      return on_listening(rank, body, now);
    case Type::follow:
      return on_follow(rank, body, now);
    case Type::roster:
      return on_roster(rank, body);
    case Type::exchange_done:
      return on_exchange_done(rank, body);
    case Type::exchange_held:
      return on_exchange_held(rank, body);
    case Type::followed:
      return on_followed(rank, now);
    default:
      throw Malformed(fmt::format("a message of type {}", static_cast<int>(type)));
  }
}

// One of those who wait tells people: the lowest.
void Judge::on_join_query(Rank rank) {
  bool lowest = true;
  for (Rank lower = 0; lower < rank; ++lower) lowest = lowest && state(lower) != State::joined;
  Writer answer(Type::missing);
  answer.text("").text(absent_ranks()).text(refusals_).u8(lowest ? 1 : 0);
  send(rank, answer.share());
}

void Judge::on_goodbye(Rank rank, wire::Reader& body, Time now) {
  const std::string reason = body.text();
  body.end();
  if (forming()) {
    fail_join(reason.empty() ? name(rank) + " left before all ranks had joined" : reason, now);
    given_up_ = true;
  }
  Member& member = at(rank);
  member.state = State::left;
  member.left_at = now;
  if (!reason.empty() && !failed_at_) failed_at_ = now;
  member.goodbye =
      reason.empty() ? name(rank) + " has left" : fmt::format("{} left: {}", name(rank), reason);
  fail_exchanges_of(rank, member.goodbye);
  std::vector<std::string> touched;
  for (auto& [key, group] : groups_) {
    const auto seat = group.seat_of(rank);
    if (!seat || group.seats[*seat].closed) continue;
    touched.push_back(key);
    group.seats[*seat].closed = true;
    group.seats[*seat].closed_at = now;
    if (reason.empty() || group.verdict) continue;
    decide(key, group,
           fmt::format("{} left after a failure: {}", seat_name(group, *seat, true), reason));
  }
  for (const std::string& key : touched) forget_if_closed(key);
  if (member.local) {
    hosts_.push_back(rank);
  } else {
    acknowledge_goodbye(rank);
  }
  for (const wire::Successor& each : successors()) {
    send(each.rank, Writer(Type::left).i32(rank).share());
  }
  if (member.appointed) appoint_again_at_ = now + kReplaceAfter;
}

// Deaths.

void Judge::closed(Rank rank, std::string_view how, Time now) {
  Member& member = at(rank);
  if (member.state != State::joined || member.disconnected) return;
  member.how_closed = how;
  // It dies, or goes to another successor: told when all is known.
  if (gathering_ || gave_up_) return await_again(rank);
  if (member.arriving) return scattered(rank, now);  // it was too slow, and it tries again
  member.disconnected = true;
  member.dead_at = now;
  if (rules_.launcher && !member.how_ended) member.dead_at += kLauncherHold;
  if (std::find(dying_.begin(), dying_.end(), rank) == dying_.end()) dying_.push_back(rank);
}

bool Judge::is_out(Rank rank) const {
  const Member& member = at(rank);
  return member.state == State::dead || member.state == State::left || member.disconnected;
}

void Judge::scattered(Rank rank, Time now) {
  Member& member = at(rank);
  if (member.state != State::joined || member.disconnected) return;
  if (!all_joined_) {  // it joins again
    --num_joined_;
    member.state = State::absent;
    return;
  }
  await_again(rank);
  if (gathering_) {
    gathering_->last_came = now;  // it has its time to come once more
    return;
  }
  member.scattered_at = now;
  if (look_again_ == Time{}) look_again_ = now;
}

void Judge::expelled(Rank rank, std::string_view why, Time now) {
  Member& member = at(rank);
  if (member.state != State::joined || member.disconnected) return;
  closed(rank, why, now);
  member.expelled = true;
  member.dead_at = now;  // no launcher knows it better
}

void Judge::ended(Rank rank, std::string_view how, Time now) {
  Member& member = at(rank);
  if (member.state == State::left || member.state == State::dead) return;
  member.how_ended = how;
  if (member.state == State::absent) {
    // It cannot come any more.
    fail_join(fmt::format("rank {} ended before it joined: {}", rank, how), now);
    member.state = State::dead;
    return;
  }
  // What it said last, perhaps its goodbye, may still be on its way: its connection decides.
  member.dead_at = member.disconnected ? now : now + kConnectionHold;
  ended_.push_back(rank);
}

void Judge::settle_deaths(Time now) {
  std::erase_if(ended_, [&](Rank rank) { return state(rank) != State::joined; });
  for (const Rank rank : ended_) {
    const Member& member = at(rank);
    if (!member.disconnected && member.dead_at <= now) closed(rank, *member.how_ended, now);
  }
  // In the order of closing: the first to die is the cause, whoever the launcher reaps first.
  while (!dying_.empty() && at(dying_.front()).dead_at <= now) {
    const Rank rank = dying_.front();
    dying_.erase(dying_.begin());
    if (state(rank) == State::joined) {
      const Member& member = at(rank);
      if (member.how_closed == kSilent && !member.how_ended && is_smaller_part(rank, now)) {
        return end_smaller_part(now);
      }
      die(rank, member.expelled ? member.how_closed : member.how_ended.value_or(member.how_closed),
          now);
    }
  }
}

void Judge::die(Rank rank, const std::string& how, Time now) {
  Member& member = at(rank);
  member.state = State::dead;
  if (!failed_at_) failed_at_ = now;
  if (!all_joined_) {
    return fail_join(death_sentence(rank, rank, member.who, how, member.expelled) +
                         " before all ranks had joined",
                     now);
  }
  deaths_.push_back({rank, member.who, how, member.expelled});
  Writer frame(Type::death);
  wire::write_death(frame, deaths_.back());
  send_all(frame.share());
  if (member.appointed) appoint_again_at_ = now;
  fail_exchanges_of(rank, "");
  std::vector<std::string> touched;
  for (auto& [key, group] : groups_) {
    const auto seat = group.seat_of(rank);
    if (!seat) continue;
    touched.push_back(key);
    // The members come to this sentence by themselves (death_sentence).
    if (!group.verdict) {
      group.verdict =
          death_sentence(static_cast<Rank>(*seat), rank, member.who, how, member.expelled);
    }
  }
  for (const std::string& key : touched) {
    end_exchanges_in(key);
    forget_if_closed(key);
  }
}

// Time.

void Judge::tick(Time now) {
  settle_gathering(now);
  settle_awaited(now);
  settle_deaths(now);
  finish_join(now);
  if (appoint_again_at_ && *appoint_again_at_ <= now) appoint(now);
  settle_claims(now);
  release_hosts(now);
}

void Judge::release_hosts(Time now) {
  if (hosts_.empty()) return;
  const auto is_there = [&](Rank rank) {
    const State is = state(rank);
    // Who was waited for in vain is not waited for again.
    return !at(rank).local && is != State::left && is != State::dead &&
           (is != State::absent || !given_up_);
  };
  bool others_gone = true, others_run = false;
  for (Rank rank = 0; rank < rules_.world_size && !others_run; ++rank) {
    if (!is_there(rank)) continue;
    others_gone = false;
    others_run = !is_stopped(rank);  // else it leaves nobody knows when
  }
  look_at_others_ = now + kLookAtOthers;
  Time until = Time::min();
  for (const Rank rank : hosts_) until = std::max(until, at(rank).left_at + kHostStay);
  if (failed_at_) {
    until = std::min(until, *failed_at_ + (failure_ ? kHostStayForJoin : kHostStayAfterFailure));
  }
  if (others_run && now < until) return;
  if (!others_gone && !host_let_go_) {
    host_let_go_ = true;
    send_all(Writer(Type::host_left).share());
  }
  for (const Rank rank : hosts_) acknowledge_goodbye(rank);
  hosts_.clear();
}

std::optional<Judge::Time> Judge::deadline() const {
  std::optional<Time> next;
  const auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  if (!dying_.empty()) consider(at(dying_.front()).dead_at);
  for (const Rank rank : ended_) consider(at(rank).dead_at);
  for (const Claim& claim : claims_) consider(claim.due);
  if (appointing_until_ && !all_joined_) consider(*appointing_until_);
  if (appoint_again_at_) consider(*appoint_again_at_);
  if (gathering_) consider(gathering_->next_look);
  if (look_again_ != Time{}) consider(look_again_);
  if (!hosts_.empty()) consider(look_at_others_);
  for (const Rank rank : hosts_) {
    consider(at(rank).left_at + kHostStay);
    if (failed_at_) {
      consider(*failed_at_ + (failure_ ? kHostStayForJoin : kHostStayAfterFailure));
    }
  }
  return next;
}

bool Judge::complete() const {
  return all_joined_ && std::all_of(members_.begin(), members_.end(), [](const Member& member) {
           return member.state == State::joined;
         });
}

bool Judge::over(Time now) const {
  if (gave_up_) return true;
  if (forming()) return false;
  if (!hosts_.empty()) return false;
  // What a rank was told of a failed joining may be lost with its relay.
  bool may_come = failure_ && may_return_;
  for (const Member& member : members_) {
    if (member.state == State::joined || member.state == State::awaited) return false;
    may_come = may_come || member.state == State::absent;
  }
  return may_come ? failed_at_ && *failed_at_ + kFailureMemory <= now : true;
}

}  // namespace chorus
