#include "runtime/gpu/sharing.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/blob.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/communicator/impl.hpp"

namespace chorus {

DeviceSharing::DeviceSharing(Control& control, const GroupPlace& place, std::string group,
                             cuda::Context context, std::uint64_t table,
                             std::vector<bool> same_process, std::function<void()> finish)
    : control_(control),
      place_(place),
      group_(std::move(group)),
      context_(context),
      table_(table),
      same_process_(std::move(same_process)),
      finish_(std::move(finish)) {}

DeviceSharing::~DeviceSharing() = default;

// What the others are told ------------------------------------------------------------------------

void DeviceSharing::tell(Rank to, What what, std::uint32_t segment, std::uint32_t serial,
                         const std::function<void(BlobWriter&)>& more) {
  BlobWriter blob;
  blob.u32(static_cast<std::uint32_t>(what));
  blob.u32(segment);
  blob.u32(serial);
  if (more) more(blob);
  control_.note(group_, to, blob.view());
}

void DeviceSharing::tell_others(What what, std::uint32_t segment, std::uint32_t serial,
                                const std::function<void(BlobWriter&)>& more) {
  for (std::size_t r = 0; r < place_.members.size(); ++r) {
    if (static_cast<Rank>(r) != place_.rank)
      tell(static_cast<Rank>(r), what, segment, serial, more);
  }
}

bool DeviceSharing::share(std::uint64_t begin, std::size_t size_bytes, std::uint64_t buffer,
                          std::shared_ptr<void> keep) {
  const cuda::Api& api = cuda::driver();
  cuda::Address base = 0;
  std::size_t size = 0;
  cuda::IpcHandle handle{};
  {
    const cuda::Current current(context_);
    if (api.address_range(&base, &size, begin) != cuda::kSuccess ||
        api.ipc_export(&handle, base) != cuda::kSuccess) {
      return false;
    }
  }
  const std::lock_guard lock(mutex_);
  const auto room = std::find_if(segments_.begin(), segments_.end(), [](const Segment& segment) {
    return segment.state == State::free;
  });
  if (room == segments_.end() || stop_) return false;
  const auto number = static_cast<std::uint32_t>(room - segments_.begin()) + 1;
  room->state = State::announced;
  ++room->serial;
  room->begin = begin;
  room->end = begin + size_bytes;
  room->buffer = buffer;
  room->keep = std::move(keep);
  room->views.assign(place_.members.size(), 0);
  room->views[static_cast<std::size_t>(place_.rank)] = begin;
  room->answered.assign(place_.members.size(), false);
  tell_others(What::announced, number, room->serial, [&](BlobWriter& blob) {
    blob.u64(begin);
    blob.u64(begin - base);
    blob.bytes(std::as_bytes(std::span(&handle, 1)));
  });
  return true;
}

void DeviceSharing::unshare(std::uint64_t begin) {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t number = 1; number <= segments_.size(); ++number) {
    Segment& segment = segments_[number - 1];
    if (segment.state == State::free || segment.state == State::closing) continue;
    if (segment.begin != begin) continue;
    if (segment.state == State::active) --active_;
    segment.state = State::closing;
    segment.answered.assign(place_.members.size(), false);
    queue([this, number, serial = segment.serial] {
      finish_();
      tell_others(What::withdrawn, number, serial);
    });
  }
}

std::uint32_t DeviceSharing::segment_of(std::uint64_t address, std::size_t bytes,
                                        std::uint64_t buffer) const {
  if (active_.load(std::memory_order_relaxed) == 0) return 0;
  const std::lock_guard lock(mutex_);
  for (std::uint32_t number = 1; number <= segments_.size(); ++number) {
    const Segment& segment = segments_[number - 1];
    if (segment.state != State::active || (buffer != 0 && buffer != segment.buffer)) continue;
    if (address >= segment.begin && address + bytes <= segment.end) return number;
  }
  return 0;
}

// What the others say -----------------------------------------------------------------------------

void DeviceSharing::look() {
  for (const Control::Note& note : control_.take_notes(group_)) {
    const std::lock_guard lock(mutex_);
    if (!stop_) hear(note);
  }
}

