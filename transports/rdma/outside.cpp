// Memory that only adapters reach, as the source of a link's puts and as the place where the peer's
// land; and how its bytes go by other ways when no adapter is left.
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/check.hpp"
#include "base/copy.hpp"
#include "chorus/error.hpp"
#include "transports/rdma/link.hpp"

namespace chorus {

bool RdmaLink::Outside::holds(std::span<const std::byte> piece) const {
  if (!memory || piece.empty()) return false;
  const auto begin = reinterpret_cast<std::uint64_t>(piece.data());
  return begin >= at && begin - at <= bytes && piece.size() <= bytes - (begin - at);
}

RdmaLink::Outside RdmaLink::reach(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                                  std::size_t bytes, int access) const {
  CHORUS_CHECK(!control_ && !connect_heard_, "the peer knows this end's memory already");
  Outside outside{.memory = std::move(memory), .at = at, .bytes = bytes, .keys = {}};
  for (const auto& device : hub_->devices) {
    outside.keys.emplace_back(device, *outside.memory, at, bytes, access);
  }
  return outside;
}

void RdmaLink::send_from(std::shared_ptr<DeviceMemory> memory, std::uint64_t at,
                         std::size_t bytes) {
  source_ = reach(std::move(memory), at, bytes, 0);
}

void RdmaLink::land_in(std::shared_ptr<DeviceMemory> memory, std::uint64_t at, std::size_t bytes) {
  CHORUS_CHECK(bytes <= region_.size(), "more than the region");
  landing_ = reach(std::move(memory), at, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

std::size_t RdmaLink::region_bytes() const {
  return landing_.memory ? landing_.bytes : region_.size();
}

RdmaConnect::Rail RdmaLink::end_of(const RdmaRail& rail, std::size_t port) const {
  RdmaConnect::Rail end = rail.own_end();
  if (landing_.memory) end.region_key = landing_.keys[port].rkey();
  return end;
}

/// Where the peer says that its memory lies. A wrong address is its adapter's to refuse; what would
/// lead requests astray before that is refused here.
void RdmaLink::believe(const RdmaConnect& said) const {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  if (said.outside > 1 || said.region_bytes > region_.size() || said.slots > kMost - slots_bytes_ ||
      said.region > kMost - said.region_bytes) {
    throw LinkError("a connect with memory that cannot be");
  }
}

/// A failure of the memory's owner ends the link.
void RdmaLink::copy(std::span<const std::byte> src, std::byte* to) {
  counters_.copied_bytes += src.size();
  if (!source_.holds(src)) {
    copy_bytes(to, src.data(), src.size());
    return;
  }
  try {
    source_.memory->read(reinterpret_cast<std::uint64_t>(src.data()), {to, src.size()});
  } catch (const Error& error) {
    failure_ = fmt::format("what it shall get cannot be read: {}", error.what());
  }
}

/// True if the bytes are there; else the link has ended.
bool RdmaLink::bring_out(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!landing_.memory) {
    copy_bytes(region_.data() + offset, bytes.data(), bytes.size());
    return true;
  }
  try {
    landing_.memory->write(landing_.at + offset, bytes);
    counters_.brought_bytes += bytes.size();
    return true;
  } catch (const Error& error) {
    peer_lies_ = true;  // nothing that comes after may be taken
    failure_ = fmt::format("what it sent cannot be written: {}", error.what());
    return false;
  }
}

}  // namespace chorus
