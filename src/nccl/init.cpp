// Communicators come to be: ids, joining, splitting, shrinking.
#include "nccl/init.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/hash.hpp"
#include "chorus/options.hpp"
#include "nccl/log.hpp"
#include "nccl/settings/environment.hpp"
#include "runtime/control/net.hpp"
#include "runtime/launch/launch.hpp"

namespace chorus::nccl {
namespace {

/// What the environment says, with its effects on the log.
Environment environment() {
  Environment current = Environment::read();
  configure_log(current.log);
  tell_of_ignored_variables();
  return current;
}

/// "address:port", "[address]:port" or "host:port" of NCCL_COMM_ID.
MeetingPlace meeting_place(const std::string& text) {
  const auto colon = text.rfind(':');
  int port = 0;
  for (std::size_t i = colon + 1; colon != std::string::npos && i < text.size(); ++i) {
    port = text[i] >= '0' && text[i] <= '9' && port < 65536 ? port * 10 + (text[i] - '0') : 65536;
  }
  if (colon == std::string::npos || colon == 0 || port < 1 || port > 65535) {
    throw InputError(
        fmt::format("NCCL_COMM_ID={}: must be an address of rank 0's machine and a port, such as "
                    "192.168.0.1:23456",
                    text));
  }
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {.host = host,
          .port = static_cast<std::uint16_t>(port),
          .secret = Secret{}.derive("NCCL_COMM_ID " + text),
          .named_by = "NCCL_COMM_ID"};
}

/// Ranks on other hosts must reach the id's maker, unless the launcher says that there are none.
std::string interface_of_ids(const Options& options, bool this_process_only) {
  if (this_process_only) return {};
  if (!options.interface_name.empty()) return options.interface_name;
  try {
    const Launch launch = Launch::from_env();
    if (launch.launcher != "single" && launch.local_world_size == launch.world_size) return {};
  } catch (const Error&) {  // variables of a launcher that are not meant for this library
  }
  return net::default_route_endpoint().host();
}

}  // namespace

ncclUniqueId make_id(bool this_process_only) {
  const Environment current = environment();
  const std::string text =
      !current.meeting.empty() && !this_process_only
          ? "NCCL_COMM_ID=" + current.meeting
          : UniqueId::make(0, interface_of_ids(current.options, this_process_only)).text;
  ncclUniqueId id = {};
  if (text.size() >= sizeof id.internal) {
    throw InputError(
        fmt::format("'{}' is too long for an id of {} bytes", text, NCCL_UNIQUE_ID_BYTES));
  }
  std::memcpy(id.internal, text.data(), text.size());
  return id;
}

std::string text_of(const ncclUniqueId& id) {
  std::string text(id.internal, ::strnlen(id.internal, sizeof id.internal));
  if (text.starts_with("NCCL_COMM_ID=")) {
    (void)meeting_place(text.substr(13));
    return text;
  }
  try {
    (void)net::Id::parse(text);
  } catch (const InputError&) {
    refuse(ncclInvalidArgument,
           "the unique id was not made by ncclGetUniqueId of this library: all ranks must load the "
           "same libnccl and be given all {} bytes",
           NCCL_UNIQUE_ID_BYTES);
  }
  return text;
}

namespace {

void tell(const ncclComm& comm, std::string_view function, std::string_view what) {
  if (!writes(Level::info, Subsystem::init)) return;
  info(Subsystem::init,
       fmt::format("{} comm {} rank {} nranks {} cudaDev {} nvmlDev {} busId 0 commId 0x{:x} - {}",
                   function, static_cast<const void*>(&comm), comm.rank, comm.ranks, comm.device,
                   comm.device, comm.hash, what));
}

/// Puts what was made into its handle; an ncclCommAbort may have come first.
void complete(ncclComm& child, std::shared_ptr<Body> body) {
  // Known from the start where ranks join by number, and then perhaps read by now.
  const int ranks = body->communicator.world_size(), rank = body->communicator.rank();
  if (child.ranks != ranks) child.ranks = ranks;
  if (child.rank != rank) child.rank = rank;
  const std::lock_guard lock(child.mutex);
  if (child.phase != Phase::joining) {
    body->communicator.abort("ncclCommAbort while joining");
    const std::lock_guard siblings(body->siblings->mutex);
    --body->siblings->alive;
    ++body->siblings->leaving;
    return;
  }
  child.body = std::move(body);
  child.phase.store(Phase::ready, std::memory_order_release);
}

}  // namespace

void join(ncclComm& comm, const Joining& joining, Communicator* parent) {
  set_log_device(joining.device);
  Environment current = environment();
  tell(comm, joining.function, "Init START");
  if (joining.config.net == "Socket" && current.options.transports == Options{}.transports) {
    current.options.transports = "shm,tcp";
  }
  std::string id = joining.id;
  if (id.starts_with("NCCL_COMM_ID=")) {
    Launch launch;
    launch.rank = joining.rank;
    launch.world_size = joining.ranks;
    id = meet_at(meeting_place(id.substr(13)), launch, current.options);
  }
  const UniqueId place{id};
  auto body = Body::make(
      parent != nullptr ? parent->grow(place, joining.ranks, current.options)
                        : Communicator::join(place, joining.rank, joining.ranks, current.options),
      joining.device, joining.id);
  complete(comm, std::move(body));
  tell(comm, joining.function, "Init COMPLETE");
}

ncclComm* handle_for(const Joining& joining) {
  ncclComm* const comm = new_handle();
  comm->rank = joining.rank;
  comm->ranks = joining.ranks;
  comm->device = joining.device;
  comm->config = joining.config;
  comm->hash = Fnv1a().bytes(joining.id).value();
  return comm;
}

Config config_of(const ncclConfig_t* given, const Config& inherited) {
  Config config = read_config(given, inherited);
  if (const auto blocking = environment().blocking) config.blocking = *blocking;
  return config;
}

ncclResult_t add_maker(Task task, std::vector<Claim> claims) {
  ncclComm_t* const out = task.result;
  *out = task.child;
  try {
    return Group::mine().add(std::move(task), std::move(claims));
  } catch (...) {
    *out = nullptr;
    throw;
  }
}

namespace {

ncclResult_t add_join(ncclComm_t* out, const Joining& joining) {
  if (joining.ranks < 1 || joining.rank < 0 || joining.rank >= joining.ranks) {
    refuse(ncclInvalidArgument, "rank {} of {}: there must be at least one rank, counted from 0",
           joining.rank, joining.ranks);
  }
  ncclComm* const comm = handle_for(joining);
  return add_maker({.child = comm,
                    .result = out,
                    .blocking = joining.config.blocking,
                    .run = [comm, joining] { join(*comm, joining); }},
                   {});
}

ncclResult_t init(const char* function, ncclComm_t* out, int ranks, const ncclUniqueId& id,
                  int rank, const ncclConfig_t* config) {
  return guarded(function, [&] {
    if (out == nullptr) refuse(ncclInvalidArgument, "the place for the communicator is null");
    *out = nullptr;
    return add_join(out, {.id = text_of(id),
                          .rank = rank,
                          .ranks = ranks,
                          .device = current_device(),
                          .config = config_of(config),
                          .function = function});
  });
}

/// Children have their parent's GPU; `make` runs in the task.
ncclResult_t add_child(ncclComm& parent, ncclComm_t* out, const ncclConfig_t* given,
                       std::vector<Claim> claims, std::string name,
                       std::function<std::optional<Communicator>(Communicator&)> make) {
  const Config config = config_of(given, parent.config);
  const auto body = parent.hold();
  ncclComm* const child = new_handle();
  child->config = config;
  child->device = parent.device;
  child->rank = parent.rank;
  child->ranks = parent.ranks;
  child->hash = Fnv1a().bytes(name).value();
  Task task{.parent = &parent,
            .child = child,
            .result = out,
            .blocking = parent.config.blocking,
            .run = [child, body, name = std::move(name), make = std::move(make)] {
              auto made = make(body->communicator);
              if (made) complete(*child, Body::make(std::move(*made), child->device, name));
            }};
  return add_maker(std::move(task), std::move(claims));
}

void check_parent_for_part(ncclComm& parent, bool broken_is_fine) {
  const Phase phase = parent.phase;
  if (phase == Phase::revoked || broken_is_fine) {
    if (!parent.hold()) (void)in_order(parent);  // says why
    return;
  }
  (void)in_order(parent);
}

ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t* out,
                   const ncclConfig_t* config) {
  if (out == nullptr) refuse(ncclInvalidArgument, "the place for the communicator is null");
  *out = nullptr;
  ncclComm& parent = known(comm);
  std::vector<Claim> claims;
  claims.emplace_back(parent);
  check_parent_for_part(parent, false);
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    refuse(ncclInvalidArgument, "{}: color {}: must be at least 0, or NCCL_SPLIT_NOCOLOR",
           parent.who(), color);
  }
  const auto body = parent.hold();
  // The ranks meet in a fresh copy then.
  const bool revoked = parent.phase == Phase::revoked;
  const std::string name = fmt::format("{}.{}c{}", body->name, body->parts++, color);
  if (color < 0) {
    (void)config_of(config, parent.config);
    return Group::mine().add(Task{.parent = &parent,
                                  .blocking = parent.config.blocking,
                                  .run =
                                      [body, revoked] {
                                        Communicator& whole = body->communicator;
                                        if (revoked) {
                                          (void)whole.shrink({}).split(NCCL_SPLIT_NOCOLOR);
                                        } else {
                                          (void)whole.split(NCCL_SPLIT_NOCOLOR);
                                        }
                                      }},
                             std::move(claims));
  }
  return add_child(parent, out, config, std::move(claims), name,
                   [color, key, revoked](Communicator& whole) {
                     return revoked ? whole.shrink({}).split(color, key) : whole.split(color, key);
                   });
}

