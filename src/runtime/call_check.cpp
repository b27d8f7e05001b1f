// Judges the arguments of a call on their own.
#include <fmt/format.h>

#include <cstdint>

#include "chorus/error.hpp"
#include "runtime/communicator_impl.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;

[[noreturn]] void refuse(const Call& call, std::string_view why) {
  throw InputError(fmt::format("{}: {}", signature(call), why));
}

bool has_peer(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter || kind == Kind::send || kind == Kind::recv;
}

bool needs_input(const Call& call, Rank rank) {
  switch (call.kind) {
    case Kind::barrier:
    case Kind::recv:
      return false;
    case Kind::broadcast:
    case Kind::scatter:
      return rank == call.peer;
    default:
      return true;
  }
}

bool needs_output(const Call& call, Rank rank) {
  switch (call.kind) {
    case Kind::barrier:
    case Kind::send:
      return false;
    case Kind::reduce:
    case Kind::gather:
      return rank == call.peer;
    default:
      return true;
  }
}

void check_all_to_all_v(const Call& call, std::size_t world_size) {
  for (const auto& list :
       {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets}) {
    if (list.size() != world_size) {
      refuse(call, fmt::format("counts and offsets need one entry per rank: {} given, {} ranks",
                               list.size(), world_size));
    }
  }
}

}  // namespace

void check_call(const Call& call, Rank rank, int world_size, bool to_itself) {
  if (static_cast<int>(call.type) >= kNumDataTypes) refuse(call, "unknown element type");
  if (static_cast<int>(call.reduction.op) >= kNumReduceOps) refuse(call, "unknown operation");
  if (has_peer(call.kind) && (call.peer < 0 || call.peer >= world_size)) {
    refuse(call, fmt::format("rank {} does not exist: the communicator has ranks 0 to {}",
                             call.peer, world_size - 1));
  }
  if (!to_itself && (call.kind == Kind::send || call.kind == Kind::recv) && call.peer == rank) {
    refuse(call, "a rank cannot send to or receive from itself");
  }
  if (call.reduction.scale != 1.0 && call.reduction.op != ReduceOp::sum) {
    refuse(call, "only sums can be scaled");
  }
  if (call.count > SIZE_MAX / 16 / static_cast<std::size_t>(world_size)) {
    refuse(call, "the count is larger than memory can be");
  }
  if (call.kind == Kind::all_to_all_v) {
    check_all_to_all_v(call, static_cast<std::size_t>(world_size));
    return;
  }
  if (call.count == 0) return;
  if (needs_input(call, rank) && call.input == nullptr) refuse(call, "the input is null");
  if (needs_output(call, rank) && call.output == nullptr) refuse(call, "the output is null");
}

}  // namespace chorus
