#include "model/schedule/symmetry.hpp"

#include <fmt/format.h>

#include <utility>

#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

Cells::Cells(int world_size, std::vector<int> radices) : radices_(std::move(radices)) {
  for (const int radix : radices_) count_ *= radix;
  size_ = world_size / count_;
}

int Cells::combined(int cell, int by, int sign) const {
  int result = 0;
  int stride = 1;
  for (const int radix : radices_) {
    const int digit = (cell % radix + sign * (by % radix) + radix) % radix;
    result += digit * stride;
    stride *= radix;
    cell /= radix;
    by /= radix;
  }
  return result;
}

Cells cells_of(const Schedule& schedule) { return {schedule.world_size, schedule.symmetry}; }

ChunkId moved_chunk(const Schedule& schedule, const Cells& cells, ChunkId chunk, int by) {
  const int n = schedule.world_size;
  if (schedule.collective.kind == CollectiveKind::all_to_all) {
    const int k = schedule.num_chunks / n / n;
    const int block = chunk / k;
    return (cells.moved(block / n, by) * n + cells.moved(block % n, by)) * k + chunk % k;
  }
  const int k = schedule.num_chunks / n;
  return cells.moved(chunk / k, by) * k + chunk % k;
}

ChunkId num_named_chunks(const Schedule& schedule) {
  return schedule.num_chunks / cells_of(schedule).count();
}

std::size_t num_transfers(const Schedule& schedule) {
  std::size_t named = 0;
  for (const Step& step : schedule.steps) named += step.size();
  return named * static_cast<std::size_t>(cells_of(schedule).count());
}

Schedule expanded(const Schedule& schedule) {
  if (schedule.symmetry.empty()) return schedule;
  if (num_transfers(schedule) > kMostExpanded) {
    throw InputError(
        fmt::format("'{}' on {} ranks has {} transfers, too many to write out one by one: use its "
                    "symmetric form",
                    schedule.name, schedule.world_size, num_transfers(schedule)));
  }
  const Cells cells = cells_of(schedule);
  Schedule result = schedule;
  result.symmetry.clear();
  for (Step& step : result.steps) {
    Step named;
    std::swap(named, step);
    step.reserve(named.size() * static_cast<std::size_t>(cells.count()));
    for (int by = 0; by < cells.count(); ++by) {
      for (const Transfer& transfer : named) {
        step.push_back({cells.moved(transfer.src, by), cells.moved(transfer.dst, by),
                        moved_chunk(schedule, cells, transfer.chunk, by), transfer.action});
      }
    }
  }
  return result;
}

std::optional<std::string> malformed_symmetry(const Schedule& schedule) {
  if (schedule.symmetry.empty()) return std::nullopt;
  const auto kind = schedule.collective.kind;
  if (is_rooted(kind) || kind == CollectiveKind::barrier) {
    return fmt::format("a symmetry is given, but {} cannot have one", name_of(kind));
  }
  long long cells = 1;
  for (const int radix : schedule.symmetry) {
    if (radix < 2)
      return fmt::format("a radix of {} in the symmetry: radices are 2 or more", radix);
    cells *= radix;
    if (cells > schedule.world_size) break;
  }
  if (schedule.world_size % cells != 0) {
    return fmt::format("{} ranks are not a multiple of the number of cells of the symmetry",
                       schedule.world_size);
  }
  if (schedule.num_chunks % schedule.world_size != 0) {
    return fmt::format("{} chunks of a symmetric schedule are not a multiple of the {} ranks",
                       schedule.num_chunks, schedule.world_size);
  }
  return std::nullopt;
}

}  // namespace chorus
