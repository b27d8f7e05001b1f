#include "nccl/comm.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "nccl/log.hpp"
#include "nccl/settings/environment.hpp"

namespace chorus::nccl {
namespace {

/// Ranks on their way out, of all communicators: the process stays for them a little.
struct Departures {
  std::mutex mutex;
  std::condition_variable changed;
  int pending = 0;
  pid_t process = 0;
};

/// As long as the process that holds a coordinator stays for the others, and a moment more.
constexpr auto kStayAtExit = std::chrono::seconds(12);

Departures& departures() {
  static Departures* const the_departures = new Departures;
  return *the_departures;
}

void wait_at_exit() {
  Departures& all = departures();
  std::unique_lock lock(all.mutex);
  if (all.process != ::getpid()) return;  // the threads are the parent's
  all.changed.wait_for(lock, kStayAtExit, [&] { return all.pending == 0; });
}

void send_away(Body* body) {
  Departures& all = departures();
  {
    static std::once_flag once;
    std::call_once(once, [] { std::atexit(wait_at_exit); });
    const std::lock_guard lock(all.mutex);
    if (all.process != ::getpid()) all.pending = 0;
    all.process = ::getpid();
    ++all.pending;
  }
  const auto leave_now = [body, &all] {
    const std::shared_ptr<Siblings> siblings = body->siblings;
    delete body;
    {
      const std::lock_guard lock(siblings->mutex);
      --siblings->leaving;
      siblings->left.notify_all();
    }
    const std::lock_guard lock(all.mutex);
    --all.pending;
    all.changed.notify_all();
  };
  try {
    start_thread(leave_now);
  } catch (const std::system_error&) {  // no more threads: then here
    leave_now();
  }
}

int this_thread() {
  static thread_local const int id = static_cast<int>(::syscall(SYS_gettid));
  return id;
}

}  // namespace

std::shared_ptr<Siblings> Siblings::of(const std::string& name) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, std::weak_ptr<Siblings>>;
  const std::lock_guard lock(mutex);
  std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
  auto siblings = (*all)[name].lock();
  if (!siblings) {
    siblings = std::make_shared<Siblings>();
    (*all)[name] = siblings;
  }
  return siblings;
}

int current_device() { return std::max(0, DeviceCommunicator::current_device()); }

Body::Body(Communicator joined, int ordinal, std::string called)
    : communicator(std::move(joined)),
      device(ordinal),
      name(std::move(called)),
      siblings(Siblings::of(name)) {
  const auto why_not = DeviceCommunicator::why_not(device);
  // A rank without a GPU among others that have one: all of them use host memory alone.
  std::int32_t with_gpu = why_not ? 0 : 1;
  communicator.all_reduce(std::span(&with_gpu, 1), ReduceOp::min);
  if (with_gpu == 1) {
    // It fails on all ranks or none: too many of them, no memory, no way between two. Host memory,
    // smaller communicators and the other library are left.
    try {
      gpu = std::make_unique<DeviceCommunicator>(
          communicator, device, DeviceTuning{.reach = Environment::read().peer_access});
    } catch (const TopologyError& error) {
      why_no_gpu = error.what();
    } catch (const DeviceError& error) {
      why_no_gpu = error.what();
    }
  } else {
    why_no_gpu = why_not.value_or("another rank of this communicator has no GPU");
  }
  fallback = Fallback::make(communicator, device);
  if (!gpu && !DeviceCommunicator::why_not() && communicator.rank() == 0) {
    warn(fmt::format("calls on GPU memory {}: {}",
                     fallback ? "go to the library of CHORUS_NCCL_FALLBACK_LIBRARY"
                              : "will be refused by this communicator",
                     why_no_gpu));
  }
}

MemoryPlace Body::place(const void* memory) const {
  return gpu ? gpu->place(memory) : DeviceCommunicator::place_of(memory, device);
}

