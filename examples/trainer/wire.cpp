#define CHORUS_NCCL_WITHOUT_CUDA
#include "wire.hpp"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "chorus/nccl.h"

namespace trainer {
namespace {

using Kind = chorus::Call::Kind;

void check(ncclResult_t result, const char* doing) {
  if (result == ncclSuccess) return;
  throw chorus::CollectiveError(
      fmt::format("{} on device memory: {}", doing, ncclGetLastError(nullptr)));
}

ncclDataType_t type_of(chorus::DataType type) {
  switch (type) {
    case chorus::DataType::float32:
      return ncclFloat32;
    case chorus::DataType::float64:
      return ncclFloat64;
    case chorus::DataType::int32:
      return ncclInt32;
    case chorus::DataType::uint8:
      return ncclUint8;
    default:
      throw chorus::InputError("the trainer sends no values of this type");
  }
}

ncclRedOp_t operation_of(const chorus::Reduction& how) {
  switch (how.op) {
    case chorus::ReduceOp::max:
      return ncclMax;
    case chorus::ReduceOp::avg:
      return ncclAvg;
    case chorus::ReduceOp::sum:
      return ncclSum;
    default:
      throw chorus::InputError("the trainer reduces by sum, average and maximum only");
  }
}

/// A call by value: what its spans point to may change before it runs.
struct Job {
  chorus::Call call;
  std::vector<std::size_t> send_counts, send_offsets, recv_counts, recv_offsets;

  explicit Job(const chorus::Call& of)
      : call(of),
        send_counts(of.send_counts.begin(), of.send_counts.end()),
        send_offsets(of.send_offsets.begin(), of.send_offsets.end()),
        recv_counts(of.recv_counts.begin(), of.recv_counts.end()),
        recv_offsets(of.recv_offsets.begin(), of.recv_offsets.end()) {}
};

/// A group of messages: DeviceCommunicator has no other way to send unequal blocks.
void exchange(const Job& job, ncclComm* comm, cudaStream_t stream) {
  const std::size_t size = size_of(job.call.type);
  const ncclDataType_t type = type_of(job.call.type);
  const auto* in = static_cast<const std::byte*>(job.call.input);
  auto* out = static_cast<std::byte*>(job.call.output);
  check(ncclGroupStart(), "all_to_all_v");
  for (std::size_t r = 0; r < job.send_counts.size(); ++r) {
    const int peer = static_cast<int>(r);
    if (job.send_counts[r] > 0) {
      check(ncclSend(in + job.send_offsets[r] * size, job.send_counts[r], type, peer, comm, stream),
            "all_to_all_v");
    }
    if (job.recv_counts[r] > 0) {
      check(
          ncclRecv(out + job.recv_offsets[r] * size, job.recv_counts[r], type, peer, comm, stream),
          "all_to_all_v");
    }
  }
  check(ncclGroupEnd(), "all_to_all_v");
}

void run(const Job& job, ncclComm* comm, int peer, void* on) {
  const chorus::Call& c = job.call;
  const auto stream = static_cast<cudaStream_t>(on);
  if (c.kind == Kind::all_to_all_v) return exchange(job, comm, stream);
  const ncclDataType_t type = type_of(c.type);
  switch (c.kind) {
    case Kind::all_reduce:
      return check(
          ncclAllReduce(c.input, c.output, c.count, type, operation_of(c.reduction), comm, stream),
          "all_reduce");
    case Kind::all_gather:
      return check(ncclAllGather(c.input, c.output, c.count, type, comm, stream), "all_gather");
    case Kind::reduce_scatter:
      return check(ncclReduceScatter(c.input, c.output, c.count, type, operation_of(c.reduction),
                                     comm, stream),
                   "reduce_scatter");
    case Kind::all_to_all:
      return check(ncclAlltoAll(c.input, c.output, c.count, type, comm, stream), "all_to_all");
    case Kind::broadcast:
      return check(ncclBroadcast(c.input, c.output, c.count, type, c.peer, comm, stream),
                   "broadcast");
    case Kind::send:
      return check(ncclSend(c.input, c.count, type, peer, comm, stream), "send");
    case Kind::recv:
      return check(ncclRecv(c.output, c.count, type, peer, comm, stream), "recv");
    default:
      throw chorus::InputError("the trainer makes no such call on device memory");
  }
}

}  // namespace

Wire::Track::~Track() {
  if (lane) lane->finish();
  if (comm == nullptr) return;
  ncclResult_t state = ncclSuccess;
  const bool well = ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess;
  static_cast<void>(well ? ncclCommDestroy(comm) : ncclCommAbort(comm));
}

/// Rank `first` of `members`, which has the listener, and all others, or the one that is `step`
/// after it.
std::unique_ptr<Wire::Track> Wire::open(chorus::Communicator& members, Gpu& gpu, int first,
                                        int step, bool all) const {
  ncclUniqueId id{};
  const int ranks = all ? size_ : 2;
  const std::span bytes(reinterpret_cast<std::uint8_t*>(id.internal), sizeof id.internal);
  const int place = ((rank_ - first) * step + size_) % size_;
  if (place == 0) check(ncclGetUniqueId(&id), "meeting");
  if (all) {
    members.broadcast<std::uint8_t>(bytes, first);
  } else if (place == 0) {
    members.send<std::uint8_t>(bytes, (first + step + size_) % size_);
  } else {
    members.recv<std::uint8_t>(bytes, first);
  }
  auto track = std::make_unique<Track>();
  check(ncclCommInitRank(&track->comm, ranks, id, place), "meeting");
  track->lane = gpu.make_lane();
  track->peer = 1 - place;
  return track;
}

Wire::Wire(chorus::Communicator& members, Gpu& gpu, Ways ways)
    : rank_(members.rank()), size_(members.world_size()) {
  if (ways == Ways::all) {
    all_ = open(members, gpu, 0, 1, true);
    return;
  }
  // One pair after the other around the ring: each waits for those before it alone.
  const int step = ways == Ways::ahead ? 1 : -1;
  for (int first = 0; first < size_; ++first) {
    const bool receives = (first + step + size_) % size_ == rank_;
    if (rank_ == first) to_ = open(members, gpu, first, step, false);
    if (receives) from_ = open(members, gpu, first, step, false);
  }
}

Wire::~Wire() = default;

Wire::Ticket Wire::start(const chorus::Call& call) {
  Track* track = all_.get();
  if (call.kind == Kind::send) track = to_.get();
  if (call.kind == Kind::recv) track = from_.get();
  if (track == nullptr) throw chorus::Error("no way was opened for this call on device memory");
  const auto job = std::make_shared<Job>(call);
  ncclComm* const comm = track->comm;
  const int peer = track->peer;
  const Lane::Started started =
      track->lane->start([job, comm, peer](void* stream) { run(*job, comm, peer, stream); });
  return {track->lane.get(), started.number, started.begin, started.end};
}

}  // namespace trainer
