// Results that some ranks have and others missed, with the coordinator or with a relay: what all
// gave is known from the ones or the others.
#include <algorithm>

#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/table.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Malformed;
using wire::Type;
using wire::Writer;

/// How long a result is waited for that a rank has and is asked for.
constexpr milliseconds kResultWithin{1'500};

}  // namespace

void Judge::on_exchange_done(Rank rank, wire::Reader& body) {
  if (!at(rank).arriving) throw Malformed("a result that nobody asked for");
  const std::uint64_t number = body.u64();
  const std::string key = body.text(wire::kMaxKey);
  const RankList members = body.ranks(rules_.world_size);
  const auto blob = body.blob(wire::kMaxBlob);
  body.text(wire::kMaxKey);  // its group: it is over
  body.end();
  const auto seat = members.index_of(rank);
  if (!seat) throw Malformed("an exchange among others");
  Exchange& finished = finished_[{key, number}];
  if (finished.members.empty()) {
    finished.members = members;
    finished.blobs.resize(members.size());
  }
  if (finished.members != members) return;
  finished.blobs[*seat].emplace(blob.begin(), blob.end());
}

void Judge::on_exchange_held(Rank rank, wire::Reader& body) {
  const std::string key = body.text(wire::kMaxKey);
  const std::uint64_t number = body.u64();
  const auto found = finished_.find({key, number});
  if (wanted_.erase(number) == 0 || found == finished_.end()) return;  // too late, or it has not
  Exchange& finished = found->second;
  const Table table(nullptr, body.rest());
  if (!finished.members.contains(rank) || table.size() != finished.members.size()) {
    throw Malformed("a result of others");
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    finished.blobs[i].emplace(table[i].begin(), table[i].end());
  }
}

/// Whether that member has asked for this result again, not for a later one by the same name.
bool Judge::asks_again(const Exchange& asked, std::size_t seat, std::uint64_t number) const {
  return asked.blobs[seat] && at(asked.members[seat]).last_result < number;
}

/// Whether a rank missed the result, and what a dead one gave to it is known from those alone that
/// have it.
bool Judge::lacks_blobs(const std::string& key, std::uint64_t number,
                        const Exchange& finished) const {
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end() || found->second.members != finished.members) return false;
  bool missed = false, lacks = false;
  for (std::size_t i = 0; i < finished.members.size(); ++i) {
    const bool again = asks_again(found->second, i, number);
    missed = missed || (again && !finished.blobs[i]);
    lacks = lacks || (!again && !finished.blobs[i]);
  }
  return missed && lacks;
}

/// Asks for them, once.
bool Judge::waits_for_results(Time now) {
  if (!gathering_->results_by) {
    gathering_->results_by = now + kResultWithin;
    gathering_->next_look = now + kResultWithin;
    for (const auto& [of, finished] : finished_) {
      if (!lacks_blobs(of.first, of.second, finished)) continue;
      const auto holder = std::find_if(finished.blobs.begin(), finished.blobs.end(),
                                       [](const auto& blob) { return blob.has_value(); });
      send(finished.members[static_cast<std::size_t>(holder - finished.blobs.begin())],
           Writer(Type::wanted).u64(of.second).share());
      wanted_.emplace(of.second, of.first);
    }
  }
  return !wanted_.empty() && now < *gathering_->results_by;
}

/// A result that some ranks have, to those that ask for it again: what all its members gave is
/// known from the ones or the others. Then what was under way may end.
void Judge::answer_arrived() {
  for (const auto& [of, finished] : finished_) answer_finished(of.first, of.second, finished);
  if (!may_return_ && std::none_of(members_.begin(), members_.end(), [](const Member& member) {
        return member.state == State::awaited;
      })) {
    finished_.clear();
  }
  std::vector<std::string> keys;
  for (const auto& [key, exchange] : exchanges_) keys.push_back(key);
  for (const std::string& key : keys) complete(key);
  std::erase_if(exchanges_, [&](const auto& entry) {
    const auto& [asked, exchange] = entry;
    return !awaits_result(exchange) &&
           (has_failed(exchange.group) || end_in_vain(asked, exchange.members, exchange.members));
  });
}

/// Whether a rank asks for it that may have missed its result: what ends the exchange comes after
/// that (answer_arrived()).
bool Judge::awaits_result(const Exchange& exchange) const {
  for (std::size_t i = 0; i < exchange.members.size(); ++i) {
    const Rank rank = exchange.members[i];
    if (exchange.blobs[i] && state(rank) == State::joined && !is_served(rank)) return true;
  }
  return false;
}

/// Those that were found while the rank was on its way.
void Judge::tell_verdicts(Rank rank) {
  for (const auto& [key, group] : groups_) {
    const auto seat = group.seat_of(rank);
    if (!group.verdict || !seat || !group.seats[*seat].opened || group.seats[*seat].closed)
      continue;
    send(rank, verdict_frame(key, group));
  }
}

void Judge::answer_finished(const std::string& key, std::uint64_t number,
                            const Exchange& finished) {
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end() || found->second.members != finished.members) return;
  Exchange& asked = found->second;
  std::vector<std::span<const std::byte>> blobs;
  for (std::size_t i = 0; i < finished.members.size(); ++i) {
    if (!finished.blobs[i] && !asks_again(asked, i, number)) return;
    blobs.emplace_back(finished.blobs[i] ? *finished.blobs[i] : *asked.blobs[i]);
  }
  Writer result(Type::exchange_result);
  result.text(key).u64(number);
  Table::write(result, blobs);
  std::vector<std::size_t> missed;
  for (std::size_t i = 0; i < finished.members.size(); ++i) {
    if (asks_again(asked, i, number)) missed.push_back(i);
  }
  const wire::Frame frame = result.share();
  for (const std::size_t i : missed) {
    send(finished.members[i], frame);
    asked.blobs[i].reset();
    --asked.arrived;
  }
  if (asked.arrived == 0) exchanges_.erase(found);
}

/// What a relay may have lost on its way to this rank.
void Judge::tell_notes(Rank rank) {
  for (const auto& [key, group] : groups_) {
    const auto seat = group.seat_of(rank);
    if (!seat) continue;
    for (const wire::Frame& note : group.seats[*seat].notes) send(rank, note);
  }
}

/// For ranks whose relay is lost with it.
void Judge::keep_finished(const std::string& key, std::uint64_t number, Exchange&& exchange) {
  constexpr std::size_t kResultsKept = 16;
  // Who arrives may have missed earlier ones, and is about to say so.
  exchange.members.for_each([&](Rank rank) {
    if (state(rank) == State::joined && !at(rank).arriving) at(rank).last_result = number;
  });
  finished_[{key, number}] = std::move(exchange);
  if (finished_.size() <= kResultsKept) return;
  finished_.erase(std::min_element(
      finished_.begin(), finished_.end(),
      [](const auto& a, const auto& b) { return a.first.second < b.first.second; }));
}

}  // namespace chorus
