#include "runtime/control/table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/files/foreign_file.hpp"

namespace chorus {
namespace {

constexpr std::size_t kEndBytes = sizeof(std::uint32_t);

std::size_t end_of(std::span<const std::byte> ends, std::size_t member) {
  return wire::Reader(ends.subspan(member * kEndBytes, kEndBytes)).u32();
}

/// Unmaps.
std::shared_ptr<const void> map(int fd, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
}

}  // namespace

Table::Table(std::span<const std::byte> blob) : size_(1) {
  const auto own = std::make_shared<wire::Bytes>(
      wire::Writer(wire::Type{}).u32(static_cast<std::uint32_t>(blob.size())).append(blob).take());
  const std::span<const std::byte> all(*own);
  blobs_ = all.last(blob.size());
  ends_ = all.last(blob.size() + kEndBytes).first(kEndBytes);
  owner_ = own;
}

Table::Table(std::shared_ptr<const void> owner, std::span<const std::byte> body)
    : owner_(std::move(owner)) {
  wire::Reader reader(body);
  size_ = reader.u32();
  const std::span<const std::byte> rest = reader.rest();
  if (size_ > rest.size() / kEndBytes) throw wire::Malformed("a table that ends too early");
  ends_ = rest.first(size_ * kEndBytes);
  blobs_ = rest.subspan(ends_.size());
  std::size_t before = 0;
  for (std::size_t member = 0; member < size_; ++member) {
    const std::size_t end = end_of(ends_, member);
    if (end < before) throw wire::Malformed("a table whose blobs overlap");
    if (end - before > wire::kMaxBlob) throw wire::Malformed("a table with too large a blob");
    before = end;
  }
  if (before != blobs_.size()) throw wire::Malformed("a table of another size than its blobs");
}

std::span<const std::byte> Table::operator[](std::size_t member) const& {
  const std::size_t begin = member == 0 ? 0 : end_of(ends_, member - 1);
  return blobs_.subspan(begin, end_of(ends_, member) - begin);
}

void Table::write(wire::Writer& to, std::span<const std::span<const std::byte>> blobs) {
  to.u32(static_cast<std::uint32_t>(blobs.size()));
  std::size_t end = 0;
  for (const auto& blob : blobs) to.u32(static_cast<std::uint32_t>(end += blob.size()));
  for (const auto& blob : blobs) to.append(blob);
}

std::shared_ptr<const SharedFrame> SharedFrame::make(const wire::Frame& frame) {
  Fd memory(::memfd_create("chorus-table", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return nullptr;
  for (std::size_t written = 0; written < frame->size();) {
    const ssize_t now = ::write(memory.get(), frame->data() + written, frame->size() - written);
    if (now <= 0) return nullptr;
    written += static_cast<std::size_t>(now);
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  struct stat status {};
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0 || ::fstat(memory.get(), &status) != 0) {
    return nullptr;
  }
  return std::shared_ptr<const SharedFrame>(
      new SharedFrame(std::move(memory), status.st_ino, frame->size()));
}

wire::Frame SharedFrame::reference(std::uint64_t number) const {
  return wire::Writer(wire::Type::shared)
      .u64(number)
      .u32(static_cast<std::uint32_t>(::getpid()))
      .u32(static_cast<std::uint32_t>(memory_.get()))
      .u64(inode_)
      .u64(size_bytes_)
      .share();
}

SharedFrame::Opened SharedFrame::open(wire::Reader reference) {
  Opened opened{.number = reference.u64(), .owner = nullptr};
  const auto pid = static_cast<int>(reference.u32());
  const auto fd = static_cast<int>(reference.u32());
  const std::uint64_t inode = reference.u64();
  const std::uint64_t size_bytes = reference.u64();
  reference.end();
  const Fd memory = open_foreign(pid, fd, S_IFREG, inode, O_RDONLY, opened.why_not);
  if (!memory) return opened;
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0 || (seals & F_SEAL_SHRINK) == 0 ||
      ::fstat(memory.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    opened.why_not = "the coordinator's memory is not as large as it says, or could change";
    return opened;
  }
  const auto mapped = map(memory.get(), size_bytes);
  if (!mapped) {
    opened.why_not = "the coordinator's memory cannot be mapped";
    return opened;
  }
  wire::Reader frame({static_cast<const std::byte*>(mapped.get()), size_bytes});
  if (frame.u32() != frame.rest().size()) throw wire::Malformed("a shared frame of another size");
  opened.type = static_cast<wire::Type>(frame.u8());
  opened.body = frame.rest();
  opened.owner = mapped;
  return opened;
}

}  // namespace chorus
