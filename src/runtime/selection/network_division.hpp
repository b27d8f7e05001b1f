// By which networks the ranks of hosts with several cables send what a schedule has them send.
#pragma once

#include <memory>
#include <vector>

#include "chorus/schedule.hpp"
#include "topology/probing/networks.hpp"
#include "transports/link/link.hpp"

namespace chorus {

/// Divides each schedule's bytes among the networks between hosts. Each rank comes to the same by
/// itself.
class NetworkDivision {
 public:
  /// Of a network with further ones.
  NetworkDivision(const probing::ProbedNetwork& network,
                  const std::vector<probing::HostPart>& parts);

  /// For each of `peers`, what Link::divide() is to be told of the link from `rank` to it while
  /// `schedule` runs; null where one network joins the two, or they are on one host.
  [[nodiscard]] std::vector<std::shared_ptr<const NetworkShares>> shares(
      const Schedule& schedule, Rank rank, const std::vector<Rank>& peers) const;

 private:
  probing::Networks networks_;
  std::vector<std::string> names_;  // by network
  std::vector<int> host_of_;        // by rank
};

}  // namespace chorus
