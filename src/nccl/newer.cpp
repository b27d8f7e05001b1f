// What came with NCCL 2.29 and later, on the host.
#include "nccl/newer.h"

#include <cstring>

#include "nccl/init.hpp"
#include "nccl/window.hpp"

namespace chorus::nccl {
namespace {

ncclResult_t not_supported(const char* function, const char* instead) {
  return guarded(function, [&]() -> ncclResult_t {
    refuse(ncclInvalidUsage, "Chorus does not support {}: use {}", function, instead);
  });
}

/// The id that one rank was given: the others pass nothing, so the largest is it.
std::string shared_id(Communicator& communicator, ncclUniqueId id) {
  communicator.all_reduce(
      std::span(reinterpret_cast<std::uint8_t*>(id.internal), sizeof id.internal), ReduceOp::max);
  return text_of(id);
}

ncclResult_t grow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* out,
                  const ncclConfig_t* given) {
  if (out == nullptr) refuse(ncclInvalidArgument, "the place for the communicator is null");
  *out = nullptr;
  Joining joining{.rank = rank, .ranks = ranks, .function = "ncclCommGrow"};
  if (comm == nullptr) {
    if (id == nullptr) refuse(ncclInvalidArgument, "a new rank needs the unique id");
    if (rank < 0 || rank >= ranks) {
      refuse(ncclInvalidArgument, "new rank {} of {}: ranks count from 0", rank, ranks);
    }
    joining.id = text_of(*id);
    joining.config = config_of(given);
    joining.device = current_device();
    ncclComm* const child = handle_for(joining);
    return add_maker({.child = child,
                      .result = out,
                      .blocking = joining.config.blocking,
                      .run = [child, joining] { join(*child, joining); }},
                     {});
  }
  ncclComm& parent = known(comm);
  std::vector<Claim> claims;
  claims.emplace_back(parent);
  const auto body = in_order(parent);
  if (ranks <= parent.ranks || rank != -1) {
    refuse(ncclInvalidArgument,
           "{} cannot grow to {} ranks as rank {}: there must be more ranks than now, and those "
           "that exist pass rank -1",
           parent.who(), ranks, rank);
  }
  joining.rank = parent.rank;
  joining.device = parent.device;
  joining.config = config_of(given, parent.config);
  const ncclUniqueId mine = id == nullptr ? ncclUniqueId{} : *id;
  ncclComm* const child = handle_for(joining);
  return add_maker({.parent = &parent,
                    .child = child,
                    .result = out,
                    .blocking = parent.config.blocking,
                    .run =
                        [child, joining, body, mine]() mutable {
                          joining.id = shared_id(body->communicator, mine);
                          join(*child, joining, &body->communicator);
                        }},
                   std::move(claims));
}

/// Fields that the caller's structure holds.
ncclResult_t properties_of(ncclComm& comm, ncclCommProperties_t* out) {
  if (out == nullptr || out->magic != 0xcafebeef ||
      out->size < offsetof(ncclCommProperties_t, rank)) {
    refuse(ncclInvalidArgument,
           "ncclCommProperties_t was not initialized: begin with NCCL_COMM_PROPERTIES_INITIALIZER");
  }
  (void)in_order(comm);
  ncclCommProperties_t properties = {};
  properties.size = out->size;
  properties.magic = out->magic;
  properties.version = out->version;
  properties.rank = comm.rank;
  properties.nRanks = comm.ranks;
  properties.cudaDev = properties.nvmlDev = comm.device;
  properties.nLsaTeams = comm.ranks;  // nobody reaches another rank's memory from a kernel
  std::memcpy(out, &properties, std::min(out->size, sizeof properties));
  return ncclSuccess;
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  return guarded("ncclCommGetUniqueId", [&] {
    if (uniqueId == nullptr) refuse(ncclInvalidArgument, "the place for the id is null");
    (void)in_order(known(comm));
    *uniqueId = make_id(false);
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommGetUniqueId);

extern "C" ncclResult_t pncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* uniqueId,
                                      int rank, ncclComm_t* newcomm, ncclConfig_t* config) {
  return guarded("ncclCommGrow",
                 [&] { return grow(comm, ranks, uniqueId, rank, newcomm, config); });
}
CHORUS_NCCL_EXPORT(CommGrow);

extern "C" ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer) {
  return guarded("ncclWinGetUserPtr", [&] {
    if (pointer == nullptr) refuse(ncclInvalidArgument, "the place for the pointer is null");
    *pointer = known_window(known(comm), window).buffer;
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(WinGetUserPtr);

extern "C" ncclResult_t pncclCommQueryProperties(ncclComm_t comm,
                                                 ncclCommProperties_t* properties) {
  return guarded("ncclCommQueryProperties", [&] { return properties_of(known(comm), properties); });
}
CHORUS_NCCL_EXPORT(CommQueryProperties);

extern "C" ncclResult_t pncclPutSignal(const void* /*local*/, size_t /*count*/,
                                       ncclDataType_t /*type*/, int /*peer*/,
                                       ncclWindow_t /*window*/, size_t /*offset*/, int /*signal*/,
                                       int /*context*/, unsigned int /*flags*/, ncclComm_t /*comm*/,
                                       cudaStream_t /*stream*/) {
  return not_supported("ncclPutSignal", "ncclSend and ncclRecv");
}
CHORUS_NCCL_EXPORT(PutSignal);

extern "C" ncclResult_t pncclSignal(int /*peer*/, int /*signal*/, int /*context*/,
                                    unsigned int /*flags*/, ncclComm_t /*comm*/,
                                    cudaStream_t /*stream*/) {
  return not_supported("ncclSignal", "an ncclSend of 0 elements");
}
CHORUS_NCCL_EXPORT(Signal);

extern "C" ncclResult_t pncclWaitSignal(int /*count*/, ncclWaitSignalDesc_t* /*descriptions*/,
                                        ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return not_supported("ncclWaitSignal", "an ncclRecv of 0 elements");
}
CHORUS_NCCL_EXPORT(WaitSignal);

// There is no GPU memory of the library's own that could be given back meanwhile.
extern "C" ncclResult_t pncclCommSuspend(ncclComm_t comm, int /*flags*/) {
  return guarded("ncclCommSuspend", [&] {
    (void)in_order(known(comm));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommSuspend);

extern "C" ncclResult_t pncclCommResume(ncclComm_t comm) {
  return guarded("ncclCommResume", [&] {
    (void)in_order(known(comm));
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommResume);

extern "C" ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t statistic,
                                          uint64_t* value) {
  return guarded("ncclCommMemStats", [&] {
    (void)in_order(known(comm));
    const auto number = static_cast<int>(statistic);
    if (value == nullptr || number < 0 || number > ncclStatGpuMemTotal) {
      refuse(ncclInvalidArgument, "statistic {} does not exist, or the place for it is null",
             number);
    }
    *value = 0;
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(CommMemStats);

extern "C" ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config) {
  return guarded("ncclSetEncryption", [&] {
    if (config == nullptr || config->magic != 0xcafebeef ||
        config->size < sizeof(ncclEncryptionConfig_t)) {
      refuse(ncclInvalidArgument,
             "ncclEncryptionConfig_t was not initialized: begin with "
             "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    }
    if (config->mode != 0) {
      refuse(ncclInvalidUsage,
             "Chorus encrypts nothing: encrypt the network (WireGuard, IPsec) and ask for mode 0");
    }
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(SetEncryption);
