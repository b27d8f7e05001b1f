// Sums that multiply first.
#include <cstring>

#include "nccl/comm.hpp"
#include "nccl/elements.hpp"

namespace chorus::nccl {
namespace {

ncclResult_t create(ncclRedOp_t* op, const void* scalar, ncclDataType_t type,
                    ncclScalarResidence_t residence, ncclComm& comm) {
  if (op == nullptr || scalar == nullptr) {
    refuse(ncclInvalidArgument, "{}: the {} is null", comm.who(),
           op == nullptr ? "place for the reduction" : "scalar");
  }
  if (!type_of(type)) {
    refuse(ncclInvalidArgument, "{}: data type {} does not exist", comm.who(),
           static_cast<int>(type));
  }
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
    refuse(ncclInvalidArgument, "{}: scalar residence {} does not exist", comm.who(),
           static_cast<int>(residence));
  }
  ScaledSum sum{.type = type};
  if (residence == ncclScalarHostImmediate) {
    std::memcpy(sum.factor.data(), scalar, size_of(*type_of(type)));
  } else {
    sum.at = scalar;
  }
  const std::lock_guard lock(comm.mutex);
  const int number = comm.next_sum++;
  comm.sums.emplace(number, sum);
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}

ncclResult_t destroy(ncclRedOp_t op, ncclComm& comm) {
  const std::lock_guard lock(comm.mutex);
  if (comm.sums.erase(static_cast<int>(op)) == 0) {
    refuse(ncclInvalidArgument,
           "reduction {} was not made by ncclRedOpCreatePreMulSum for this communicator, or "
           "destroyed before",
           static_cast<int>(op));
  }
  return ncclSuccess;
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                  ncclDataType_t datatype,
                                                  ncclScalarResidence_t residence,
                                                  ncclComm_t comm) {
  return guarded("ncclRedOpCreatePreMulSum",
                 [&] { return create(op, scalar, datatype, residence, known(comm)); });
}
CHORUS_NCCL_EXPORT(RedOpCreatePreMulSum);

extern "C" ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded("ncclRedOpDestroy", [&] { return destroy(op, known(comm)); });
}
CHORUS_NCCL_EXPORT(RedOpDestroy);
