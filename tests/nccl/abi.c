/* Prints what an nccl.h lays down, for abi_test.sh to compare two of them. */
#include <nccl.h>
#include <stdio.h>

#define VALUE(name) printf(#name " %lld\n", (long long)(name))
#define SIZE(type) printf("sizeof " #type " %zu\n", sizeof(type))
#define FIELD(type, field) \
  printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(((type*)0)->field))

int main(void) {
  VALUE(NCCL_VERSION_CODE), VALUE(NCCL_UNIQUE_ID_BYTES), VALUE(NCCL_CONFIG_UNDEF_INT);
  VALUE(NCCL_SPLIT_NOCOLOR), VALUE(NCCL_WIN_DEFAULT), VALUE(NCCL_WIN_COLL_SYMMETRIC);
  VALUE(NCCL_WIN_REQUIRED_ALIGNMENT), VALUE(NCCL_CTA_POLICY_DEFAULT);
  VALUE(NCCL_CTA_POLICY_EFFICIENCY), VALUE(NCCL_CTA_POLICY_ZERO), VALUE(NCCL_SHRINK_DEFAULT);
  VALUE(NCCL_SHRINK_ABORT), VALUE(NCCL_REVOKE_DEFAULT), VALUE(NCCL_VERSION(2, 28, 9));
  VALUE(NCCL_VERSION(2, 8, 1)), VALUE(NCCL_UNDEF_FLOAT);
  VALUE(ncclSuccess), VALUE(ncclUnhandledCudaError), VALUE(ncclSystemError);
  VALUE(ncclInternalError), VALUE(ncclInvalidArgument), VALUE(ncclInvalidUsage);
  VALUE(ncclRemoteError), VALUE(ncclInProgress), VALUE(ncclNumResults);
  VALUE(ncclSum), VALUE(ncclProd), VALUE(ncclMax), VALUE(ncclMin), VALUE(ncclAvg);
  VALUE(ncclNumOps), VALUE(ncclMaxRedOp), VALUE(ncclNumOps_dummy);
  VALUE(ncclInt8), VALUE(ncclChar), VALUE(ncclUint8), VALUE(ncclInt32), VALUE(ncclInt);
  VALUE(ncclUint32), VALUE(ncclInt64), VALUE(ncclUint64), VALUE(ncclFloat16), VALUE(ncclHalf);
  VALUE(ncclFloat32), VALUE(ncclFloat), VALUE(ncclFloat64), VALUE(ncclDouble);
  VALUE(ncclBfloat16), VALUE(ncclFloat8e4m3), VALUE(ncclFloat8e5m2), VALUE(ncclNumTypes);
  VALUE(ncclScalarDevice), VALUE(ncclScalarHostImmediate);
  SIZE(ncclComm_t), SIZE(ncclWindow_t), SIZE(ncclUniqueId), SIZE(ncclResult_t);
  SIZE(ncclRedOp_t), SIZE(ncclDataType_t), SIZE(ncclScalarResidence_t), SIZE(cudaStream_t);
  SIZE(ncclConfig_t), SIZE(ncclSimInfo_t);
  FIELD(ncclConfig_t, size), FIELD(ncclConfig_t, magic), FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking), FIELD(ncclConfig_t, cgaClusterSize);
  FIELD(ncclConfig_t, minCTAs), FIELD(ncclConfig_t, maxCTAs), FIELD(ncclConfig_t, netName);
  FIELD(ncclConfig_t, splitShare), FIELD(ncclConfig_t, trafficClass);
  FIELD(ncclConfig_t, commName), FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy), FIELD(ncclConfig_t, shrinkShare), FIELD(ncclConfig_t, nvlsCTAs);
  FIELD(ncclConfig_t, nChannelsPerNetPeer), FIELD(ncclConfig_t, nvlinkCentricSched);
  FIELD(ncclSimInfo_t, size), FIELD(ncclSimInfo_t, magic), FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  printf("initializers %zu %x %u %d %d / %zu %x %u %g\n", config.size, config.magic, config.version,
         config.blocking, config.nvlinkCentricSched, info.size, info.magic, info.version,
         (double)info.estimatedTime);
  return 0;
}
