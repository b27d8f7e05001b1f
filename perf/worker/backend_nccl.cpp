// A libnccl.so.2 opened at run time, one process per rank, meeting through the driver:
// NVIDIA's on GPU memory, or Chorus's own on host memory too.
#define CHORUS_NCCL_WITHOUT_CUDA 1
#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "chorus/nccl.h"
#include "perf/worker/backend.hpp"
#include "perf/worker/gpu_buffers.hpp"

namespace chorus::perf {
namespace {

// Those that every version has, and those that came with 2.28.
#define CHORUS_NCCL_NEEDED(X) \
  X(GetVersion)               \
  X(GetErrorString)           \
  X(GetUniqueId)              \
  X(CommInitRank)             \
  X(CommDestroy)              \
  X(CommGetAsyncError)        \
  X(GroupStart)               \
  X(GroupEnd) X(AllReduce) X(AllGather) X(ReduceScatter) X(Broadcast) X(Reduce) X(Send) X(Recv)
#define CHORUS_NCCL_NEWER(X) X(GetLastError) X(AlltoAll) X(Gather) X(Scatter)

// Names of members cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
struct Nccl {
#define X(name) decltype(&nccl##name) name = nullptr;
  CHORUS_NCCL_NEEDED(X)
  CHORUS_NCCL_NEWER(X)
#undef X

  explicit Nccl(const std::string& path) {
    void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(::dlerror());
#define X(name) name = reinterpret_cast<decltype(name)>(::dlsym(handle, "nccl" #name));
    CHORUS_NCCL_NEEDED(X)
    CHORUS_NCCL_NEWER(X)
#undef X
#define X(name) \
  if (name == nullptr) throw std::runtime_error(path + " has no nccl" #name);
    CHORUS_NCCL_NEEDED(X)
#undef X
  }
  // NOLINTEND(bugprone-macro-parentheses)

  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess) return;
    const char* const last = GetLastError != nullptr ? GetLastError(nullptr) : "";
    throw std::runtime_error(fmt::format("nccl{}: {}; {}", call, GetErrorString(result), last));
  }
};

/// Nothing for types that NCCL does not have.
std::optional<ncclDataType_t> known(DataType type) {
  switch (type) {
    case DataType::int8:
      return ncclInt8;
    case DataType::uint8:
      return ncclUint8;
    case DataType::int32:
      return ncclInt32;
    case DataType::uint32:
      return ncclUint32;
    case DataType::int64:
      return ncclInt64;
    case DataType::uint64:
      return ncclUint64;
    case DataType::float16:
      return ncclFloat16;
    case DataType::bfloat16:
      return ncclBfloat16;
    case DataType::float32:
      return ncclFloat32;
    case DataType::float64:
      return ncclFloat64;
    case DataType::float8_e4m3:
      return ncclFloat8e4m3;
    case DataType::float8_e5m2:
      return ncclFloat8e5m2;
    default:
      return std::nullopt;
  }
}

ncclRedOp_t op_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::prod:
      return ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    default:
      break;
  }
  return ncclAvg;
}

