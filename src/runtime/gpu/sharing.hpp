// Memory of a rank that the GPUs of other processes reach: announced while calls go on, without
// anybody waiting.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/layout.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

class BlobWriter;

/// Each block of memory has a segment's number. The owner announces it; each peer maps it and says
/// where; once all have, the owner writes these addresses into its table, and calls from then on
/// name the segment. So the owner alone decides when it is used, and no peer has to know.
///
/// It ends the same way: the owner's calls stop naming it, what was enqueued ends, the peers close
/// their mappings and say so, and then the owner lets go of the memory: what is freed while others
/// have it mapped is undefined in CUDA.
///
/// To map memory may mean to wait for kernels, and these for other ranks: so that is the business
/// of one thread, which begins with the first announcement.
class DeviceSharing {
 public:
  /// `table`: the RankTable in GPU memory. `same_process`: by rank. `finish` waits until what was
  /// enqueued has run.
  DeviceSharing(Control& control, const GroupPlace& place, std::string group, cuda::Context context,
                std::uint64_t table, std::vector<bool> same_process, std::function<void()> finish);
  /// stop() or abandon() has been called.
  ~DeviceSharing();
  DeviceSharing(const DeviceSharing&) = delete;
  DeviceSharing& operator=(const DeviceSharing&) = delete;

  // From any thread.

  /// Announces memory of cuMemAlloc; false if there is no room for more, or it is no such memory.
  /// `buffer`: MemoryPlace::buffer. `keep` is held until no peer reaches the memory any more.
  bool share(std::uint64_t begin, std::size_t size_bytes, std::uint64_t buffer,
             std::shared_ptr<void> keep);
  void unshare(std::uint64_t begin);
  /// The segment that holds these bytes and that all peers reach; 0 where there is none. `buffer`
  /// as in share(), or 0: the memory is known to be the same still.
  [[nodiscard]] std::uint32_t segment_of(std::uint64_t address, std::size_t bytes,
                                         std::uint64_t buffer) const;
  /// Sees to what others have said. Neither waits nor calls the driver.
  void look();

  // At the end, when no kernel of this rank runs.

  /// Ends the thread and closes this rank's mappings. The others may still reach what it shared.
  void stop();
  /// Some rank may still touch what others have: nothing is closed or let go.
  void abandon();

 private:
  enum class What : std::uint32_t { announced = 1, reached, withdrawn, closed };
  struct Segment {
    enum class State : std::uint8_t { free, announced, active, refused, closing };
    State state = State::free;
    std::uint32_t serial = 0;  ///< of this use of the number: answers to earlier ones are late
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t buffer = 0;
    std::shared_ptr<void> keep;
    std::vector<std::uint64_t> views;  ///< by peer: where it reaches the memory
    std::vector<bool> answered;        ///< by peer, to what was last told of it
  };
  using State = Segment::State;
  /// What the thread does with the context current and without the mutex.
  using Task = std::function<void()>;

  void tell(Rank to, What what, std::uint32_t segment, std::uint32_t serial,
            const std::function<void(BlobWriter&)>& more = {});
  void tell_others(What what, std::uint32_t segment, std::uint32_t serial,
                   const std::function<void(BlobWriter&)>& more = {});
  void hear(const Control::Note& note);
  /// Notes that `from` has answered; whether all peers have. A second answer counts for nothing.
  [[nodiscard]] bool all_answered(Segment& segment, Rank from) const;
  void map(Rank owner, std::uint32_t segment, std::uint32_t serial, std::uint64_t address,
           std::uint64_t offset, const cuda::IpcHandle& handle);
  void close(Rank owner, std::uint32_t segment, std::uint32_t serial);
  void activate(std::uint32_t segment, std::uint32_t serial);
  void queue(Task task);  ///< with the mutex held
  void run();

  Control& control_;
  const GroupPlace& place_;
  std::string group_;
  cuda::Context context_;
  std::uint64_t table_;
  std::vector<bool> same_process_;
  std::function<void()> finish_;
  std::atomic<int> active_{0};  ///< segments
  mutable std::mutex mutex_;    ///< all below
  std::array<Segment, device::kMostSegments> segments_;
  std::deque<Task> tasks_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
  // Of the thread alone, and of stop().
  std::map<std::pair<Rank, std::uint32_t>, cuda::Mapped> mapped_;
};

}  // namespace chorus
