#include "transports/shm/shared_window.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.hpp"
#include "base/multiples.hpp"
#include "chorus/error.hpp"
#include "transports/link/segments.hpp"
#include "transports/link/sleeper.hpp"
#include "transports/shm/foreign_memory.hpp"
#include "transports/shm/shm_memory.hpp"

namespace chorus {
namespace {

constexpr std::size_t kPage = 4096;
// Slots at multiples of a page would share the same sets of every cache.
constexpr std::size_t kSkew = 33 * kCacheLine;
// After a failure, how long to wait for a peer that is in the middle of an access.
constexpr auto kWithdrawal = std::chrono::milliseconds(250);

std::size_t stride_of(std::size_t slot_bytes) { return round_up(slot_bytes, kPage) + kSkew; }

std::size_t slots_offset() { return round_up(sizeof(SharedWindow::Part), kPage); }

}  // namespace

std::size_t SharedWindow::part_bytes(std::size_t slot_bytes) {
  return round_up(slots_offset() + 2 * kSlots * stride_of(slot_bytes), kPage);
}

SharedWindow::SharedWindow(Rank rank, std::size_t slot_bytes, std::vector<Peer> peers)
    : rank_(rank),
      slot_bytes_(slot_bytes),
      stride_(stride_of(slot_bytes)),
      peers_(std::move(peers)),
      own_(nullptr),
      registered_(kMaxSegments) {
  for (Peer& peer : peers_) {
    peer.part = reinterpret_cast<Part*>(peer.memory.span().data());
    peer.slots = peer.memory.span().data() + slots_offset();
    peer.segments.resize(kMaxSegments);
    one_process_ = one_process_ && peer.same_process;
  }
  own_ = peers_[static_cast<std::size_t>(rank)].part;
}

Reference SharedWindow::refer(const void* memory, std::size_t size_bytes) {
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  if (one_process_) return {Reference::kOwnSpace, address};
  if (const auto segment = segment_of(memory, size_bytes)) {
    const int index = register_segment(*segment);
    if (index >= 0) {
      return {static_cast<std::uint16_t>(Reference::kSegment + index),
              address - reinterpret_cast<std::uint64_t>(segment->base)};
    }
  }
  return {};
}

int SharedWindow::register_segment(const Segment& segment) {
  for (std::size_t i = 0; i < kMaxSegments; ++i) {
    if (registered_[i] == segment.id) return static_cast<int>(i);
  }
  for (std::size_t i = 0; i < kMaxSegments; ++i) {
    if (registered_[i] != 0 && segment_lives(registered_[i])) continue;
    SegmentEntry& entry = own_->segments[i];
    entry.id.store(0, std::memory_order_relaxed);
    entry.size_bytes = segment.size_bytes;
    entry.inode = segment.inode;
    entry.fd = segment.fd;
    entry.id.store(segment.id, std::memory_order_release);
    registered_[i] = segment.id;
    return static_cast<int>(i);
  }
  return -1;
}

std::byte* SharedWindow::reach(Rank peer, const Reference& reference, std::size_t size_bytes) {
  if (reference.kind < Reference::kOwnSpace || reference.kind == Reference::kPrivate)
    complain(peer, "refers to memory of no known kind");
  if (reference.kind == Reference::kOwnSpace) {
    if (!one_process_) complain(peer, "refers to memory of its own process alone");
    // An address that travelled as a number.
    return reinterpret_cast<std::byte*>(reference.where);  // NOLINT(performance-no-int-to-ptr)
  }
  const std::size_t index = reference.kind - Reference::kSegment;
  if (index >= kMaxSegments) complain(peer, "refers to a segment that cannot exist");
  const std::span<std::byte> memory = map_segment(peer, index);
  if (size_bytes > memory.size() || reference.where > memory.size() - size_bytes) {
    complain(peer, "refers to memory outside its segment");
  }
  return memory.data() + reference.where;
}

std::span<std::byte> SharedWindow::map_segment(Rank peer, std::size_t index) {
  Peer& owner = peers_[static_cast<std::size_t>(peer)];
  const SegmentEntry& entry = owner.part->segments[index];
  const std::uint64_t id = entry.id.load(std::memory_order_acquire);
  Peer::Mapped& mapped = owner.segments[index];
  if (id != 0 && mapped.id == id) return mapped.memory.span();
  const std::uint64_t size = entry.size_bytes;
  std::string reason;
  const Fd file = id == 0 ? Fd() : open_segment(owner.pid, entry.fd, entry.inode, size, reason);
  if (!file) complain(peer, id == 0 ? "refers to a segment that it does not have" : reason.c_str());
  mapped.memory = Mapping(file.get(), 0, size);
  mapped.id = id;
  const auto memory = mapped.memory.span();
  ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  return memory;
}

namespace {

/// Keys that differ in a few bits are spread over all sets (Fibonacci hashing).
std::size_t advised_set(std::uint64_t key) {
  return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15) >> 32) % SharedWindow::kAdvisedSets;
}

}  // namespace

