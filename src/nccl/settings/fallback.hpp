// Single operations on GPU memory that go to another libnccl beside this one.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "chorus/nccl.h"
#include "runtime/gpu/communicator.hpp"

namespace chorus::nccl {

/// The other library's communicator of the same ranks (CHORUS_NCCL_FALLBACK_LIBRARY).
class Fallback {
 public:
  /// Collective; null where nobody asks for it. Throws Fault if only some ranks do, if the library
  /// cannot be loaded, or with its own code if it refuses.
  static std::unique_ptr<Fallback> make(Communicator& communicator, int device);
  ~Fallback();
  Fallback(const Fallback&) = delete;
  Fallback& operator=(const Fallback&) = delete;

  /// True for what CHORUS_NCCL_FALLBACK lists: "allreduce,alltoall", "send", or "all".
  [[nodiscard]] bool serves(Call::Kind kind) const;
  /// True if the library has such calls: older ones have no all-to-all, gather or scatter.
  [[nodiscard]] bool offers(Call::Kind kind) const;
  /// Enqueues calls that it offers, several of them as a group. Throws Fault with the library's
  /// code.
  void enqueue(std::span<const DeviceCall> calls);
  /// Waits for what was enqueued; there may be no more calls.
  void finish();
  /// From any thread; once.
  void abort();
  [[nodiscard]] ncclResult_t async_error() const;

 private:
  struct Library;
  Fallback(const Library& library, std::string list);
  void check(ncclResult_t result, const char* doing) const;
  ncclResult_t call(const DeviceCall& call) const;

  const Library& library_;
  std::string list_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}  // namespace chorus::nccl
