// A collective with what it takes to make it again without some of its ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus {

/// Input that `call` may overwrite, of this rank: what has to be copied before it begins. Bytes.
[[nodiscard]] std::size_t overwritten_bytes(const Call& call, Rank rank, std::size_t world_size);

/// Ranks are numbered as they were when the call was made, but where it is said otherwise. Buffers
/// may be read and written only while no rank is in the call.
class KeptCall {
 public:
  /// Copies what the call may overwrite.
  KeptCall(const Call& call, Rank rank, std::size_t world_size);

  /// The call as `alive` make it, with their ranks counted anew; nothing where it has no meaning:
  /// what it needs of a lost root nobody has. `holder`: one of them that has its whole result, or
  /// -1. Input is what it was before the first attempt.
  [[nodiscard]] std::optional<Call> without_lost(std::span<const Rank> alive, Rank holder);
  /// Puts the result of that call where the caller awaits it; blocks of lost ranks become zero.
  void deliver(std::span<const Rank> alive);
  /// Input is what it was before the call, which has failed.
  void restore();

  /// Whether the result is made of what all ranks gave, although some are lost: a broadcast that
  /// goes on from another rank that has it.
  [[nodiscard]] bool is_of_all() const { return is_of_all_; }

 private:
  struct Blocks;
  [[nodiscard]] std::byte* overwritten() const;
  void compact(const std::byte* from, std::span<const Rank> alive);

  Call call_;
  Rank rank_;
  std::size_t world_size_;
  std::size_t block_bytes_;
  std::vector<std::byte> kept_;
  std::vector<std::byte> in_, out_;  ///< of the survivors' blocks, where the call has blocks
  std::vector<std::size_t> send_counts_, send_offsets_, recv_counts_, recv_offsets_;
  bool is_of_all_ = false;
};

}  // namespace chorus
