#include "nccl/settings/fallback.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "device/driver/driver.hpp"
#include "nccl/elements.hpp"
#include "nccl/fault.hpp"
#include "nccl/settings/environment.hpp"

namespace chorus::nccl {

/// The functions of the other library, opened once per path and never closed.
struct Fallback::Library {
  decltype(&pncclGetErrorString) error_string = nullptr;
  decltype(&pncclGetUniqueId) unique_id = nullptr;
  decltype(&pncclCommInitRank) init = nullptr;
  decltype(&pncclCommFinalize) finalize = nullptr;
  decltype(&pncclCommDestroy) destroy = nullptr;
  decltype(&pncclCommAbort) abort = nullptr;
  decltype(&pncclCommGetAsyncError) async_error = nullptr;
  decltype(&pncclGroupStart) group_start = nullptr;
  decltype(&pncclGroupEnd) group_end = nullptr;
  decltype(&pncclAllReduce) all_reduce = nullptr;
  decltype(&pncclBroadcast) broadcast = nullptr;
  decltype(&pncclReduce) reduce = nullptr;
  decltype(&pncclAllGather) all_gather = nullptr;
  decltype(&pncclReduceScatter) reduce_scatter = nullptr;
  decltype(&pncclAlltoAll) all_to_all = nullptr;
  decltype(&pncclGather) gather = nullptr;
  decltype(&pncclScatter) scatter = nullptr;
  decltype(&pncclSend) send = nullptr;
  decltype(&pncclRecv) recv = nullptr;

  static const Library& open(const std::string& path);
};

const Fallback::Library& Fallback::Library::open(const std::string& path) {
  static std::mutex mutex;
  static auto* const opened = new std::map<std::string, Library>;
  const std::lock_guard lock(mutex);
  if (const auto found = opened->find(path); found != opened->end()) return found->second;
    // Bound to itself: preloaded names of this library must not come before its own. Sanitizers
    // refuse that.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kBinding = RTLD_NOW | RTLD_LOCAL;
#else
  constexpr int kBinding = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif
  void* const handle = ::dlopen(path.c_str(), kBinding);
  if (handle == nullptr) {
    refuse(ncclSystemError, "CHORUS_NCCL_FALLBACK_LIBRARY={}: {}", path, ::dlerror());
  }
  if (::dlsym(handle, "pncclAllReduce") == reinterpret_cast<void*>(&pncclAllReduce)) {
    refuse(ncclInvalidUsage, "CHORUS_NCCL_FALLBACK_LIBRARY={}: this is Chorus's own library", path);
  }
  Library library;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
  };
  find("pncclGetErrorString", library.error_string);
  find("pncclGetUniqueId", library.unique_id);
  find("pncclCommInitRank", library.init);
  find("pncclCommFinalize", library.finalize);  // since 2.14
  find("pncclCommDestroy", library.destroy);
  find("pncclCommAbort", library.abort);
  find("pncclCommGetAsyncError", library.async_error);
  find("pncclGroupStart", library.group_start);
  find("pncclGroupEnd", library.group_end);
  find("pncclAllReduce", library.all_reduce);
  find("pncclBroadcast", library.broadcast);
  find("pncclReduce", library.reduce);
  find("pncclAllGather", library.all_gather);
  find("pncclReduceScatter", library.reduce_scatter);
  find("pncclAlltoAll", library.all_to_all);  // these three since 2.28
  find("pncclGather", library.gather);
  find("pncclScatter", library.scatter);
  find("pncclSend", library.send);
  find("pncclRecv", library.recv);
  if (library.error_string == nullptr || library.init == nullptr || library.send == nullptr ||
      library.async_error == nullptr) {
    refuse(ncclSystemError, "CHORUS_NCCL_FALLBACK_LIBRARY={} is no libnccl", path);
  }
  return opened->emplace(path, library).first->second;
}

namespace {

std::string_view name_of_kind(Call::Kind kind) {
  constexpr std::array<std::string_view, 12> kNames = {
      "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce",
      "gather",    "scatter",   "barrier",       "",         "send",      "recv"};
  return kNames[static_cast<std::size_t>(kind)];
}

ncclDataType_t theirs(DataType type) {
  int value = 0;
  while (type_of(static_cast<ncclDataType_t>(value)) != type) ++value;
  return static_cast<ncclDataType_t>(value);
}

ncclRedOp_t theirs(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return ncclSum;
    case ReduceOp::prod:
      return ncclProd;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::avg:
      return ncclAvg;
    case ReduceOp::band:  // NCCL's interface has no name for these, so no call brings one
    case ReduceOp::bor:
    case ReduceOp::bxor:
      break;
  }
  return ncclSum;
}

}  // namespace

Fallback::Fallback(const Library& library, std::string list)
    : library_(library), list_(std::move(list)) {}

