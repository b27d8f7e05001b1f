#include "transports/link/segments.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "base/files/file_size.hpp"
#include "base/multiples.hpp"
#include "chorus/memory.hpp"

namespace chorus {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Small pieces share segments of this size; pages that nobody touches cost nothing. Larger ones
// have their own, which goes with them.
constexpr std::size_t kArena = std::size_t{64} << 20;
constexpr std::size_t kOwnSegment = std::size_t{16} << 20;

/// A segment and what of it is given out.
struct Arena {
  Segment segment;
  std::map<std::size_t, std::size_t> free;  ///< offset -> bytes; neighbours are joined
  std::map<std::size_t, std::size_t> used;  ///< offset -> bytes
};

/// The process's own: memory that is given back must be found whatever communicator used it.
struct Heap {
  std::mutex mutex;
  std::map<std::uintptr_t, Arena> arenas;  ///< by address of the segment
  /// Those that this process has from its parent, which both see: nothing more is taken from them.
  std::map<std::uintptr_t, Arena> inherited;
  std::uint64_t next_id = 1;
  std::atomic<std::uint64_t> generation{1};
};

Heap& heap() {
  // Never destroyed: memory may be given back by destructors that run later than ours.
  static Heap* const one = [] {
    auto* const made = new Heap;
    // A child sees its parent's segments as they are, not a copy: it begins with a heap of its own.
    ::pthread_atfork([] { heap().mutex.lock(); }, [] { heap().mutex.unlock(); },
                     [] {
                       Heap& h = heap();
                       h.inherited.merge(h.arenas);
                       h.arenas.clear();
                       h.generation.fetch_add(1, std::memory_order_release);
                       h.mutex.unlock();
                     });
    return made;
  }();
  return *one;
}

Segment make_segment(std::size_t size_bytes, std::uint64_t id) {
  Segment segment{.id = id, .size_bytes = round_up(size_bytes, kHugePage)};
  segment.fd = ::memfd_create("chorus-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.fd < 0) throw std::bad_alloc();
  struct stat status {};
  if (!allow_file_size(segment.size_bytes) ||
      ::ftruncate(segment.fd, static_cast<off_t>(segment.size_bytes)) != 0 ||
      ::fcntl(segment.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      ::fstat(segment.fd, &status) != 0) {
    ::close(segment.fd);
    throw std::bad_alloc();
  }
  segment.inode = status.st_ino;
  // Room to begin at a huge page, which the kernel needs in order to give one.
  const std::size_t reserved = segment.size_bytes + kHugePage;
  void* at =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    ::close(segment.fd);
    throw std::bad_alloc();
  }
  auto* const begin = static_cast<std::byte*>(at);
  const auto lead = round_up(reinterpret_cast<std::uintptr_t>(at), kHugePage) -
                    reinterpret_cast<std::uintptr_t>(at);
  segment.base = begin + lead;
  if (lead > 0) ::munmap(begin, lead);
  if (lead < kHugePage) ::munmap(segment.base + segment.size_bytes, kHugePage - lead);
  if (::mmap(segment.base, segment.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             segment.fd, 0) == MAP_FAILED) {
    ::munmap(segment.base, segment.size_bytes);
    ::close(segment.fd);
    throw std::bad_alloc();
  }
  ::madvise(segment.base, segment.size_bytes, MADV_HUGEPAGE);  // a wish
  return segment;
}

/// Takes `size` bytes at a multiple of `alignment` out of `arena`; null if there is no room.
std::byte* take(Arena& arena, std::size_t size, std::size_t alignment) {
  for (auto it = arena.free.begin(); it != arena.free.end(); ++it) {
    const auto [offset, bytes] = *it;
    const std::size_t at = round_up(offset, alignment);
    if (at + size > offset + bytes) continue;
    arena.free.erase(it);
    if (at > offset) arena.free[offset] = at - offset;
    if (at + size < offset + bytes) arena.free[at + size] = offset + bytes - at - size;
    arena.used[at] = size;
    return arena.segment.base + at;
  }
  return nullptr;
}

/// The arena whose segment holds `address`, or end().
auto arena_of(std::map<std::uintptr_t, Arena>& arenas, std::uintptr_t address) {
  auto it = arenas.upper_bound(address);
  if (it == arenas.begin()) return arenas.end();
  --it;
  return address - it->first < it->second.segment.size_bytes ? it : arenas.end();
}

}  // namespace

void* allocate(std::size_t size_bytes) {
  if (size_bytes > (std::size_t{1} << 46)) throw std::bad_alloc();
  const std::size_t alignment = size_bytes >= 65536 ? 4096 : 64;
  const std::size_t size = round_up(std::max<std::size_t>(size_bytes, 1), alignment);
  Heap& h = heap();
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(h.mutex);
    for (auto& [address, arena] : h.arenas) {
      if (size < kOwnSegment && memory == nullptr) memory = take(arena, size, alignment);
    }
    if (memory == nullptr) {
      const Segment segment = make_segment(size < kOwnSegment ? kArena : size, h.next_id++);
      Arena& arena = h.arenas[reinterpret_cast<std::uintptr_t>(segment.base)];
      arena.segment = segment;
      arena.free[0] = segment.size_bytes;
      memory = take(arena, size, alignment);
      h.generation.fetch_add(1, std::memory_order_release);
    }
  }
#ifdef MADV_POPULATE_WRITE
  // Faults one by one would cost more than what is to be done with the memory.
  const auto page = reinterpret_cast<std::uintptr_t>(memory) & ~std::uintptr_t{4095};
  const auto end = reinterpret_cast<std::uintptr_t>(memory) + size;
  ::madvise(reinterpret_cast<void*>(page), end - page, MADV_POPULATE_WRITE);
#endif
  return memory;
}