void DeviceSharing::hear(const Control::Note& note) {
  BlobReader blob(note.blob);
  const auto what = static_cast<What>(blob.u32());
  const std::uint32_t number = blob.u32();
  const std::uint32_t serial = blob.u32();
  if (!blob.ok() || number == 0 || number > segments_.size()) return;
  const Rank from = note.from;
  if (what == What::announced) {
    const std::uint64_t address = blob.u64();
    const std::uint64_t offset = blob.u64();
    const auto bytes = blob.bytes();
    cuda::IpcHandle handle{};
    if (!blob.ok() || bytes.size() != sizeof handle) return;
    std::memcpy(&handle, bytes.data(), sizeof handle);
    return queue([=, this] { map(from, number, serial, address, offset, handle); });
  }
  if (what == What::withdrawn) return queue([=, this] { close(from, number, serial); });
  Segment& segment = segments_[number - 1];
  if (segment.serial != serial) return;
  if (what == What::reached && segment.state == State::announced) {
    const std::uint64_t view = blob.u64();
    segment.views[static_cast<std::size_t>(from)] = view;
    if (view == 0) segment.state = State::refused;
    if (all_answered(segment, from)) queue([=, this] { activate(number, serial); });
  } else if (what == What::closed && segment.state == State::closing) {
    if (!all_answered(segment, from)) return;
    segment.state = State::free;
    // Freed by the thread: to free memory may mean to wait for kernels.
    queue([keep = std::exchange(segment.keep, {})]() mutable { keep.reset(); });
  }
}

bool DeviceSharing::all_answered(Segment& segment, Rank from) const {
  segment.answered[static_cast<std::size_t>(from)] = true;
  const auto answers = std::ranges::count(segment.answered, true);
  return static_cast<std::size_t>(answers) == place_.members.size() - 1;
}

void DeviceSharing::map(Rank owner, std::uint32_t number, std::uint32_t serial,
                        std::uint64_t address, std::uint64_t offset,
                        const cuda::IpcHandle& handle) {
  std::uint64_t view = address;
  if (!same_process_[static_cast<std::size_t>(owner)]) {
    cuda::Address opened = 0;
    const cuda::Result result = cuda::driver().ipc_open(&opened, handle, cuda::kIpcLazyPeerAccess);
    if (result == cuda::kSuccess) {
      mapped_[{owner, number}] = cuda::Mapped(opened);
    } else {
      log(LogLevel::info, who(place_),
          fmt::format("GPU memory of rank {} goes by messages: {}", owner, cuda::describe(result)));
    }
    view = result == cuda::kSuccess ? opened + offset : 0;
  }
  tell(owner, What::reached, number, serial, [view](BlobWriter& blob) { blob.u64(view); });
}

void DeviceSharing::close(Rank owner, std::uint32_t number, std::uint32_t serial) {
  mapped_.erase({owner, number});
  tell(owner, What::closed, number, serial);
}

// No launch before reads what is written here: none names the segment.
void DeviceSharing::activate(std::uint32_t number, std::uint32_t serial) {
  std::vector<std::uint64_t> views;
  {
    const std::lock_guard lock(mutex_);
    const Segment& segment = segments_[number - 1];
    if (segment.serial != serial || segment.state != State::announced) return;
    views = segment.views;
  }
  const cuda::Api& api = cuda::driver();
  const cuda::Stream stream = cuda::make_stream();
  const std::uint64_t bytes = views.size() * sizeof(std::uint64_t);
  const std::uint64_t at = table_ + offsetof(device::RankTable, segments) + (number - 1) * bytes;
  cuda::check(api.copy_to_device(at, views.data(), bytes, stream.get()), "copying to the GPU");
  cuda::check(api.stream_synchronize(stream.get()), "copying to the GPU");
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[number - 1];
  if (segment.serial != serial || segment.state != State::announced) return;
  segment.state = State::active;
  ++active_;
}

// The thread --------------------------------------------------------------------------------------

void DeviceSharing::queue(Task task) {
  tasks_.push_back(std::move(task));
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { run(); });
  changed_.notify_one();
}

void DeviceSharing::run() {
  ::pthread_setname_np(::pthread_self(), "chorus-share");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      const cuda::Current current(context_);
      task();
    } catch (const Error& error) {  // a GPU that has failed: calls say so, too
      log(LogLevel::info, who(place_), fmt::format("sharing GPU memory: {}", error.what()));
    }
    lock.lock();
  }
}

void DeviceSharing::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  mapped_.clear();
}

void DeviceSharing::abandon() {
  for (auto& [key, mapping] : mapped_) mapping.release();
  const std::lock_guard lock(mutex_);
  for (Segment& segment : segments_) {
    static_cast<void>(new std::shared_ptr<void>(std::move(segment.keep)));
  }
}

}  // namespace chorus
