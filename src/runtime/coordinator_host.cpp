// Coordinators that live in the process of a rank.
#include "runtime/coordinator_host.hpp"

#include <memory>
#include <mutex>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/control.hpp"

namespace chorus {

std::string host_coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                             const Secret& secret, bool joined_often) {
  // Lives until all ranks have left, which may be after main() returned: leaked on purpose.
  static std::mutex mutex;
  static auto& hosted = *new std::vector<std::unique_ptr<Coordinator>>;
  const std::lock_guard lock(mutex);
  std::erase_if(hosted, [](const auto& coordinator) { return coordinator->finished(); });
  hosted.push_back(std::make_unique<Coordinator>(world_size, interface_name, port, secret,
                                                 Coordinator::Host{.joined_often = joined_often}));
  return hosted.back()->id();
}

UniqueId UniqueId::make(int world_size, std::string_view interface_name) {
  return {host_coordinator(world_size, interface_name, 0, Secret::random(), false)};
}

}  // namespace chorus
