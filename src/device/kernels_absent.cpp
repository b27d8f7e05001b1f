// Builds without nvcc.
#include "device/kernels.hpp"

namespace chorus::device {

std::span<const std::byte> kernel_image() {
  static constexpr char kText[] = "built without nvcc";
  return std::as_bytes(std::span(kText));
}

bool has_kernels() { return false; }

std::string_view kernel_targets() { return "none"; }

}  // namespace chorus::device
