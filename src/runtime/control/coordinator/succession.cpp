// When the coordinator is lost: who is ready to take over, and how a successor comes to know what
// the lost one knew. Nothing is replicated while nothing fails: the ranks bring it along.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/counted.hpp"
#include "runtime/control/coordinator/judge.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Malformed;
using wire::Type;
using wire::Writer;

/// How long the ranks' meeting waits for those that were asked to be ready.
constexpr milliseconds kReadyWithin{500};
/// Ranks of which nobody knows whether they live have this long, from when the last one came.
constexpr milliseconds kGatherWithin{1'000};
/// How often a successor looks which of the processes that it can see have ended, or are stopped.
constexpr milliseconds kLookAtProcesses{100};
/// A process that runs and does not come is given up after this long; one that is stopped, never.
constexpr milliseconds kComesWithin{10'000};
/// TCP finds out within this time of each other that several machines are silent.
constexpr milliseconds kSilentTogether{20'000};

}  // namespace

// Appointment.

/// Of other processes than the coordinator's, on as many hosts as there are, its own last.
void Judge::appoint(Time now) {
  appoint_again_at_.reset();
  if (rules_.launcher || gathering_ || gave_up_) return;
  std::set<std::string> hosts, processes{rules_.host_identity};
  std::size_t ready = 0;
  for (const Member& member : members_) {
    if (member.state != State::joined) continue;
    if (member.local || member.appointed) hosts.insert(member.host);
    if (!member.appointed || member.local) continue;
    processes.insert(member.identity);
    ++ready;
  }
  const auto next = [&](bool on_new_host) {
    return std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
      return member.state == State::joined && member.may_succeed && !member.appointed &&
             !processes.contains(member.identity) && (!on_new_host || !hosts.contains(member.host));
    });
  };
  for (; ready < wire::kMaxSuccessors; ++ready) {
    auto chosen = next(true);
    if (chosen == members_.end()) chosen = next(false);
    if (chosen == members_.end()) return;
    chosen->appointed = ever_appointed_ = true;
    hosts.insert(chosen->host);
    processes.insert(chosen->identity);
    const auto rank = static_cast<Rank>(chosen - members_.begin());
    std::erase(appointed_, rank);
    appointed_.push_back(rank);
    send(rank, Writer(Type::appoint).u64(rules_.began_us).share());
  }
  if (!all_joined_) appointing_until_ = now + kReadyWithin;
}

bool Judge::waits_for_successors(Time now) {
  if (!appointing_until_) {
    appointing_until_ = now + kReadyWithin;
    appoint(now);
  }
  return now < *appointing_until_ &&
         std::any_of(members_.begin(), members_.end(), [](const Member& member) {
           return member.state == State::joined && member.appointed && !member.place;
         });
}

void Judge::on_listening(Rank rank, wire::Reader& body, Time now) {
  wire::Successor place{rank, wire::read_places(body)};
  body.end();
  Member& member = at(rank);
  if (!member.appointed) throw Malformed("a successor that was not appointed");
  if (place.places.empty()) {  // it cannot listen
    member.appointed = member.may_succeed = false;
    return appoint(now);
  }
  member.place = std::move(place);
  if (!all_joined_) return;
  send_all(wire::successors_frame(successors()));
  send_roster(rank);
}

std::vector<wire::Successor> Judge::successors() const {
  std::vector<wire::Successor> all;
  for (const Rank rank : appointed_) {
    const Member& member = at(rank);
    // One that has lost its connection alone is gone to as before: all are to have one list.
    const bool is_gone = member.state != State::joined && member.state != State::awaited;
    if (is_gone || member.local || !member.place) continue;
    if (all.size() < wire::kMaxSuccessors) all.push_back(*member.place);
  }
  return all;
}

void Judge::send_roster(Rank rank) {
  std::vector<wire::Known> roster;
  for (const Member& member : members_) {
    roster.push_back({member.who, member.identity, member.state == State::left});
  }
  for (const wire::Frame& frame : wire::roster_frames(roster)) send(rank, frame);
}

void Judge::acknowledge_goodbye(Rank rank) {
  if (ever_appointed_) send(rank, Writer(Type::goodbye_heard).share());
  orders_.push_back({rank, nullptr, true});
}

// Arrival at a successor.

