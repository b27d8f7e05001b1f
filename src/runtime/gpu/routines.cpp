#include "runtime/gpu/routines.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text/log.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/selection/proved.hpp"

namespace chorus {
namespace {

constexpr std::uint64_t kBlockBytes = 1 << 20;

}  // namespace

ImageStore::ImageStore(cuda::Context context) : context_(context), stream_(cuda::make_stream()) {
  grow(kBlockBytes);
}

void ImageStore::grow(std::uint64_t size_bytes) {
  blocks_.push_back(cuda::allocate_local(size_bytes, stream_.get()));
  next_ = blocks_.back().get();
  left_ = size_bytes;
}

std::uint64_t ImageStore::keep(const device::Image& image) {
  const cuda::Current current(context_);
  const std::uint64_t bytes = image.words.size() * sizeof(std::uint32_t);
  const std::uint64_t room = device::round_up(bytes, 256);
  if (left_ < room) grow(std::max(kBlockBytes, room));
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
  const device::Image image = device::flatten(proved.programs[me]);
  DeviceRoutine routine{.name = schedule.name,
                        .figures = device::figures_of(proved.programs, rank_),
                        .lane_ports = device::lane_ports(image),
                        .program = store.keep(image),
                        .hash = hash_of(schedule)};
  if (proved.direct && device::has_room_for_operands(*proved.direct)) {
    routine.direct = store.keep(device::flatten((*proved.direct)[me]));
    routine.copy_in_place = (*proved.direct)[me].copy_in_place;
  }
  return routine;
}

const DeviceRoutine& DeviceRoutines::choose(Collective collective, std::uint64_t size_bytes,
                                            ImageStore& store) {
  const std::size_t index = selection_.entry_for(collective.kind, size_bytes);
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  const auto key = std::tuple(collective.kind, root, index);
  const auto found = collectives_.find(key);
  if (found != collectives_.end()) return found->second;
  if (rank_ == 0 && log_enabled(LogLevel::info)) {
    const std::string why = selection_.explain(collective.kind, size_bytes);
    log(LogLevel::info, fmt::format("[rank 0/{}]", selection_.topology().world_size()),
        "on GPUs, " + why.substr(0, why.find('\n')));
  }
  const Schedule& chosen = selection_.considered(collective.kind).entries[index].schedule;
  return collectives_.emplace(key, make(root == 0 ? chosen : rotated(chosen, root), store))
      .first->second;
}

const DeviceRoutine& DeviceRoutines::choose(Collective collective, const std::string& name,
                                            ImageStore& store) {
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  const auto key = std::tuple(collective.kind, root, name);
  if (const auto found = named_.find(key); found != named_.end()) return found->second;
  const Schedule schedule = selection_.named(collective.kind, name);
  return named_.emplace(key, make(root == 0 ? schedule : rotated(schedule, root), store))
      .first->second;
}

const DeviceRoutine& DeviceRoutines::message(Rank peer, bool sending, ImageStore& store) {
  const auto found = messages_.find({peer, sending});
  if (found != messages_.end()) return found->second;
  const Program program = message_program(selection_.topology().world_size(), rank_, peer, sending);
  const device::Image image = device::flatten(program);
  DeviceRoutine routine{.name = program.name,
                        .figures = {},
                        .lane_ports = device::lane_ports(image),
                        .program = store.keep(image)};
  return messages_.emplace(std::pair(peer, sending), routine).first->second;
}

}  // namespace chorus
