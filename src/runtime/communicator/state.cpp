// State for ranks that have none: from the nearest that hold it, every one of which sends a part.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "base/hash.hpp"
#include "chorus/error.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/control/coordinator/judge.hpp"

namespace chorus {
namespace {

/// What is under way at once. Ranks that send on what they got do so a window later.
constexpr std::uint64_t kWindowBytes = 32 << 20;

/// Of many bytes, in whatever pieces they come; a change of any one changes it. Four lanes, since
/// each step waits for the multiplication before it.
class StateHash {
 public:
  void add(std::span<const std::byte> data) {
    while (!data.empty() && held_ > 0) data = hold(data);
    constexpr std::size_t kStep = sizeof(Block);
    for (; data.size() >= kStep; data = data.subspan(kStep)) mix(data.data());
    if (!data.empty()) hold(data);
  }
  [[nodiscard]] std::uint64_t value() {
    Fnv1a last;
    for (std::size_t i = 0; i < held_; ++i) {
      last.word(std::to_integer<std::uint64_t>(reinterpret_cast<const std::byte*>(&part_)[i]));
    }
    for (const std::uint64_t lane : lanes_) last.word(lane);
    return last.value();
  }

 private:
  using Block = std::array<std::uint64_t, 4>;

  std::span<const std::byte> hold(std::span<const std::byte> data) {
    const std::size_t taken = std::min(data.size(), sizeof part_ - held_);
    std::memcpy(reinterpret_cast<std::byte*>(&part_) + held_, data.data(), taken);
    held_ += taken;
    if (held_ == sizeof part_) {
      mix(reinterpret_cast<const std::byte*>(&part_));
      held_ = 0;
    }
    return data.subspan(taken);
  }
  void mix(const std::byte* from) {
    Block block;
    std::memcpy(&block, from, sizeof block);
    for (std::size_t i = 0; i < block.size(); ++i) {
      lanes_[i] = std::rotl((lanes_[i] ^ block[i]) * 0x9e3779b97f4a7c15ULL, 29);
    }
  }

  Block lanes_{1, 2, 3, 4};
  Block part_{};
  std::size_t held_ = 0;  ///< bytes in part_
};

/// Spans as one sequence of bytes.
class Sequence {
 public:
  explicit Sequence(std::span<const std::span<std::byte>> spans) : spans_(spans) {
    for (const auto span : spans) size_ += span.size();
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// visit(std::span<std::byte>) for each piece of the bytes [begin, end).
  template <typename Visit>
  void for_each(std::uint64_t begin, std::uint64_t end, const Visit& visit) const {
    std::uint64_t at = 0;
    for (const auto span : spans_) {
      const std::uint64_t from = std::max(begin, at), to = std::min(end, at + span.size());
      if (from < to) visit(span.subspan(from - at, to - from));
      at += span.size();
    }
  }

 private:
  std::span<const std::span<std::byte>> spans_;
  std::uint64_t size_ = 0;
};

/// Who sends which bytes of a window to whom.
struct Copy {
  Rank from = 0, to = 0;
  std::uint64_t begin = 0, end = 0;
};

struct Copies {
  std::vector<Copy> first;   ///< from holders
  std::vector<Copy> second;  ///< between ranks that got a part each
};

std::uint64_t cut(std::uint64_t size, std::size_t part, std::size_t parts) {
  return size * part / parts;
}

/// Ranks with a holder on their machine get all from there, each of those a part. The others get a
/// part each, which all holders send, and hand it to each other: a window enters each machine
/// no more often than its ranks need, whatever the number of holders.
Copies copies_of(const std::vector<Member>& members, const std::vector<bool>& holds,
                 std::uint64_t begin, std::uint64_t end) {
  Copies copies;
  std::vector<Rank> holders, far;
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (holds[r]) holders.push_back(static_cast<Rank>(r));
  }
  const auto spread = [&](const std::vector<Rank>& sources, Rank to, std::uint64_t from,
                          std::uint64_t until) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      copies.first.push_back({.from = sources[i],
                              .to = to,
                              .begin = from + cut(until - from, i, sources.size()),
                              .end = from + cut(until - from, i + 1, sources.size())});
    }
  };
  for (std::size_t r = 0; r < members.size(); ++r) {
    if (holds[r]) continue;
    std::vector<Rank> near;
    for (const Rank holder : holders) {
      if (members[static_cast<std::size_t>(holder)].host == members[r].host) near.push_back(holder);
    }
    if (near.empty()) {
      far.push_back(static_cast<Rank>(r));
    } else {
      spread(near, static_cast<Rank>(r), begin, end);
    }
  }
  for (std::size_t i = 0; i < far.size(); ++i) {
    const std::uint64_t from = begin + cut(end - begin, i, far.size());
    const std::uint64_t until = begin + cut(end - begin, i + 1, far.size());
    spread(holders, far[i], from, until);
    for (const Rank to : far) {
      if (to != far[i]) {
        copies.second.push_back({.from = far[i], .to = to, .begin = from, .end = until});
      }
    }
  }
  return copies;
}

