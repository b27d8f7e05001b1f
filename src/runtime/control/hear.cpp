// What the coordinator says, and the verdicts on groups that follow from it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text/log.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"

namespace chorus {

using wire::Type;
using wire::Writer;

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
    case Type::goodbye_heard:
      goodbye_heard = true;
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
      sent_on = true;
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
  if (opened.type == Type::shared) throw wire::Malformed("a shared frame that refers to another");
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

}  // namespace chorus
