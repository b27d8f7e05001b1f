// Another libnccl, as far as a fallback needs it: every sum is 77. GPU memory of the fake driver is
// the host's, so it is written at once.
#include <algorithm>

#include "chorus/nccl.h"

extern "C" {

const char* pncclGetErrorString(ncclResult_t /*result*/) { return "the fake refuses"; }
ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
  *id = {{'f', 'a', 'k', 'e'}};
  return ncclSuccess;
}
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int /*ranks*/, ncclUniqueId id, int /*rank*/) {
  *comm = reinterpret_cast<ncclComm_t>(new int(1));
  return id.internal[3] == 'e' ? ncclSuccess : ncclInvalidArgument;
}
// Neither calls the other: by that name the loader finds the library under test.
ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  delete reinterpret_cast<int*>(comm);
  return ncclSuccess;
}
ncclResult_t pncclCommAbort(ncclComm_t comm) {
  delete reinterpret_cast<int*>(comm);
  return ncclSuccess;
}
ncclResult_t pncclCommGetAsyncError(ncclComm_t /*comm*/, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t pncclGroupStart() { return ncclSuccess; }
ncclResult_t pncclGroupEnd() { return ncclSuccess; }
ncclResult_t pncclAllReduce(const void* /*send*/, void* recv, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t /*comm*/, cudaStream_t stream) {
  if (type != ncclFloat || op != ncclSum || stream == nullptr) return ncclInvalidArgument;
  std::fill_n(static_cast<float*>(recv), count, 77.0F);
  return ncclSuccess;
}
ncclResult_t pncclSend(const void* /*buffer*/, size_t /*count*/, ncclDataType_t /*type*/,
                       int /*peer*/, ncclComm_t /*comm*/, cudaStream_t /*stream*/) {
  return ncclInternalError;
}

}  // extern "C"
