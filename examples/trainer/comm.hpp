// Groups of ranks by axis, calls in flight, and the log of every call.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"
#include "config.hpp"
#include "report/trace.hpp"
#include "wire.hpp"

namespace trainer {

/// The dimension of the layout along which a call goes.
/// The replicas of a data group are also divided into nodes (Layout::secondary).
enum class Axis : std::uint8_t {
  data,
  node,
  across,
  expert_data,
  tensor,
  pipeline,
  expert,
  tie,
  world
};
inline constexpr std::size_t kAxes = 9;
inline constexpr std::array<const char*, kAxes> kAxisNames = {
    "data",     "in-node", "across-nodes",   "expert-data", "tensor",
    "pipeline", "expert",  "tied-embedding", "world"};

/// Whose memory a call is on.
enum class On : std::uint8_t { device, host };

using Kind = chorus::Call::Kind;
inline constexpr int kKinds = 12;
[[nodiscard]] const char* name_of(Kind kind);

/// Calls of one kind on one axis.
struct Traffic {
  std::uint64_t calls = 0;
  /// What this rank must send, whatever the algorithm: 2m(d−1)/d for an all_reduce of m bytes over
  /// d ranks, m(d−1)/d for an all_gather to or a reduce_scatter from m bytes, what leaves the rank
  /// for all_to_all and send.
  std::uint64_t sent_bytes = 0;
  double in_flight_s = 0;                    ///< from start to seen complete
  double exposed_s = 0;                      ///< of which the rank stood still
  std::array<std::uint64_t, 40> sizes = {};  ///< calls by floor(log2(m))
};

/// Counts calls without slowing or ordering them: plain additions on the rank's own table.
struct CommLog {
  std::array<std::array<Traffic, kKinds>, kAxes> table = {};

