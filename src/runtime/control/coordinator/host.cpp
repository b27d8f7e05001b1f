// Coordinators that live in the process of a rank.
#include "runtime/control/coordinator/host.hpp"

#include <memory>
#include <mutex>
#include <vector>

#include "chorus/communicator.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/wire.hpp"

namespace chorus {
namespace {

/// The coordinators in this process. One may be needed after main() has returned, until the other
/// ranks have left: they are never destroyed at exit, but end with the process.
struct Hosted {
  std::mutex mutex;
  std::vector<std::unique_ptr<Coordinator>> coordinators;
  std::vector<std::unique_ptr<Coordinator>> of_this_process;  ///< for joinings that may still come

  static Hosted& get() {
    static Hosted* const hosted = new Hosted;
    return *hosted;
  }
};

}  // namespace

void keep_coordinator(std::unique_ptr<Coordinator> coordinator) {
  Hosted& hosted = Hosted::get();
  const std::lock_guard lock(hosted.mutex);
  std::erase_if(hosted.coordinators, [](const auto& each) { return each->finished(); });
  hosted.coordinators.push_back(std::move(coordinator));
}

std::string host_coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                             const Secret& secret, bool joined_often) {
  auto coordinator = std::make_unique<Coordinator>(world_size, interface_name, port, secret,
                                                   Coordinator::Host{.joined_often = joined_often});
  std::string id = coordinator->id();
  if (!joined_often) {
    keep_coordinator(std::move(coordinator));
  } else {
    Hosted& hosted = Hosted::get();
    const std::lock_guard lock(hosted.mutex);
    hosted.of_this_process.push_back(std::move(coordinator));
  }
  return id;
}

void listen_also(const std::string& id,
                 const std::function<std::vector<std::string>()>& addresses) {
  Hosted& hosted = Hosted::get();
  const std::lock_guard lock(hosted.mutex);
  for (const auto* list : {&hosted.coordinators, &hosted.of_this_process}) {
    for (const auto& coordinator : *list) {
      if (coordinator->id() == id) coordinator->listen_also(addresses());
    }
  }
}

UniqueId UniqueId::make(int world_size, std::string_view interface_name) {
  return {host_coordinator(world_size, interface_name, 0, Secret::random(), false)};
}

}  // namespace chorus
