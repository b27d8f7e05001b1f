// The messages of the point-to-point measurements between ranks 0 and 1.
#pragma once

#include <vector>

#include "perf/job.hpp"
#include "perf/worker/backend.hpp"
#include "perf/worker/collective_data.hpp"

namespace chorus::perf {

/// Buffers and message lists of one side.
///
///   latency       one message there and one back (ping, pong)
///   bandwidth     `window` messages from rank 0 to rank 1, then one element back
///   bibandwidth   `window` messages each way, then one element each way
///
/// Every message of a window has its own buffer, so that receives never overlap and all are
/// checked.
class PointToPointData {
 public:
  PointToPointData(const Job& job, int rank);

  void fill_and_poison(std::uint32_t seed);
  void exchange(Backend& backend) const;
  /// One element each way: afterwards both sides have finished everything before it.
  void drain(Backend& backend) const;
  void check(std::uint32_t seed, Sample& sample) const;

 private:
  [[nodiscard]] Pattern pattern(std::uint32_t seed) const;
  [[nodiscard]] std::vector<Message> messages(const HostMemory& memory) const;

  Job job_;
  int rank_;
  bool sends_, receives_;  // whether this side sends and receives the measured messages
  HostMemory out_, in_, ack_out_, ack_in_;
  std::vector<Message> send_, receive_, ack_send_, ack_receive_, token_send_, token_receive_;
};

}  // namespace chorus::perf
