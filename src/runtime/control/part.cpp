// Leaving groups: others may still need what this rank has, and may be about to leave another
// first.
#include <fmt/format.h>

#include <algorithm>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/impl.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Type;
using wire::Writer;

/// Ranks that leave together do so within this time, as good as always.
constexpr milliseconds kTogether{100};
/// Groups that wait for their other members at once; more hold up who leaves.
constexpr std::size_t kMostPartings = 16;

std::string exchange_of(const std::string& group) { return group + "/leave"; }

}  // namespace

bool Control::leave_group(const std::string& group, std::span<const Rank> members,
                          const std::function<void()>& meanwhile) {
  if (members.size() == 1) return true;
  std::unique_lock lock(impl_->mutex);
  const std::string key = exchange_of(group);
  Impl::Exchange& mine = impl_->exchanges[key];
  mine = {};
  mine.asked = Writer(Type::exchange).text(key).ranks(members).blob({}).text(group).share();
  impl_->send(mine.asked);
  std::optional<std::string> why;
  const bool over = impl_->wait(
      lock, Impl::Clock::now() + kTogether,
      [&] { return impl_->settled(mine, members, group, why); }, meanwhile);
  if (!over) return false;
  impl_->exchanges.erase(key);
  if (why) {
    if (!impl_->failure) impl_->failure = why;
    throw BootstrapError(*why);
  }
  return true;
}

void Control::keep_until_left(const std::string& group, std::span<const Rank> members,
                              std::function<void()> keep_up, int timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  impl_->partings.push_back({.group = group,
                             .members = {members.begin(), members.end()},
                             .keep_up = std::move(keep_up),
                             .timeout_ms = timeout_ms,
                             .deadline = Impl::Clock::now() + milliseconds(timeout_ms)});
  impl_->wait_for_partings(lock, kMostPartings);
}

std::vector<Control::Impl::Parting> Control::Impl::take_parted() {
  std::vector<Parting> over;
  for (auto parting = partings.begin(); parting != partings.end();) {
    const std::string key = exchange_of(parting->group);
    std::optional<std::string> why;
    const Exchange& exchange = exchanges[key];
    const bool over_now = settled(exchange, parting->members, parting->group, why);
    if (!over_now && Clock::now() < parting->deadline) {
      ++parting;
      continue;
    }
    if (!over_now) {
      why = fmt::format("nothing from {} in {} ms", exchange.missing.value_or("the others"),
                        parting->timeout_ms);
    }
    if (const auto own = groups.find(parting->group); own != groups.end() && own->second.verdict) {
      why = own->second.verdict;
    }
    if (why) {
      log(LogLevel::error, fmt::format("[rank {}/{}]", rank, world_size),
          fmt::format("the communicator '{}' was not ended by all of its ranks: {}", parting->group,
                      *why));
      if (!failure) failure = why;
    }
    exchanges.erase(key);
    close_group(parting->group);
    over.push_back(std::move(*parting));
    parting = partings.erase(parting);
  }
  return over;
}

void Control::Impl::wait_for_partings(std::unique_lock<std::mutex>& lock, std::size_t most) {
  std::vector<Parting> over;  // their ends take time, and need no lock
  const auto few = [&] {
    for (Parting& parting : take_parted()) over.push_back(std::move(parting));
    return partings.size() <= most;
  };
  for (const Parting& parting : partings) {  // for the word on who is missing
    send(Writer(Type::exchange_query).text(exchange_of(parting.group)).share());
  }
  // Another thread may add one meanwhile, but takes none away that is not over.
  wait(lock, Time::max(), few, [&] {
    over.clear();
    std::vector<std::function<void()>> all;
    {
      const std::lock_guard own(mutex);
      for (const Parting& parting : partings) all.push_back(parting.keep_up);
    }
    for (const auto& keep_up : all) keep_up();
  });
  lock.unlock();
  over.clear();
  lock.lock();
}

}  // namespace chorus
