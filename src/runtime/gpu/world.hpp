// Where the GPUs of a communicator's ranks are, and how each rank reaches the others'.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/kernels.hpp"
#include "device/layout.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/gpu/communicator.hpp"
#include "runtime/gpu/proof.hpp"
#include "runtime/gpu/relay.hpp"
#include "runtime/gpu/wiring.hpp"

namespace chorus {

/// The exchange that makes a DeviceCommunicator: arenas, who reaches whom and how, how many blocks
/// each launch may have.
class DeviceWorld {
 public:
  /// Collective. The device's context is current. Throws TopologyError or DeviceError, the same
  /// sentence on all ranks, naming who cannot.
  DeviceWorld(Control& control, const GroupPlace& place, const std::string& key, int device,
              const DeviceTuning& tuning, const Options& options);
  ~DeviceWorld();
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  [[nodiscard]] const device::Shape& shape() const { return shape_; }
  [[nodiscard]] std::uint64_t table() const { return table_.get(); }
  [[nodiscard]] device::HostStatus& status() const {
    return *static_cast<device::HostStatus*>(status_.get());
  }
  [[nodiscard]] const device::Kernels& kernels() const { return *kernels_; }
  /// Blocks of one launch such that those of all ranks on one GPU fit onto it together.
  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }
  /// All ranks are threads of one process: addresses mean the same to all of them.
  [[nodiscard]] bool one_process() const { return one_process_; }
  /// All ranks share one GPU.
  [[nodiscard]] bool one_device() const { return one_device_; }
  /// Some pair of ranks, not only of this one, cannot reach each other's memory.
  [[nodiscard]] bool any_relayed() const { return any_relayed_; }
  /// Some pair can.
  [[nodiscard]] bool any_reached() const { return any_reached_; }
  [[nodiscard]] const GpuPlaces& places() const { return places_; }
  /// What carries this rank's messages to those it cannot reach; null where there are none.
  [[nodiscard]] DeviceRelay* relay() { return relay_.get(); }

  /// By rank: it is a thread of this process.
  [[nodiscard]] const std::vector<bool>& same_process() const { return same_process_; }
  /// No kernel of this rank reaches another's memory any more.
  void close_mappings() { mapped_.clear(); }
  /// No message is on its way any more.
  void close_relay() { relay_.reset(); }
  /// Some rank may still touch what others have of this rank: nothing of it is freed.
  void abandon();

 private:
  struct Facts;
  void find_gpu(Facts& mine);
  void make_arena(Facts& mine);
  [[nodiscard]] std::size_t arena_bytes() const;
  void look_around(const std::vector<Facts>& all);
  void learn_wiring(Control& control, const GroupPlace& place, const std::string& key,
                    const std::vector<Facts>& all, const Options& options);
  std::uint64_t reach(const Facts& peer, Rank rank);
  /// Why one rank does not reach another, [from * ranks + to]; empty where it does.
  using Reasons = std::vector<std::string>;
  Reasons find_ways(Control& control, const GroupPlace& place, const std::string& key,
                    const std::vector<Facts>& all, bool may_reach, int timeout_ms);
  std::vector<std::string> reach_all(const std::vector<Facts>& all, bool may_reach,
                                     DeviceProof& proof);
  void relay_the_rest(Control& control, const GroupPlace& place, const std::string& key,
                      const Reasons& reasons, const Options& options);
  void choose_blocks(const std::vector<Facts>& all, const DeviceTuning& tuning);
  void fill_table();

  Rank rank_;
  int device_;
  device::Shape shape_{};
  cuda::Stream stream_;
  cuda::Memory arena_;
  cuda::Memory table_;
  cuda::PinnedMemory status_;
  cuda::Address status_address_ = 0;
  const device::Kernels* kernels_ = nullptr;
  std::vector<std::uint64_t> arenas_;  ///< by rank, as this one reaches them; 0: relayed
  std::unique_ptr<DeviceRelay> relay_;
  std::vector<cuda::Mapped> mapped_;
  std::vector<cuda::PrimaryContext> peer_contexts_;
  GpuPlaces places_;
  std::vector<bool> same_process_;  ///< by rank
  std::uint32_t blocks_ = 1;
  bool one_process_ = true;
  bool one_device_ = true;
  bool any_relayed_ = false;
  bool any_reached_ = false;
  bool stuck_ = false;  ///< a copy to another GPU does not end
};

}  // namespace chorus