std::optional<std::string> Judge::follow(const wire::Hello& hello, Time now) {
  if (gave_up_) begin_anew();
  Member& member = at(hello.rank);
  const std::string who = fmt::format("pid {} on {}", hello.pid, hello.host);
  if (member.state == State::dead || member.state == State::left) {
    return fmt::format("rank {} ({}) comes too late: the others went on without it", hello.rank,
                       who);
  }
  if (!member.identity.empty() && member.identity != hello.identity) {
    return fmt::format("two processes claim to be one rank: {} and rank {} ({})", name(hello.rank),
                       hello.rank, who);
  }
  if (member.state != State::awaited) {
    return fmt::format("rank {} ({}) has been here before", hello.rank, who);
  }
  if (rules_.successor && took_over_ == Time{} && !gathering_) {
    gathering_.emplace(Gathering{.last_came = now,
                                 .next_look = now + kLookAtProcesses,
                                 .loss = wire::Loss::silent,
                                 .host_rank = -1,
                                 .host_text = {},
                                 .results_by = {}});
  }
  member.state = State::joined;
  member.arriving = true;
  member.who = who;
  member.identity = hello.identity;
  member.host = hello.host;
  member.may_succeed = hello.may_succeed;
  member.local = hello.identity == rules_.host_identity;
  return std::nullopt;
}

void Judge::on_follow(Rank rank, wire::Reader& body, Time now) {
  wire::Follow brought = wire::read_follow(body, rules_.world_size);
  Member& member = at(rank);
  if (!member.arriving) throw Malformed("it follows without having lost the coordinator");
  member.last_result = brought.last_result;
  num_results_ = std::max(num_results_, brought.last_result);
  member.deaths_told = brought.deaths.size();
  for (wire::Successor& each : brought.successors) {
    Member& successor = at(each.rank);
    if (successor.place) continue;
    successor.appointed = true;
    appointed_.push_back(each.rank);
    successor.place = std::move(each);
  }
  for (auto& [key, sentence] : brought.verdicts) {
    if (const auto group = groups_.find(key); group != groups_.end()) {
      decide(key, group->second, sentence);
    }
    verdicts_.try_emplace(key, std::move(sentence));
  }
  if (!gathering_) return;
  gathering_->last_came = now;
  // What one rank knows for certain outweighs what others could not tell.
  if (brought.loss == wire::Loss::left || gathering_->loss == wire::Loss::silent) {
    gathering_->loss = brought.loss;
  }
  gathering_->host_rank = brought.host_rank;
  gathering_->host_text = std::move(brought.host_text);
  // All were told in one order, so the longest list begins with every other.
  if (brought.deaths.size() <= deaths_.size()) return;
  deaths_ = std::move(brought.deaths);
  for (const wire::Death& death : deaths_) {
    Member& dead = at(death.rank);
    if (dead.state == State::joined) orders_.push_back({death.rank, nullptr, true});
    dead.state = State::dead;
    dead.who = death.who;
  }
}

void Judge::on_roster(Rank rank, wire::Reader& body) {
  if (!at(rank).arriving) throw Malformed("a roster that nobody asked for");
  std::vector<wire::Known> roster(members_.size());
  wire::read_roster(body, roster);
  for (std::size_t r = 0; r < roster.size(); ++r) {
    Member& member = members_[r];
    if (member.state != State::awaited) continue;
    if (member.identity.empty()) {
      member.who = roster[r].who;
      member.identity = roster[r].identity;
      const bool runs = gathering_ && is_running(static_cast<Rank>(r)) == true;
      member.ran_elsewhere = member.ran_elsewhere || runs;
    }
    if (!roster[r].left) continue;
    member.state = State::left;
    member.goodbye = name(static_cast<Rank>(r)) + " has left";
  }
}

void Judge::on_followed(Rank rank, Time now) {
  Member& member = at(rank);
  if (!member.arriving) throw Malformed("it says twice that it has come");
  member.arriving = false;
  if (gathering_) {
    gathering_->last_came = now;
    return;
  }
  close_seats_of(rank, now);
  // Before deaths and verdicts, by which the rank would end what it asks for, and the others have
  // not.
  answer_arrived();
  tell_deaths(rank);
  tell_verdicts(rank);
  welcome(rank);
  tell_notes(rank);
}

/// What it said over the connection that is lost it says again.
void Judge::await_again(Rank rank) {
  for (auto& [key, group] : groups_) {
    if (const auto seat = group.seat_of(rank)) group.seats[*seat].opened = false;
  }
  at(rank).state = State::awaited;
  at(rank).arriving = false;
}

