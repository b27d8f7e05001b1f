/* The C API of NCCL 2.28.9 as libnccl.so.2 of Chorus offers it: the same names, values and layouts,
 * so that programs built against NVIDIA's header run with this library and the other way round.
 * What is real, what answers with an error, and how host and device memory differ: docs/nccl.md.
 *
 * C99 and C++. Needs no CUDA toolkit: where cuda_runtime.h is not found, a stream is an opaque
 * pointer, and programs pass host memory and a null stream. Define CHORUS_NCCL_WITHOUT_CUDA to have
 * it so even where the toolkit is found.
 *
 * Every function returns ncclSuccess or says in ncclGetLastError() what was wrong, on which rank,
 * and what to do about it. Every function also exists as pnccl…, which a profiler's nccl… may call.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(CHORUS_NCCL_WITHOUT_CUDA) && defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#define CHORUS_NCCL_HAS_CUDA 1
#endif
#endif
#ifndef CHORUS_NCCL_HAS_CUDA
typedef struct CUstream_st* cudaStream_t;
#endif

/* NOLINTBEGIN(readability-identifier-naming): the names are NCCL's. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 22809
/* Versions up to 2.8 are written with two digits after the major one. */
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* One rank's end of a communicator. A handle that was destroyed or aborted stays recognisable:
 * using it is an error, not a crash. */
typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

/* Where the ranks of one communicator meet; made once, handed to all as 128 bytes, used once. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4, /* this call alone was refused; nothing else is affected */
  ncclInvalidUsage = 5,
  ncclRemoteError = 6, /* another rank died, left or stopped answering */
  ncclInProgress = 7,
  ncclTimeout = 8, /* since 2.29; no function here returns it */
  ncclNumResults = 8
} ncclResult_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* from here on: made by ncclRedOpCreatePreMulSum */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* When the scalar of a pre-multiplied sum is read: by the call that runs, or at once. */
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00 /* the parent is well and has nothing under way */
#define NCCL_SHRINK_ABORT 0x01   /* fails what the parent has under way, then shrinks */

#define NCCL_REVOKE_DEFAULT 0x00

/* Settings of one communicator; begin with NCCL_CONFIG_INITIALIZER. Of these, blocking, commName
 * and netName ("Socket": no RDMA) have an effect; the rest are checked and noted in the log. */
typedef struct ncclConfig_v22800 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                         \
  {                                                                                     \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                                    \
  }

/* What ncclGroupSimulateEnd predicts, in microseconds. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                        \
  {                                                                                      \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_UNDEF_FLOAT                                                                 \
  }

#if defined(__cplusplus)
#define CHORUS_NCCL_NO_ARGUMENTS
#else
#define CHORUS_NCCL_NO_ARGUMENTS void
#endif
/* Declares ncclName and pncclName. */
#define CHORUS_NCCL_DECLARE(Result, Name, Arguments) \
  Result nccl##Name Arguments;                       \
  Result pnccl##Name Arguments

/* Version and errors. The text of the last error is the calling thread's own copy, good until its
 * next ncclGetLastError(). */
CHORUS_NCCL_DECLARE(ncclResult_t, GetVersion, (int* version));
CHORUS_NCCL_DECLARE(const char*, GetErrorString, (ncclResult_t result));
CHORUS_NCCL_DECLARE(const char*, GetLastError, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(void, ResetDebugInit, (CHORUS_NCCL_NO_ARGUMENTS));

/* Meeting. Blocks until all ranks have come, or, within a group, at its end; of a communicator
 * whose config says blocking = 0, in the background. */
CHORUS_NCCL_DECLARE(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId));
CHORUS_NCCL_DECLARE(ncclResult_t, CommInitRank,
                    (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
CHORUS_NCCL_DECLARE(ncclResult_t, CommInitRankConfig,
                    (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank,
                     ncclConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, CommInitRankScalable,
                    (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                     ncclConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int* devlist));

/* Parting. Only ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError may come from a second
 * thread. */
CHORUS_NCCL_DECLARE(ncclResult_t, CommFinalize, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclResult_t, CommDestroy, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclResult_t, CommAbort, (ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags));
CHORUS_NCCL_DECLARE(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError));

/* Smaller communicators. Split is called by all ranks; shrink by those that stay. */
CHORUS_NCCL_DECLARE(ncclResult_t, CommSplit,
                    (ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                     ncclConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, CommShrink,
                    (ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                     ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags));

CHORUS_NCCL_DECLARE(ncclResult_t, CommCount, (const ncclComm_t comm, int* count));
CHORUS_NCCL_DECLARE(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int* device));
CHORUS_NCCL_DECLARE(ncclResult_t, CommUserRank, (const ncclComm_t comm, int* rank));

/* Memory that ranks of one host reach without a copy, and buffers announced beforehand. */
CHORUS_NCCL_DECLARE(ncclResult_t, MemAlloc, (void** ptr, size_t size));
CHORUS_NCCL_DECLARE(ncclResult_t, MemFree, (void* ptr));
CHORUS_NCCL_DECLARE(ncclResult_t, CommRegister,
                    (const ncclComm_t comm, void* buff, size_t size, void** handle));
CHORUS_NCCL_DECLARE(ncclResult_t, CommDeregister, (const ncclComm_t comm, void* handle));
CHORUS_NCCL_DECLARE(ncclResult_t, CommWindowRegister,
                    (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags));
CHORUS_NCCL_DECLARE(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));

/* Sums whose inputs are first multiplied by this rank's scalar. */
CHORUS_NCCL_DECLARE(ncclResult_t, RedOpCreatePreMulSum,
                    (ncclRedOp_t * op, void* scalar, ncclDataType_t datatype,
                     ncclScalarResidence_t residence, ncclComm_t comm));
CHORUS_NCCL_DECLARE(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Collectives. Counts are elements of one rank's block. In host memory a call is complete when it
 * returns, or, within a group, when the group's end does; the stream then plays no part. */

/* sendbuff [count] → recvbuff [count] on root; in place if equal. */
CHORUS_NCCL_DECLARE(ncclResult_t, Reduce,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream));
/* buff [count] of root → buff of all. */
CHORUS_NCCL_DECLARE(ncclResult_t, Bcast,
                    (void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                     cudaStream_t stream));
/* sendbuff [count] of root → recvbuff [count] of all; in place if equal. */
CHORUS_NCCL_DECLARE(ncclResult_t, Broadcast,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream));
/* sendbuff [count] → recvbuff [count]; in place if equal. */
CHORUS_NCCL_DECLARE(ncclResult_t, AllReduce,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream));
/* sendbuff [ranks · recvcount] → recvbuff [recvcount]; in place if recvbuff is this rank's block.
 */
