// In which order a pipeline rank works: its forward, backward and weight-gradient passes.
#pragma once

#include <cstdint>
#include <vector>

#include "config.hpp"

namespace trainer {

enum class Pass : std::uint8_t {
  forward,
  backward,  ///< the gradient of the inputs and, except under zero-bubble, of the weights
  weights,   ///< the gradient of the weights (zero-bubble)
};

struct Work {
  Pass pass = Pass::forward;
  int chunk = 0;  ///< of this rank: [0, virtual_stages); globally chunk · pp + rank
  int micro_batch = 0;

  bool operator==(const Work&) const = default;
};
using Order = std::vector<Work>;

/// The order of every pipeline rank, [pp]. All schedules pass the micro-batches of a chunk backward
/// in the order 0, 1, …, so they give the same bits.
[[nodiscard]] std::vector<Order> pipeline_order(const Layout& layout);

/// Micro-batches of `chunk` whose activations `order` keeps at the same time.
[[nodiscard]] int most_alive(const Order& order, int chunk);

/// Seconds that each pass of one chunk takes.
struct PassTimes {
  double forward = 1, backward = 2, weights = 0;
};

/// Start-to-end time of the orders and the share of it in which a rank stood idle, when chunk c
/// (counted globally) takes times[c] and a message between ranks takes message_s. Throws
/// chorus::Error if an order waits for something that never comes.
struct Timeline {
  double makespan_s = 0;
  double bubble_share = 0;
};
[[nodiscard]] Timeline simulated(const std::vector<Order>& orders, const Layout& layout,
                                 const std::vector<PassTimes>& times, double message_s = 0);

/// Layers of each chunk so that the slowest is as fast as can be: optimal over all contiguous
/// partitions, by dynamic programming. `first` and `last` are what embedding and output cost;
/// speeds [chunks]: of who computes each (empty: all alike).
[[nodiscard]] std::vector<int> balanced_partition(const std::vector<double>& layers, double first,
                                                  double last, int chunks,
                                                  const std::vector<double>& speeds = {});

/// The layout's partition, or the planner's for `model` by multiplications.
[[nodiscard]] std::vector<int> partition_of(const Model& model, const Layout& layout);

}  // namespace trainer
