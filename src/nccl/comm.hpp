// What a ncclComm_t points to.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "chorus/communicator.hpp"
#include "chorus/nccl.h"
#include "nccl/fault.hpp"
#include "nccl/settings/config.hpp"
#include "nccl/settings/fallback.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus::nccl {

/// The ranks of one communicator that live in this process. Leaving is collective, and one thread
/// may hold several ranks: each is left in the background, and who leaves last waits for all.
struct Siblings {
  std::mutex mutex;
  std::condition_variable left;
  int alive = 0;    ///< not destroyed yet
  int leaving = 0;  ///< destroyed, on their way

  /// Those of the communicator with this name, the same on all its ranks.
  static std::shared_ptr<Siblings> of(const std::string& name);
};

/// The heavy part of a communicator: there from the end of joining until it is destroyed. Whoever
/// uses it holds it; the last to let go sends it away in the background, never blocking.
struct Body {
  Body(Communicator joined, int device, std::string name);
  static std::shared_ptr<Body> make(Communicator joined, int device, std::string name);

  /// Whose memory this is. Throws DeviceError.
  [[nodiscard]] MemoryPlace place(const void* memory) const;

  Communicator communicator;
  int device;
  std::unique_ptr<DeviceCommunicator> gpu;  ///< null where not all ranks have one
  std::string why_no_gpu;                   ///< for messages
  std::unique_ptr<Fallback> fallback;       ///< null unless it is asked for
  std::string name;                         ///< the same on all ranks
  std::shared_ptr<Siblings> siblings;
  int parts = 0;  ///< communicators split or shrunk from this one
};

enum class Phase : std::uint8_t { joining, ready, revoked, finalized, gone };

struct Window;

/// A sum that multiplies this rank's contribution first.
struct ScaledSum {
  ncclDataType_t type = ncclFloat32;
  std::array<std::byte, 8> factor = {};  ///< one element, read at once; or
  const void* at = nullptr;              ///< where it lies when the call runs
};

}  // namespace chorus::nccl

/// Never freed, only emptied: a handle that was destroyed is recognised, not dereferenced into
/// memory that is something else by now.
struct ncclComm {
  using Phase = chorus::nccl::Phase;
  static constexpr std::uint32_t kMagic = 0x63686f72;

  const std::uint32_t magic = kMagic;
  // Constant once the handle is given out.
  int rank = 0, ranks = 1, device = 0;
  chorus::nccl::Config config = {};
  std::uint64_t hash = 0;  ///< of its name, for the log

  std::atomic<Phase> phase{Phase::joining};
  /// What ncclCommGetAsyncError says. Written by who works on the communicator and by who notices
  /// a failure; a failure stays.
  std::atomic<int> state{ncclSuccess};
  std::atomic<int> user{0};  ///< the thread in a call, 0: none
  std::atomic<std::int64_t> next_look_ns{0};

  std::mutex mutex;  ///< guards all below
  std::shared_ptr<chorus::nccl::Body> body;
  std::string failure;
  std::map<int, chorus::nccl::ScaledSum> sums;
  int next_sum = ncclNumOps;
  std::set<void*> registered;                                          ///< handles
  std::multimap<std::uintptr_t, const chorus::nccl::Window*> windows;  ///< the same, by address

  /// "rank 3 of communicator 0x…" for messages.
  [[nodiscard]] std::string who() const;
  /// Failures stay; success and progress replace each other.
  void set_state(ncclResult_t now);
  void fail(const chorus::nccl::Outcome& outcome);
  [[nodiscard]] std::shared_ptr<chorus::nccl::Body> hold() {
    const std::lock_guard lock(mutex);
    return body;
  }
};

namespace chorus::nccl {

/// The calling thread's GPU; 0 where it has none.
int current_device();

/// A new handle, kept for ever.
ncclComm* new_handle();

/// Throws Fault for null and for handles that were destroyed or aborted.
ncclComm& known(ncclComm_t comm);

/// The body for a call that needs a communicator in order. Throws Fault naming the state it is in.
std::shared_ptr<Body> in_order(ncclComm& comm);

/// Marks the communicator as used by this thread as long as this lives; within a group, until the
/// group's end. Throws Fault if another thread is in a call.
class Claim {
 public:
  explicit Claim(ncclComm& comm);
  Claim(Claim&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Claim& operator=(Claim&&) = delete;
  ~Claim();

 private:
  ncclComm* comm_;  ///< null: an outer claim of this thread holds it
};

/// Gives the body up: the rank leaves. Waits for it (and for siblings on their way) at most
/// `patience_ms` if no sibling is alive any more.
void leave(ncclComm& comm, int patience_ms);

/// A thread that gets no signals: those are the program's.
void start_thread(std::function<void()> run);

}  // namespace chorus::nccl