CHORUS_NCCL_DECLARE(ncclResult_t, ReduceScatter,
                    (const void* sendbuff, void* recvbuff, size_t recvcount,
                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                     cudaStream_t stream));
/* sendbuff [sendcount] → recvbuff [ranks · sendcount]; in place if sendbuff is this rank's block.
 */
CHORUS_NCCL_DECLARE(ncclResult_t, AllGather,
                    (const void* sendbuff, void* recvbuff, size_t sendcount,
                     ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream));
/* sendbuff [ranks · count] → recvbuff [ranks · count]; block i goes to rank i. In place if equal.
 */
CHORUS_NCCL_DECLARE(ncclResult_t, AlltoAll,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclComm_t comm, cudaStream_t stream));
/* sendbuff [count] → recvbuff [ranks · count] on root; in place if sendbuff is root's block. */
CHORUS_NCCL_DECLARE(ncclResult_t, Gather,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream));
/* sendbuff [ranks · count] of root → recvbuff [count]; in place if recvbuff is root's block. */
CHORUS_NCCL_DECLARE(ncclResult_t, Scatter,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream));

/* One call's settings (of NCCL 2.31); begin with NCCL_COLLCONFIG_INITIALIZER. The same on all
 * ranks.
 *
 * algSelection names the schedule that the call takes: one of `chorus algorithms`, in any case, or
 * of the communicator's plan; null or "": the selected one. Where it cannot serve, the call is
 * refused, or, with forceAlgSelection 0, takes the selected one. launchCompletionEvent is recorded
 * before the launch (GPU memory alone). The rest is checked and has no effect; ext is not read. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

typedef struct ncclCollConfig_v23100 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;
  struct CUevent_st* launchCompletionEvent;
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                      \
  {                                                                                      \
    sizeof(ncclCollConfig_t), 0xcafebeef, NCCL_VERSION(2, 32, 3), NCCL_CONFIG_UNDEF_PTR, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,             \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, 1, NCCL_CONFIG_UNDEF_INT, 0,       \
        NCCL_CONFIG_UNDEF_PTR                                                            \
  }

/* The collectives above with settings; null: none. */
CHORUS_NCCL_DECLARE(ncclResult_t, AllReduceConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, BroadcastConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, ReduceConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, AllGatherConfig,
                    (const void* sendbuff, void* recvbuff, size_t sendcount,
                     ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, ReduceScatterConfig,
                    (const void* sendbuff, void* recvbuff, size_t recvcount,
                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, AlltoAllConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, GatherConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));
CHORUS_NCCL_DECLARE(ncclResult_t, ScatterConfig,
                    (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream,
                     const ncclCollConfig_t* config));

/* Messages; also of 0 elements, and, within a group, to oneself. Those of one group cannot block
 * each other. */
CHORUS_NCCL_DECLARE(ncclResult_t, Send,
                    (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                     ncclComm_t comm, cudaStream_t stream));
CHORUS_NCCL_DECLARE(ncclResult_t, Recv,
                    (void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                     ncclComm_t comm, cudaStream_t stream));

/* Groups, of this thread: what is called between start and end runs together at the (outermost)
 * end, which reports the errors of all but refused arguments. One thread may so hold several ranks.
 */
CHORUS_NCCL_DECLARE(ncclResult_t, GroupStart, (CHORUS_NCCL_NO_ARGUMENTS));
CHORUS_NCCL_DECLARE(ncclResult_t, GroupEnd, (CHORUS_NCCL_NO_ARGUMENTS));
/* Runs nothing; the group is over afterwards. */
CHORUS_NCCL_DECLARE(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo));

#undef CHORUS_NCCL_DECLARE
#undef CHORUS_NCCL_NO_ARGUMENTS
#pragma GCC visibility pop
#ifdef __cplusplus
} /* extern "C" */
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* NCCL_H_ */