// A word is written only where it changes: the others keep its line. Those of other keys stay where
// they are as long as there is room, so that calls of several kinds in turn do not take it from
// each other.
void SharedWindow::advise(std::uint64_t key, Advice advice) {
  const std::uint64_t word = key * 4 + (advice.by_kernel ? 2 : 0) + (advice.timed ? 1 : 0);
  auto& set = own_->advice[advised_set(key)];
  std::atomic<std::uint64_t>* place = &set[0];
  for (std::atomic<std::uint64_t>& each : set) {
    const std::uint64_t told = each.load(std::memory_order_relaxed);
    if (told == word) return;
    if (told == 0 || told / 4 == key) {
      place = &each;
      break;
    }
  }
  publish(*place, word);
}

std::optional<SharedWindow::Advice> SharedWindow::advice_of(Rank peer, std::uint64_t key) const {
  for (const std::atomic<std::uint64_t>& each : part(peer).advice[advised_set(key)]) {
    const std::uint64_t word = seen(peer, each);
    if (word == 0) break;
    if (word / 4 == key) return Advice{.by_kernel = word % 4 >= 2, .timed = word % 2 == 1};
  }
  return std::nullopt;
}

ForeignRead SharedWindow::read_private(Rank peer, std::uint64_t where,
                                       std::span<std::byte> to) const {
  const ForeignRead result = read_process(at(peer).pid, where, to);
  if (result == ForeignRead::gone) complain(peer, "has memory that cannot be read any more");
  return result;
}

// The two flags meet as in Dekker's algorithm: each side stores its own, then looks at the other's.
bool SharedWindow::begin_access() {
  own_->accessing.store(1, std::memory_order_seq_cst);
  for (const Peer& peer : peers_) {
    if (peer.part->withdrawn.load(std::memory_order_seq_cst) == 0) continue;
    end_access();
    return false;
  }
  return true;
}

void SharedWindow::withdraw() {
  own_->withdrawn.store(1, std::memory_order_seq_cst);
  own_->accessing.store(0, std::memory_order_release);
  wake_sleepers();
  const auto deadline = std::chrono::steady_clock::now() + kWithdrawal;
  for (const Peer& peer : peers_) {
    while (peer.part->accessing.load(std::memory_order_seq_cst) != 0 &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();  // its owner may be dead, so not for ever
    }
  }
}

bool SharedWindow::shares_core() {
  const auto core = static_cast<std::uint32_t>(::sched_getcpu() + 1);
  if (own_->core.load(std::memory_order_relaxed) != core) {
    own_->core.store(core, std::memory_order_relaxed);
  }
  return core != 0 && std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
           return peer.part != own_ && peer.part->core.load(std::memory_order_relaxed) == core;
         });
}

bool SharedWindow::leave_core() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t free = allowed;
  for (const Peer& peer : peers_) {
    const std::uint32_t core = peer.part->core.load(std::memory_order_relaxed);
    if (core != 0) CPU_CLR(core - 1, &free);  // which ignores what is no core
  }
  if (CPU_COUNT(&free) == 0) return false;
  // Before it leaves: whoever is left alone on that core must not leave it, too.
  const std::uint32_t before = own_->core.exchange(0, std::memory_order_relaxed);
  const bool left = ::sched_setaffinity(0, sizeof free, &free) == 0;
  if (left) (void)::sched_setaffinity(0, sizeof allowed, &allowed);
  own_->core.store(left ? static_cast<std::uint32_t>(::sched_getcpu() + 1) : before,
                   std::memory_order_relaxed);
  return left;
}

void SharedWindow::wake_sleepers() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (peer.sleeping != nullptr) wake_if_sleeping(*peer.sleeping, peer.pipe_fd);
  }
}

void SharedWindow::complain(Rank peer, const char* what) const {
  throw LinkError(fmt::format("rank {}: shm: rank {} {}", rank_, peer, what), peer);
}

}  // namespace chorus
