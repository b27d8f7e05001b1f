#include "runtime/control.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/call_number.hpp"
#include "runtime/control_impl.hpp"
#include "runtime/coordinator_judge.hpp"
#include "runtime/flight_files.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Type;
using wire::Writer;

/// How long an answer that needs no other rank is waited for.
constexpr milliseconds kAnswerWithin{500};
/// How long leaving takes at most: until the coordinator has read the farewell, or, where it lives
/// in this process, until the others have left (the coordinator itself gives up after 10 s).
constexpr milliseconds kFarewell{1'000}, kFarewellOfHost{11'000};
/// The same while a successor of the coordinator is looked for.
constexpr milliseconds kFarewellElsewhere{4'000};
/// And how much longer a verdict is waited for meanwhile.
constexpr milliseconds kVerdictElsewhere{4'000};
/// What may be said to a successor again.
constexpr std::size_t kNotesKept = 64;

bool contains(std::span<const Rank> members, Rank rank) {
  return std::find(members.begin(), members.end(), rank) != members.end();
}

}  // namespace

// What the coordinator says.

void Control::Impl::hear(Type type, wire::Reader body, std::shared_ptr<const void> owner) {
  switch (type) {
    case Type::joined:
      host_rank = body.i32();
      began_us = body.u64();
      joined = true;
      if (by_relay && !follower && socket) start_follower();
      inbox.set_limit(std::min<std::size_t>(
          UINT32_MAX, (wire::kMaxBlob + 4) * static_cast<std::size_t>(world_size) + 1024));
      return;
    case Type::refused:
    case Type::job_failed:
      join_failure = body.text();
      return;
    case Type::appoint:
      return be_ready(body.u64());
    case Type::successors:
      return hear_successors(body);
    case Type::places:
      return hear_places(body);
    case Type::left:
      if (const Rank who = body.i32(); who >= 0 && static_cast<std::size_t>(who) < roster.size()) {
        roster[static_cast<std::size_t>(who)].left = true;
      }
      return;
    case Type::roster:
      roster.resize(static_cast<std::size_t>(world_size));
      return wire::read_roster(body, roster);
    case Type::wanted:
      return give_result(body.u64());
    case Type::goodbye:
      goodbye = true;
      return;
    case Type::succeeded:
      host_rank = body.i32();
      if (following == Following::gathering) host_text = next_host_text;
      following = Following::no;
      host_left = false;
      log(LogLevel::info, fmt::format("[rank {}/{}]", rank, world_size),
          host_rank < 0
              ? fmt::format("this rank is connected to the coordinator ({}) again", host_text)
              : fmt::format("the coordinator is now rank {}'s process ({})", host_rank, host_text));
      return;
    case Type::elsewhere:
      too_few.first = body.u32();
      too_few.second = body.u32();
      return;
    case Type::smaller_part:
      last_word = body.text();
      return;
    case Type::exchange_result:
    case Type::exchange_failed:
      return hear_exchange(type, body, std::move(owner));
    case Type::shared:
      return hear_shared(body);
    case Type::missing: {
      const std::string key = body.text(wire::kMaxKey);
      std::string who = body.text();
      if (key.empty()) {
        join_missing = std::move(who);
        join_refusals = body.text();
        join_speaks = body.u8() != 0;
      } else if (const auto found = exchanges.find(key); found != exchanges.end()) {
        found->second.missing = std::move(who);
      }
      return;
    }
    case Type::death: {
      wire::Death death = wire::read_death(body, world_size);
      if (has_died(death.rank)) return;
      deaths.push_back({{std::move(death)}, next_order++});
      for (auto& [key, group] : groups) judge_by_death(group, deaths.back());
      return;
    }
    case Type::verdict:
      return hear_verdict(body);
    case Type::waiting_status: {
      const auto found = groups.find(body.text(wire::kMaxKey));
      if (found == groups.end()) return;
      found->second.status_call = body.u64();
      found->second.status = body.text();
      found->second.speaks = body.u8() != 0;
      return;
    }
    case Type::noted: {
      const auto found = groups.find(body.text(wire::kMaxKey));
      if (found == groups.end()) return;
      const Rank from = body.i32();
      const auto blob = body.blob(wire::kMaxNote);
      const std::uint64_t number = body.u64();
      if (from < 0 || static_cast<std::size_t>(from) >= found->second.members.size()) {
        throw wire::Malformed("a note of a rank that is not there");
      }
      std::uint64_t& heard = found->second.notes_heard[from];
      if (number <= heard) return;  // said again to a successor of the coordinator
      heard = number;
      found->second.notes.push_back({from, {blob.begin(), blob.end()}});
      return;
    }
    case Type::expelled:
      expelled = body.text();
      return;
    case Type::host_left:
      host_left = true;
      return;
    default:
      throw wire::Malformed(fmt::format("a message of type {}", static_cast<int>(type)));
  }
}

void Control::Impl::hear_exchange(Type type, wire::Reader& body,
                                  std::shared_ptr<const void> owner) {
  auto whole = body.rest();
  const auto found = exchanges.find(body.text(wire::kMaxKey));
  if (found == exchanges.end()) return;  // given up
  if (type == Type::exchange_failed) {
    found->second.failure = Verdict{body.text(2 * wire::kMaxText), next_order++};
    return;
  }
  const std::uint64_t number = body.u64();
  auto table = body.rest();
  if (owner == nullptr) {  // the inbox's memory is for what comes next
    const auto own = std::make_shared<const wire::Bytes>(whole.begin(), whole.end());
    whole = *own;
    table = whole.last(table.size());
    owner = own;
  }
  Table blobs(owner, table);
  if (blobs.size() > static_cast<std::size_t>(world_size)) {
    throw wire::Malformed("an exchange of more than all ranks");
  }
  found->second.blobs = std::move(blobs);
  last_result = std::max(last_result, number);
  if (!successors.empty()) {
    keep_result({number, found->second.asked, std::move(owner), whole});
  }
}

/// Where it cannot be opened it comes again, as any frame.
void Control::Impl::hear_shared(const wire::Reader& body) {
  SharedFrame::Opened opened = SharedFrame::open(body);
  const bool is_here = opened.owner != nullptr;
  if (!is_here) {
    log(LogLevel::debug, fmt::format("[rank {}/{}]", rank, world_size),
        fmt::format("a table is read through the connection: {}", opened.why_not));
  }
  send(Writer(Type::shared_read).u64(opened.number).u8(is_here ? 1 : 0).share());
  if (!is_here) return;
  if (opened.type != Type::exchange_result) throw wire::Malformed("a shared frame of another type");
  hear(opened.type, wire::Reader(opened.body), opened.owner);
}

void Control::Impl::hear_verdict(wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  std::string sentence = body.text(2 * wire::kMaxText);
  const std::uint64_t order = next_order++;
  verdicts.emplace_back(key, sentence);
  if (verdicts.size() > wire::kMaxVerdictsBrought) verdicts.pop_front();
  const auto found = groups.find(key);
  if (found != groups.end()) {
    judge(found->second, sentence);
  } else {
    early.try_emplace(key, Verdict{std::move(sentence), order});
  }
}

// Verdicts.

void Control::Impl::judge(Group& group, const std::string& sentence) {
  if (group.verdict) return;
  group.verdict = sentence;
  if (!failure && !group.is_aside) failure = sentence;
}

void Control::Impl::judge_by_death(Group& group, const Death& death) {
  const auto seat = std::find(group.members.begin(), group.members.end(), death.rank);
  if (seat == group.members.end()) return;
  group.by_death = group.by_death || !group.verdict;
  judge(group, death_sentence(static_cast<Rank>(seat - group.members.begin()), death.rank,
                              death.who, death.how, death.expelled));
}

void Control::Impl::judge_by_disconnection(Group& group) {
  judge(group, disconnection(&group.members));
}

/// The coordinator is gone, and with it the process it lived in. Without it no other failure
/// would be noticed, so every group fails, whether that process had a member in it or not.
std::string Control::Impl::disconnection(const std::vector<Rank>* members) const {
  if (last_word) return *last_word;
  if (expelled) {
    return fmt::format("the coordinator ({}) disconnected this rank: {}", host_text, *expelled);
  }
  if (launcher || (joined && host_rank < 0)) {
    return fmt::format("the {} ({}) ended: {}", launcher ? "launcher" : "process that made the id",
                       host_text, *disconnected);
  }
  if (!joined) {
    return fmt::format(
        "the process that made the id, usually rank 0's ({}), died before all ranks had joined: {}",
        host_text, *disconnected);
  }
  if (members == nullptr) {
    return death_sentence(host_rank, host_rank, host_text, *disconnected, false);
  }
  const auto seat = std::find(members->begin(), members->end(), host_rank);
  if (seat != members->end()) {
    return death_sentence(static_cast<Rank>(seat - members->begin()), host_rank, host_text,
                          *disconnected, false);
  }
  return fmt::format("world rank {} ({}), which held the coordinator, died: {}", host_rank,
                     host_text, *disconnected);
}

// The public face.

Control::Control(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Control::~Control() {
  // In a forked child the connection is the parent's (and closed here).
  if (impl_->owner_generation != net::fork_generation()) return;
  std::unique_lock lock(impl_->mutex);
  impl_->wait_for_partings(lock, 0);
  impl_->say_farewell(lock);
}

void Control::Impl::say_farewell(std::unique_lock<std::mutex>& lock) {
  farewell = Writer(Type::farewell).text(failure.value_or("")).share();
  send(farewell);
  // Closing earlier could lose the farewell, and it would look like a death.
  const Time begin = Clock::now();
  wait(lock, Time::max(), [&] {
    const milliseconds most = hosting                      ? kFarewellOfHost
                              : following != Following::no ? kFarewellElsewhere
                                                           : kFarewell;
    return goodbye || disconnected || Clock::now() >= begin + most;
  });
}

bool Control::carries_others() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->relay != nullptr;
}
Rank Control::rank() const { return impl_->rank; }
bool Control::was_taken_in() const { return impl_->taken_in; }
int Control::world_size() const { return impl_->world_size; }
const Secret& Control::secret() const { return impl_->secret; }
std::string Control::job() const {
  const std::string tag = secret().derive(fmt::format("job {}", impl_->began_us)).text();
  return flight_job(impl_->began_us, tag);
}
int Control::fd() const { return impl_->polled.get(); }

std::string Control::local_address() const { return impl_->address; }

bool Control::Impl::settled(const Exchange& exchange, std::span<const Rank> members,
                            const std::string& group, std::optional<std::string>& why) {
  if (exchange.blobs) return true;
  if (exchange.failure) why = exchange.failure->sentence;
  for (const Death& death : deaths) {
    if (!contains(members, death.rank)) continue;
    if (exchange.failure && exchange.failure->order < death.order) break;
    why = death_sentence(death.rank, death.rank, death.who, death.how, death.expelled);
    break;
  }
  if (const auto own = groups.find(group); !why && own != groups.end()) why = own->second.verdict;
  if (!why && disconnected) {
    why = host_left ? "the coordinator has left" : disconnection(nullptr);
  }
  return why.has_value();
}

Table Control::exchange(const std::string& key, std::span<const Rank> members,
                        std::span<const std::byte> blob, int timeout_ms, const std::string& group,
                        const std::function<void()>& meanwhile) {
  CHORUS_CHECK(!key.empty() && key.size() <= wire::kMaxKey, "the key of an exchange is short");
  CHORUS_CHECK(contains(members, rank()), "a rank exchanges among others");
  if (blob.size() > wire::kMaxBlob) {
    throw BootstrapError(fmt::format("exchange of '{}': {} bytes, at most {} are allowed", key,
                                     blob.size(), wire::kMaxBlob));
  }
  if (members.size() == 1) return Table(blob);
  std::unique_lock lock(impl_->mutex);
  const auto deadline = Impl::Clock::now() + milliseconds(timeout_ms);
  Impl::Exchange& mine = impl_->exchanges[key];
  mine = {};
  mine.asked = Writer(Type::exchange).text(key).ranks(members).blob(blob).share();
  impl_->send(mine.asked);
  std::optional<std::string> why;
  const auto settled = [&] { return impl_->settled(mine, members, group, why); };
  try {
    if (!impl_->wait(lock, deadline, settled, meanwhile)) {
      impl_->send(Writer(Type::exchange_query).text(key).share());
      impl_->wait(lock, Impl::Clock::now() + kAnswerWithin,
                  [&] { return settled() || mine.missing; });
      if (!mine.blobs && !why) {
        why = fmt::format(
            "nothing from {} after {} ms",
            mine.missing ? *mine.missing : fmt::format("the coordinator ({})", impl_->host_text),
            timeout_ms);
      }
    }
  } catch (...) {  // of `meanwhile`, which is called without the lock
    if (!lock.owns_lock()) lock.lock();
    impl_->exchanges.erase(key);
    impl_->send(Writer(Type::withdraw).text(key).share());
    throw;
  }
  Impl::Exchange result = std::move(mine);
  impl_->exchanges.erase(key);
  if (result.blobs) return std::move(*result.blobs);
  why = fmt::format("{} (while exchanging '{}')", *why, key);
  const auto own = impl_->groups.find(group);
  const bool is_aside = own != impl_->groups.end() && own->second.is_aside;
  if (!impl_->failure && !is_aside) impl_->failure = why;
  throw BootstrapError(*why);
}

void Control::open_group(const std::string& key, std::span<const Rank> members, bool aside) {
  CHORUS_CHECK(!key.empty() && key.size() <= wire::kMaxKey, "the key of a group is short");
  const std::lock_guard lock(impl_->mutex);
  Impl::Group& group = impl_->groups[key];
  group = {};
  group.members.assign(members.begin(), members.end());
  group.is_aside = aside;
  impl_->send(Writer(Type::open_group).text(key).ranks(members).share());
  // What happened before this rank came, in its order.
  const auto early = impl_->early.find(key);
  for (const Impl::Death& death : impl_->deaths) {
    if (early != impl_->early.end() && early->second.order < death.order) break;
    impl_->judge_by_death(group, death);
  }
  if (early != impl_->early.end()) {
    impl_->judge(group, early->second.sentence);
    impl_->early.erase(early);
  }
  if (impl_->disconnected && !impl_->host_left) impl_->judge_by_disconnection(group);
}

void Control::Impl::close_group(const std::string& key) {
  if (groups.erase(key) == 0) return;
  send(Writer(Type::close_group).text(key).share());
}

void Control::close_group(const std::string& key) {
  const std::lock_guard lock(impl_->mutex);
  impl_->close_group(key);
}

void Control::poll() {
  impl_->be_awake();
  // If another thread holds the mutex, it is reading already.
  const std::unique_lock lock(impl_->mutex, std::try_to_lock);
  if (lock) impl_->pump();
}

std::optional<std::string> Control::verdict(const std::string& group) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  return found == impl_->groups.end() ? std::nullopt : found->second.verdict;
}