ncclResult_t shrink(ncclComm_t comm, const int* list, int count, ncclComm_t* out,
                    const ncclConfig_t* config, int flags) {
  if (out == nullptr) refuse(ncclInvalidArgument, "the place for the communicator is null");
  *out = nullptr;
  ncclComm& parent = known(comm);
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) {
    refuse(ncclInvalidArgument, "{}: flags {}: must be NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT",
           parent.who(), flags);
  }
  if (list == nullptr || count < 1) {
    refuse(ncclInvalidArgument, "{}: the list of ranks to exclude is empty", parent.who());
  }
  std::vector<Rank> excluded(list, list + count);
  std::sort(excluded.begin(), excluded.end());
  if (excluded.front() < 0 || excluded.back() >= parent.ranks ||
      std::adjacent_find(excluded.begin(), excluded.end()) != excluded.end()) {
    refuse(ncclInvalidArgument, "{}: ranks to exclude must be different ones of 0 to {}",
           parent.who(), parent.ranks - 1);
  }
  if (std::binary_search(excluded.begin(), excluded.end(), parent.rank)) {
    refuse(ncclInvalidArgument, "{} is to be excluded: only ranks that stay call ncclCommShrink",
           parent.who());
  }
  const bool aborts = flags == NCCL_SHRINK_ABORT;
  check_parent_for_part(parent, aborts);
  const auto body = parent.hold();
  std::vector<Claim> claims;
  if (aborts) {
    // Releases the thread that may be in a call.
    body->communicator.abort(fmt::format("rank {} shrinks the communicator", parent.rank));
    if (body->gpu) body->gpu->abort("the communicator is shrunk");
    parent.fail({ncclInvalidUsage, "it was shrunk with NCCL_SHRINK_ABORT"});
  } else {
    claims.emplace_back(parent);
  }
  const std::string name = fmt::format("{}.{}shrunk", body->name, body->parts++);
  return add_child(parent, out, config, std::move(claims), name,
                   [excluded](Communicator& whole) { return whole.shrink(excluded); });
}

