#include "transports/rdma/registered.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text/log.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

/// A window begins at every multiple of this and is twice as long, so that what begins in it and is
/// no longer than this lies in it.
constexpr std::size_t kWindow = std::size_t{4} << 20;
/// Segments beyond this hold one buffer, whose pages exist anyway.
constexpr std::size_t kWhole = std::size_t{64} << 20;

}  // namespace

std::span<const RdmaMemory> RdmaRegistrations::find(
    std::span<const std::byte> bytes, std::span<const std::shared_ptr<RdmaDevice>> devices,
    int rank) {
  refresh();
  for (Entry& entry : entries_) {
    const Segment& segment = entry.segment;
    if (bytes.data() < segment.base || bytes.data() >= segment.base + segment.size_bytes) continue;
    const auto offset = static_cast<std::size_t>(bytes.data() - segment.base);
    const std::size_t at = offset / entry.window_bytes;
    const std::size_t begin = at * entry.window_bytes;
    const std::size_t size = std::min(2 * entry.window_bytes, segment.size_bytes - begin);
    if (bytes.size() > size - (offset - begin)) return {};
    Window& window = entry.windows[at];
    if (!window.tried) make(window, {segment.base + begin, size}, devices, rank);
    return window.memory;
  }
  return {};
}

void RdmaRegistrations::refresh() {
  const std::uint64_t generation = segments_generation();
  if (generation == generation_) return;
  // Read before the list: what changes in between shows as another change.
  generation_ = generation;
  std::vector<Entry> now;
  for (const Segment& segment : segments()) {
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.segment.id == segment.id;
    });
    if (known != entries_.end()) {
      now.push_back(std::move(*known));
    } else {
      const std::size_t bytes = segment.size_bytes > kWhole ? segment.size_bytes : kWindow;
      now.push_back({segment, bytes, {}});
      now.back().windows.resize((segment.size_bytes + bytes - 1) / bytes);
    }
  }
  entries_ = std::move(now);
}

void RdmaRegistrations::make(Window& window, std::span<std::byte> bytes,
                             std::span<const std::shared_ptr<RdmaDevice>> devices, int rank) {
  window.tried = true;
  try {
    for (const auto& device : devices) {
      window.memory.emplace_back(device, bytes.data(), bytes.size(), 0);
    }
    ++made_;
  } catch (const LinkError& error) {
    window.memory.clear();
    log(LogLevel::info, fmt::format("[rank {}]", rank),
        fmt::format("rdma: {}; puts out of it are copied", error.what()));
  }
}

}  // namespace chorus