std::optional<std::vector<Rank>> Control::lost(const std::string& group) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end() || !found->second.by_death) return std::nullopt;
  std::vector<Rank> lost;
  for (std::size_t seat = 0; seat < found->second.members.size(); ++seat) {
    if (impl_->has_died(found->second.members[seat])) lost.push_back(static_cast<Rank>(seat));
  }
  return lost;
}

void Control::note(const std::string& group, Rank to, std::span<const std::byte> blob) {
  CHORUS_CHECK(blob.size() <= wire::kMaxNote, "a note is short");
  const std::lock_guard lock(impl_->mutex);
  const wire::Frame frame =
      Writer(Type::note).text(group).i32(to).blob(blob).u64(++impl_->last_note).share();
  impl_->send(frame);
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end()) return;
  auto& said = found->second.notes_said;
  said.push_back(frame);
  if (said.size() > kNotesKept) said.pop_front();
}

std::vector<Control::Note> Control::take_notes(const std::string& group) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  return found == impl_->groups.end() ? std::vector<Note>{}
                                      : std::exchange(found->second.notes, {});
}

void Control::report_lost(const std::string& group, Rank peer, std::string_view why) {
  const std::lock_guard lock(impl_->mutex);
  const wire::Frame frame = Writer(Type::lost).text(group).i32(peer).text(why).share();
  impl_->send(frame);
  const auto found = impl_->groups.find(group);
  if (found != impl_->groups.end()) found->second.claims.push_back(frame);
}

