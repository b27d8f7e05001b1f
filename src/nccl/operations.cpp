// Collectives and messages: from NCCL's arguments to Operations.
#include "nccl/operations.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nccl/elements.hpp"
#include "nccl/group.hpp"
#include "nccl/log.hpp"
#include "nccl/schedule_by_name.hpp"
#include "nccl/window.hpp"

namespace chorus::nccl {
namespace {

using Kind = Call::Kind;

bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

bool has_peer(Kind kind) {
  return is_message(kind) || kind == Kind::broadcast || kind == Kind::reduce ||
         kind == Kind::gather || kind == Kind::scatter;
}

bool reduces(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

/// Blocks of `count` elements that this rank gives and takes.
struct Blocks {
  std::size_t in = 0, out = 0;
};

Blocks blocks_of(Kind kind, bool is_peer, std::size_t ranks) {
  switch (kind) {
    case Kind::all_reduce:
      return {1, 1};
    case Kind::all_gather:
      return {1, ranks};
    case Kind::reduce_scatter:
      return {ranks, 1};
    case Kind::all_to_all:
      return {ranks, ranks};
    case Kind::broadcast:
      return {is_peer ? 1U : 0U, 1};
    case Kind::reduce:
      return {1, is_peer ? 1U : 0U};
    case Kind::gather:
      return {1, is_peer ? ranks : 0};
    case Kind::scatter:
      return {is_peer ? ranks : 0, 1};
    case Kind::send:
      return {1, 0};
    case Kind::recv:
      return {0, 1};
    default:
      return {};
  }
}

void check_arguments(const Asked& asked, const ncclComm& comm) {
  if (!type_of(asked.type)) {
    refuse(ncclInvalidArgument, "{}: data type {} does not exist: it must be in [0, {}]",
           comm.who(), static_cast<int>(asked.type), ncclNumTypes - 1);
  }
  if (has_peer(asked.kind) && (asked.peer < 0 || asked.peer >= comm.ranks)) {
    refuse(ncclInvalidArgument, "{}: {} {} does not exist: ranks are 0 to {}", comm.who(),
           is_message(asked.kind) ? "peer" : "root", asked.peer, comm.ranks - 1);
  }
  const std::size_t bytes = size_of(*type_of(asked.type));
  if (asked.count > SIZE_MAX / 16 / bytes / static_cast<std::size_t>(comm.ranks)) {
    refuse(ncclInvalidArgument, "{}: a count of {} is more than memory can hold", comm.who(),
           asked.count);
  }
}

/// Memory that one call reads and writes must be the same (in place) or apart: anything else would
/// quietly give wrong results.
void check_overlap(const Asked& asked, const ncclComm& comm, const Blocks& blocks,
                   std::size_t block_bytes) {
  if (blocks.in == 0 || blocks.out == 0) return;
  const auto in = reinterpret_cast<std::uintptr_t>(asked.send);
  const auto out = reinterpret_cast<std::uintptr_t>(asked.recv);
  if (in + blocks.in * block_bytes <= out || out + blocks.out * block_bytes <= in) return;
  const auto mine = static_cast<std::size_t>(comm.rank) * block_bytes;
  const bool in_place = blocks.in == blocks.out  ? in == out
                        : blocks.in < blocks.out ? in == out + mine
                                                 : out == in + mine;
  if (in_place) return;
  refuse(ncclInvalidArgument,
         "{}: send and receive buffers overlap, but not as in place: {} and {}, {} bytes per block",
         comm.who(), asked.send, static_cast<void*>(asked.recv), block_bytes);
}

void check_buffers(const Asked& asked, const ncclComm& comm, const Blocks& blocks) {
  if (asked.count == 0) return;
  if (blocks.in > 0 && asked.send == nullptr) {
    refuse(ncclInvalidArgument, "{}: the send buffer is null, but {} elements are to be sent",
           comm.who(), asked.count);
  }
  if (blocks.out > 0 && asked.recv == nullptr) {
    refuse(ncclInvalidArgument, "{}: the receive buffer is null, but {} elements will come",
           comm.who(), asked.count);
  }
  check_overlap(asked, comm, blocks, asked.count * size_of(*type_of(asked.type)));
}

/// Whether the call works on memory of a GPU. Throws Fault for a mixture, and where there is no way
/// to it.
void find_place(const Asked& asked, ncclComm& comm, const Blocks& blocks, Operation& operation) {
  const Body& body = *operation.body;
  // Messages of nothing have no memory. On the stream they make no caller wait for its peer.
  if (asked.count == 0) {
    operation.on_gpu = body.gpu != nullptr || body.fallback != nullptr;
    return;
  }
  const auto place = [&](const void* memory) {
    const auto known = body.gpu ? known_place(comm, memory) : std::nullopt;
    return known ? *known : body.place(memory);
  };
  const MemoryPlace in = blocks.in > 0 ? place(asked.send) : MemoryPlace{};
  const auto begin = reinterpret_cast<std::uintptr_t>(asked.recv);
  const bool together = blocks.in > 0 && begin >= in.begin && begin < in.end;
  const MemoryPlace out = blocks.out == 0 ? MemoryPlace{} : together ? in : place(asked.recv);
  const bool in_host = in.kind == MemoryKind::host;
  const bool out_host = out.kind == MemoryKind::host;
  if ((blocks.in == 0 || in_host) && (blocks.out == 0 || out_host)) return;
  if (blocks.in > 0 && blocks.out > 0 && in_host != out_host) {
    refuse(ncclInvalidArgument,
           "{}: the {} buffer is ordinary host memory, the other one the GPU's: both must be of "
           "one kind",
           comm.who(), in_host ? "send" : "receive");
  }
  if (!body.gpu && !body.fallback) {
    refuse(ncclInvalidUsage, "{}: memory of a GPU was given, but {}", comm.who(), body.why_no_gpu);
  }
  operation.on_gpu = true;
  const std::size_t bytes =
      asked.count * size_of(*type_of(asked.type)) * std::max(blocks.in, blocks.out);
  if (!is_message(asked.kind) && bytes >= DeviceTuning{}.direct_bytes) {
    if (blocks.in > 0) share_given(operation.body, asked.send);
    if (blocks.out > 0) share_given(operation.body, asked.recv);
  }
  const auto reached = [&body](const MemoryPlace& where) {
    return where.kind != MemoryKind::device || where.device == body.device;
  };
  operation.checked = reached(in) && reached(out) && operation.factor_at == nullptr;
}

void apply_reduction(const Asked& asked, ncclComm& comm, Operation& operation) {
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min,
                               ReduceOp::avg};
  const auto op = static_cast<int>(asked.op);
  if (op >= 0 && op < ncclNumOps) {
    operation.call.reduction = kOps[op];
    return;
  }
  const std::lock_guard lock(comm.mutex);
  const auto sum = comm.sums.find(op);
  if (sum == comm.sums.end()) {
    refuse(ncclInvalidArgument,
           "{}: reduction {} does not exist: it is none of ncclSum to ncclAvg, nor made by "
           "ncclRedOpCreatePreMulSum for this communicator (or it was destroyed)",
           comm.who(), op);
  }
  if (sum->second.type != asked.type) {
    refuse(ncclInvalidArgument, "{}: reduction {} was made for data type {}, but the data is of {}",
           comm.who(), op, static_cast<int>(sum->second.type), static_cast<int>(asked.type));
  }
  operation.call.reduction = ReduceOp::sum;
  operation.scaled = true;
  operation.factor = sum->second.factor;
  operation.factor_at = sum->second.at;
}

/// The scalar must be where the call runs, and whole there.
void check_factor(const Operation& operation, const ncclComm& comm) {
  if (!operation.scaled) return;
  const DataType type = operation.call.type;
  if (operation.factor_at != nullptr) {
    const MemoryKind kind = operation.body->place(operation.factor_at).kind;
    if (operation.on_gpu || kind != MemoryKind::device) return;
    refuse(ncclInvalidArgument,
           "{}: the scalar of the reduction is in GPU memory, but the data is in the host's",
           comm.who());
  }
  if (!operation.on_gpu || is_float(type) || size_of(type) < 8) return;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::abs(to_double(operation.factor.data(), type)) <= kExact) return;
  refuse(ncclInvalidArgument,
         "{}: on the GPU, factors of 64-bit integers must not exceed 2^53; multiply the data "
         "before the call",
         comm.who());
}

void log_call(const Asked& asked, const ncclComm& comm) {
  const Subsystem subsystem = is_message(asked.kind) ? Subsystem::p2p : Subsystem::coll;
  if (!writes(Level::info, subsystem)) return;
  info(subsystem,
       fmt::format("{}: sendbuff {} recvbuff {} count {} datatype {} op {} root {} comm {} "
                   "[nranks={}] stream {}",
                   asked.name, asked.send, static_cast<void*>(asked.recv), asked.count,
                   static_cast<int>(asked.type), static_cast<int>(asked.op), asked.peer,
                   static_cast<const void*>(&comm), comm.ranks,
                   static_cast<const void*>(asked.stream)));
}

/// What the call's own configuration asks for.
void apply_config(const Asked& asked, const ncclComm& comm, Operation& operation) {
  CallConfig config = read_call_config(asked.config);
  if (!config.schedule.empty()) {
    const auto why_not =
        ScheduleByName::why_not(operation.body->communicator, asked.kind, config.schedule);
    if (why_not && config.forced) {
      refuse(ncclInvalidArgument, "{}: ncclCollConfig_t: algSelection: {}", comm.who(), *why_not);
    }
    if (!why_not) operation.schedule = std::move(config.schedule);
  }
  if (config.launch_event != nullptr && !operation.on_gpu) {
    refuse(ncclInvalidArgument,
           "{}: ncclCollConfig_t: launchCompletionEvent: calls on host memory launch nothing",
           comm.who());
  }
  operation.launch_event = config.launch_event;
}

ncclResult_t enqueue(const Asked& asked) {
  ncclComm& comm = known(asked.comm);
  Claim claim(comm);
  Operation operation{.comm = &comm, .body = in_order(comm)};
  check_arguments(asked, comm);
  const auto blocks =
      blocks_of(asked.kind, asked.peer == comm.rank, static_cast<std::size_t>(comm.ranks));
  check_buffers(asked, comm, blocks);
  operation.call = {.kind = asked.kind,
                    .input = blocks.in > 0 ? asked.send : nullptr,
                    .output = blocks.out > 0 ? asked.recv : nullptr,
                    .count = asked.count,
                    .type = *type_of(asked.type),
                    .peer = has_peer(asked.kind) ? asked.peer : 0};
  operation.stream = asked.stream;
  if (reduces(asked.kind)) apply_reduction(asked, comm, operation);
  find_place(asked, comm, blocks, operation);
  const Fallback* const other = operation.body->fallback.get();
  operation.falls_back = operation.on_gpu && other != nullptr && !operation.scaled &&
                         (other->serves(asked.kind) || !operation.body->gpu);
  if (operation.on_gpu && !operation.falls_back && !operation.body->gpu) {
    refuse(ncclInvalidUsage, "{}: a pre-multiplied sum on memory of a GPU, but {}", comm.who(),
           operation.body->why_no_gpu);
  }
  if (operation.falls_back && !other->offers(asked.kind)) {
    refuse(ncclInvalidUsage, "{}: the library of CHORUS_NCCL_FALLBACK_LIBRARY has no such call",
           comm.who());
  }
  check_factor(operation, comm);
  apply_config(asked, comm, operation);
  log_call(asked, comm);
  // Messages of nothing are matched all the same; collectives of nothing are over.
  if (asked.count == 0 && !is_message(asked.kind)) return ncclSuccess;
  Group& group = Group::mine();
  if (is_message(asked.kind) && asked.peer == comm.rank && !group.open()) {
    refuse(ncclInvalidUsage,
           "{}: a message to oneself needs its other end in the same group: ncclGroupStart, "
           "ncclSend, ncclRecv, ncclGroupEnd",
           comm.who());
  }
  return group.add(std::move(operation), std::move(claim));
}

}  // namespace

