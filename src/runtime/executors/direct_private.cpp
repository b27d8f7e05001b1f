// DirectExecution where ranks read each other's private memory by the kernel.
#include <cstddef>

#include "model/schedule/contract.hpp"
#include "runtime/executors/direct_execution.hpp"

namespace chorus {

bool DirectExecution::is_private(const Place& place) const {
  return place.rank != shared_window_->rank() &&
         offered_[static_cast<std::size_t>(place.rank)].input.kind == Reference::kPrivate;
}

// Straight to where it belongs. A tile in which the kernel refuses something is done anew, which
// must not fold anything twice.
bool DirectExecution::copies_by_kernel(const Move& move) const {
  return move.sources.size() == 1 && move.destinations.size() == 1 &&
         !is_combining(direct_->program.collective.kind) &&
         move.destinations[0].rank == shared_window_->rank() && is_private(move.sources[0]);
}

// What this tile folds of private memory, before any of it is folded. False if the kernel refuses:
// its owner stages it now.
bool DirectExecution::fetch_private(int tile) {
  num_used_ = 0;
  if (!reads_) return true;
  std::size_t used = 0;
  for (const Move& move : direct_->program.moves) {
    const std::size_t bytes = run_bytes(move.chunk, move.count, tile);
    if (bytes == 0 || copies_by_kernel(move)) continue;
    for (const Place& place : move.sources) {
      if (!is_private(place)) continue;
      if (fetched_.size() <= used) fetched_.emplace_back();
      std::vector<std::byte>& fetched = fetched_[used++];
      if (fetched.size() < bytes) fetched.resize(bytes);
      if (!read(place, tile, fetched.data(), bytes)) return false;
    }
  }
  return true;
}

// To where it belongs, with the tiles that lie behind it as far as one call of the kernel goes:
// each call is work of its own, and nobody waits for a tile of what is only copied.
bool DirectExecution::read_straight(const Move& move, int tile) {
  const auto number = static_cast<std::size_t>(&move - direct_->program.moves.data());
  if (read_tiles_.size() <= number) read_tiles_.resize(direct_->program.moves.size());
  int& read_tiles = read_tiles_[number];
  if (tile < read_tiles) return true;
  std::size_t bytes = run_bytes(move.chunk, move.count, tile);
  int next = tile + 1;
  const bool is_whole_block = static_cast<std::size_t>(move.count) == k_;
  for (; is_whole_block && next < num_tiles_; ++next) {
    const std::size_t more = run_bytes(move.chunk, move.count, next);
    if (bytes + more > kReadAtOnce) break;
    bytes += more;
  }
  if (!read(move.sources[0], tile, work_.output + in_buffer(move.destinations[0].index, tile),
            bytes)) {
    return false;
  }
  read_tiles = next;
  count_->moved_bytes += bytes;
  return true;
}

bool DirectExecution::read(const Place& place, int tile, std::byte* to, std::size_t bytes) {
  Offered& offered = offered_[static_cast<std::size_t>(place.rank)];
  const std::uint64_t where = offered.input.where + in_buffer(place.index, tile);
  const ForeignRead result = shared_window_->read_private(place.rank, where, {to, bytes});
  if (result == ForeignRead::done) return true;
  offered.input.kind = Reference::kStaged;
  offered.restages = true;
  const bool always = result == ForeignRead::always_refused;
  shared_window_->publish(shared_window_->own().refused, 2 * (number_ + 1) + (always ? 1 : 0));
  shared_window_->wake_sleepers();
  return false;
}

// A buffer that the kernel does not let somebody read goes through the slots after all. Readers who
// may read it go on.
void DirectExecution::restage_if_refused() {
  if (input_.kind != Reference::kPrivate) return;
  for (const Rank peer : direct_->readers) {
    const std::uint64_t refused = shared_window_->seen(peer, shared_window_->part(peer).refused);
    if (refused / 2 != number_ + 1) continue;
    if (refused % 2 == 1) count_->kernel_refuses = true;
    input_.kind = Reference::kStaged;
    restages_ = true;
    staged_ = 0;
  }
}

}  // namespace chorus
