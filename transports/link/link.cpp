#include "transports/link/link.hpp"

namespace chorus {

std::shared_ptr<Commons> Transport::open_commons(
    std::span<const std::vector<std::byte>> /*addresses*/) {
  return nullptr;
}

}  // namespace chorus
