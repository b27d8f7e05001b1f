#include "transports/tcp/tcp.hpp"

#include <fmt/format.h>

#include "base/check.hpp"
#include "chorus/error.hpp"
#include "transports/tcp/endpoint.hpp"
#include "transports/tcp/hub.hpp"
#include "transports/tcp/link.hpp"

namespace chorus {
namespace {

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TransportContext& context)
      : config_(context.link),
        hub_(std::make_shared<TcpHub>(
            resolve_rails(context.interface_name, context.other_interfaces),
            context.secret.derive("tcp"), context.rank, context.world_size)) {
    CHORUS_CHECK(context.tcp_sockets >= 1 && context.tcp_sockets <= kMaxTcpSockets,
                 "tcp_sockets outside [1, 16]");
    CHORUS_CHECK(config_.num_channels > 0 && config_.num_channels <= 4096,
                 "num_channels outside [1, 4096]");
    CHORUS_CHECK(config_.max_outstanding > 0 && config_.max_outstanding <= 1 << 20,
                 "max_outstanding outside [1, 2^20]");
    own_.host = HostIdentity::here();
    own_.region_bytes = config_.region_bytes;
    own_.rank = context.rank;
    own_.num_channels = static_cast<std::uint32_t>(config_.num_channels);
    own_.max_outstanding = static_cast<std::uint32_t>(config_.max_outstanding);
    own_.num_sockets = static_cast<std::uint16_t>(context.tcp_sockets);
    hub_->fill(own_);
  }
  ~TcpTransport() override { hub_->close(); }
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  std::string_view name() const override { return "tcp"; }

  std::vector<std::byte> address() const override {
    return {own_.bytes().begin(), own_.bytes().end()};
  }

  std::optional<std::string> why_not(std::span<const std::byte> peer_address) const override {
    const std::optional<TcpAddress> peer = TcpAddress::parse(peer_address);
    if (!peer) return "no tcp address of this version of Chorus";
    if (peer->version != own_.version) {
      return fmt::format("it listens on IPv{} and this rank on IPv{}", peer->version, own_.version);
    }
    if (!own_.host.same_network(peer->host)) {
      if (Endpoint::from(*peer).loopback()) return "it is on another host and listens on loopback";
      if (hub_->endpoint().loopback()) return "it is on another host and this rank uses loopback";
    }
    if (peer->region_bytes != own_.region_bytes || peer->num_channels != own_.num_channels ||
        peer->max_outstanding != own_.max_outstanding) {
      return fmt::format(
          "other sizes: here {} channels, {} outstanding, {} bytes; there {}, {}, {}",
          own_.num_channels, own_.max_outstanding, own_.region_bytes, peer->num_channels,
          peer->max_outstanding, peer->region_bytes);
    }
    return std::nullopt;
  }

  std::unique_ptr<Link> connect(Rank peer, std::span<const std::byte> peer_address) override {
    CHORUS_CHECK(peer >= 0 && peer != own_.rank, "no such peer");
    std::optional<std::string> reason = why_not(peer_address);
    const std::optional<TcpAddress> address = TcpAddress::parse(peer_address);
    if (!reason && address->rank != peer) reason = "the address is another rank's";
    if (reason) {
      throw LinkError(
          fmt::format("rank {}: tcp cannot reach rank {}: {}", own_.rank, peer, *reason), peer);
    }
    return std::make_unique<TcpLink>(hub_, config_,
                                     std::min(own_.num_sockets, address->num_sockets),
                                     own_.host.same_network(address->host), *address);
  }

  void progress() override { hub_->progress(); }
  // What has come makes its socket readable, whenever it came.
  void prepare_to_sleep() override { hub_->prepare_to_sleep(); }
  void woke() override {}
  void append_wake_fds(std::vector<pollfd>& fds) const override { hub_->append_wake_fds(fds); }

 private:
  const LinkConfig config_;
  const std::shared_ptr<TcpHub> hub_;
  TcpAddress own_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp(const TransportContext& context) {
  return std::make_unique<TcpTransport>(context);
}

}  // namespace chorus
