// How ranks of each launcher come to one id.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/counted.hpp"
#include "base/text/log.hpp"
#include "chorus/communicator.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/host.hpp"
#include "runtime/control/net.hpp"
#include "runtime/control/wire.hpp"
#include "runtime/launch/launch.hpp"
#include "runtime/launch/pmi.hpp"
#include "runtime/launch/pmix.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// What rank 0 publishes when it could not make an id, so that nobody waits for it.
constexpr std::string_view kNoId = "none";

/// Where rank 0 listens: loopback if all ranks are on this machine, else the interface asked for
/// or the one that leads out of it.
std::string interface_for(const Launch& launch, const Options& options) {
  if (!options.interface_name.empty()) return options.interface_name;
  if (launch.local_world_size == launch.world_size) return {};
  return net::default_route_endpoint().host();
}

/// Rank 0 makes an id; `publish` (collective) hands it to all.
std::string through(const Launch& launch, const Options& options,
                    const std::function<std::string(const std::string&)>& publish) {
  if (launch.rank != 0) {
    std::string id = publish("");
    if (id == kNoId) throw BootstrapError("rank 0 could not make an id: see its error");
    return id;
  }
  std::string id;
  try {
    id = UniqueId::make(launch.world_size, interface_for(launch, options)).text;
  } catch (const BootstrapError&) {
    publish(std::string(kNoId));
    throw;
  }
  return publish(id);
}

Secret torchrun_secret(const net::Endpoint& endpoint) {
  if (const auto given = env("CHORUS_SECRET")) {
    try {
      return Secret::parse(*given);
    } catch (const InputError&) {
      throw InputError("CHORUS_SECRET: must be 32 hex digits (openssl rand -hex 16 makes them)");
    }
  }
  if (!endpoint.is_loopback()) {
    static std::once_flag warned;
    std::call_once(warned, [&] {
      log(LogLevel::warn, "",
          fmt::format("the ranks meet at {} without a secret of their own: whoever reaches it and "
                      "can guess the run id may join; set CHORUS_SECRET to 32 hex digits",
                      endpoint.text()));
    });
  }
  return Secret{}.derive(fmt::format("torchrun {} {} {}", env("TORCHELASTIC_RUN_ID").value_or(""),
                                     env("MASTER_ADDR").value_or(""),
                                     env("MASTER_PORT").value_or("")));
}

/// True when a Chorus coordinator greets at `endpoint`.
bool greets(const net::Endpoint& endpoint) {
  const net::Socket socket(
      ::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return false;
  if (::connect(socket.get(), endpoint.address(), endpoint.size()) != 0 && errno != EINPROGRESS) {
    return false;
  }
  wire::Inbox inbox(wire::kMaxHandshake);
  const auto deadline = Clock::now() + milliseconds(1'000);
  try {
    for (;;) {
      if (const auto item = inbox.next()) {
        return item->type == wire::Type::greeting &&
               wire::read_greeting(item->body).magic == wire::kMagic;
      }
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      pollfd entry{socket.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) return false;
      std::array<std::byte, 1024> buffer;
      const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
    }
  } catch (const wire::Malformed&) {
    return false;
  }
}

void wait_for_greeting(const Launch& launch, const net::Endpoint& endpoint,
                       const std::string& named_by, int timeout_ms) {
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  while (!greets(endpoint)) {
    if (Clock::now() >= deadline) {
      throw BootstrapError(fmt::format(
          "rank {}: no coordinator at {} ({}) after {} ms: rank 0 has not called join(), or "
          "something else listens there",
          launch.rank, endpoint.text(), named_by, timeout_ms));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

/// Rank 0's coordinator keeps its port as long as its process, and takes every later joining.
std::string host_once(const Launch& launch, const net::Endpoint& endpoint,
                      const MeetingPlace& place) {
  static std::mutex mutex;
  static std::map<std::string, std::string> hosted;
  const std::lock_guard lock(mutex);
  std::string& id = hosted[fmt::format("{} {}", endpoint.text(), launch.world_size)];
  if (!id.empty()) return id;
  if (endpoint.is_loopback() && launch.local_world_size > 0 &&
      launch.local_world_size < launch.world_size) {
    log(LogLevel::warn, "",
        fmt::format("'{}' ({}) means {} here, which other machines cannot reach; give the address "
                    "of rank 0's machine",
                    place.host, place.named_by, endpoint.host()));
  }
  try {
    id = host_coordinator(launch.world_size, endpoint.host(), endpoint.port(), place.secret, true);
  } catch (const BootstrapError& error) {
    throw BootstrapError(fmt::format(
        "rank 0 must listen at {} port {} ({}): {}; choose an address of rank 0's machine and a "
        "free port",
        place.host, endpoint.port(), place.named_by, error.what()));
  }
  return id;
}

std::string by_torchrun(const Launch& launch, const Options& options) {
  auto port = static_cast<std::uint16_t>(env_integer("MASTER_PORT", 1, 65534).value_or(0));
  // torchrun's agent then listens on the port itself.
  const std::string agent = env("TORCHELASTIC_USE_AGENT_STORE").value_or("");
  if (agent == "True" || agent == "true" || agent == "1") ++port;
  const std::string host = env("MASTER_ADDR").value_or("127.0.0.1");
  return meet_at({.host = host,
                  .port = port,
                  .secret = torchrun_secret(net::resolve(host, port)),
                  .named_by = "MASTER_ADDR, MASTER_PORT"},
                 launch, options);
}

}  // namespace

std::string meet_at(const MeetingPlace& place, const Launch& launch, const Options& options) {
  const net::Endpoint endpoint = net::resolve(place.host, place.port);
  if (launch.rank == 0) return host_once(launch, endpoint, place);
  wait_for_greeting(launch, endpoint, place.named_by, options.join_timeout_ms);
  return net::Id{endpoint, place.secret}.text();
}

std::string resolve_id(const Launch& launch, const Options& options,
                       std::shared_ptr<void>& keep_alive) {
  keep_alive.reset();
  if (!launch.id.empty()) return launch.id;
  if (launch.world_size == 1) return UniqueId::make(1).text;
  if (launch.launcher == "torchrun") return by_torchrun(launch, options);
  if (launch.launcher == "pmi") {
    return through(launch, options, [&](const std::string& id) {
      return publish_by_pmi(launch.rank, id, options.join_timeout_ms);
    });
  }
  if (launch.launcher == "pmix") {
    return through(launch, options, [&](const std::string& id) {
      return publish_by_pmix(id, options.join_timeout_ms);
    });
  }
  throw InputError(fmt::format("{} of launcher '{}': no id to meet by",
                               counted(launch.world_size, "rank"), launch.launcher));
}

}  // namespace chorus