std::unique_ptr<Fallback> Fallback::make(Communicator& communicator, int device) {
  const Environment environment = Environment::read();
  const bool wanted = !environment.fallback_library.empty() && !DeviceCommunicator::why_not();
  std::array<std::int32_t, 2> votes = {wanted ? 1 : 0, wanted ? 0 : 1};
  communicator.all_reduce(std::span<std::int32_t>(votes), ReduceOp::max);
  if (votes[0] == 1 && votes[1] == 1) {
    refuse(ncclInvalidUsage,
           "CHORUS_NCCL_FALLBACK_LIBRARY must be set on all ranks or none; here it is {}set",
           wanted ? "" : "not ");
  }
  if (!wanted) return nullptr;
  std::unique_ptr<Fallback> fallback(
      new Fallback(Library::open(environment.fallback_library), environment.fallback));
  // The other library takes the thread's current device.
  const cuda::PrimaryContext context(device);
  const cuda::Current current(context.get());
  ncclUniqueId id = {};
  if (communicator.rank() == 0) fallback->check(fallback->library_.unique_id(&id), "making an id");
  communicator.broadcast(
      std::span(reinterpret_cast<std::uint8_t*>(id.internal), sizeof id.internal), 0);
  fallback->check(
      fallback->library_.init(&fallback->comm_, communicator.world_size(), id, communicator.rank()),
      "joining");
  return fallback;
}

Fallback::~Fallback() {
  if (comm_ != nullptr && !aborted_) (void)library_.destroy(comm_);
}

bool Fallback::serves(Call::Kind kind) const {
  std::string_view list = list_;
  while (!list.empty()) {
    const std::size_t to = std::min(list.find(','), list.size());
    const std::string_view each = list.substr(0, to);
    if (each == "all" || each == name_of_kind(kind)) return true;
    list.remove_prefix(std::min(to + 1, list.size()));
  }
  return false;
}

bool Fallback::offers(Call::Kind kind) const {
  const Library& l = library_;
  const std::array<bool, 12> has = {l.all_reduce != nullptr,
                                    l.all_gather != nullptr,
                                    l.reduce_scatter != nullptr,
                                    l.all_to_all != nullptr,
                                    l.broadcast != nullptr,
                                    l.reduce != nullptr,
                                    l.gather != nullptr,
                                    l.scatter != nullptr,
                                    false,
                                    false,
                                    l.send != nullptr,
                                    l.recv != nullptr};
  return has[static_cast<std::size_t>(kind)];  // in the order of name_of_kind()
}

void Fallback::check(ncclResult_t result, const char* doing) const {
  if (result == ncclSuccess) return;
  refuse(result, "the library of CHORUS_NCCL_FALLBACK_LIBRARY failed at {}: {}", doing,
         library_.error_string(result));
}

ncclResult_t Fallback::call(const DeviceCall& device_call) const {
  const Call& c = device_call.call;
  auto* const stream = static_cast<cudaStream_t>(device_call.stream);
  const ncclDataType_t type = theirs(c.type);
  const ncclRedOp_t op = theirs(c.reduction.op);
  const Library& l = library_;
  switch (c.kind) {
    case Call::Kind::all_reduce:
      return l.all_reduce(c.input, c.output, c.count, type, op, comm_, stream);
    case Call::Kind::broadcast:
      return l.broadcast(c.input, c.output, c.count, type, c.peer, comm_, stream);
    case Call::Kind::reduce:
      return l.reduce(c.input, c.output, c.count, type, op, c.peer, comm_, stream);
    case Call::Kind::all_gather:
      return l.all_gather(c.input, c.output, c.count, type, comm_, stream);
    case Call::Kind::reduce_scatter:
      return l.reduce_scatter(c.input, c.output, c.count, type, op, comm_, stream);
    case Call::Kind::all_to_all:
      return l.all_to_all(c.input, c.output, c.count, type, comm_, stream);
    case Call::Kind::gather:
      return l.gather(c.input, c.output, c.count, type, c.peer, comm_, stream);
    case Call::Kind::scatter:
      return l.scatter(c.input, c.output, c.count, type, c.peer, comm_, stream);
    case Call::Kind::send:
      return l.send(c.input, c.count, type, c.peer, comm_, stream);
    case Call::Kind::recv:
      return l.recv(c.output, c.count, type, c.peer, comm_, stream);
    default:
      return ncclInvalidUsage;
  }
}

void Fallback::enqueue(std::span<const DeviceCall> calls) {
  if (calls.size() == 1) return check(call(calls[0]), "a call");
  check(library_.group_start(), "a group");
  ncclResult_t first = ncclSuccess;
  for (const DeviceCall& each : calls) {
    const ncclResult_t result = call(each);
    if (first == ncclSuccess) first = result;
  }
  check(library_.group_end(), "a group");
  check(first, "a call of a group");
}

void Fallback::finish() {
  if (library_.finalize != nullptr && !aborted_) check(library_.finalize(comm_), "finalizing");
}

void Fallback::abort() {
  if (aborted_.exchange(true)) return;
  (void)library_.abort(comm_);
}

ncclResult_t Fallback::async_error() const {
  ncclResult_t state = ncclSuccess;
  if (comm_ != nullptr && !aborted_) (void)library_.async_error(comm_, &state);
  return state == ncclInProgress ? ncclSuccess : state;
}

}  // namespace chorus::nccl
