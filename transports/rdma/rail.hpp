// One reliable connection between a port here and a port there.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "transports/rdma/device.hpp"
#include "transports/rdma/wire.hpp"

namespace chorus {

/// What the verbs layer was asked to do, for tests and benchmarks.
struct RdmaCounters {
  std::uint64_t work_requests = 0;
  std::uint64_t doorbells = 0;  ///< calls of ibv_post_send
  std::uint64_t signalled = 0;  ///< of the work requests
  std::uint64_t arrivals = 0;   ///< completions with immediate data
  std::uint64_t copied_bytes = 0;
  std::uint64_t direct_bytes = 0;   ///< written out of the caller's memory, without a copy
  std::uint64_t brought_bytes = 0;  ///< into the region, where only adapters reach that
  std::uint64_t polls = 0;          ///< calls of ibv_poll_cq
  std::uint64_t refills = 0;        ///< calls of ibv_post_recv
};

/// A queue pair with its completion queue. Counts what it posted and what was acknowledged; knows
/// nothing of channels. Once it has failed it never comes back: another takes its place.
class RdmaRail {
 public:
  struct Depths {
    int send = 0;
    int receive = 0;  ///< that must be there at any time
  };
  /// Both spans are registered; the peer writes into `inbox`. Throws LinkError.
  RdmaRail(std::shared_ptr<RdmaDevice> device, const RdmaSettings& settings, Depths depths,
           std::span<std::byte> inbox, std::span<std::byte> outbox, RdmaCounters& counters);
  ~RdmaRail();
  RdmaRail(const RdmaRail&) = delete;
  RdmaRail& operator=(const RdmaRail&) = delete;

  [[nodiscard]] RdmaConnect::Rail own_end() const;
  [[nodiscard]] const RdmaDevice& device() const { return *device_; }
  [[nodiscard]] std::string name() const { return device_->port().name(); }
  /// Makes the connection; afterwards this end can receive and send. On failure failure() says why.
  void connect(const RdmaAddress::Port& port, const RdmaConnect::Rail& end,
               const RdmaConnect& memory);

  /// True if `requests` more can be written.
  [[nodiscard]] bool room(std::size_t requests) const {
    return posted_ - completed_ + requests + kReserve <= depth_;
  }
  [[nodiscard]] std::uint64_t unacknowledged() const { return posted_ - completed_; }
  [[nodiscard]] std::uint64_t posted() const { return posted_; }
  /// Requests that have succeeded, in their order: the adapter needs their memory no more.
  [[nodiscard]] std::uint64_t acknowledged() const { return acknowledged_; }
  [[nodiscard]] static std::size_t requests_for(std::size_t bytes) {
    return bytes <= kMaxWrite ? 1 : (bytes + kMaxWrite - 1) / kMaxWrite;
  }
  struct Write {
    std::span<const std::byte> bytes = {};
    std::uint64_t offset = 0;  ///< in the peer's slots
    bool region = false;       ///< in its region instead
    std::optional<std::uint32_t> immediate = {};
    std::optional<std::uint32_t> key =
        {};  ///< of the memory of `bytes`, which only the adapter reads; else they are the outbox's
    bool tell = false;  ///< when it is done: acknowledged() shall say it
  };
  /// Appends a request; ring() hands over what was appended.
  void write(const Write& wanted);
  void ring();
  /// Asks that all that was posted be acknowledged soon.
  void request_acknowledgement();

  /// Calls `arrived` with the immediate data of what has come, in order. Returns how many.
  template <class Arrived>
  std::size_t poll(const Arrived& arrived) {
    ibv_wc done[kPollBatch];
    std::size_t count = 0;
    for (int turn = 0; turn < kPollTurns; ++turn) {
      const int found = ibv_poll_cq(queue_, kPollBatch, done);
      ++counters_.polls;
      if (found < 0) fail("its completion queue cannot be polled");
      int received = 0;
      for (int i = 0; i < found; ++i) {
        if ((done[i].wr_id & kReceive) == 0) {
          sent(done[i]);
          continue;
        }
        --receives_posted_;
        if (done[i].status != IBV_WC_SUCCESS) {
          failed(done[i]);
        } else if (done[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
          ++received;
          arrived(ntohl(done[i].imm_data));
        }
      }
      receives_owed_ += received;
      if (receives_owed_ >= kRefill) post_receives(std::exchange(receives_owed_, 0));
      count += static_cast<std::size_t>(received);
      if (found < kPollBatch) break;
    }
    counters_.arrivals += count;
    return count;
  }

  /// The next completion wakes whoever polls the device's channel.
  void arm();

  [[nodiscard]] const std::string& failure() const { return failure_; }
  void fail(std::string why);
  /// No byte goes out or comes in any more; what had come can still be polled.
  void shut();
  /// After shut(): every receive has come back, used or not, so that the peer's bytes are here or
  /// never will be; or the adapter has been silent for too long to be waited for.
  [[nodiscard]] bool drained() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kReceive = 1ULL << 63;
  static constexpr int kPollBatch = 16;
  static constexpr int kPollTurns = 4;
  /// Receives that may be missing: they are posted so many at a time.
  static constexpr int kRefill = 16;
  static constexpr std::size_t kBatch = 8;
  static constexpr std::size_t kReserve = 2;
  /// Soft-RoCE takes 8 MiB in one message; others more.
  static constexpr std::size_t kMaxWrite = 4 << 20;

  void create_queue_pair(int inline_bytes);
  void post_receives(int count);
  void sent(const ibv_wc& done);
  void failed(const ibv_wc& done);
  [[nodiscard]] bool to_ready(const RdmaAddress::Port& port, const RdmaConnect::Rail& end);
  void release();

  const std::shared_ptr<RdmaDevice> device_;
  const RdmaSettings& settings_;
  RdmaCounters& counters_;
  const Depths depths_;
  const std::uint64_t depth_;
  RdmaMemory inbox_;
  RdmaMemory outbox_;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint32_t first_packet_ = 0;
  std::size_t inline_bytes_ = 0;

  std::uint64_t peer_slots_ = 0;
  std::uint64_t peer_region_ = 0;
  std::uint32_t peer_key_ = 0;
  std::uint32_t peer_region_key_ = 0;

  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t last_signalled_ = 0;
  int receives_posted_ = 0;
  int receives_owed_ = 0;
  std::array<ibv_send_wr, kBatch> requests_{};
  std::array<ibv_sge, kBatch> pieces_{};
  std::size_t batched_ = 0;

  std::string failure_;
  bool shut_ = false;
  Clock::time_point patience_ends_{};
};

}  // namespace chorus
