// Collectives with settings of their own (NCCL 2.31).
#include <algorithm>
#include <cstring>

#include "nccl/operations.hpp"
#include "nccl/settings/environment.hpp"

namespace chorus::nccl {
namespace {

using Kind = Call::Kind;

constexpr unsigned kCallMagic = 0xcafebeef;

void check_call(const char* field, int value, int low, int high) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= low && value <= high)) return;
  refuse(ncclInvalidArgument, "ncclCollConfig_t: {} is {}, but must be in [{}, {}] or undefined",
         field, value, low, high);
}

}  // namespace

CallConfig read_call_config(const ncclCollConfig_t* given) {
  if (given == nullptr) return {};
  if (given->size < offsetof(ncclCollConfig_t, ext) || given->magic != kCallMagic) {
    refuse(ncclInvalidArgument,
           "ncclCollConfig_t was not initialized: begin with ncclCollConfig_t config = "
           "NCCL_COLLCONFIG_INITIALIZER");
  }
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  std::memcpy(&config, given, std::min(given->size, sizeof config));
  check_call("minCTAs", config.minCTAs, 1, INT_MAX);
  check_call("maxCTAs", config.maxCTAs, 1, INT_MAX);
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs) {
    refuse(ncclInvalidArgument, "ncclCollConfig_t: minCTAs {} is larger than maxCTAs {}",
           config.minCTAs, config.maxCTAs);
  }
  check_call("nvlsCTAs", config.nvlsCTAs, 1, INT_MAX);
  check_call("cgaClusterSize", config.cgaClusterSize, 0, 8);
  check_call("forceAlgSelection", config.forceAlgSelection, 0, 1);
  check_call("CTAPolicy", config.CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO);
  return {.schedule = config.algSelection == nullptr ? std::string() : lower(config.algSelection),
          .forced = config.forceAlgSelection != 0,
          .launch_event = config.launchCompletionEvent};
}

}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                             ncclDataType_t datatype, ncclRedOp_t op,
                                             ncclComm_t comm, cudaStream_t stream,
                                             const ncclCollConfig_t* config) {
  return run({"ncclAllReduceConfig", Kind::all_reduce, sendbuff, recvbuff, count, datatype, op, 0,
              comm, stream, config});
}
CHORUS_NCCL_EXPORT(AllReduceConfig);

extern "C" ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                             ncclDataType_t datatype, int root, ncclComm_t comm,
                                             cudaStream_t stream, const ncclCollConfig_t* config) {
  return run({"ncclBroadcastConfig", Kind::broadcast, sendbuff, recvbuff, count, datatype, ncclSum,
              root, comm, stream, config});
}
CHORUS_NCCL_EXPORT(BroadcastConfig);

extern "C" ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                          ncclDataType_t datatype, ncclRedOp_t op, int root,
                                          ncclComm_t comm, cudaStream_t stream,
                                          const ncclCollConfig_t* config) {
  return run({"ncclReduceConfig", Kind::reduce, sendbuff, recvbuff, count, datatype, op, root, comm,
              stream, config});
}
CHORUS_NCCL_EXPORT(ReduceConfig);

extern "C" ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                             ncclDataType_t datatype, ncclComm_t comm,
                                             cudaStream_t stream, const ncclCollConfig_t* config) {
  return run({"ncclAllGatherConfig", Kind::all_gather, sendbuff, recvbuff, sendcount, datatype,
              ncclSum, 0, comm, stream, config});
}
CHORUS_NCCL_EXPORT(AllGatherConfig);

extern "C" ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff,
                                                 size_t recvcount, ncclDataType_t datatype,
                                                 ncclRedOp_t op, ncclComm_t comm,
                                                 cudaStream_t stream,
                                                 const ncclCollConfig_t* config) {
  return run({"ncclReduceScatterConfig", Kind::reduce_scatter, sendbuff, recvbuff, recvcount,
              datatype, op, 0, comm, stream, config});
}
CHORUS_NCCL_EXPORT(ReduceScatterConfig);

extern "C" ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                            ncclDataType_t datatype, ncclComm_t comm,
                                            cudaStream_t stream, const ncclCollConfig_t* config) {
  return run({"ncclAlltoAllConfig", Kind::all_to_all, sendbuff, recvbuff, count, datatype, ncclSum,
              0, comm, stream, config});
}
CHORUS_NCCL_EXPORT(AlltoAllConfig);

extern "C" ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                                          ncclDataType_t datatype, int root, ncclComm_t comm,
                                          cudaStream_t stream, const ncclCollConfig_t* config) {
  return run({"ncclGatherConfig", Kind::gather, sendbuff, recvbuff, count, datatype, ncclSum, root,
              comm, stream, config});
}
CHORUS_NCCL_EXPORT(GatherConfig);

extern "C" ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                                           ncclDataType_t datatype, int root, ncclComm_t comm,
                                           cudaStream_t stream, const ncclCollConfig_t* config) {
  return run({"ncclScatterConfig", Kind::scatter, sendbuff, recvbuff, count, datatype, ncclSum,
              root, comm, stream, config});
}
CHORUS_NCCL_EXPORT(ScatterConfig);