// The decision.

/// Whether it may still come: it was alive, and is not the rank whose process is known to be gone.
bool Judge::is_waited_for(Rank rank) const {
  const Member& member = at(rank);
  if (rank == gathering_->host_rank && gathering_->loss != wire::Loss::silent) {
    return false;
  }
  return member.state == State::awaited || (member.state == State::joined && member.arriving);
}

std::optional<bool> Judge::is_running(Rank rank) const {
  const Member& member = at(rank);
  if (!rules_.is_running || member.identity.empty() || member.expelled) return std::nullopt;
  return rules_.is_running(member.identity);
}

bool Judge::is_stopped(Rank rank) const {
  return rules_.is_stopped && rules_.is_stopped(at(rank).identity);
}

/// A process that ran while ranks gathered here, and ended without having come, may have gone on
/// with others, who took those here for dead: it counts as one that lives. Nothing tells it from
/// one that was killed meanwhile, and of the two mistakes this is the one that ends with an error.
void Judge::settle_gathering(Time now) {
  if (!gathering_) return;
  std::vector<Rank> waited_for;
  std::size_t came = 0;
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (is_waited_for(rank)) waited_for.push_back(rank);
    if (state(rank) == State::joined && !at(rank).arriving) ++came;
  }
  if (waited_for.empty()) {
    if (came == 0 && hosts_.empty()) return give_up(0, 0);
    if (!waits_for_results(now)) take_over(now);
    return;
  }
  if (now < gathering_->next_look) return;
  gathering_->next_look = now + kLookAtProcesses;
  std::size_t alive = came, unsure = 0;
  for (const Rank rank : waited_for) {
    const auto runs = is_running(rank);
    if (runs == true) at(rank).ran_elsewhere = true;
    if (runs == false && !at(rank).ran_elsewhere) continue;
    ++alive;
    if (runs != false && !is_stopped(rank)) ++unsure;
  }
  const bool enough = 2 * came > alive;
  const bool late = now >= gathering_->last_came + kGatherWithin;
  if (enough && (unsure == 0 || late)) {
    if (!waits_for_results(now)) take_over(now);
  } else if (late) {
    give_up(came, alive);
  }
}

/// Too few came to this successor the first time: what they brought they bring again.
void Judge::begin_anew() {
  Judge anew(rules_);
  anew.refusals_ = std::move(refusals_);
  anew.places_ = std::move(places_);
  anew.may_return_ = may_return_;
  anew.orders_ = std::move(orders_);
  for (std::size_t r = 0; r < members_.size(); ++r) {
    anew.members_[r].ran_elsewhere = members_[r].ran_elsewhere;
  }
  *this = std::move(anew);
}

void Judge::give_up(std::size_t came, std::size_t alive) {
  gathering_.reset();
  gave_up_ = true;
  hosts_.clear();
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    Member& member = at(rank);
    if (member.state != State::joined) continue;
    send(rank, Writer(Type::elsewhere)
                   .u32(static_cast<std::uint32_t>(came))
                   .u32(static_cast<std::uint32_t>(alive))
                   .share());
    orders_.push_back({rank, nullptr, true});
    member.state = State::awaited;
  }
}

void Judge::take_over(Time now) {
  const Gathering old = *std::exchange(gathering_, std::nullopt);
  took_over_ = now;
  answer_arrived();
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) != State::joined || at(rank).arriving) continue;
    tell_deaths(rank);
    tell_verdicts(rank);
    welcome(rank);
    close_seats_of(rank, now);
  }
  host_has_gone(old, now);
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) == State::left) close_seats_of(rank, now);
    if (state(rank) != State::awaited) continue;
    const Member& member = at(rank);
    const auto runs = is_running(rank);
    if (runs == true) {
      look_again_ = now + kLookAtProcesses;
    } else if (runs == false || !member.how_closed.empty()) {
      die(rank, member.expelled ? member.how_closed : "its connection closed", now);
    } else {
      die(rank, did_not_come(kGatherWithin), now);
    }
  }
  appoint(now);
}

std::string Judge::did_not_come(milliseconds within) const {
  return fmt::format("it did not come to the coordinator's successor ({}) within {} s",
                     rules_.host_text, within.count() / 1000);
}