ncclResult_t run(const Asked& asked) {
  return guarded(asked.name, [&] { return enqueue(asked); });
}

}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                       ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                       cudaStream_t stream) {
  return run({"ncclAllReduce", Kind::all_reduce, sendbuff, recvbuff, count, datatype, op, 0, comm,
              stream});
}
CHORUS_NCCL_EXPORT(AllReduce);

extern "C" ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                                       ncclDataType_t datatype, int root, ncclComm_t comm,
                                       cudaStream_t stream) {
  return run({"ncclBroadcast", Kind::broadcast, sendbuff, recvbuff, count, datatype, ncclSum, root,
              comm, stream});
}
CHORUS_NCCL_EXPORT(Broadcast);

extern "C" ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                                   ncclComm_t comm, cudaStream_t stream) {
  return run(
      {"ncclBcast", Kind::broadcast, buff, buff, count, datatype, ncclSum, root, comm, stream});
}
CHORUS_NCCL_EXPORT(Bcast);

extern "C" ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                                    ncclDataType_t datatype, ncclRedOp_t op, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  return run(
      {"ncclReduce", Kind::reduce, sendbuff, recvbuff, count, datatype, op, root, comm, stream});
}
CHORUS_NCCL_EXPORT(Reduce);

extern "C" ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                       ncclDataType_t datatype, ncclComm_t comm,
                                       cudaStream_t stream) {
  return run({"ncclAllGather", Kind::all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum,
              0, comm, stream});
}
CHORUS_NCCL_EXPORT(AllGather);

