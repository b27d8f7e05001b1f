// The rdma transport where there is none: it reaches nobody and says why.
#pragma once

#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "transports/link/link.hpp"
#include "transports/link/rdma_settings.hpp"
#include "transports/rdma/wire.hpp"

namespace chorus {

class AbsentRdma final : public Transport {
 public:
  /// `withheld`: adapters are there that this process is kept from.
  AbsentRdma(std::string reason, const RdmaSettings& settings, bool withheld = false)
      : reason_(std::move(reason)), in_vain_(withheld || settings.name_some()) {}

  std::string_view name() const override { return "rdma"; }
  std::vector<std::byte> address() const override {
    RdmaAddress address;
    address.set_reason(reason_);
    return {address.bytes().begin(), address.bytes().end()};
  }
  std::optional<std::string> why_not(std::span<const std::byte>) const override {
    return "none here: " + reason_;
  }
  bool misconfigured() const override { return in_vain_; }
  std::unique_ptr<Link> connect(Rank peer, std::span<const std::byte>) override {
    throw LinkError("rdma: none here: " + reason_, peer);
  }
  void progress() override {}
  void prepare_to_sleep() override {}
  void woke() override {}
  void append_wake_fds(std::vector<pollfd>&) const override {}

 private:
  const std::string reason_;
  const bool in_vain_;
};

}  // namespace chorus
