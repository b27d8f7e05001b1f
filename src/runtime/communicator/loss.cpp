// Communicators that go on without ranks that have died (Options::on_loss).
//
// The survivors agree by an exchange of the control plane: either all of them have its result, or
// all learn of a further death, and begin anew without that rank.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <utility>

#include "base/blob.hpp"
#include "base/hash.hpp"
#include "base/text/log.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/kept_call.hpp"

namespace chorus {
namespace {

std::vector<CallState> read_states(const Table& blobs) {
  std::vector<CallState> states;
  for (const auto blob : blobs) {
    BlobReader reader(blob);
    CallState state{.begun = reader.u64()};
    const std::uint32_t phase = reader.u32();
    state.signature = reader.text();
    if (!reader.ok() || phase > static_cast<std::uint32_t>(CallPhase::executed)) {
      throw BootstrapError(fmt::format("survivor {} sent a malformed state", states.size()));
    }
    state.phase = static_cast<CallPhase>(phase);
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace

std::optional<Communicator::Impl::Survived> Communicator::Impl::survive(CallPhase phase,
                                                                        const Call* call) {
  (void)control->await_verdict(place.key);
  learn_failure();
  auto lost = control->lost(place.key);
  if (!lost) return std::nullopt;
  BlobWriter state;
  state.u64(calls_begun);
  state.u32(static_cast<std::uint32_t>(phase));
  state.text(call == nullptr ? "" : signature(*call));
  for (;;) {
    try {
      return try_to_survive(*lost, state.view());
    } catch (const Error& error) {
      auto more = control->lost(place.key);
      if (more == lost) {
        throw CollectiveError(fmt::format("rank {}: cannot go on without {}: {}", place.rank,
                                          list_ranks(*lost), error.what()));
      }
      lost = std::move(more);
    }
  }
}

Communicator::Impl::Survived Communicator::Impl::try_to_survive(const std::vector<Rank>& lost,
                                                                std::span<const std::byte> state) {
  Survived survived{
      .smaller = nullptr, .alive = {}, .why = control->verdict(place.key).value_or("")};
  GroupPlace smaller{.oversubscribed = place.oversubscribed};
  Fnv1a hash;
  for (std::size_t r = 0; r < place.members.size(); ++r) {
    if (std::ranges::find(lost, static_cast<Rank>(r)) != lost.end()) continue;
    if (static_cast<Rank>(r) == place.rank) smaller.rank = static_cast<Rank>(survived.alive.size());
    survived.alive.push_back(static_cast<Rank>(r));
    smaller.members.push_back(place.members[r]);
    hash.word(static_cast<std::uint64_t>(place.members[r]));
  }
  smaller.key = child_key(place.key, fmt::format(".survivors-{:x}", hash.value()));
  const auto mine = static_cast<std::size_t>(smaller.rank);
  const std::vector<Rank> members = smaller.members;
  const std::string key = smaller.key;
  const auto states =
      read_states(control->exchange(key + "/state", members, state, options.timeout_ms));
  survived.agreed = agree_on(states, mine);
  const std::uint64_t met = states[mine].begun + (survived.agreed.next ? 1 : 0);
  for (std::size_t i = states.size(); i-- > 0;) {
    const bool is_whole = states[i].begun == met && states[i].phase == CallPhase::executed;
    if (is_whole) survived.holder = survived.alive[i];
  }
  survived.smaller = part(std::move(smaller));
  // From here on it exists for all of them, or for none.
  (void)control->exchange(key + "/commit", members, {}, options.timeout_ms);
  control->survived();
  survived.smaller->losses = losses;
  ++survived.smaller->losses.count;
  survived.smaller->losses.lost = lost;
  survived.smaller->losses.contributors.clear();
  survived.smaller->losses.why = survived.why;
  log(LogLevel::info, who(survived.smaller->place),
      fmt::format("goes on without {}: {}", list_ranks(lost), survived.why));
  return survived;
}

const Losses& Communicator::losses() const { return impl().losses; }

/// What is left of a call outside of those that can be finished. Within a handler.
void Communicator::go_on_or_rethrow() {
  if (!impl().survives) throw;
  std::optional<Impl::Survived> survived;
  if (impl().pending) {
    survived = std::move(*impl().pending);
  } else {
    survived = impl().survive(CallPhase::outside, nullptr);
  }
  if (!survived) throw;
  impl_ = std::move(survived->smaller);
  throw LossError(survived->why);
}

void Communicator::run_aside(const Call& call) {
  Impl& mine = impl();
  if (mine.group_depth > 0) {
    const Visit visit(mine);
    mine.group_calls.emplace_back(call);
  } else if (mine.finishes && !is_message(call.kind)) {
    check_call(call, rank(), world_size());
    finish(call);
  } else {
    survivably([&] { impl().run(call); });
  }
}

namespace {

std::vector<Rank> all_but(std::size_t world_size, std::span<const Rank> alive) {
  std::vector<Rank> others;
  for (std::size_t r = 0; r < world_size; ++r) {
    if (std::ranges::find(alive, static_cast<Rank>(r)) == alive.end()) {
      others.push_back(static_cast<Rank>(r));
    }
  }
  return others;
}

}  // namespace

/// A call that is finished, from its first attempt on.
struct Communicator::Finishing {
  Call attempt;                ///< as the ranks that are left make it
  std::vector<Rank> alive;     ///< these, as numbered when the call was made
  std::size_t ranks_then = 0;  ///< how many there were
  std::optional<KeptCall> kept = std::nullopt;
  bool is_first = true;

  /// `comm` goes on as the smaller one, with the next attempt. Throws LossError where there is
  /// none.
  void leave_lost(Communicator& comm, Impl::Survived survived, LossOutcome outcome) {
    const std::vector<Rank> tried = std::exchange(alive, {});
    for (const Rank r : survived.alive) alive.push_back(tried[static_cast<std::size_t>(r)]);
    const Rank holder = survived.holder < 0 ? -1 : tried[static_cast<std::size_t>(survived.holder)];
    comm.impl_ = std::move(survived.smaller);
    comm.impl().losses.lost = all_but(ranks_then, alive);
    if (outcome == LossOutcome::complete) return tell_contributors(comm, tried);
    std::optional<Call> next;
    if (outcome == LossOutcome::again) next = kept->without_lost(alive, holder);
    is_first = false;
    if (!next) {
      kept->restore();
      throw LossError(survived.why);
    }
    attempt = *next;
  }

  void tell_contributors(Communicator& comm, const std::vector<Rank>& ranks_of_it) const {
    std::vector<Rank>& contributors = comm.impl().losses.contributors;
    contributors = kept->is_of_all() ? all_but(ranks_then, {}) : ranks_of_it;
  }
};

void Communicator::finish(const Call& given) {
  Finishing call{.attempt = given, .alive = {}, .ranks_then = ranks()};
  call.alive.resize(call.ranks_then);
  std::iota(call.alive.begin(), call.alive.end(), 0);
  try {
    call.kept.emplace(given, rank(), call.ranks_then);
  } catch (const std::bad_alloc&) {
    impl().engine->out_of_memory(signature(given));
  }
  if (impl().pending) {
    Impl::Survived survived = std::move(*impl().pending);
    const LossOutcome outcome = *survived.agreed.next;
    call.leave_lost(*this, std::move(survived), outcome);
  }
  for (;;) {
    ++impl().calls_begun;
    CallPhase phase = CallPhase::running;
    try {
      const Visit visit(impl());
      impl().run(call.attempt);
      if (!call.is_first) call.kept->deliver(call.alive);
      phase = CallPhase::executed;
      impl().run({.kind = Call::Kind::barrier});
      if (!call.is_first) call.tell_contributors(*this, call.alive);
      return;
    } catch (const CollectiveError&) {
      auto survived = impl().survive(phase, &call.attempt);
      if (!survived) throw;
      if (survived->agreed.next) {  // for the next call to meet
        if (!call.is_first) call.tell_contributors(*this, call.alive);
        impl().pending = std::make_unique<Impl::Survived>(std::move(*survived));
        return;
      }
      const LossOutcome outcome = survived->agreed.outcome;
      call.leave_lost(*this, std::move(*survived), outcome);
      if (outcome == LossOutcome::complete) return;
    }
  }
}

// Others may be in the barrier of their last call, which this rank has left: they are told that it
// is over by this one.
void Communicator::finish_last() noexcept {
  const Impl& mine = *impl_;
  if ((mine.engine->failure() && !mine.pending) || mine.aborted || mine.end_announced ||
      !mine.group_calls.empty() || std::uncaught_exceptions() > 0) {
    return;
  }
  try {
    finish({.kind = Call::Kind::barrier});
  } catch (const std::exception& error) {
    log(LogLevel::error, who(impl_->place), error.what());  // too late to throw it
  }
}

}  // namespace chorus
