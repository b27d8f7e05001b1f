#include "runtime/communicator/loss_agreement.hpp"

#include <algorithm>

namespace chorus {
namespace {

/// Whether `state` has returned from call `number`.
bool has_returned(const CallState& state, std::uint64_t number) {
  return state.begun > number || (state.begun == number && state.phase == CallPhase::outside);
}

bool is_in(const CallState& state, std::uint64_t number) {
  return state.begun == number && state.phase != CallPhase::outside;
}

LossOutcome outcome_of(std::span<const CallState> all, std::uint64_t number) {
  if (std::ranges::any_of(all, [&](const CallState& each) { return has_returned(each, number); })) {
    return LossOutcome::complete;
  }
  const auto first =
      std::ranges::find_if(all, [&](const CallState& each) { return is_in(each, number); });
  // Who is in the call before comes to this one; who is outside may not.
  const auto comes = [&](const CallState& each) {
    return is_in(each, number) ? each.signature == first->signature
                               : each.begun + 1 == number && each.phase == CallPhase::executed;
  };
  if (!std::ranges::all_of(all, comes)) return LossOutcome::fail;
  const bool is_whole = std::ranges::all_of(all, [&](const CallState& each) {
    return is_in(each, number) && each.phase == CallPhase::executed;
  });
  return is_whole ? LossOutcome::complete : LossOutcome::again;
}

}  // namespace

Agreed agree_on(std::span<const CallState> all, std::size_t mine) {
  const CallState& own = all[mine];
  if (own.phase == CallPhase::outside) return {.outcome = LossOutcome::fail};
  Agreed agreed{.outcome = outcome_of(all, own.begun)};
  if (agreed.outcome != LossOutcome::complete) return agreed;
  // Calls that do not match may have led here without this rank's result.
  if (own.phase != CallPhase::executed) return {.outcome = LossOutcome::fail};
  const std::uint64_t next = own.begun + 1;
  if (std::ranges::any_of(all, [&](const CallState& each) { return is_in(each, next); })) {
    agreed.next = outcome_of(all, next);
  }
  return agreed;
}

}  // namespace chorus
