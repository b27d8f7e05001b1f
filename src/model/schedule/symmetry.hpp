// Schedules that repeat themselves from cell to cell: what follows from a few transfers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus {

/// The cells of Schedule::symmetry and how ranks move between them: the group Z_m1 × Z_m2 × …,
/// acting on ranks without a fixed point. Without radices: one cell, nothing moves.
class Cells {
 public:
  /// The product of `radices` divides `world_size`.
  Cells(int world_size, std::vector<int> radices);

  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int size() const { return size_; }  ///< ranks per cell
  [[nodiscard]] const std::vector<int>& radices() const { return radices_; }
  [[nodiscard]] int cell_of(Rank rank) const { return rank / size_; }

  /// Digit by digit, modulo the radices.
  [[nodiscard]] int plus(int cell, int by) const { return combined(cell, by, 1); }
  [[nodiscard]] int minus(int cell, int by) const { return combined(cell, by, -1); }
  [[nodiscard]] Rank moved(Rank rank, int by) const {
    return plus(rank / size_, by) * size_ + rank % size_;
  }

 private:
  [[nodiscard]] int combined(int cell, int by, int sign) const;

  std::vector<int> radices_;
  int count_ = 1;
  int size_ = 1;
};

[[nodiscard]] Cells cells_of(const Schedule& schedule);

/// The image of `chunk` where cell 0 is moved to cell `by`.
[[nodiscard]] ChunkId moved_chunk(const Schedule& schedule, const Cells& cells, ChunkId chunk,
                                  int by);
/// Chunks [0, …) belong to cell 0: all that `steps` may name; num_chunks without symmetry.
[[nodiscard]] ChunkId num_named_chunks(const Schedule& schedule);

/// Transfers of the whole schedule.
[[nodiscard]] std::size_t num_transfers(const Schedule& schedule);

/// More transfers than anybody keeps in memory one by one.
inline constexpr std::size_t kMostExpanded = std::size_t{1} << 26;

/// The same schedule with every transfer named. Throws InputError beyond kMostExpanded of them.
[[nodiscard]] Schedule expanded(const Schedule& schedule);

/// Why the symmetry is not one that the collective can have, as a sentence; nothing if it is, or if
/// there is none. Kind, world size and chunks are well formed.
[[nodiscard]] std::optional<std::string> malformed_symmetry(const Schedule& schedule);

}  // namespace chorus