  [[nodiscard]] Traffic& at(Axis axis, Kind kind) {
    return table[static_cast<std::size_t>(axis)][static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] const Traffic& at(Axis axis, Kind kind) const {
    return table[static_cast<std::size_t>(axis)][static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t sent_bytes(Axis axis) const;
  [[nodiscard]] double exposed_s() const;
  void clear() { table = {}; }
};

/// A call that was started; wait for it by Flights::wait. Copyable; a default one is complete.
struct Pending {
  int slot = -1;
  std::uint64_t generation = 0;
  Axis axis = Axis::world;
};

/// The calls in flight on all groups of a rank. Chorus moves data only while its caller waits or
/// polls: poll() and wait() here turn all groups.
class Flights {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Flights(CommLog& log) : log_(log), slots_(512) {}

  Trace trace;  ///< of this rank's calls, once it is started
  /// Called before every wait for a call between slices or experts, complete or not: what else this
  /// rank has to do may be done there (interleaver.hpp).
  std::function<void()> give_way;

  Pending start(chorus::Communicator& on, const chorus::Call& call, Axis axis,
                std::uint64_t message_bytes, std::uint64_t sent_bytes);
  /// The same on device memory: wait() then lets the computation wait, not the host.
  Pending start(Wire& on, const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                std::uint64_t sent_bytes);
  /// Moves everything that is in flight.
  void poll();
  /// poll(), at most every half millisecond: small operations would else be mostly polls.
  void poll_now_and_then();
  /// Returns when the call is complete; the time counts as exposed.
  void wait(Pending& pending);
  void wait_all();
  /// Logs a call that was made at once.
  void log_call(const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                std::uint64_t sent_bytes, Clock::time_point begin);
  /// Completes what is in flight, or lets go of it where the peers have failed.
  void finish() noexcept;
  [[nodiscard]] bool done(const Pending& pending) const;

 private:
  struct Slot {
    chorus::Request request;
    std::uint64_t generation = 0;
    bool busy = false;
    Wire::Ticket ticket;  ///< of a call on device memory
    Axis axis = Axis::world;
    Kind kind = Kind::barrier;
    Clock::time_point started;
  };
  void complete(Slot& slot);
  int take_slot(const chorus::Call& call, Axis axis, std::uint64_t message_bytes,
                std::uint64_t sent_bytes);

  CommLog& log_;
  std::vector<Slot> slots_;
  std::vector<int> busy_;
  std::vector<int> wired_;  ///< the same on device memory
  std::vector<chorus::Request*> waited_;
  Clock::time_point polled_ = Clock::now();
  int next_ = 0;
};

/// The ranks along one axis. A group of one does nothing and logs nothing.
class Group {
 public:
  Group() = default;
  /// Collective over `members`. With `gpu`, calls are on its memory if they do not say otherwise.
  Group(std::optional<chorus::Communicator> members, Axis axis, Flights& flights, Gpu* gpu,
        Wire::Ways ways = Wire::Ways::all)
      : members_(std::move(members)), axis_(axis), flights_(&flights) {
    if (!members_) return;
    size_ = members_->world_size();
    rank_ = members_->rank();
    if (gpu != nullptr && size_ > 1) wire_ = std::make_unique<Wire>(*members_, *gpu, ways);
  }

  /// A group that is only imagined, to count what a layout needs.
  Group(int size, int rank) : size_(size), rank_(rank) {}

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int rank() const { return rank_; }

  /// Of `replicas` when all are there: sums of those that are left count as if the others had given
  /// as much on average. Its calls, all of them sums, are complete when they return.
  void make_elastic(int replicas) {
    size_ = replicas;
    is_elastic_ = true;
  }

  template <class R>
  Pending all_reduce(R* data, std::size_t count, chorus::Reduction how = {}, On on = On::device) {
    return collective({.kind = Kind::all_reduce,
                       .input = data,
                       .output = data,
                       .count = count,
                       .type = chorus::kDataType<R>,
                       .reduction = how},
                      on);
  }
  /// mine [count] → all [size · count]; in place if mine is all's block of this rank.
  template <class R>
  Pending all_gather(const R* mine, R* all, std::size_t count, On on = On::device) {
    return collective({.kind = Kind::all_gather,
                       .input = mine,
                       .output = all,
                       .count = count,
                       .type = chorus::kDataType<R>},
                      on);
  }
  /// all [size · count] → mine [count]
  template <class R>
  Pending reduce_scatter(const R* all, R* mine, std::size_t count) {
    return collective({.kind = Kind::reduce_scatter,
                       .input = all,
                       .output = mine,
                       .count = count,
                       .type = chorus::kDataType<R>});
  }
  template <class R>
  Pending broadcast(R* data, std::size_t count, int root) {
    return collective({.kind = Kind::broadcast,
                       .input = data,
                       .output = data,
                       .count = count,
                       .type = chorus::kDataType<R>,
                       .peer = root});
  }
  /// in, out [size · count]: block i goes to rank i.
  template <class R>
  Pending all_to_all(const R* in, R* out, std::size_t count, On on = On::device) {
    return collective({.kind = Kind::all_to_all,
                       .input = in,
                       .output = out,
                       .count = count,
                       .type = chorus::kDataType<R>},
                      on);
  }
  /// Counts and offsets in elements, each [size], which must outlive the call.
  template <class R>
  Pending all_to_all_v(const R* in, std::span<const std::size_t> send_counts,
                       std::span<const std::size_t> send_offsets, R* out,
                       std::span<const std::size_t> recv_counts,
                       std::span<const std::size_t> recv_offsets) {
    return collective({.kind = Kind::all_to_all_v,
                       .input = in,
                       .output = out,
                       .type = chorus::kDataType<R>,
                       .send_counts = send_counts,
                       .send_offsets = send_offsets,
                       .recv_counts = recv_counts,
                       .recv_offsets = recv_offsets});
  }
  template <class R>
  Pending send(const R* data, std::size_t count, int peer) {
    return collective({.kind = Kind::send,
                       .input = data,
                       .count = count,
                       .type = chorus::kDataType<R>,
                       .peer = peer});
  }
  template <class R>
  Pending recv(R* data, std::size_t count, int peer) {
    return collective({.kind = Kind::recv,
                       .output = data,
                       .count = count,
                       .type = chorus::kDataType<R>,
                       .peer = peer});
  }

  void wait(Pending pending) const {
    if (flights_ != nullptr) flights_->wait(pending);
  }

 private:
  Pending collective(const chorus::Call& call, On on = On::device);
  void run_elastic(const chorus::Call& call);

  std::optional<chorus::Communicator> members_;
  std::unique_ptr<Wire> wire_;
  int size_ = 1;
  int rank_ = 0;
  bool is_elastic_ = false;
  Axis axis_ = Axis::world;
  Flights* flights_ = nullptr;
};

/// Where a rank stands on each axis of the grid: index = ((pp · dp) + dp index) · tp + tp index.
/// Which rank has which place is the mapping's choice (mapping.hpp); without one they are numbered
/// alike.
struct Place {
  int index, dp, tp, pp, ep, edp;
};
[[nodiscard]] Place place_of(const Layout& layout, int rank);

/// One group per axis of a rank.
struct Groups {
  /// Collective over `everyone`. With `gpu`: on its memory.
  Groups(chorus::Communicator& everyone, const Layout& layout, bool tied, CommLog& log,
         Gpu* gpu = nullptr);
  /// Collective: the same with replicas that were taken in. Nothing is in flight.
  void renew(chorus::Communicator& everyone, const Layout& layout);
  /// The groups that `rank` would have.
  Groups(const Layout& layout, int rank, CommLog& log);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  /// Calls in flight end before their communicators.
  ~Groups() { flights.finish(); }

  Flights flights;
  Place place;
  Group world, data, expert_data, tensor, expert, tie;
  Group node, across;  ///< the replicas of a node, and those in the same place of every node
  Group ahead, back;   ///< the pipeline twice: activations forward, gradients backward
};

}  // namespace trainer