/// Rank 0's id.
ncclUniqueId meet(const Nccl& nccl, int rank, Meeting& meeting) {
  ncclUniqueId id{};
  if (rank == 0) {
    nccl.check(nccl.GetUniqueId(&id), "GetUniqueId");
    meeting.set("nccl-id", std::string(id.internal, sizeof id.internal));
    return id;
  }
  const std::string text = meeting.get("nccl-id");
  if (text.size() != sizeof id.internal) throw std::runtime_error("rank 0's id is malformed");
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(const WorkerArguments& arguments)
      : rank_(environment_number("CHORUS_PERF_RANK")),
        world_size_(environment_number("CHORUS_PERF_WORLD_SIZE")),
        nccl_(arguments.nccl) {
    if (arguments.on_gpu) {
      gpu_.emplace(rank_);
      flag_ = cuda::allocate(1);
    } else if (std::string why_not; cuda::driver(why_not) != nullptr) {
      throw std::runtime_error(
          "NCCL's kernels do not reach host memory: measure it with --transport gpu");
    }
    const ncclUniqueId id = meet(nccl_, rank_, *arguments.meeting);
    nccl_.check(nccl_.CommInitRank(&comm_, world_size_, id, rank_), "CommInitRank");
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;
  ~NcclBackend() override {
    buffers_.reset();
    (void)nccl_.CommDestroy(comm_);
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::string version() const override {
    int version = 0;
    nccl_.check(nccl_.GetVersion(&version), "GetVersion");
    return fmt::format("NCCL {}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
  }

  [[nodiscard]] std::string refuse(const Operation& o) const override {
    if (benchmark(o.kind).point_to_point && gpu_)
      return "messages are measured on host memory only";
    if (o.kind == Kind::barrier) return "NCCL has no barrier";
    if (o.kind == Kind::all_to_all && o.input == o.output) {
      return "NCCL's all-to-all does not work in place";
    }
    if (benchmark(o.kind).reduces && !known(o.type)) {
      return fmt::format("NCCL cannot reduce {}", name_of(o.type));
    }
    if (benchmark(o.kind).reduces && is_bitwise(o.op)) {
      return fmt::format("NCCL has no operation {}", name_of(o.op));
    }
    return {};
  }

  [[nodiscard]] std::function<void()> prepare(const Operation& host) override {
    if (host.kind == Kind::barrier) return [this] { fence(); };
    Operation o = host;
    if (gpu_) {
      buffers_ = std::make_unique<GpuBuffers>(*gpu_, host, rank_, world_size_);
      o = buffers_->operation();
    }
    // Types that NCCL does not have are moved as bytes.
    const ncclDataType_t type = known(o.type).value_or(ncclInt8);
    const std::size_t count = known(o.type) ? o.count : o.count * size_of(o.type);
    return [this, o, type, count] {
      start(o, type, count);
      finish();
    };
  }

  void bring_buffers() override {
    if (buffers_) buffers_->bring();
  }
  void fetch_buffers() override {
    if (buffers_) buffers_->fetch();
  }

  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    nccl_.check(nccl_.GroupStart(), "GroupStart");
    for (const Message& m : receives) {
      nccl_.check(nccl_.Recv(m.data, m.count * size_of(m.type), ncclInt8, m.peer, comm_, nullptr),
                  "Recv");
    }
    for (const Message& m : sends) {
      nccl_.check(nccl_.Send(m.data, m.count * size_of(m.type), ncclInt8, m.peer, comm_, nullptr),
                  "Send");
    }
    nccl_.check(nccl_.GroupEnd(), "GroupEnd");
  }

 private:
  [[nodiscard]] cudaStream_t stream() const { return gpu_ ? gpu_->stream() : nullptr; }

  void start(const Operation& o, ncclDataType_t type, std::size_t count) {
    const ncclRedOp_t op = op_for(o.op);
    switch (o.kind) {
      case Kind::all_reduce:
        return nccl_.check(nccl_.AllReduce(o.input, o.output, count, type, op, comm_, stream()),
                           "AllReduce");
      case Kind::all_gather:
        return nccl_.check(nccl_.AllGather(o.input, o.output, count, type, comm_, stream()),
                           "AllGather");
      case Kind::reduce_scatter:
        return nccl_.check(nccl_.ReduceScatter(o.input, o.output, count, type, op, comm_, stream()),
                           "ReduceScatter");
      case Kind::broadcast:
        return nccl_.check(
            nccl_.Broadcast(o.output, o.output, count, type, o.root, comm_, stream()), "Broadcast");
      case Kind::reduce:
        return nccl_.check(
            nccl_.Reduce(o.input, o.output, count, type, op, o.root, comm_, stream()), "Reduce");
      case Kind::all_to_all:
      case Kind::gather:
      case Kind::scatter:
        return exchange_blocks(o, type, count);
      default:
        throw std::logic_error("messages use exchange()");
    }
  }

  /// By the functions that came with 2.28, or as their callers had done before.
  void exchange_blocks(const Operation& o, ncclDataType_t type, std::size_t count) {
    if (o.kind == Kind::all_to_all && nccl_.AlltoAll != nullptr) {
      return nccl_.check(nccl_.AlltoAll(o.input, o.output, count, type, comm_, stream()),
                         "AlltoAll");
    }
    if (o.kind == Kind::gather && nccl_.Gather != nullptr) {
      return nccl_.check(nccl_.Gather(o.input, o.output, count, type, o.root, comm_, stream()),
                         "Gather");
    }
    if (o.kind == Kind::scatter && nccl_.Scatter != nullptr) {
      return nccl_.check(nccl_.Scatter(o.input, o.output, count, type, o.root, comm_, stream()),
                         "Scatter");
    }
    const std::size_t block = o.count * size_of(o.type);
    const auto* const in = static_cast<const std::byte*>(o.input);
    auto* const out = static_cast<std::byte*>(o.output);
    const bool all = o.kind == Kind::all_to_all;
    nccl_.check(nccl_.GroupStart(), "GroupStart");
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * block;
      if (all || (o.kind == Kind::scatter ? rank_ : peer) == o.root) {
        nccl_.check(
            nccl_.Send(o.kind == Kind::gather ? in : in + at, count, type, peer, comm_, stream()),
            "Send");
      }
      if (all || (o.kind == Kind::gather ? rank_ : peer) == o.root) {
        nccl_.check(nccl_.Recv(o.kind == Kind::scatter ? out : out + at, count, type, peer, comm_,
                               stream()),
                    "Recv");
      }
    }
    nccl_.check(nccl_.GroupEnd(), "GroupEnd");
  }

  void finish() {
    if (gpu_) gpu_->wait();
    ncclResult_t later = ncclSuccess;
    nccl_.check(nccl_.CommGetAsyncError(comm_, &later), "CommGetAsyncError");
    nccl_.check(later, "CommGetAsyncError");
  }

  void fence() {
    // CUDA's addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const flag = gpu_ ? reinterpret_cast<void*>(flag_.get()) : &host_flag_;
    nccl_.check(nccl_.AllReduce(flag, flag, 1, ncclInt8, ncclMax, comm_, stream()), "AllReduce");
    finish();
  }

  int rank_;
  int world_size_;
  Nccl nccl_;
  std::optional<Gpu> gpu_;
  cuda::Memory flag_;
  char host_flag_ = 0;
  std::unique_ptr<GpuBuffers> buffers_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments) {
  return std::make_unique<NcclBackend>(arguments);
}

}  // namespace chorus::perf