std::shared_ptr<Body> Body::make(Communicator joined, int device, std::string name) {
  auto body = std::make_unique<Body>(std::move(joined), device, std::move(name));
  {
    const std::lock_guard lock(body->siblings->mutex);
    ++body->siblings->alive;
  }
  return {body.release(), send_away};
}

ncclComm* new_handle() {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<ncclComm>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::make_unique<ncclComm>());
  return all->back().get();
}

ncclComm& known(ncclComm_t comm) {
  if (comm == nullptr) refuse(ncclInvalidArgument, "the communicator is null");
  if (comm->magic != ncclComm::kMagic) {
    refuse(ncclInvalidArgument, "{} is no communicator of this library",
           static_cast<const void*>(comm));
  }
  if (comm->phase.load(std::memory_order_acquire) == Phase::gone) {
    refuse(ncclInvalidArgument, "{} was destroyed or aborted before: make a new one", comm->who());
  }
  return *comm;
}

std::shared_ptr<Body> in_order(ncclComm& comm) {
  const auto state = static_cast<ncclResult_t>(comm.state.load(std::memory_order_acquire));
  if (state == ncclInProgress) {
    refuse(ncclInvalidArgument,
           "{}: the previous call is still in progress: poll ncclCommGetAsyncError until it says "
           "ncclSuccess",
           comm.who());
  }
  switch (comm.phase.load(std::memory_order_acquire)) {
    case Phase::ready:
      break;
    case Phase::joining:
      refuse(ncclInvalidUsage, "{} is not complete before ncclGroupEnd returns", comm.who());
    case Phase::revoked:
      refuse(ncclInvalidUsage, "{} was revoked: split, shrink or destroy it", comm.who());
    case Phase::finalized:
      refuse(ncclInvalidUsage, "{} was finalized: it can only be destroyed", comm.who());
    case Phase::gone:
      refuse(ncclInvalidArgument, "{} was destroyed or aborted before", comm.who());
  }
  if (state != ncclSuccess) {
    const std::lock_guard lock(comm.mutex);
    refuse(state, "{} has failed before: {}; abort it, or shrink it to the ranks that live",
           comm.who(), comm.failure);
  }
  return comm.hold();
}

Claim::Claim(ncclComm& comm) : comm_(&comm) {
  int user = 0;
  if (comm.user.compare_exchange_strong(user, this_thread(), std::memory_order_acquire)) return;
  if (user == this_thread()) {
    comm_ = nullptr;
    return;
  }
  comm_ = nullptr;
  refuse(ncclInvalidUsage,
         "{}: thread {} is in a call on it: one thread at a time may use a communicator (only "
         "ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError may come from another)",
         comm.who(), user);
}

Claim::~Claim() {
  if (comm_ != nullptr) comm_->user.store(0, std::memory_order_release);
}

void leave(ncclComm& comm, int patience_ms) {
  std::shared_ptr<Body> body;
  {
    const std::lock_guard lock(comm.mutex);
    body = std::move(comm.body);
  }
  if (!body) return;
  const std::shared_ptr<Siblings> siblings = body->siblings;
  std::unique_lock lock(siblings->mutex);
  --siblings->alive;
  ++siblings->leaving;
  lock.unlock();
  body.reset();
  lock.lock();
  if (siblings->alive > 0) return;
  siblings->left.wait_for(lock, std::chrono::milliseconds(patience_ms),
                          [&] { return siblings->leaving == 0; });
}

void start_thread(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(std::move(run)).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace chorus::nccl

std::string ncclComm::who() const {
  return fmt::format("rank {} of communicator {}{}", rank, static_cast<const void*>(this),
                     config.name.empty() ? "" : " '" + config.name + "'");
}

void ncclComm::set_state(ncclResult_t now) {
  int seen = state.load(std::memory_order_relaxed);
  while (seen == ncclSuccess || seen == ncclInProgress) {
    if (state.compare_exchange_weak(seen, now, std::memory_order_acq_rel)) return;
  }
}

void ncclComm::fail(const chorus::nccl::Outcome& outcome) {
  {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = outcome.text;
  }
  set_state(outcome.code);
}
