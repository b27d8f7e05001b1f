#include "transports/shm/shm_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"
#include "base/files/descriptors.hpp"
#include "base/files/file_size.hpp"
#include "base/multiples.hpp"
#include "chorus/error.hpp"
#include "transports/shm/shared_window.hpp"

namespace chorus {
namespace {

// A multiple of every page size in use (4, 16 and 64 KiB); what is not touched costs nothing.
constexpr std::size_t kLargestPage = 65536;

[[noreturn]] void fail(const char* what) {
  throw LinkError(
      fmt::format("shm: {}: {}", what,
                  lacks_descriptors(errno) ? why_no_descriptor(errno) : std::strerror(errno)));
}

std::uint64_t inode_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("fstat");
  return status.st_ino;
}

std::string describe(const ShmGeometry& geometry) {
  return fmt::format("{} ranks, {} channels of {} slots, {} bytes, slots of {}",
                     geometry.world_size, geometry.num_channels, geometry.ring_slots,
                     geometry.region_bytes, geometry.slot_bytes);
}

}  // namespace

ShmGeometry::ShmGeometry(const TransportContext& context)
    : world_size(static_cast<std::uint32_t>(context.world_size)),
      num_channels(static_cast<std::uint32_t>(context.link.num_channels)),
      // Twice what the protocol has under way: the receiver publishes its progress by quarters.
      ring_slots(2 * std::bit_ceil(static_cast<std::uint32_t>(context.link.max_outstanding))),
      region_bytes(context.link.region_bytes),
      slot_bytes(context.link.slot_bytes) {
  CHORUS_CHECK(context.world_size > 0 && context.rank >= 0 && context.rank < context.world_size,
               "rank outside the world");
  CHORUS_CHECK(context.link.num_channels > 0 && context.link.num_channels <= 4096,
               "num_channels outside [1, 4096]");
  CHORUS_CHECK(context.link.max_outstanding > 0 && context.link.max_outstanding <= 1 << 20,
               "max_outstanding outside [1, 2^20]");
}

std::size_t ShmGeometry::eager_ring_offset() const {
  return round_up(num_channels * (sizeof(ShmConsumed) + ring_slots * sizeof(ShmSlot)),
                  kLargestPage);
}
std::size_t ShmGeometry::region_offset() const {
  return eager_ring_offset() + round_up(sizeof(EagerRingMemory), kLargestPage);
}
std::size_t ShmGeometry::block_bytes() const {
  return region_offset() + round_up(region_bytes, kLargestPage);
}
std::size_t ShmGeometry::block_offset(Rank peer) const {
  return kLargestPage + static_cast<std::size_t>(peer) * block_bytes();
}
std::size_t ShmGeometry::part_offset() const { return block_offset(static_cast<Rank>(world_size)); }
std::size_t ShmGeometry::total_bytes() const {
  return part_offset() + round_up(SharedWindow::part_bytes(slot_bytes), kLargestPage);
}

bool ShmAddress::as_reachable_as(const ShmAddress& other) const {
  return host.boot == other.host.boot && host.pid_namespace == other.host.pid_namespace &&
         user_namespace == other.user_namespace && user == other.user && group == other.group &&
         may_be_traced == other.may_be_traced && geometry == other.geometry;
}

std::optional<ShmAddress> ShmAddress::parse(std::span<const std::byte> bytes) {
  ShmAddress address;
  if (bytes.size() != sizeof address) return std::nullopt;
  std::memcpy(&address, bytes.data(), sizeof address);
  if (address.magic != kMagic) return std::nullopt;
  return address;
}

ShmBlock::ShmBlock(int fd, const ShmGeometry& geometry, Rank peer)
    : mapping_(fd, geometry.block_offset(peer), geometry.block_bytes()), geometry_(geometry) {}

// The objects live in zeroed pages that several processes map; no constructor runs. All of them
// are what their zero bytes say.
ShmConsumed& ShmBlock::consumed(ChannelId channel) const {
  return reinterpret_cast<ShmConsumed*>(mapping_.span().data())[channel];
}

std::span<ShmSlot> ShmBlock::ring(ChannelId channel) const {
  std::byte* rings = mapping_.span().data() + geometry_.num_channels * sizeof(ShmConsumed);
  auto* slots = reinterpret_cast<ShmSlot*>(rings);
  return {slots + static_cast<std::size_t>(channel) * geometry_.ring_slots, geometry_.ring_slots};
}

EagerRingMemory& ShmBlock::eager_ring() const {
  return *reinterpret_cast<EagerRingMemory*>(mapping_.span().data() +
                                             geometry_.eager_ring_offset());
}

std::span<std::byte> ShmBlock::region() const {
  return mapping_.span().subspan(geometry_.region_offset(), geometry_.region_bytes);
}

