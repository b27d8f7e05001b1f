#include "nccl/settings/environment.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/check.hpp"
#include "chorus/error.hpp"
#include "runtime/options/nccl_values.hpp"
#include "runtime/options/options_env.hpp"
#include "runtime/options/variables.hpp"

namespace chorus::nccl {
namespace {

/// NCCL's own variables, by name.
class Values {
 public:
  Values() : values_(nccl_values()) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end() || found->second.value.empty()) return std::nullopt;
    return found->second.value;
  }
  /// Of a variable whose type in the table of variables is a number. Throws InputError.
  [[nodiscard]] std::optional<int> number(const std::string& name) const {
    const auto given = text(name);
    if (!given) return std::nullopt;
    const Variable* const variable = find_variable(name);
    CHORUS_CHECK(variable != nullptr, "a variable of NCCL that the table lacks");
    if (const auto why = why_malformed(*variable, *given)) {
      throw InputError(fmt::format("{}={}: {}", name, *given, *why));
    }
    return static_cast<int>(to_integer(*given, INT_MIN, INT_MAX).value_or(0));
  }
  /// Sets `field` unless Chorus's own variable does.
  void into(const std::string& name, int& field) const {
    const auto given = number(name);
    if (given && !env(find_variable(name)->stands_for)) field = *given;
  }
  [[nodiscard]] bool flag(const std::string& name) const { return number(name).value_or(0) != 0; }

 private:
  std::map<std::string, NcclValue> values_;
};

void remove(std::string& list, std::string_view name) {
  std::string kept;
  for (std::size_t from = 0; from < list.size();) {
    const std::size_t to = std::min(list.find(',', from), list.size());
    const std::string each = list.substr(from, to - from);
    if (each != name) kept += (kept.empty() ? "" : ",") + each;
    from = to + 1;
  }
  if (!kept.empty()) list = kept;
}

void set_transports(const Values& values, Options& options) {
  if (env("CHORUS_TRANSPORTS")) return;
  const std::string net = lower(values.text("NCCL_NET").value_or(""));
  if (values.flag("NCCL_IB_DISABLE") || net == "socket") remove(options.transports, "rdma");
  // NCCL has two ways inside a host; without either, it goes through the network.
  if (values.flag("NCCL_SHM_DISABLE") && values.flag("NCCL_P2P_DISABLE")) {
    remove(options.transports, "shm");
  }
}

void set_network(const Values& values, Options& options) {
  if (const auto list = values.text("NCCL_SOCKET_IFNAME"); list && !env("CHORUS_SOCKET_IFNAME")) {
    const auto interfaces = usable_interfaces();
    const auto chosen = choose_interface(*list, interfaces);
    if (!chosen) {
      throw InputError(fmt::format("NCCL_SOCKET_IFNAME={}: no interface fits; there are: {}", *list,
                                   fmt::join(interfaces, ", ")));
    }
    options.interface_name = *chosen;
  }
  if (const auto hca = values.text("NCCL_IB_HCA"); hca && !env("CHORUS_RDMA_HCA")) {
    options.rdma_hca = *hca;
  }
  values.into("NCCL_IB_GID_INDEX", options.rdma_gid_index);
  values.into("NCCL_IB_TC", options.rdma_traffic_class);
  values.into("NCCL_IB_SL", options.rdma_service_level);
  values.into("NCCL_IB_TIMEOUT", options.rdma_timeout);
  values.into("NCCL_IB_RETRY_CNT", options.rdma_retry);
  if (const auto pairs = values.number("NCCL_IB_QPS_PER_CONNECTION");
      pairs && !env("CHORUS_RDMA_QPS")) {
    options.rdma_queue_pairs = std::min(*pairs, 4);
  }
  // NCCL's distances beyond which it stages: only "never" has a counterpart.
  const std::string level = lower(values.text("NCCL_NET_GDR_LEVEL").value_or(""));
  const bool never = level == "loc" || level == "0";
  if ((never || values.number("NCCL_DMABUF_ENABLE") == 0) && !env("CHORUS_RDMA_GPU")) {
    options.rdma_gpu = 0;
  }
  const auto threads = values.number("NCCL_SOCKET_NTHREADS");
  const auto sockets = values.number("NCCL_NSOCKS_PERTHREAD");
  if ((threads.value_or(0) > 0 || sockets.value_or(0) > 0) && !env("CHORUS_TCP_SOCKETS")) {
    options.tcp_sockets =
        std::clamp(std::max(1, threads.value_or(1)) * std::max(1, sockets.value_or(1)), 1, 16);
  }
}

}  // namespace

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::optional<std::string> choose_interface(std::string_view list,
                                            const std::vector<std::string>& interfaces) {
  bool inverted = false, whole = false;
  while (!list.empty() && (list.front() == '^' || list.front() == '=')) {
    (list.front() == '^' ? inverted : whole) = true;
    list.remove_prefix(1);
  }
  const auto listed = [&](const std::string& name) {
    for (std::size_t from = 0; from < list.size();) {
      const std::size_t to = std::min(list.find(',', from), list.size());
      const std::string_view each = list.substr(from, to - from);
      if (whole ? name == each : name.starts_with(each)) return true;
      from = to + 1;
    }
    return false;
  };
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const auto& name) { return listed(name) != inverted; });
  return found == interfaces.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> usable_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  std::vector<std::string> names, loopback;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    auto& where = (each->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : names;
    if (std::find(where.begin(), where.end(), each->ifa_name) == where.end()) {
      where.emplace_back(each->ifa_name);
    }
  }
  names.insert(names.end(), loopback.begin(), loopback.end());
  return names;
}