void Control::report_waiting(const std::string& group, std::uint64_t sequence,
                             std::string_view signature, Rank waiting_for) {
  const std::lock_guard lock(impl_->mutex);
  const wire::Frame frame =
      Writer(Type::waiting).text(group).u64(sequence).text(signature).i32(waiting_for).share();
  impl_->send(frame);
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end()) return;
  Impl::Group& own = found->second;
  if (MessageNumber::is_message(sequence)) {
    own.last_message = frame;
  } else {
    own.last_call = frame;
    own.last_message.reset();
  }
}

void Control::report_ending(const std::string& group, std::span<const Conversed> all) {
  const std::lock_guard lock(impl_->mutex);
  Writer frame(Type::ending);
  frame.text(group).u32(static_cast<std::uint32_t>(all.size()));
  for (const Conversed& each : all) frame.i32(each.peer).u32(each.sent).u32(each.received);
  const wire::Frame said = frame.share();
  impl_->send(said);
  const auto found = impl_->groups.find(group);
  if (found != impl_->groups.end()) found->second.ending = said;
}

std::string Control::who_is_missing(const std::string& group, std::uint64_t sequence) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end() || found->second.status_call != sequence) return {};
  return found->second.status;
}

bool Control::speaks(const std::string& group, std::uint64_t sequence) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  return found != impl_->groups.end() && found->second.status_call == sequence &&
         found->second.speaks;
}

