// How fast a rank may send to each other one without queueing in the network.
#pragma once

#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// By rank, the bytes per second that the network takes from `rank` to it where that was measured
/// and is limited behind the first switch, by a trunk or the receiver's cable, by less than what
/// `rank`'s own machine could send; 0 where nothing is to be limited.
///
/// A sender that does not know of a slow trunk fills the queue before it. What the other
/// direction's acknowledgements then wait there holds up its window: of two streams through one
/// trunk of 200 Mb/s, one each way between two hosts, the second got 4 to 17 of its 24 MB/s,
/// unpaced. A twentieth more than the rate fills the queue all the same: an all-to-all of 64 MiB
/// then reached 82 % of the bound in place of 95.
[[nodiscard]] std::vector<double> paces(const Topology& topology, Rank rank);

}  // namespace chorus
