#include "runtime/device_routines.hpp"

#include <algorithm>

#include "collectives/algorithms.hpp"
#include "model/contract.hpp"
#include "runtime/proved.hpp"

namespace chorus {
namespace {

constexpr std::uint64_t kBlockBytes = 1 << 20;
constexpr int kOneShot = -1;
constexpr int kTwoShot = -2;

}  // namespace

ImageStore::ImageStore() : stream_(cuda::make_stream()) {}

std::uint64_t ImageStore::keep(const device::Image& image) {
  const std::uint64_t bytes = image.words.size() * sizeof(std::uint32_t);
  const std::uint64_t room = device::round_up(bytes, 256);
  if (left_ < room) {
    const std::uint64_t block = std::max(kBlockBytes, room);
    blocks_.push_back(cuda::allocate(block));
    next_ = blocks_.back().get();
    left_ = block;
  }
  const std::uint64_t at = next_;
  cuda::check(cuda::driver().copy_to_device(at, image.words.data(), bytes, stream_.get()),
              "copying a program to the GPU");
  cuda::check(cuda::driver().stream_synchronize(stream_.get()), "copying a program to the GPU");
  next_ += room;
  left_ -= room;
  return at;
}

DeviceRoutine DeviceRoutines::make(const Schedule& schedule, ImageStore& store) const {
  const Proved proved = prove(schedule, slots_, true);
  const auto me = static_cast<std::size_t>(rank_);
  DeviceRoutine routine{.name = schedule.name,
                        .figures = device::figures_of(proved.programs, rank_),
                        .num_lanes = static_cast<std::uint32_t>(proved.programs[me].lanes.size()),
                        .program = store.keep(device::flatten(proved.programs[me])),
                        .hash = hash_of(schedule)};
  if (proved.direct) {
    routine.direct = store.keep(device::flatten((*proved.direct)[me]));
    routine.copy_in_place = (*proved.direct)[me].copy_in_place;
  }
  return routine;
}

const DeviceRoutine& DeviceRoutines::choose(Collective collective, std::uint64_t size_bytes,
                                            ImageStore& store) {
  const AlgorithmInput input{.kind = collective.kind, .world_size = world_size_, .levels = {}};
  const auto& entries = plan_.entries;
  const auto planned = std::find_if(entries.begin(), entries.end(), [&](const PlanEntry& entry) {
    return entry.schedule.collective.kind == collective.kind && size_bytes >= entry.min_bytes &&
           size_bytes <= entry.max_bytes;
  });
  const bool combines_for_all =
      collective.kind == CollectiveKind::all_reduce || collective.kind == CollectiveKind::reduce;
  int index = kOneShot;
  if (planned != entries.end()) {
    index = static_cast<int>(planned - entries.begin());
  } else if (combines_for_all && world_size_ > 1 &&
             size_bytes > one_shot_bytes_ * static_cast<std::uint64_t>(world_size_)) {
    index = kTwoShot;
  }
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  const auto key = std::tuple(collective.kind, root, index);
  const auto found = collectives_.find(key);
  if (found != collectives_.end()) return found->second;
  const Schedule schedule =
      index >= 0 ? planned->schedule
                 : algorithm(index == kOneShot ? "one_shot" : "two_shot").make(input);
  return collectives_.emplace(key, make(root == 0 ? schedule : rotated(schedule, root), store))
      .first->second;
}

const DeviceRoutine& DeviceRoutines::message(Rank peer, bool sending, ImageStore& store) {
  const auto found = messages_.find({peer, sending});
  if (found != messages_.end()) return found->second;
  const Program program = message_program(world_size_, rank_, peer, sending);
  DeviceRoutine routine{
      .name = program.name, .figures = {}, .program = store.keep(device::flatten(program))};
  return messages_.emplace(std::pair(peer, sending), routine).first->second;
}

}  // namespace chorus
