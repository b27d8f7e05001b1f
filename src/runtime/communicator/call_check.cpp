// Judges the arguments of a call on their own.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/engine/call.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;

[[noreturn]] void refuse(const Call& call, std::string_view why) {
  throw InputError(fmt::format("{}: {}", signature(call), why));
}

/// Blocks of the buffers that a call of this rank uses; 0 where it uses none. Not of all_to_all_v.
int blocks_in(const Call& call, Rank rank, int world_size) {
  if (is_message(call.kind)) return call.kind == Kind::send ? 1 : 0;
  return call.kind == Kind::barrier ? 0 : input_blocks(collective_of(call), world_size, rank);
}

int blocks_out(const Call& call, Rank rank, int world_size) {
  if (is_message(call.kind)) return call.kind == Kind::recv ? 1 : 0;
  return call.kind == Kind::barrier ? 0 : output_blocks(collective_of(call), world_size, rank);
}

/// Bytes of memory, [begin, end).
struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  [[nodiscard]] bool overlaps(const Range& other) const {
    return begin < other.end && other.begin < end;
  }
};

Range range_of(const void* memory, std::size_t count, DataType type) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  return {begin, begin + count * size_of(type)};
}

// Where a result lands on input that is still needed, it depends on sizes, transports and timing
// what comes out.
void check_overlap(const Call& call, Rank rank, std::size_t in_blocks, std::size_t out_blocks) {
  if (in_blocks == 0 || out_blocks == 0) return;
  const Range in = range_of(call.input, in_blocks * call.count, call.type);
  const Range out = range_of(call.output, out_blocks * call.count, call.type);
  if (!in.overlaps(out)) return;
  const std::size_t own = static_cast<std::size_t>(rank) * call.count * size_of(call.type);
  const std::uintptr_t input_at = in.begin + (in_blocks > out_blocks ? own : 0);
  const std::uintptr_t output_at = out.begin + (out_blocks > in_blocks ? own : 0);
  if (input_at == output_at) return;
  refuse(call, in_blocks == out_blocks
                   ? "input and output overlap: pass one buffer for both, or disjoint buffers"
                   : fmt::format("input and output overlap: the smaller one must be block {} of "
                                 "the larger one, or disjoint from it",
                                 rank));
}

// The ranges of what is sent or received, in the order of addresses, but for those that are empty.
void find_ranges(const Call& call, const void* memory, std::span<const std::size_t> counts,
                 std::span<const std::size_t> offsets, std::string_view what,
                 std::vector<Range>& ranges) {
  constexpr std::size_t kMost = SIZE_MAX / 32;
  ranges.clear();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (counts[i] > kMost || offsets[i] > kMost) {
      refuse(call, fmt::format("{} at {} {} rank {}: more than memory can hold",
                               counted(static_cast<long long>(counts[i]), "element"), offsets[i],
                               what, i));
    }
    if (memory == nullptr) {
      refuse(call, fmt::format("{} {} rank {}, but the buffer is null",
                               counted(static_cast<long long>(counts[i]), "element"), what, i));
    }
    const auto* begin = static_cast<const std::byte*>(memory) + offsets[i] * size_of(call.type);
    ranges.push_back(range_of(begin, counts[i], call.type));
  }
  std::ranges::sort(ranges, {}, &Range::begin);
}

void check_all_to_all_v(const Call& call, std::size_t me, std::size_t world_size) {
  for (const auto& list :
       {call.send_counts, call.send_offsets, call.recv_counts, call.recv_offsets}) {
    if (list.size() != world_size) {
      refuse(call, fmt::format("counts and offsets need one entry per rank: {} given, {} ranks",
                               list.size(), world_size));
    }
  }
  if (call.send_counts[me] != call.recv_counts[me]) {
    refuse(call, fmt::format("rank {} sends itself {} but expects {}", me,
                             counted(static_cast<long long>(call.send_counts[me]), "element"),
                             call.recv_counts[me]));
  }
  thread_local std::vector<Range> sent, received;  // kept for their memory
  find_ranges(call, call.input, call.send_counts, call.send_offsets, "to", sent);
  find_ranges(call, call.output, call.recv_counts, call.recv_offsets, "from", received);
  for (std::size_t i = 1; i < received.size(); ++i) {
    if (received[i - 1].overlaps(received[i])) {
      refuse(call,
             "data of two ranks would be received into the same place: pass pieces of the output "
             "that do not overlap");
    }
  }
  // Pieces of the input may be the same; so the one that reaches farthest counts, not the last.
  std::size_t next = 0;
  std::uintptr_t reach = 0;
  for (const Range& range : received) {
    for (; next < sent.size() && sent[next].begin < range.end; ++next) {
      reach = std::max(reach, sent[next].end);
    }
    if (reach > range.begin) {
      refuse(
          call,
          "input and output overlap; this collective has no in-place form: pass disjoint buffers");
    }
  }
}

}  // namespace

void check_kind(const Call& call) {
  if (call.kind <= Kind::recv) return;
  throw InputError(fmt::format("there is no call of kind {}: the last is {}, recv",
                               static_cast<int>(call.kind), static_cast<int>(Kind::recv)));
}

void check_call(const Call& call, Rank rank, int world_size, bool on_gpu) {
  check_kind(call);
  if (static_cast<int>(call.type) >= kNumDataTypes) refuse(call, "unknown element type");
  const Reduction reduction = reduction_of(call);
  if (static_cast<int>(reduction.op) >= kNumReduceOps) refuse(call, "unknown operation");
  if (!applies(reduction.op, call.type)) {
    refuse(call, fmt::format("{} combines the bits of integers, and {} is not an integer type",
                             name_of(reduction.op), name_of(call.type)));
  }
  if (on_gpu && is_bitwise(reduction.op)) {
    refuse(call, "bitwise operations are for host memory: the GPU's kernels do not have them");
  }
  if (peer_of(call) < 0 || peer_of(call) >= world_size) {
    refuse(call, fmt::format("rank {} does not exist: the communicator has ranks 0 to {}",
                             call.peer, world_size - 1));
  }
  if (!on_gpu && is_message(call.kind) && call.peer == rank) {
    refuse(call, "a rank cannot send to or receive from itself");
  }
  if (reduction.scale != 1.0 && reduction.op != ReduceOp::sum) {
    refuse(call, "only sums can be scaled");
  }
  if (call.count > SIZE_MAX / 16 / static_cast<std::size_t>(world_size)) {
    refuse(call, "the count is larger than memory can be");
  }
  if (call.kind == Kind::all_to_all_v) {
    check_all_to_all_v(call, static_cast<std::size_t>(rank), static_cast<std::size_t>(world_size));
    return;
  }
  if (call.count == 0) return;
  const int in = blocks_in(call, rank, world_size);
  const int out = blocks_out(call, rank, world_size);
  if (in > 0 && call.input == nullptr) refuse(call, "the input is null");
  if (out > 0 && call.output == nullptr) refuse(call, "the output is null");
  check_overlap(call, rank, static_cast<std::size_t>(in), static_cast<std::size_t>(out));
}

}  // namespace chorus
