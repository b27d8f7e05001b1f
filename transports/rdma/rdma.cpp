#include "transports/rdma/rdma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.hpp"
#include "chorus/error.hpp"
#include "transports/rdma/absent.hpp"
#include "transports/rdma/link.hpp"

namespace chorus {
namespace {

/// Unauthenticated peers, events of adapters and control connections are looked at through the
/// kernel, whose calls take as long as a small put: while a rank spins they would be what it does
/// when the put comes. Nothing of them is urgent.
constexpr auto kLookEvery = std::chrono::milliseconds(1);

class RdmaTransport final : public Transport {
 public:
  RdmaTransport(const TransportContext& context, std::vector<std::shared_ptr<RdmaDevice>> devices)
      : config_(context.link), hub_(std::make_shared<RdmaHub>()) {
    hub_->settings = context.rdma;
    hub_->devices = std::move(devices);
    hub_->control =
        std::make_shared<TcpHub>(resolve_interface(context.interface_name),
                                 context.secret.derive("rdma"), context.rank, context.world_size);
    CHORUS_CHECK(
        config_.num_channels > 0 && config_.num_channels <= static_cast<int>(Immediate::kChannels),
        "num_channels outside [1, 256]");
    CHORUS_CHECK(config_.max_outstanding > 0 && config_.max_outstanding <= 1 << 14,
                 "max_outstanding outside [1, 2^14]");
    TcpAddress& control = own_.control;
    control.magic = TcpAddress::kMagic;
    control.host = HostIdentity::here();
    control.nonce = hub_->control->nonce();
    control.region_bytes = config_.region_bytes;
    control.rank = context.rank;
    control.num_channels = static_cast<std::uint32_t>(config_.num_channels);
    control.max_outstanding = static_cast<std::uint32_t>(config_.max_outstanding);
    control.num_sockets = 1;
    hub_->control->endpoint().fill(control);
    own_.queue_pairs = static_cast<std::uint32_t>(context.rdma.queue_pairs);
    for (const auto& device : hub_->devices) {
      RdmaAddress::Port& published = own_.ports[own_.num_ports++];
      const RdmaPort& port = device->port();
      std::memcpy(published.device.data(), port.device.data(),
                  std::min(port.device.size(), published.device.size() - 1));
      published.lid = port.lid;
      published.number = static_cast<std::uint8_t>(port.number);
      published.mtu = static_cast<std::uint8_t>(port.mtu);
      published.gid = port.gid;
      published.ethernet = port.ethernet ? 1 : 0;
    }
  }
  ~RdmaTransport() override { hub_->control->close(); }
  RdmaTransport(const RdmaTransport&) = delete;
  RdmaTransport& operator=(const RdmaTransport&) = delete;

  std::string_view name() const override { return "rdma"; }

  std::vector<std::byte> address() const override {
    return {own_.bytes().begin(), own_.bytes().end()};
  }

  std::optional<std::string> why_not(std::span<const std::byte> peer_address) const override {
    const std::optional<RdmaAddress> peer = RdmaAddress::parse(peer_address);
    if (!peer) return "no rdma address of this version of Chorus";
    if (peer->num_ports == 0) return fmt::format("none there: {}", peer->reason.data());
    const TcpAddress& here = own_.control;
    const TcpAddress& there = peer->control;
    if (there.version != here.version) {
      return fmt::format("its control connection is IPv{} and this rank's IPv{}", there.version,
                         here.version);
    }
    if (!here.host.same_network(there.host) &&
        (Endpoint::from(there).loopback() || hub_->control->endpoint().loopback())) {
      return "it is on another host, and the control connection would use loopback";
    }
    if (there.region_bytes != here.region_bytes || there.num_channels != here.num_channels ||
        there.max_outstanding != here.max_outstanding) {
      return "the ends have links of other sizes";
    }
    const auto speaks = [](const RdmaAddress& address, bool ethernet) {
      return std::any_of(address.ports.begin(), address.ports.begin() + address.num_ports,
                         [&](const auto& port) { return (port.ethernet != 0) == ethernet; });
    };
    if (!(speaks(own_, true) && speaks(*peer, true)) &&
        !(speaks(own_, false) && speaks(*peer, false))) {
      return "one end is on InfiniBand and the other on Ethernet";
    }
    return std::nullopt;
  }

  std::unique_ptr<Link> connect(Rank peer, std::span<const std::byte> peer_address) override {
    CHORUS_CHECK(peer >= 0 && peer != own_.control.rank, "no such peer");
    std::optional<std::string> reason = why_not(peer_address);
    const std::optional<RdmaAddress> address = RdmaAddress::parse(peer_address);
    if (!reason && address->control.rank != peer) reason = "the address is another rank's";
    if (reason) {
      throw LinkError(
          fmt::format("rank {}: rdma cannot reach rank {}: {}", own_.control.rank, peer, *reason),
          peer);
    }
    return std::make_unique<RdmaLink>(hub_, config_, own_, *address,
                                      own_.control.host.same_network(address->control.host));
  }

  void progress() override {
    const auto now = std::chrono::steady_clock::now();
    const bool connecting = std::any_of(hub_->links.begin(), hub_->links.end(),
                                        [](const RdmaLink* link) { return !link->connected(); });
    if (connecting || now >= next_look_) {
      next_look_ = now + kLookEvery;
      hub_->control->progress();
      for (const auto& device : hub_->devices) device->hear();
      for (RdmaLink* link : hub_->links) link->look_at_control();
    }
    for (RdmaLink* link : hub_->links) link->service();
    hub_->registrations.refresh();
  }

  void prepare_to_sleep() override {
    for (RdmaLink* link : hub_->links) link->arm();
  }

  void woke() override {
    for (const auto& device : hub_->devices) {
      device->drain_channel();
      device->hear();
    }
    for (RdmaLink* link : hub_->links) link->look_at_control();
  }

  void append_wake_fds(std::vector<pollfd>& fds) const override {
    hub_->control->append_wake_fds(fds);
    for (const auto& device : hub_->devices) {
      fds.push_back(wake_fd(device->channel()->fd));
      fds.push_back(wake_fd(device->context()->async_fd));
    }
    for (const RdmaLink* link : hub_->links) link->append_wake_fds(fds);
  }

 private:
  const LinkConfig config_;
  const std::shared_ptr<RdmaHub> hub_;
  RdmaAddress own_;
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace

std::unique_ptr<Transport> make_rdma(const TransportContext& context) {
  std::string why_not;
  bool withheld = false;
  auto devices = open_rdma_devices(context.rdma, why_not, &withheld);
  if (devices.empty()) return std::make_unique<AbsentRdma>(why_not, context.rdma, withheld);
  return std::make_unique<RdmaTransport>(context, std::move(devices));
}

std::optional<std::string> why_no_rdma(const RdmaSettings& settings) {
  std::string why_not;
  if (!open_rdma_devices(settings, why_not).empty()) return std::nullopt;
  return why_not;
}

}  // namespace chorus