void Judge::host_has_gone(const Gathering& old, Time now) {
  if (old.host_rank < 0 || state(old.host_rank) != State::awaited) return;
  Member& host = at(old.host_rank);
  if (old.loss == wire::Loss::silent) return;  // as any rank that did not come
  host.who = old.host_text;
  if (old.loss == wire::Loss::closed) return die(old.host_rank, "its connection closed", now);
  host.state = State::left;
  host.left_at = now;
  host.goodbye = name(old.host_rank) + " has left";
  fail_exchanges_of(old.host_rank, host.goodbye);
}

/// Groups that it had not open when it came are behind it.
void Judge::close_seats_of(Rank rank, Time now) {
  std::vector<std::string> touched;
  for (auto& [key, group] : groups_) {
    const auto seat = group.seat_of(rank);
    if (!seat || (state(rank) == State::joined && group.seats[*seat].opened)) continue;
    group.seats[*seat].closed = true;
    group.seats[*seat].closed_at = now;
    touched.push_back(key);
  }
  for (const std::string& key : touched) forget_if_closed(key);
}

/// Those that the rank was not told before.
void Judge::tell_deaths(Rank rank) {
  for (std::size_t i = at(rank).deaths_told; i < deaths_.size(); ++i) {
    Writer frame(Type::death);
    wire::write_death(frame, deaths_[i]);
    send(rank, frame.share());
  }
}

void Judge::welcome(Rank rank) {
  Rank host = -1;
  for (Rank each = 0; each < rules_.world_size && host < 0; ++each) {
    if (at(each).local && state(each) != State::awaited) host = each;
  }
  send(rank, Writer(Type::succeeded).i32(host).share());
  send(rank, wire::successors_frame(successors()));
  if (places_.size() > 1) send(rank, wire::places_frame(Type::places, places_));
  // What it was told as a successor may have been lost.
  const Member& member = at(rank);
  if (member.place) {
    send_roster(rank);
  } else if (member.appointed) {
    send(rank, Writer(Type::appoint).u64(rules_.began_us).share());
  }
}

/// Processes that are there and have not come: stopped, mostly. Those that nobody can see have a
/// moment to come again where it was their relay that was lost.
void Judge::settle_awaited(Time now) {
  if (gathering_ || look_again_ == Time{} || now < look_again_) return;
  bool any = false;
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) != State::awaited) continue;
    const Time since = std::max(took_over_, at(rank).scattered_at);
    const auto runs = is_running(rank);
    const bool may_come = runs ? *runs : now < at(rank).scattered_at + kGatherWithin;
    if (!may_come) {
      die(rank, at(rank).how_ended.value_or("its connection closed"), now);
    } else if (now > since + kComesWithin && !is_stopped(rank)) {
      die(rank, did_not_come(kComesWithin), now);
    } else {
      any = true;
    }
  }
  look_again_ = any ? now + kLookAtProcesses : Time{};
}

// A network that is cut in two.

/// Whether with `rank`, which fell silent, so many have within a short time that the ranks behind
/// the cut are more: they go on with a successor. Of two halves the coordinator's goes on.
bool Judge::is_smaller_part(Rank rank, Time now) {
  if (!all_joined_ || !ever_appointed_) return false;
  std::erase_if(silenced_, [&](Time at) { return at + kSilentTogether < now; });
  silenced_.push_back(now);
  std::size_t here = 0;
  for (const Member& member : members_) here += member.state == State::joined ? 1U : 0U;
  if (at(rank).state == State::joined) --here;
  return here < silenced_.size();
}

void Judge::end_smaller_part(Time now) {
  const std::size_t away = silenced_.size();
  std::size_t here = 0;
  for (const Member& member : members_) here += member.state == State::joined ? 1U : 0U;
  const std::string sentence = fmt::format(
      "the network is split: {} of {} stopped answering the coordinator ({}) within {} s; this is "
      "the smaller part, and ends: the others go on without it",
      away, counted(static_cast<long long>(here + away - 1), "rank"), rules_.host_text,
      kSilentTogether.count() / 1000);
  send_all(Writer(Type::smaller_part).text(sentence).share());
  failed_at_ = failed_at_.value_or(now);
  dying_.clear();
  hosts_.clear();
  for (Rank rank = 0; rank < rules_.world_size; ++rank) {
    if (state(rank) != State::joined) continue;
    at(rank).state = State::left;
    orders_.push_back({rank, nullptr, true});
  }
}

}  // namespace chorus
