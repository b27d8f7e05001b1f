#include "model/program/placement.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

Placement::Placement(const Schedule& schedule, const std::vector<Delivery>& deliveries,
                     const std::function<bool(int)>& stored)
    : schedule_(&schedule), scratch_(at(schedule.world_size)) {
  for (std::size_t i = 0; i < deliveries.size(); ++i) {
    const Delivery& delivery = deliveries[i];
    if (delivery.destination != Buffer::scratch || !stored(static_cast<int>(i))) continue;
    auto& chunks = scratch_[at(delivery.dst)];
    for (int c = 0; c < delivery.count; ++c) chunks.push_back(delivery.chunk + c);
  }
  for (auto& chunks : scratch_) {
    std::sort(chunks.begin(), chunks.end());
    chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  }
}

int Placement::scratch_chunks(Rank rank) const {
  return static_cast<int>(scratch_[at(rank)].size());
}

LocalRange Placement::range(Buffer buffer, ChunkId chunk, Rank rank) const {
  switch (buffer) {
    case Buffer::input:
      return {buffer, input_index(*schedule_, chunk, rank)};
    case Buffer::output:
      return {buffer, output_index(*schedule_, chunk, rank)};
    case Buffer::scratch:
      break;
  }
  const auto& chunks = scratch_[at(rank)];
  const auto place = std::lower_bound(chunks.begin(), chunks.end(), chunk);
  CHORUS_CHECK(place != chunks.end() && *place == chunk, "a value is read that is not stored");
  return {buffer, static_cast<int>(place - chunks.begin())};
}

}  // namespace chorus