ncclResult_t init_all(ncclComm_t* comms, int count, const int* devices) {
  if (comms == nullptr) refuse(ncclInvalidArgument, "the array of communicators is null");
  if (count < 1) refuse(ncclInvalidArgument, "{} devices: there must be at least one", count);
  std::set<int> seen;
  for (int i = 0; devices != nullptr && i < count; ++i) {
    if (devices[i] < 0) refuse(ncclInvalidArgument, "device {} does not exist", devices[i]);
    if (!seen.insert(devices[i]).second && !environment().many_ranks_per_gpu) {
      refuse(ncclInvalidUsage,
             "device {} is listed twice: join its ranks one by one with ncclCommInitRank, or set "
             "NCCL_MULTI_RANK_GPU_ENABLE=1",
             devices[i]);
    }
  }
  const ncclUniqueId id = make_id(true);
  const Config config = config_of(nullptr);
  Group& group = Group::mine();
  group.start();
  try {
    for (int i = 0; i < count; ++i) {
      (void)add_join(&comms[i], {.id = text_of(id),
                                 .rank = i,
                                 .ranks = count,
                                 .device = devices == nullptr ? i : devices[i],
                                 .config = config,
                                 .function = "ncclCommInitAll"});
    }
  } catch (...) {
    group.spoil({ncclInvalidUsage, "ncclCommInitAll failed within this group"});
    (void)group.end();
    throw;
  }
  return group.end();
}

}  // namespace
}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId) {
  return guarded("ncclGetUniqueId", [&] {
    if (uniqueId == nullptr) refuse(ncclInvalidArgument, "the place for the id is null");
    *uniqueId = make_id(false);
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(GetUniqueId);

extern "C" ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId,
                                          int rank) {
  return init("ncclCommInitRank", comm, nranks, commId, rank, nullptr);
}
CHORUS_NCCL_EXPORT(CommInitRank);

extern "C" ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId,
                                                int rank, ncclConfig_t* config) {
  return init("ncclCommInitRankConfig", comm, nranks, commId, rank, config);
}
CHORUS_NCCL_EXPORT(CommInitRankConfig);

extern "C" ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank,
                                                  int nId, ncclUniqueId* commIds,
                                                  ncclConfig_t* config) {
  if (commIds == nullptr || nId < 1 || nId > nranks) {
    return guarded("ncclCommInitRankScalable", [&]() -> ncclResult_t {
      refuse(ncclInvalidArgument, "{} ids for {} ranks: there must be at least one, and no more",
             commIds == nullptr ? 0 : nId, nranks);
    });
  }
  // One coordinator serves all; the first id is the same on all ranks.
  return init("ncclCommInitRankScalable", newcomm, nranks, commIds[0], myrank, config);
}
CHORUS_NCCL_EXPORT(CommInitRankScalable);

extern "C" ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return guarded("ncclCommInitAll", [&] { return init_all(comm, ndev, devlist); });
}
CHORUS_NCCL_EXPORT(CommInitAll);

extern "C" ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                                       ncclConfig_t* config) {
  return guarded("ncclCommSplit", [&] { return split(comm, color, key, newcomm, config); });
}
CHORUS_NCCL_EXPORT(CommSplit);

extern "C" ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList,
                                        int excludeRanksCount, ncclComm_t* newcomm,
                                        ncclConfig_t* config, int shrinkFlags) {
  return guarded("ncclCommShrink", [&] {
    return shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  });
}
CHORUS_NCCL_EXPORT(CommShrink);