ShmOwned::ShmOwned(const TransportContext& context)
    : wakeups_(context.wakeups ? context.wakeups : std::make_shared<Wakeups>()),
      sleeper_(wakeups_) {
  address_.geometry = ShmGeometry(context);
  memory_ = Fd(::memfd_create("chorus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory_) fail("memfd_create");
  const std::size_t bytes = address_.geometry.total_bytes();
  if (!allow_file_size(bytes)) throw LinkError("shm: " + why_no_file_size(bytes));
  if (::ftruncate(memory_.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  if (::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("sealing the memory file");
  }
  address_.magic = ShmAddress::kMagic;
  address_.host = HostIdentity::here();
  address_.nonce = Secret::random().bytes;
  address_.rank = context.rank;
  address_.pid = ::getpid();
  address_.user_namespace = HostIdentity::user_namespace();
  address_.user = ::geteuid();
  address_.group = ::getegid();
  address_.may_be_traced = static_cast<std::uint64_t>(::prctl(PR_GET_DUMPABLE));
  address_.memory_fd = memory_.get();
  address_.pipe_fd = wakeups_->pipe_fd();
  address_.memory_inode = inode_of(memory_.get());
  address_.pipe_inode = wakeups_->pipe_inode();

  header_ = Mapping(memory_.get(), 0, kLargestPage);
  part_ = Mapping(memory_.get(), address_.geometry.part_offset(),
                  SharedWindow::part_bytes(address_.geometry.slot_bytes));
  auto* part = reinterpret_cast<SharedWindow::Part*>(part_.span().data());
  part->self = reinterpret_cast<std::uint64_t>(part);
  auto* header = reinterpret_cast<ShmHeader*>(header_.span().data());
  header->proof = prove(shm_secret(context), address_.bytes());
}

std::atomic<std::uint32_t>& ShmOwned::sleeping() const {
  return reinterpret_cast<ShmHeader*>(header_.span().data())->sleeping;
}

ShmBlock ShmOwned::block(Rank peer) const {
  return ShmBlock(memory_.get(), address_.geometry, peer);
}

Mapping ShmOwned::part() const {
  return Mapping(memory_.get(), address_.geometry.part_offset(),
                 SharedWindow::part_bytes(address_.geometry.slot_bytes));
}

std::atomic<std::uint32_t>& ShmOpened::sleeping() const {
  return reinterpret_cast<ShmHeader*>(header.span().data())->sleeping;
}

std::optional<ShmOpened> open_peer(const ShmAddress& own, const Secret& secret,
                                   std::span<const std::byte> peer_address, Wakeups& wakeups,
                                   std::string& reason) {
  const std::optional<ShmAddress> address = ShmAddress::parse(peer_address);
  if (!address) {
    reason = "no shm address of this version of Chorus";
    return std::nullopt;
  }
  if (address->host.boot != own.host.boot) {
    reason = "other host";
    return std::nullopt;
  }
  if (address->host.pid_namespace != own.host.pid_namespace) {
    reason = "other pid namespace";
    return std::nullopt;
  }
  if (address->geometry != own.geometry) {
    reason = fmt::format("other sizes: here {}; there {}", describe(own.geometry),
                         describe(address->geometry));
    return std::nullopt;
  }

  ShmOpened opened;
  opened.memory = open_foreign(address->pid, address->memory_fd, S_IFREG, address->memory_inode,
                               O_RDWR, reason);
  if (!opened.memory) return std::nullopt;
  opened.pipe = wakeups.open_peer(address->pid, address->pipe_fd, address->pipe_inode, reason);
  if (!opened.pipe) return std::nullopt;

  const int seals = ::fcntl(opened.memory.get(), F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(opened.memory.get(), &status) != 0 ||
      static_cast<std::size_t>(status.st_size) != own.geometry.total_bytes()) {
    reason = "the peer's memory is not as large as published, or could shrink";
    return std::nullopt;
  }
  opened.header = Mapping(opened.memory.get(), 0, kLargestPage);
  const auto* header = reinterpret_cast<const ShmHeader*>(opened.header.span().data());
  if (!same(header->proof, prove(secret, address->bytes()))) {
    reason = "the peer's memory does not prove the communicator's secret";
    return std::nullopt;
  }
  return opened;
}

Fd open_segment(int pid, int fd, std::uint64_t inode, std::uint64_t size_bytes,
                std::string& reason) {
  Fd file = open_foreign(pid, fd, S_IFREG, inode, O_RDWR, reason);
  if (!file) return file;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    reason = "has a segment that is not as large as it says, or could shrink";
    return {};
  }
  return file;
}

Secret shm_secret(const TransportContext& context) { return context.secret.derive("shm"); }

}  // namespace chorus
