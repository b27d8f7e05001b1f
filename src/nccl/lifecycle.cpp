// Communicators end, and say how they are.
#include "base/clock.hpp"
#include "nccl/group.hpp"
#include "nccl/log.hpp"

namespace chorus::nccl {
namespace {

/// How long ncclCommDestroy waits for other ranks to leave too, before it leaves that to the
/// background: they may be busy with something else, or destroy in another order.
constexpr int kDestroyPatienceMs = 5'000;
/// The same for ncclCommAbort, where nobody else is expected to be in order.
constexpr int kAbortPatienceMs = 2'000;
/// Between looks for a failure that another rank met, by those who poll.
constexpr std::int64_t kLookEveryNs = 1'000'000;

void tell(const ncclComm& comm, std::string_view what) {
  if (!writes(Level::info, Subsystem::init)) return;
  info(Subsystem::init,
       fmt::format("comm {} rank {} nranks {} cudaDev {} busId 0 - {} COMPLETE",
                   static_cast<const void*>(&comm), comm.rank, comm.ranks, comm.device, what));
}

/// Only one of several threads ends a communicator.
bool take_end(ncclComm& comm) {
  return comm.phase.exchange(Phase::gone, std::memory_order_acq_rel) != Phase::gone;
}

void abort(ncclComm& comm) {
  if (!take_end(comm)) refuse(ncclInvalidArgument, "{} is being ended already", comm.who());
  if (const auto body = comm.hold()) {
    const std::string reason = fmt::format("ncclCommAbort was called on rank {}", comm.rank);
    body->communicator.abort(reason);
    if (body->gpu) body->gpu->abort(reason);
    if (body->fallback) body->fallback->abort();
  }
  leave(comm, kAbortPatienceMs);
  tell(comm, "Abort");
}

void destroy(ncclComm& comm) {
  // Not complete or broken: there is nothing to take leave of.
  const int state = comm.state.load();
  const bool finalizing = comm.phase == Phase::finalized && state == ncclInProgress;
  if (comm.phase == Phase::joining || (state != ncclSuccess && !finalizing)) return abort(comm);
  const Claim claim(comm);
  if (!take_end(comm)) refuse(ncclInvalidArgument, "{} is being ended already", comm.who());
  leave(comm, kDestroyPatienceMs);
  tell(comm, "Destroy");
}

/// Calls on host memory have ended when they return; kernels are waited for, by non-blocking
/// communicators in the background.
ncclResult_t finalize(ncclComm& comm) {
  std::vector<Claim> claims;
  claims.emplace_back(comm);
  if (comm.phase == Phase::finalized) {
    refuse(ncclInvalidArgument, "{} was finalized before", comm.who());
  }
  const auto body = in_order(comm);
  comm.phase = Phase::finalized;
  if (!body->gpu && !body->fallback) return ncclSuccess;
  return Group::mine().add(Task{.parent = &comm,
                                .blocking = comm.config.blocking,
                                .run =
                                    [body] {
                                      if (body->gpu) body->gpu->finish();
                                      if (body->fallback) body->fallback->finish();
                                    }},
                           std::move(claims));
}

void revoke(ncclComm& comm, int flags) {
  if (flags != NCCL_REVOKE_DEFAULT) {
    refuse(ncclInvalidArgument, "{}: flags {}: must be NCCL_REVOKE_DEFAULT", comm.who(), flags);
  }
  Phase expected = Phase::ready;
  if (!comm.phase.compare_exchange_strong(expected, Phase::revoked)) {
    if (expected == Phase::revoked) return;
    refuse(ncclInvalidUsage, "{} cannot be revoked: it is {}", comm.who(),
           expected == Phase::finalized ? "finalized" : "not complete");
  }
  const auto body = comm.hold();
  if (!body) return;
  const std::string reason = fmt::format("ncclCommRevoke was called on rank {}", comm.rank);
  body->communicator.abort(reason);
  if (body->gpu) body->gpu->abort(reason);
  if (body->fallback) body->fallback->abort();
}

/// Looks, now and then, for a failure that no call has met yet. Never waits for another thread.
void look_for_failure(ncclComm& comm) {
  const std::int64_t now = steady_ns();
  std::int64_t next = comm.next_look_ns.load(std::memory_order_relaxed);
  if (now < next || !comm.next_look_ns.compare_exchange_strong(next, now + kLookEveryNs)) return;
  std::shared_ptr<Body> body;
  {
    const std::unique_lock lock(comm.mutex, std::try_to_lock);
    if (!lock) return;
    body = comm.body;
  }
  if (!body) return;
  if (const std::string* error = body->gpu ? body->gpu->error() : nullptr) {
    comm.fail(Outcome::of_failure(*error));
  } else if (body->fallback && body->fallback->async_error() != ncclSuccess) {
    comm.fail(
        {body->fallback->async_error(), "the library of CHORUS_NCCL_FALLBACK_LIBRARY failed"});
  } else if (const auto why = body->communicator.failure()) {
    comm.fail(Outcome::of_failure(fmt::format("rank {}: {}", comm.rank, *why)));
  }
}

ncclResult_t async_error(ncclComm& comm, ncclResult_t* out) {
  if (out == nullptr) refuse(ncclInvalidArgument, "{}: the place for it is null", comm.who());
  if (comm.phase == Phase::ready && comm.state.load() == ncclSuccess) look_for_failure(comm);
  const Phase phase = comm.phase;
  // A revoked communicator is quiet as soon as its calls have returned; that is no error.
  *out = phase == Phase::revoked
             ? (comm.user.load() == 0 ? ncclSuccess : ncclInProgress)
             : static_cast<ncclResult_t>(comm.state.load(std::memory_order_acquire));
  return ncclSuccess;
}

/// For questions whose answer is constant once the communicator is complete.
template <class Value>
ncclResult_t answer(const char* function, ncclComm_t comm, int* out, Value value) {
  return guarded(function, [&] {
    ncclComm& asked = known(comm);
    if (out == nullptr) refuse(ncclInvalidArgument, "{}: the place for it is null", asked.who());
    if (asked.phase.load(std::memory_order_acquire) == Phase::joining) {
      refuse(ncclInvalidArgument, "{} is not complete yet", asked.who());
    }
    *out = value(asked);
    return ncclSuccess;
  });
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return guarded("ncclCommFinalize", [&] { return finalize(known(comm)); });
}
CHORUS_NCCL_EXPORT(CommFinalize);

extern "C" ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  return guarded("ncclCommDestroy", [&] {
    if (comm != nullptr) destroy(known(comm));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommDestroy);

extern "C" ncclResult_t pncclCommAbort(ncclComm_t comm) {
  return guarded("ncclCommAbort", [&] {
    if (comm != nullptr) chorus::nccl::abort(known(comm));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommAbort);

extern "C" ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return guarded("ncclCommRevoke", [&] {
    revoke(known(comm), revokeFlags);
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommRevoke);

extern "C" ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return guarded("ncclCommGetAsyncError", [&] { return async_error(known(comm), asyncError); });
}
CHORUS_NCCL_EXPORT(CommGetAsyncError);

extern "C" ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return answer("ncclCommCount", comm, count, [](const ncclComm& asked) { return asked.ranks; });
}
CHORUS_NCCL_EXPORT(CommCount);

extern "C" ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return answer("ncclCommCuDevice", comm, device,
                [](const ncclComm& asked) { return asked.device; });
}
CHORUS_NCCL_EXPORT(CommCuDevice);

extern "C" ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return answer("ncclCommUserRank", comm, rank, [](const ncclComm& asked) { return asked.rank; });
}
CHORUS_NCCL_EXPORT(CommUserRank);

extern "C" void pncclResetDebugInit() { reset_log(); }
CHORUS_NCCL_EXPORT(ResetDebugInit);

/// NVIDIA's library shows it too, and some programs were linked with it.
extern "C" [[gnu::visibility("default")]] void ncclResetDebugInitInternal();
extern "C" void ncclResetDebugInitInternal() { reset_log(); }
