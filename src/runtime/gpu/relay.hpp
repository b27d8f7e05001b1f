// Messages between GPUs that cannot reach each other's memory: kernels write them into pinned
// memory as they would into the peer's arena, a thread carries them over the communicator's links.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/layout.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/gpu/dmabuf.hpp"

namespace chorus {

/// One box (device::Box) per direction and relayed peer. What the kernel writes into the outgoing
/// one leaves as a put straight from there; puts from the peer arrive in the incoming one, which is
/// the link's own region, registered with the driver: no byte is copied on the way.
///
/// Where adapters reach GPU memory the slots of these boxes lie in it, and messages do not touch
/// the host's: in memory of the relay's own on their way out, in the arena on their way in. Each
/// end sees to its half: the other need not do the same. The rings are in host memory always.
///
/// Only bulk messages: words carry their flags inside, which a link would tear.
class DeviceRelay {
 public:
  /// This rank's GPU, and its arena on it: an allocation of `bytes`.
  struct Gpu {
    int device = 0;
    cuda::Context context = nullptr;
    cuda::Address arena = 0;
    std::size_t bytes = 0;
  };
  /// Collective over the group: of each pair both ends name the other in `peers`, or neither.
  /// Throws TopologyError if no transport connects a pair, DeviceError if memory cannot be pinned.
  DeviceRelay(Control& control, const GroupPlace& place, const Options& options,
              const device::Shape& shape, const Gpu& gpu, const std::vector<Rank>& peers);
  /// Stops the thread, once what it has is on its way.
  ~DeviceRelay();
  DeviceRelay(const DeviceRelay&) = delete;
  DeviceRelay& operator=(const DeviceRelay&) = delete;

  /// Boxes as the GPU reaches them.
  [[nodiscard]] std::uint64_t incoming(Rank peer) const;
  [[nodiscard]] std::uint64_t outgoing(Rank peer) const;
  /// Boxes of which only the slots are used, in place of those above.
  [[nodiscard]] std::uint64_t incoming_slots(Rank peer) const;
  [[nodiscard]] std::uint64_t outgoing_slots(Rank peer) const;

  /// From now on messages are carried. `on_failure` is called once, from the thread, with a
  /// sentence that names the peer; nothing is carried afterwards.
  void start(const device::HostStatus& status, std::function<void(const std::string&)> on_failure);
  /// A launch is coming: the thread, if it naps, shall be awake.
  void expect_launch() { expected_.store(true, std::memory_order_relaxed); }
  /// Stops the thread without waiting for what it has.
  void stop();

 private:
  struct Peer;

  [[nodiscard]] const Peer& at(Rank rank) const;
  void join_adapters(const GroupPlace& place, int wanted, const std::vector<Rank>& peers);
  void run();
  bool carry(Peer& peer);
  bool send_messages(Peer& peer, std::uint32_t connection);
  bool take_messages(Peer& peer, std::uint32_t connection);
  void take_credits(Peer& peer, std::uint32_t connection);
  bool send_credits(Peer& peer, std::uint32_t connection);
  void rest(std::chrono::steady_clock::duration quiet) const;
  void drain();

  device::Shape shape_;
  Gpu gpu_;
  cuda::Memory source_;  ///< boxes that adapters read; ends after the links
  GpuDirect::Writes writes_ = GpuDirect::Writes::ordered;
  /// Relayed peers, by index: where adapters read and write their slots; 0: they do not.
  std::vector<cuda::Address> sent_from_;
  std::vector<cuda::Address> landing_;
  std::unique_ptr<Connections> connections_;
  std::vector<std::unique_ptr<Peer>> peers_;
  const device::HostStatus* status_ = nullptr;
  std::function<void(const std::string&)> on_failure_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> expected_{false};
  std::atomic<bool> hurry_{false};  ///< leave without draining
  std::thread thread_;
};

}  // namespace chorus
