// RDMA adapters: which there are, which of their ports are fit for use, and what each gives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transports/link/device_memory.hpp"
#include "transports/link/rdma_settings.hpp"
#include "transports/rdma/verbs.hpp"

namespace chorus {

using Gid = std::array<std::uint8_t, 16>;

/// Whether it holds an IPv4 address (::ffff:a.b.c.d).
[[nodiscard]] bool is_ipv4(const Gid& gid);
/// "10.0.0.2", "fe80::1".
[[nodiscard]] std::string text_of(const Gid& gid);

/// A port as its adapter describes it.
struct RdmaPort {
  std::string device;  ///< "mlx5_0"
  int number = 1;
  bool ethernet = false;  ///< RoCE; otherwise InfiniBand
  Gid gid{};
  int gid_index = 0;
  std::uint16_t lid = 0;
  int mtu = 0;      ///< ibv_mtu
  double gb_s = 0;  ///< each direction, nominal
  int numa_node = -1;

  [[nodiscard]] std::string name() const;  ///< "mlx5_0 port 1"
};

/// A port in use: the open adapter, its protection domain, and the channel that wakes a sleeper.
class RdmaDevice {
 public:
  /// Throws LinkError if the adapter gives none of these.
  RdmaDevice(const Verbs& verbs, ibv_context* opened, RdmaPort port);
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  [[nodiscard]] const Verbs& verbs() const { return verbs_; }
  [[nodiscard]] const RdmaPort& port() const { return port_; }
  [[nodiscard]] ibv_context* context() const { return context_; }
  [[nodiscard]] ibv_pd* domain() const { return domain_; }
  [[nodiscard]] ibv_comp_channel* channel() const { return channel_; }
  [[nodiscard]] int max_queue() const { return limits_.max_qp_wr; }
  [[nodiscard]] int max_completions() const { return limits_.max_cqe; }

  /// Takes completion events off the channel.
  void drain_channel();
  /// Hears of asynchronous events. fault() says why the port cannot be used, if one has ended its
  /// use and none has brought it back.
  void hear();
  [[nodiscard]] const std::string& fault() const { return fault_; }
  /// How often a fault has begun.
  [[nodiscard]] std::uint64_t faults() const { return faults_; }
  /// Goes up with every event that says something good of the port.
  [[nodiscard]] std::uint64_t news() const { return news_; }
  /// Asks the adapter, if there was a fault: true if the port can be used (again).
  [[nodiscard]] bool sound();

 private:
  void close();
  [[nodiscard]] bool same_gid() const;

  const Verbs& verbs_;
  const RdmaPort port_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_device_attr limits_{};
  std::string fault_;
  std::uint64_t faults_ = 0;
  bool gone_ = false;  // the adapter itself: only opening it anew could help
  std::uint64_t news_ = 0;
};

/// Memory that the adapter may reach.
class RdmaMemory {
 public:
  RdmaMemory() = default;
  /// Throws LinkError, with the limit on locked memory where that is the likely cause.
  RdmaMemory(std::shared_ptr<RdmaDevice> device, std::byte* at, std::size_t bytes, int access);
  /// [at, at + bytes) of `memory`, by these addresses.
  RdmaMemory(std::shared_ptr<RdmaDevice> device, const DeviceMemory& memory, std::uint64_t at,
             std::size_t bytes, int access);
  RdmaMemory(RdmaMemory&& other) noexcept
      : device_(std::move(other.device_)), region_(std::exchange(other.region_, nullptr)) {}
  RdmaMemory& operator=(RdmaMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(region_, other.region_);
    return *this;
  }
  ~RdmaMemory();

  [[nodiscard]] std::uint32_t lkey() const { return region_ == nullptr ? 0 : region_->lkey; }
  [[nodiscard]] std::uint32_t rkey() const { return region_ == nullptr ? 0 : region_->rkey; }

 private:
  std::shared_ptr<RdmaDevice> device_;
  ibv_mr* region_ = nullptr;
};

/// The ports that this rank uses, in an order that is the same on every host built alike: active,
/// admitted by the settings, on the NUMA node of this process's cores where it has one of its own
/// and adapters are there. Empty if there is none, with the reason in `why_not`, and in `withheld`
/// whether adapters are there that this process is kept from.
[[nodiscard]] std::vector<std::shared_ptr<RdmaDevice>> open_rdma_devices(
    const RdmaSettings& settings, std::string& why_not, bool* withheld = nullptr);

/// What an adapter refuses, with the remedy where the cause is likely: "Cannot allocate memory
/// (…)".
[[nodiscard]] std::string why_refused(int error);

}  // namespace chorus
