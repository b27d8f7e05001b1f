// The header has NCCL's ABI: values, sizes and offsets are what programs were compiled with.
#include <gtest/gtest.h>

#include <cstddef>

#include "chorus/nccl.h"

namespace {

static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2);
static_assert(ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5);
static_assert(ncclRemoteError == 6 && ncclInProgress == 7 && ncclNumResults == 8);
static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
static_assert(ncclNumOps == 5 && ncclMaxRedOp == 0x7fffffff && sizeof(ncclRedOp_t) == 4);
static_assert(ncclInt8 == 0 && ncclChar == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt == 2);
static_assert(ncclUint32 == 3 && ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6);
static_assert(ncclHalf == 6 && ncclFloat32 == 7 && ncclFloat == 7 && ncclFloat64 == 8);
static_assert(ncclDouble == 8 && ncclBfloat16 == 9 && ncclFloat8e4m3 == 10);
static_assert(ncclFloat8e5m2 == 11 && ncclNumTypes == 12 && sizeof(ncclDataType_t) == 4);
static_assert(ncclScalarDevice == 0 && ncclScalarHostImmediate == 1);
static_assert(NCCL_VERSION_CODE == 22809 && NCCL_VERSION(2, 28, 9) == 22809);
static_assert(NCCL_VERSION(2, 8, 4) == 2804);
static_assert(sizeof(ncclUniqueId) == 128 && alignof(ncclUniqueId) == 1);
static_assert(sizeof(ncclConfig_t) == 80 && offsetof(ncclConfig_t, magic) == 8);
static_assert(offsetof(ncclConfig_t, version) == 12 && offsetof(ncclConfig_t, blocking) == 16);
static_assert(offsetof(ncclConfig_t, netName) == 32 && offsetof(ncclConfig_t, splitShare) == 40);
static_assert(offsetof(ncclConfig_t, trafficClass) == 44 && offsetof(ncclConfig_t, commName) == 48);
static_assert(offsetof(ncclConfig_t, collnetEnable) == 56 &&
              offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
static_assert(sizeof(ncclSimInfo_t) == 24 && offsetof(ncclSimInfo_t, estimatedTime) == 16);

TEST(Header, InitializersSayWhatTheLibraryChecks) {
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(config.size, sizeof config);
  EXPECT_EQ(config.magic, 0xcafebeefU);
  EXPECT_EQ(config.version, 22809U);
  EXPECT_EQ(config.blocking, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(config.nvlinkCentricSched, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(config.commName, nullptr);
  const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(info.magic, 0x74685283U);
  EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT);
}

}  // namespace
