#include "runtime/control/control.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"
#include "runtime/options/flight_files.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Type;
using wire::Writer;

/// How long an answer that needs no other rank is waited for.
constexpr milliseconds kAnswerWithin{500};
/// How long leaving takes at most: until the coordinator has read the goodbye, or, where it lives
/// in this process, until the others have left (the coordinator itself gives up after 10 s).
constexpr milliseconds kGoodbye{1'000}, kGoodbyeOfHost{11'000};
/// The same while a successor of the coordinator is looked for.
constexpr milliseconds kGoodbyeElsewhere{4'000};
/// And how much longer a verdict is waited for meanwhile.
constexpr milliseconds kVerdictElsewhere{4'000};
/// What may be said to a successor again.
constexpr std::size_t kNotesKept = 64;

bool contains(std::span<const Rank> members, Rank rank) {
  return std::find(members.begin(), members.end(), rank) != members.end();
}

}  // namespace

Control::Control(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Control::~Control() {
  // In a forked child the connection is the parent's (and closed here).
  if (impl_->owner_generation != net::fork_generation()) return;
  std::unique_lock lock(impl_->mutex);
  impl_->wait_for_partings(lock, 0);
  impl_->say_goodbye(lock);
}

void Control::Impl::say_goodbye(std::unique_lock<std::mutex>& lock) {
  goodbye = Writer(Type::goodbye).text(failure.value_or("")).share();
  send(goodbye);
  // Closing earlier could lose the goodbye, and it would look like a death.
  const Time begin = Clock::now();
  wait(lock, Time::max(), [&] {
    const milliseconds most = hosting                      ? kGoodbyeOfHost
                              : following != Following::no ? kGoodbyeElsewhere
                                                           : kGoodbye;
    return goodbye_heard || disconnected || Clock::now() >= begin + most;
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
  mine.asked = Writer(Type::exchange).text(key).ranks(members).blob(blob).text(group).share();
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
