#include "transports/link/mapping.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "chorus/error.hpp"

namespace chorus {
namespace {

std::span<std::byte> map(int fd, std::size_t offset, std::size_t bytes, int flags) {
  if (bytes == 0) return {};
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) {
    throw LinkError(fmt::format("cannot map {} bytes: {}", bytes, std::strerror(errno)));
  }
  return {static_cast<std::byte*>(at), bytes};
}

}  // namespace

Mapping::Mapping(int fd, std::size_t offset, std::size_t bytes)
    : span_(map(fd, offset, bytes, MAP_SHARED)) {}

Mapping Mapping::anonymous(std::size_t bytes) {
  Mapping mapping;
  mapping.span_ = map(-1, 0, bytes, MAP_PRIVATE | MAP_ANONYMOUS);
  return mapping;
}

Mapping::~Mapping() {
  if (!span_.empty()) ::munmap(span_.data(), span_.size());
}

}  // namespace chorus
