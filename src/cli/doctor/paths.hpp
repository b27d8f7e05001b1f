// Whether the hosts of a job reach each other over TCP, by every interface that they would use.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/secret.hpp"
#include "cli/doctor/findings.hpp"
#include "transports/link/link.hpp"

namespace chorus {
class TcpHub;
}

namespace chorus::doctor {

/// One host's part. All hosts make one, exchange address(), connect(), and call progress() until it
/// is true; each must go on with it until all others are done.
class PathCheck {
 public:
  /// Of host `host` of `hosts`. `secret`: the job's. `interfaces` and `others` as resolve_rails()
  /// has them. Throws InputError, LinkError.
  PathCheck(int host, int hosts, const Secret& secret, const std::string& interfaces, bool others);
  ~PathCheck();

  [[nodiscard]] std::vector<std::byte> address() const;
  /// Begins to connect to the hosts next to this one. `addresses`: [hosts].
  void connect(std::span<const std::vector<std::byte>> addresses);
  /// True when every path stands or was given up, or `patience` is over.
  [[nodiscard]] bool progress();
  /// What this host has seen. `names`: [hosts].
  [[nodiscard]] std::vector<Finding> findings(std::span<const std::string> names) const;

 private:
  struct Peer {
    int host = 0;
    std::unique_ptr<Link> link;
    bool connected = false;
    std::string failure;  // empty while all is well
  };

  const int host_;
  const int hosts_;
  const LinkConfig config_;
  const std::shared_ptr<TcpHub> hub_;
  std::vector<Peer> peers_;
};

}  // namespace chorus::doctor