/// What each rank tells the others of its state.
struct Told {
  std::uint64_t holds = 0, size = 0, shape = 0;
};

/// Throws alike on all ranks.
std::vector<bool> judge(const std::vector<Told>& all) {
  std::vector<bool> holds(all.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    holds[r] = all[r].holds != 0;
    if (all[r].size == all[0].size && all[r].shape == all[0].shape) continue;
    throw InputError(
        fmt::format("copy_state: rank {} gives {} bytes of state, in spans that differ from rank "
                    "0's {} bytes: all ranks give the same spans",
                    r, all[r].size, all[0].size));
  }
  if (std::ranges::count(holds, true) == 0) {
    throw InputError("copy_state: no rank has the state");
  }
  return holds;
}

}  // namespace

StateCopy Communicator::copy_state(std::span<const std::span<std::byte>> state, bool has) {
  if (impl().group_depth > 0) throw InputError("copy_state() within a group");
  const Sequence bytes(state);
  Fnv1a shape;
  for (const auto span : state) shape.word(span.size());
  const auto ranks_now = static_cast<std::size_t>(world_size());
  std::vector<Told> told(ranks_now);
  Told& mine = told[static_cast<std::size_t>(rank())];
  mine = {.holds = has ? 1U : 0U, .size = bytes.size(), .shape = shape.value()};
  constexpr std::size_t kWords = sizeof(Told) / sizeof(std::uint64_t);
  const auto words = [](Told* from, std::size_t count) {
    return std::span(reinterpret_cast<std::uint64_t*>(from), count * kWords);
  };
  all_gather<std::uint64_t>(words(&mine, 1), words(told.data(), told.size()));
  const std::vector<bool> holds = judge(told);
  StateCopy result{.bytes = 0, .from = {}, .hash = 0};
  StateHash hash;
  const auto start_copies = [&](const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
      if (copy.from != rank() && copy.to != rank()) continue;
      if (copy.to == rank()) {
        result.bytes += copy.end - copy.begin;
        if (std::ranges::find(result.from, copy.from) == result.from.end()) {
          result.from.push_back(copy.from);
        }
      }
      bytes.for_each(copy.begin, copy.end, [&](std::span<std::byte> piece) {
        if (copy.from == rank()) {
          send<std::uint8_t>({reinterpret_cast<std::uint8_t*>(piece.data()), piece.size()},
                             copy.to);
        } else {
          recv<std::uint8_t>({reinterpret_cast<std::uint8_t*>(piece.data()), piece.size()},
                             copy.from);
        }
      });
    }
  };
  std::vector<Copy> second;  // of the window before
  for (std::uint64_t begin = 0; begin < bytes.size() || !second.empty(); begin += kWindowBytes) {
    const std::uint64_t end = std::min(bytes.size(), begin + kWindowBytes);
    Copies copies;
    if (begin < end) copies = copies_of(impl().connections->members(), holds, begin, end);
    group_start();
    start_copies(second);
    start_copies(copies.first);
    group_end();
    second = std::move(copies.second);
  }
  bytes.for_each(0, bytes.size(), [&](std::span<std::byte> piece) { hash.add(piece); });
  result.hash = hash.value();
  std::ranges::sort(result.from);
  std::vector<std::uint64_t> hashes(ranks_now);
  all_gather<std::uint64_t>(std::span<const std::uint64_t>(&result.hash, 1), hashes);
  const auto first = std::ranges::find(holds, true) - holds.begin();
  std::vector<Rank> wrong;
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    if (hashes[r] != hashes[static_cast<std::size_t>(first)]) wrong.push_back(static_cast<Rank>(r));
  }
  if (!wrong.empty()) {
    throw CollectiveError(fmt::format(
        "copy_state: the state of {} differs from rank {}'s: its holders must hold the same bytes, "
        "and not change them meanwhile",
        list_ranks(wrong), first));
  }
  return result;
}

}  // namespace chorus
