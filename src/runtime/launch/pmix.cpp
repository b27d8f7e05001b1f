#include "runtime/launch/pmix.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pmix.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "chorus/error.hpp"
#include "runtime/control/net.hpp"

namespace chorus {
namespace {

constexpr const char* kLibrary = "libpmix.so.2";

/// The few functions used, found by name. The macros of pmix.h would link against the library.
struct Api {
  decltype(&PMIx_Init) init;
  decltype(&PMIx_Finalize) finalize;
  decltype(&PMIx_Put) put;
  decltype(&PMIx_Commit) commit;
  decltype(&PMIx_Fence_nb) fence_nb;
  decltype(&PMIx_Get) get;
  decltype(&PMIx_Error_string) error_string;

  static Api open() {
    // Never closed: the library has threads of its own.
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw BootstrapError(
          fmt::format("mpirun or srun offers PMIx but {} cannot be opened ({}): install libpmix2, "
                      "or start with "
                      "chorus run or torchrun's variables",
                      kLibrary, ::dlerror()));
    }
    const auto find = [&](const char* name, auto& function) {
      void* address = ::dlsym(library, name);
      if (address == nullptr) {
        throw BootstrapError(fmt::format("{} has no {}: it is too old", kLibrary, name));
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    Api api{};
    find("PMIx_Init", api.init);
    find("PMIx_Finalize", api.finalize);
    find("PMIx_Put", api.put);
    find("PMIx_Commit", api.commit);
    find("PMIx_Fence_nb", api.fence_nb);
    find("PMIx_Get", api.get);
    find("PMIx_Error_string", api.error_string);
    return api;
  }
};

/// The end of a fence, shared with the library's thread, which may come after we gave up.
struct Fence {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  pmix_status_t status = PMIX_SUCCESS;

  static void end(pmix_status_t status, void* data) {
    const std::unique_ptr<std::shared_ptr<Fence>> fence(static_cast<std::shared_ptr<Fence>*>(data));
    const std::lock_guard lock((*fence)->mutex);
    (*fence)->done = true;
    (*fence)->status = status;
    (*fence)->changed.notify_all();
  }
};

class Pmix {
 public:
  Pmix() : api_(Api::open()) { check(api_.init(&me_, nullptr, 0), "PMIx_Init"); }
  ~Pmix() {
    // mpirun takes a process that ends without this for a crash. A forked child is not it.
    if (owner_generation_ == net::fork_generation()) api_.finalize(nullptr, 0);
  }
  Pmix(const Pmix&) = delete;
  Pmix& operator=(const Pmix&) = delete;

  [[nodiscard]] bool first() const { return me_.rank == 0; }

  void put(const std::string& key, std::string text) {
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = text.data();
    check(api_.put(PMIX_GLOBAL, key.c_str(), &value), "PMIx_Put");
    check(api_.commit(), "PMIx_Commit");
  }

  void fence(int timeout_ms) {
    const auto fence = std::make_shared<Fence>();
    pmix_proc_t all{};
    std::memcpy(all.nspace, me_.nspace, sizeof all.nspace);
    all.rank = PMIX_RANK_WILDCARD;
    collect_.value.type = PMIX_BOOL;
    collect_.value.data.flag = true;
    std::strncpy(collect_.key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN);
    auto shared = std::make_unique<std::shared_ptr<Fence>>(fence);
    check(api_.fence_nb(&all, 1, &collect_, 1, &Fence::end, shared.get()), "PMIx_Fence");
    (void)shared.release();  // Fence::end has it
    std::unique_lock lock(fence->mutex);
    if (!fence->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                 [&] { return fence->done; })) {
      throw BootstrapError(
          fmt::format("PMIx: not all ranks have called join() after {} ms (CHORUS_JOIN_TIMEOUT_MS)",
                      timeout_ms));
    }
    check(fence->status, "PMIx_Fence");
  }

  int job_size() {
    pmix_proc_t all{};
    std::memcpy(all.nspace, me_.nspace, sizeof all.nspace);
    all.rank = PMIX_RANK_WILDCARD;
    pmix_value_t* value = nullptr;
    check(api_.get(&all, PMIX_JOB_SIZE, nullptr, 0, &value), "PMIx_Get");
    if (value == nullptr || value->type != PMIX_UINT32) {
      throw BootstrapError("PMIx_Get: the launcher does not say how many ranks there are");
    }
    const auto size = static_cast<int>(value->data.uint32);
    std::free(value);
    return size;
  }

  std::string get(const std::string& key) {
    pmix_proc_t root = me_;
    root.rank = 0;
    pmix_value_t* value = nullptr;
    check(api_.get(&root, key.c_str(), nullptr, 0, &value), "PMIx_Get");
    if (value == nullptr || value->type != PMIX_STRING || value->data.string == nullptr) {
      throw BootstrapError("PMIx_Get: rank 0 published something else than an id");
    }
    std::string text = value->data.string;
    std::free(value->data.string);
    std::free(value);
    return text;
  }

 private:
  void check(pmix_status_t status, const char* what) const {
    if (status == PMIX_SUCCESS) return;
    throw BootstrapError(fmt::format("{}: {}", what, api_.error_string(status)));
  }

  Api api_;
  int owner_generation_ = net::fork_generation();
  pmix_proc_t me_{};
  pmix_info_t collect_{};  // read by the library until the fence ends
};

struct PmixConnection {
  std::mutex mutex;
  std::unique_ptr<Pmix> pmix;  // ends with the process
  int joinings = 0;
};

PmixConnection& pmix_connection() {
  static PmixConnection connection;
  return connection;
}

}  // namespace

int job_size_by_pmix() {
  PmixConnection& connection = pmix_connection();
  const std::lock_guard lock(connection.mutex);
  if (!connection.pmix) connection.pmix = std::make_unique<Pmix>();
  return connection.pmix->job_size();
}

std::string publish_by_pmix(const std::string& value, int timeout_ms) {
  PmixConnection& connection = pmix_connection();
  const std::lock_guard lock(connection.mutex);
  if (!connection.pmix) connection.pmix = std::make_unique<Pmix>();
  Pmix& pmix = *connection.pmix;
  const std::string key = fmt::format("chorus-id-{}", connection.joinings++);
  if (pmix.first()) pmix.put(key, value);
  pmix.fence(timeout_ms);
  return pmix.get(key);
}

}  // namespace chorus
