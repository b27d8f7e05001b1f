#include "runtime/engine/kept_call.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "chorus/types.hpp"
#include "runtime/engine/call.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;

Rank place_in(std::span<const Rank> alive, Rank rank) {
  const auto found = std::ranges::find(alive, rank);
  return found == alive.end() ? -1 : static_cast<Rank>(found - alive.begin());
}

}  // namespace

std::size_t overwritten_bytes(const Call& call, Rank rank, std::size_t world_size) {
  const std::size_t block = call.count * size_of(call.type);
  if (call.input == nullptr || call.output == nullptr) return 0;
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      return call.input == call.output ? block : 0;
    case Kind::all_to_all:
      return call.input == call.output ? world_size * block : 0;
    case Kind::reduce_scatter: {
      const auto* const own =
          static_cast<const std::byte*>(call.input) + static_cast<std::size_t>(rank) * block;
      return own == call.output ? block : 0;
    }
    default:
      return 0;  // what others get is not written to
  }
}

KeptCall::KeptCall(const Call& call, Rank rank, std::size_t world_size)
    : call_(call),
      rank_(rank),
      world_size_(world_size),
      block_bytes_(call.count * size_of(call.type)) {
  const auto* const from = static_cast<const std::byte*>(call.output);
  kept_.assign(from, from + overwritten_bytes(call, rank, world_size));
}

// Only where it is written to: all of the buffer, or this rank's block.
void KeptCall::restore() { copy_bytes(call_.output, kept_.data(), kept_.size()); }

void KeptCall::compact(const std::byte* from, std::span<const Rank> alive) {
  in_.resize(alive.size() * block_bytes_);
  for (std::size_t i = 0; i < alive.size(); ++i) {
    copy_bytes(in_.data() + i * block_bytes_,
               from + static_cast<std::size_t>(alive[i]) * block_bytes_, block_bytes_);
  }
}

std::optional<Call> KeptCall::without_lost(std::span<const Rank> alive, Rank holder) {
  restore();
  Call call = call_;
  const auto* const input = static_cast<const std::byte*>(call_.input);
  const bool is_root = call_.peer == rank_;
  if (rooted(call.kind)) {
    call.peer = place_in(alive, call_.peer);
    is_of_all_ = call.kind == Kind::broadcast;
    if (call.peer < 0 && is_of_all_ && holder >= 0) {
      call.peer = place_in(alive, holder);
      call.input = call.output;
    }
    if (call.peer < 0) return std::nullopt;
  }
  switch (call.kind) {
    case Kind::all_gather:
      out_.resize(alive.size() * block_bytes_);
      call.output = out_.data();
      break;
    case Kind::gather:
      if (!is_root) break;
      out_.resize(alive.size() * block_bytes_);
      call.output = out_.data();
      break;
    case Kind::reduce_scatter:
      compact(input, alive);
      call.input = in_.data();
      break;
    case Kind::scatter:
      if (!is_root) break;
      compact(input, alive);
      call.input = in_.data();
      break;
    case Kind::all_to_all:
      compact(input, alive);
      out_.resize(alive.size() * block_bytes_);
      call.input = in_.data();
      call.output = out_.data();
      break;
    case Kind::all_to_all_v: {
      const auto pick = [&](std::span<const std::size_t> all, std::vector<std::size_t>& some) {
        some.clear();
        for (const Rank rank : alive) some.push_back(all[static_cast<std::size_t>(rank)]);
        return std::span<const std::size_t>(some);
      };
      call.send_counts = pick(call_.send_counts, send_counts_);
      call.send_offsets = pick(call_.send_offsets, send_offsets_);
      call.recv_counts = pick(call_.recv_counts, recv_counts_);
      call.recv_offsets = pick(call_.recv_offsets, recv_offsets_);
      break;
    }
    default:
      break;
  }
  return call;
}

void KeptCall::deliver(std::span<const Rank> alive) {
  auto* const output = static_cast<std::byte*>(call_.output);
  const std::size_t width = size_of(call_.type);
  std::size_t next = 0;
  for (std::size_t r = 0; r < world_size_; ++r) {
    const bool is_alive = next < alive.size() && alive[next] == static_cast<Rank>(r);
    if (call_.kind == Kind::all_to_all_v) {
      const std::size_t bytes = is_alive ? 0 : call_.recv_counts[r] * width;
      if (bytes > 0) std::memset(output + call_.recv_offsets[r] * width, 0, bytes);
    } else if (!out_.empty() && is_alive) {
      copy_bytes(output + r * block_bytes_, out_.data() + next * block_bytes_, block_bytes_);
    } else if (!out_.empty()) {
      std::memset(output + r * block_bytes_, 0, block_bytes_);
    }
    next += is_alive ? 1 : 0;
  }
}

}  // namespace chorus
