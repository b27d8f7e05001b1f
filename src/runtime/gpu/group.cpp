#include "runtime/gpu/group.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "device/layout.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/engine/call.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;

/// Where in the common order a message stands: the round in which its two ranks meet (each meets
/// one rank per round), how many went before it the same way, and the way.
using Key = std::tuple<int, int, bool>;

struct Message {
  Key key;
  DeviceCall call;
};

}  // namespace

std::vector<DeviceCall> launch_order(std::span<const DeviceCall> group, Rank rank, int world_size) {
  std::vector<DeviceCall> order;
  std::vector<Message> messages;
  std::map<std::pair<Rank, bool>, int> before;  // by peer and way
  for (const DeviceCall& call : group) {
    if (!is_message(call.call.kind)) {
      if (call.call.count > 0 || call.call.kind == Kind::barrier) order.push_back(call);
      continue;
    }
    const bool sends = call.call.kind == Kind::send;
    const Rank peer = call.call.peer;
    const bool upwards = sends ? rank <= peer : peer <= rank;
    const int index = before[{peer, sends}]++;
    messages.push_back({{(rank + peer) % world_size, index, !upwards}, call});
  }
  std::stable_sort(messages.begin(), messages.end(),
                   [](const Message& a, const Message& b) { return a.key < b.key; });
  for (const Message& message : messages) order.push_back(message.call);
  return order;
}

std::size_t first_launch(std::span<const DeviceCall> order, Rank rank, std::uint32_t most_works,
                         std::uint32_t works_each) {
  std::set<std::pair<Rank, Kind>> lanes;
  std::size_t taken = 0;
  while (taken < order.size()) {
    const Call& call = order[taken].call;
    const bool to_self = is_message(call.kind) && call.peer == rank;
    // Ordered side by side.
    const std::size_t together =
        to_self && taken + 1 < order.size() && order[taken + 1].call.peer == rank &&
                is_message(order[taken + 1].call.kind) && order[taken + 1].call.kind != call.kind
            ? 2
            : 1;
    auto with = lanes;
    for (std::size_t i = taken; is_message(call.kind) && i < taken + together; ++i) {
      with.emplace(order[i].call.peer, order[i].call.kind);
    }
    const bool fits =
        taken + together <= device::kManyCalls && with.size() * works_each <= most_works;
    if (!fits && taken > 0) break;
    lanes = std::move(with);
    taken += together;
  }
  return taken;
}

}  // namespace chorus