Environment Environment::read() {
  const Values values;
  Environment environment{.options = Options::from_env()};
  if (environment.options.on_loss != "error") {
    throw InputError(
        fmt::format("CHORUS_ON_LOSS={}: NCCL's communicators keep their ranks: unset it, and use "
                    "ncclCommShrink and ncclCommGrow",
                    environment.options.on_loss));
  }
  // NCCL has no deadline, and programs that raise their own expect none here: a rank may well save
  // a checkpoint for an hour.
  if (!env("CHORUS_TIMEOUT_MS")) environment.options.timeout_ms = INT_MAX;
  set_transports(values, environment.options);
  set_network(values, environment.options);
  environment.log = LogSettings::parse(values.text("NCCL_DEBUG").value_or(""),
                                       values.text("NCCL_DEBUG_SUBSYS").value_or(""),
                                       values.text("NCCL_DEBUG_FILE").value_or(""));
  if (environment.log.level == Level::warn || environment.log.level == Level::version) {
    environment.options.log_level = "warn";
  } else if (environment.log.level >= Level::info && !env("CHORUS_LOG")) {
    environment.options.log_level = "info";
  }
  if (const auto blocking = values.number("NCCL_COMM_BLOCKING")) {
    environment.blocking = *blocking == 1;
  }
  environment.meeting = values.text("NCCL_COMM_ID").value_or("");
  environment.check_pointers = values.flag("NCCL_CHECK_POINTERS");
  environment.peer_access = !values.flag("NCCL_P2P_DISABLE");
  environment.many_ranks_per_gpu = values.flag("NCCL_MULTI_RANK_GPU_ENABLE");
  environment.fallback_library = env("CHORUS_NCCL_FALLBACK_LIBRARY").value_or("");
  environment.fallback = env("CHORUS_NCCL_FALLBACK").value_or("");
  return environment;
}

std::vector<std::string> honoured_names() {
  std::vector<std::string> names;
  for (const Variable& variable : variables()) {
    if (variable.section == Variable::Section::nccl) names.emplace_back(variable.name);
  }
  return names;
}

std::vector<SetVariable> set_variables() {
  std::vector<SetVariable> all;
  for (const auto& [name, given] : nccl_values()) {
    all.push_back({name, given.value, find_variable(name) != nullptr});
  }
  return all;
}

std::optional<std::string> value_of(std::string_view name) {
  const auto values = nccl_values();
  const auto found = values.find(std::string(name));
  return found == values.end() ? std::nullopt : std::optional(found->second.value);
}

void tell_of_ignored_variables() {
  static std::mutex mutex;
  static std::set<std::string> told;
  for (const SetVariable& variable : set_variables()) {
    const std::lock_guard lock(mutex);
    if (!writes(Level::info, Subsystem::env)) return;
    if (!told.insert(variable.name).second) continue;
    info(Subsystem::env, fmt::format("{} {} {}", variable.name,
                                     variable.honoured ? "set by environment to"
                                                       : "is ignored by Chorus, though set to",
                                     variable.value));
  }
}

}  // namespace chorus::nccl