extern "C" ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                           cudaStream_t stream) {
  return run({"ncclReduceScatter", Kind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype,
              op, 0, comm, stream});
}
CHORUS_NCCL_EXPORT(ReduceScatter);

extern "C" ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                                      ncclDataType_t datatype, ncclComm_t comm,
                                      cudaStream_t stream) {
  return run({"ncclAlltoAll", Kind::all_to_all, sendbuff, recvbuff, count, datatype, ncclSum, 0,
              comm, stream});
}
CHORUS_NCCL_EXPORT(AlltoAll);

extern "C" ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                                    ncclDataType_t datatype, int root, ncclComm_t comm,
                                    cudaStream_t stream) {
  return run({"ncclGather", Kind::gather, sendbuff, recvbuff, count, datatype, ncclSum, root, comm,
              stream});
}
CHORUS_NCCL_EXPORT(Gather);

extern "C" ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                                     ncclDataType_t datatype, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
  return run({"ncclScatter", Kind::scatter, sendbuff, recvbuff, count, datatype, ncclSum, root,
              comm, stream});
}
CHORUS_NCCL_EXPORT(Scatter);

extern "C" ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype,
                                  int peer, ncclComm_t comm, cudaStream_t stream) {
  return run(
      {"ncclSend", Kind::send, sendbuff, nullptr, count, datatype, ncclSum, peer, comm, stream});
}
CHORUS_NCCL_EXPORT(Send);

extern "C" ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                                  ncclComm_t comm, cudaStream_t stream) {
  return run(
      {"ncclRecv", Kind::recv, nullptr, recvbuff, count, datatype, ncclSum, peer, comm, stream});
}
CHORUS_NCCL_EXPORT(Recv);