void deallocate(void* memory) noexcept {
  if (memory == nullptr) return;
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const auto it = arena_of(h.arenas, reinterpret_cast<std::uintptr_t>(memory));
  if (it == h.arenas.end() &&
      arena_of(h.inherited, reinterpret_cast<std::uintptr_t>(memory)) != h.inherited.end()) {
    return;  // the parent's to give back
  }
  CHORUS_CHECK(it != h.arenas.end(), "deallocate() of memory that is not allocate()'s");
  Arena& arena = it->second;
  auto offset = static_cast<std::size_t>(static_cast<std::byte*>(memory) - arena.segment.base);
  const auto used = arena.used.find(offset);
  CHORUS_CHECK(used != arena.used.end(), "deallocate() of memory that is not given out");
  std::size_t bytes = used->second;
  arena.used.erase(used);
  if (arena.used.empty() && arena.segment.size_bytes != kArena) {
    ::munmap(arena.segment.base, arena.segment.size_bytes);
    ::close(arena.segment.fd);
    h.arenas.erase(it);
    h.generation.fetch_add(1, std::memory_order_release);
    return;
  }
  const auto next = arena.free.lower_bound(offset);
  if (next != arena.free.end() && next->first == offset + bytes) {
    bytes += next->second;
    arena.free.erase(next);
  }
  const auto after = arena.free.lower_bound(offset);
  if (after != arena.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  arena.free[offset] = bytes;
}

std::optional<Segment> segment_of(const void* memory, std::size_t size_bytes) {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto it = arena_of(h.arenas, address);
  if (it == h.arenas.end()) return std::nullopt;
  const Segment& segment = it->second.segment;
  if (size_bytes > segment.size_bytes - (address - it->first)) return std::nullopt;
  return segment;
}

bool segment_lives(std::uint64_t id) {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  return std::any_of(h.arenas.begin(), h.arenas.end(),
                     [id](const auto& entry) { return entry.second.segment.id == id; });
}

std::vector<Segment> segments() {
  Heap& h = heap();
  const std::lock_guard lock(h.mutex);
  std::vector<Segment> all;
  for (const auto& [address, arena] : h.arenas) all.push_back(arena.segment);
  return all;
}

std::uint64_t segments_generation() { return heap().generation.load(std::memory_order_acquire); }

}  // namespace chorus
