// The host side of NCCL's device API. Its structures are read by kernels compiled into the program,
// in a layout that is private to one version of NCCL, so nothing here can stand in for it: programs
// that only ask learn that it is not there. Teams are answered as ranks that reach nobody's memory.
#include "nccl/comm.hpp"
#include "nccl/newer.h"

namespace chorus::nccl {
namespace {

ncclResult_t no_device_api(const char* function) {
  return guarded(function, [&]() -> ncclResult_t {
    refuse(ncclInvalidUsage,
           "Chorus does not support NCCL's device API: its structures are compiled into the "
           "program's kernels; use the host API, or NVIDIA's library for this program");
  });
}

ncclTeam_t world_of(ncclComm_t comm) {
  ncclTeam_t team = {};
  (void)guarded("ncclTeamWorld", [&] {
    const ncclComm& asked = known(comm);
    team = {asked.ranks, asked.rank, 1};
    return ncclSuccess;
  });
  return team;
}

ncclTeam_t alone() { return {1, 0, 1}; }

/// Where another rank's window lies: there are none.
ncclResult_t no_address(const char* function, void** out) {
  if (out != nullptr) *out = nullptr;
  return no_device_api(function);
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclDevCommCreate(ncclComm_t /*comm*/, const void* /*requirements*/,
                                           void* /*devComm*/) {
  return no_device_api("ncclDevCommCreate");
}
CHORUS_NCCL_EXPORT(DevCommCreate);

extern "C" ncclResult_t pncclDevCommDestroy(ncclComm_t /*comm*/, const void* /*devComm*/) {
  return no_device_api("ncclDevCommDestroy");
}
CHORUS_NCCL_EXPORT(DevCommDestroy);

extern "C" ncclTeam_t pncclTeamWorld(ncclComm_t comm) { return world_of(comm); }
CHORUS_NCCL_EXPORT(TeamWorld);

extern "C" ncclTeam_t pncclTeamLsa(ncclComm_t /*comm*/) { return alone(); }
CHORUS_NCCL_EXPORT(TeamLsa);

extern "C" ncclTeam_t pncclTeamRail(ncclComm_t comm) { return world_of(comm); }
CHORUS_NCCL_EXPORT(TeamRail);

extern "C" int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return world_of(comm).rank + (rank - team.rank) * team.stride;
}
CHORUS_NCCL_EXPORT(TeamRankToWorld);

extern "C" int pncclTeamRankToLsa(ncclComm_t /*comm*/, ncclTeam_t team, int rank) {
  return (rank - team.rank) * team.stride;
}
CHORUS_NCCL_EXPORT(TeamRankToLsa);

extern "C" ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t /*team*/, int /*barriers*/,
                                                         void* /*handle*/, void* /*requirements*/) {
  return no_device_api("ncclLsaBarrierCreateRequirement");
}
CHORUS_NCCL_EXPORT(LsaBarrierCreateRequirement);

extern "C" ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t /*comm*/, ncclTeam_t /*team*/,
                                                         int /*barriers*/, void* /*handle*/,
                                                         void* /*requirements*/) {
  return no_device_api("ncclGinBarrierCreateRequirement");
}
CHORUS_NCCL_EXPORT(GinBarrierCreateRequirement);

extern "C" int pncclLLA2ACalcSlots(int /*elements*/, int /*element_bytes*/) { return 0; }
CHORUS_NCCL_EXPORT(LLA2ACalcSlots);

extern "C" ncclResult_t pncclLLA2ACreateRequirement(int /*blocks*/, int /*slots*/, void* /*handle*/,
                                                    void* /*requirements*/) {
  return no_device_api("ncclLLA2ACreateRequirement");
}
CHORUS_NCCL_EXPORT(LLA2ACreateRequirement);

extern "C" ncclTeam_t pncclTeamCft(ncclComm_t /*comm*/, int /*mode*/) { return alone(); }
CHORUS_NCCL_EXPORT(TeamCft);

extern "C" ncclTeam_t pncclTeamCftMultimem(ncclComm_t /*comm*/) { return alone(); }
CHORUS_NCCL_EXPORT(TeamCftMultimem);

extern "C" ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                                 int /*lsaRank*/, void** out) {
  return no_address("ncclGetLsaDevicePointer", out);
}
CHORUS_NCCL_EXPORT(GetLsaDevicePointer);

extern "C" ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                                  int /*peer*/, void** out) {
  return no_address("ncclGetPeerDevicePointer", out);
}
CHORUS_NCCL_EXPORT(GetPeerDevicePointer);

extern "C" ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                                         void** out) {
  return no_address("ncclGetLsaMultimemDevicePointer", out);
}
CHORUS_NCCL_EXPORT(GetLsaMultimemDevicePointer);

extern "C" ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t /*window*/, size_t /*offset*/,
                                                      ncclMultimemHandle_t /*multimem*/,
                                                      void** out) {
  return no_address("ncclGetMultimemDevicePointer", out);
}
CHORUS_NCCL_EXPORT(GetMultimemDevicePointer);

extern "C" ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/,
                                                     uint32_t* /*leId*/, size_t* /*leOffset*/) {
  return no_device_api("ncclGetMultimemDeviceLeInfo");
}
CHORUS_NCCL_EXPORT(GetMultimemDeviceLeInfo);

extern "C" ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/,
                                                int /*peer*/, ncclTeam_t /*team*/,
                                                uint32_t* /*leId*/, size_t* /*leOffset*/) {
  return no_device_api("ncclGetCftDeviceLeInfo");
}
CHORUS_NCCL_EXPORT(GetCftDeviceLeInfo);

extern "C" ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t /*window*/, size_t /*offset*/,
                                                 int /*peer*/, uint32_t* /*leId*/,
                                                 size_t* /*leOffset*/) {
  return no_device_api("ncclGetPeerDeviceLeInfo");
}
CHORUS_NCCL_EXPORT(GetPeerDeviceLeInfo);

extern "C" ncclResult_t pncclGinOutboxCreateRequirement(int /*blocks*/, int /*size_log2*/,
                                                        void* /*handle*/, void* /*requirements*/) {
  return no_device_api("ncclGinOutboxCreateRequirement");
}
CHORUS_NCCL_EXPORT(GinOutboxCreateRequirement);

extern "C" ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t /*peers*/, int /*blocks*/,
                                                          int /*size_log2*/, void* /*handle*/,
                                                          void* /*requirements*/) {
  return no_device_api("ncclGinInboxA2ACreateRequirement");
}
CHORUS_NCCL_EXPORT(GinInboxA2ACreateRequirement);
