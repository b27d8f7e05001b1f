#include "transports/link/link.hpp"

namespace chorus {

std::shared_ptr<SharedWindow> Transport::open_shared_window(
    std::span<const std::vector<std::byte>> /*addresses*/) {
  return nullptr;
}

}  // namespace chorus
