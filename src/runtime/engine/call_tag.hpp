// What messages and offers carry so that calls which do not match show.
#pragma once

#include <cstdint>

#include "chorus/communicator.hpp"
#include "runtime/engine/call.hpp"

namespace chorus {

/// Different for calls that do not match, but for where they stand among the others.
/// `routine_hash`: of the schedule that runs, so that ranks must run the same.
[[nodiscard]] constexpr std::uint64_t shape_of(const Call& call, std::uint32_t routine_hash) {
  const auto add = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    return hash ^ hash >> 33;
  };
  std::uint64_t hash = add(routine_hash, static_cast<std::uint64_t>(call.kind));
  if (call.kind == Call::Kind::barrier) return hash;
  hash = add(hash, call.count);
  hash = add(hash, static_cast<std::uint64_t>(call.type));
  hash = add(hash, static_cast<std::uint64_t>(reduction_of(call).op));
  return add(hash, static_cast<std::uint64_t>(peer_of(call)));
}

/// The tag of call number `sequence`, which follows a call of the tag `before`: it carries all
/// calls before. Those that did not match may both have completed (two roots that broadcast), and
/// show here.
[[nodiscard]] constexpr std::uint32_t next_tag(std::uint32_t before, std::uint64_t shape,
                                               std::uint64_t sequence) {
  std::uint64_t hash = (std::uint64_t{before} << 32) + shape + sequence * 0x9e3779b97f4a7c15;
  hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
  return static_cast<std::uint32_t>(hash ^ hash >> 33);
}

}  // namespace chorus
