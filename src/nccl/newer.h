/* What NCCL declares beyond nccl.h of 2.28.9: the host side of its device API, and the functions
 * that came with 2.29 to 2.32. Programs built against NVIDIA's own headers call them; layouts as
 * there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "chorus/nccl.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CHORUS_NCCL_DECLARE(Result, Name, Arguments) \
  Result nccl##Name Arguments;                       \
  Result pnccl##Name Arguments

/* Device API, host side (nccl_device.h of 2.28). Requirements and device communicators are passed
 * on as they are: nothing here looks into them. */
typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;
CHORUS_NCCL_DECLARE(ncclResult_t, DevCommCreate,
                    (ncclComm_t comm, const void* requirements, void* devComm));
CHORUS_NCCL_DECLARE(ncclResult_t, DevCommDestroy, (ncclComm_t comm, const void* devComm));
CHORUS_NCCL_DECLARE(ncclTeam_t, TeamWorld, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclTeam_t, TeamLsa, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclTeam_t, TeamRail, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
CHORUS_NCCL_DECLARE(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));
CHORUS_NCCL_DECLARE(ncclResult_t, LsaBarrierCreateRequirement,
                    (ncclTeam_t team, int barriers, void* handle, void* requirements));
CHORUS_NCCL_DECLARE(ncclResult_t, GinBarrierCreateRequirement,
                    (ncclComm_t comm, ncclTeam_t team, int barriers, void* handle,
                     void* requirements));
CHORUS_NCCL_DECLARE(int, LLA2ACalcSlots, (int elements, int element_bytes));
CHORUS_NCCL_DECLARE(ncclResult_t, LLA2ACreateRequirement,
                    (int blocks, int slots, void* handle, void* requirements));

/* 2.29. */
CHORUS_NCCL_DECLARE(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId* uniqueId));
CHORUS_NCCL_DECLARE(ncclResult_t, CommGrow,
                    (ncclComm_t comm, int ranks, const ncclUniqueId* uniqueId, int rank,
                     ncclComm_t* newcomm, ncclConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, WinGetUserPtr,
                    (ncclComm_t comm, ncclWindow_t window, void** pointer));
/* Its leading fields; a caller of a newer NCCL has more behind them. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  int ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
} ncclCommProperties_t;
CHORUS_NCCL_DECLARE(ncclResult_t, CommQueryProperties,
                    (ncclComm_t comm, ncclCommProperties_t* properties));
CHORUS_NCCL_DECLARE(ncclResult_t, PutSignal,
                    (const void* local, size_t count, ncclDataType_t type, int peer,
                     ncclWindow_t window, size_t offset, int signal, int context,
                     unsigned int flags, ncclComm_t comm, cudaStream_t stream));
CHORUS_NCCL_DECLARE(ncclResult_t, Signal,
                    (int peer, int signal, int context, unsigned int flags, ncclComm_t comm,
                     cudaStream_t stream));
typedef struct {
  int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
CHORUS_NCCL_DECLARE(ncclResult_t, WaitSignal,
                    (int count, ncclWaitSignalDesc_t* descriptions, ncclComm_t comm,
                     cudaStream_t stream));
CHORUS_NCCL_DECLARE(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags));
CHORUS_NCCL_DECLARE(ncclResult_t, CommResume, (ncclComm_t comm));
typedef enum {
  ncclStatGpuMemSuspend,
  ncclStatGpuMemSuspended,
  ncclStatGpuMemPersist,
  ncclStatGpuMemTotal
} ncclCommMemStat_t;
CHORUS_NCCL_DECLARE(ncclResult_t, CommMemStats,
                    (ncclComm_t comm, ncclCommMemStat_t statistic, uint64_t* value));

/* 2.30: questions about parameters. A handle is one parameter's. */
typedef void* ncclParamHandle_t;
CHORUS_NCCL_DECLARE(ncclResult_t, ParamBind, (ncclParamHandle_t * handle, const char* key));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetI8, (ncclParamHandle_t handle, int8_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetI16, (ncclParamHandle_t handle, int16_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetI32, (ncclParamHandle_t handle, int32_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetI64, (ncclParamHandle_t handle, int64_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetU8, (ncclParamHandle_t handle, uint8_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetU16, (ncclParamHandle_t handle, uint16_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetU32, (ncclParamHandle_t handle, uint32_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetU64, (ncclParamHandle_t handle, uint64_t* out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetStr, (ncclParamHandle_t handle, const char** out));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGet,
                    (ncclParamHandle_t handle, void* out, int max_bytes, int* bytes));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetParameter,
                    (const char* key, const char** value, int* length));
CHORUS_NCCL_DECLARE(ncclResult_t, ParamGetAllParameterKeys, (const char*** keys, int* count));
CHORUS_NCCL_DECLARE(void, ParamDumpAll, (void));

/* 2.29 to 2.32: device API, host side. Addresses of other ranks' windows, for kernels. */
CHORUS_NCCL_DECLARE(ncclResult_t, GetLsaDevicePointer,
                    (ncclWindow_t window, size_t offset, int lsaRank, void** out));
CHORUS_NCCL_DECLARE(ncclResult_t, GetPeerDevicePointer,
                    (ncclWindow_t window, size_t offset, int peer, void** out));
CHORUS_NCCL_DECLARE(ncclResult_t, GetLsaMultimemDevicePointer,
                    (ncclWindow_t window, size_t offset, void** out));
typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;
CHORUS_NCCL_DECLARE(ncclResult_t, GetMultimemDevicePointer,
                    (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem,
                     void** out));
CHORUS_NCCL_DECLARE(ncclResult_t, GetMultimemDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, uint32_t* leId, size_t* leOffset));
CHORUS_NCCL_DECLARE(ncclResult_t, GetCftDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, uint32_t* leId,
                     size_t* leOffset));
CHORUS_NCCL_DECLARE(ncclResult_t, GetPeerDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, int peer, uint32_t* leId,
                     size_t* leOffset));
CHORUS_NCCL_DECLARE(ncclTeam_t, TeamCft, (ncclComm_t comm, int mode));
CHORUS_NCCL_DECLARE(ncclTeam_t, TeamCftMultimem, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclResult_t, GinOutboxCreateRequirement,
                    (int blocks, int size_log2, void* handle, void* requirements));
CHORUS_NCCL_DECLARE(ncclResult_t, GinInboxA2ACreateRequirement,
                    (ncclTeam_t peers, int blocks, int size_log2, void* handle,
                     void* requirements));

/* 2.32: a key for all that goes over TCP. */
typedef struct ncclEncryptionConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode; /* 0: none, 1: a key known to all ranks */
  const char* psk;
} ncclEncryptionConfig_t;
CHORUS_NCCL_DECLARE(ncclResult_t, SetEncryption, (const ncclEncryptionConfig_t* config));

#undef CHORUS_NCCL_DECLARE
#pragma GCC visibility pop
#ifdef __cplusplus
} /* extern "C" */
#endif