std::string Control::with_missing(const std::string& reason, const std::string& group,
                                  std::uint64_t sequence) {
  const std::string missing = who_is_missing(group, sequence);
  return missing.empty() ? reason : reason + "; " + missing;
}

void Control::abort(const std::string& group, std::string_view reason) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->groups.find(group);
  if (found == impl_->groups.end()) return;
  if (impl_->disconnected) {
    const auto& members = found->second.members;
    const auto seat = std::find(members.begin(), members.end(), impl_->rank) - members.begin();
    return impl_->judge(found->second, fmt::format("rank {} aborted: {}", seat, reason));
  }
  found->second.aborting = Writer(Type::abort).text(group).text(reason).share();
  impl_->send(found->second.aborting);
}

void Control::leaves_because(std::string_view reason) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->failure) impl_->failure = reason;
}

std::optional<std::string> Control::reason_to_leave() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

void Control::survived() {
  const std::lock_guard lock(impl_->mutex);
  impl_->failure.reset();
}

template <typename Judged>
std::optional<std::string> Control::Impl::await(const std::string& key, int grace_ms,
                                                const Judged& judged) {
  std::unique_lock lock(mutex);
  std::optional<std::string> sentence;
  const Time deadline = Clock::now() + milliseconds(grace_ms);
  wait(lock, deadline + kVerdictElsewhere, [&] {
    const auto found = groups.find(key);
    if (found == groups.end()) return true;
    sentence = judged(found->second);
    return sentence || (following == Following::no && Clock::now() >= deadline);
  });
  return sentence;
}

std::optional<std::string> Control::await_verdict(const std::string& group, int grace_ms) {
  return impl_->await(group, grace_ms, [](const Impl::Group& known) { return known.verdict; });
}

std::optional<std::string> Control::await_death(const std::string& group, int grace_ms) {
  return impl_->await(group, grace_ms, [this](const Impl::Group& known) {
    Impl::Group by_deaths{.members = known.members};
    for (const auto& death : impl_->deaths) impl_->judge_by_death(by_deaths, death);
    if (impl_->disconnected) impl_->judge_by_disconnection(by_deaths);
    return by_deaths.verdict;
  });
}

}  // namespace chorus
