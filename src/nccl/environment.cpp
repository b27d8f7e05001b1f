#include "nccl/environment.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "chorus/error.hpp"
#include "runtime/options_env.hpp"

namespace chorus::nccl {
namespace {

/// What has an effect; the rest of NCCL's are noted as ignored. docs/nccl.md says what each does.
constexpr std::array<std::string_view, 25> kHonoured = {"NCCL_CHECK_POINTERS",
                                                        "NCCL_COMM_BLOCKING",
                                                        "NCCL_COMM_ID",
                                                        "NCCL_CONF_FILE",
                                                        "NCCL_DEBUG",
                                                        "NCCL_DEBUG_FILE",
                                                        "NCCL_DEBUG_SUBSYS",
                                                        "NCCL_DMABUF_ENABLE",
                                                        "NCCL_IB_DISABLE",
                                                        "NCCL_IB_GID_INDEX",
                                                        "NCCL_IB_HCA",
                                                        "NCCL_IB_QPS_PER_CONNECTION",
                                                        "NCCL_IB_RETRY_CNT",
                                                        "NCCL_IB_SL",
                                                        "NCCL_IB_TC",
                                                        "NCCL_IB_TIMEOUT",
                                                        "NCCL_MULTI_RANK_GPU_ENABLE",
                                                        "NCCL_NET",
                                                        "NCCL_NET_GDR_LEVEL",
                                                        "NCCL_NSOCKS_PERTHREAD",
                                                        "NCCL_P2P_DISABLE",
                                                        "NCCL_SHM_DISABLE",
                                                        "NCCL_SOCKET_FAMILY",
                                                        "NCCL_SOCKET_IFNAME",
                                                        "NCCL_SOCKET_NTHREADS"};

std::string trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r");
  if (from == std::string_view::npos) return {};
  return std::string(text.substr(from, text.find_last_not_of(" \t\r") - from + 1));
}

/// "NAME=value" lines; what is set earlier wins.
void read_file(const std::string& path, std::map<std::string, std::string>& values) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    const std::string name = trimmed(std::string_view(line).substr(0, equals));
    if (name.starts_with("NCCL_")) {
      values.try_emplace(name, trimmed(std::string_view(line).substr(equals + 1)));
    }
  }
}

std::map<std::string, std::string> all_values() {
  std::map<std::string, std::string> values;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (!text.starts_with("NCCL_") || equals == std::string_view::npos) continue;
    values.try_emplace(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  if (const auto file = values.find("NCCL_CONF_FILE"); file != values.end()) {
    read_file(std::string(file->second), values);
  } else if (const auto home = env("HOME")) {
    read_file(*home + "/.nccl.conf", values);
  }
  read_file("/etc/nccl.conf", values);
  return values;
}

/// NCCL's own variables, by name.
class Values {
 public:
  Values() : values_(all_values()) {}

  [[nodiscard]] std::optional<std::string> text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end() || found->second.empty()) return std::nullopt;
    return found->second;
  }
  [[nodiscard]] std::optional<int> number(const std::string& name, int low, int high) const {
    const auto given = text(name);
    if (!given) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(given->data(), given->data() + given->size(), value);
    if (error != std::errc() || end != given->data() + given->size() || value < low ||
        value > high) {
      throw InputError(
          fmt::format("{}={}: must be a whole number in [{}, {}]", name, *given, low, high));
    }
    return value;
  }
  /// Sets `field` unless Chorus's own variable does.
  void into(const std::string& name, const char* own, int low, int high, int& field) const {
    const auto given = number(name, low, high);
    if (given && !env(own)) field = *given;
  }
  [[nodiscard]] bool flag(const std::string& name) const {
    return number(name, INT_MIN, INT_MAX).value_or(0) != 0;
  }

 private:
  std::map<std::string, std::string> values_;
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

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
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
  values.into("NCCL_IB_GID_INDEX", "CHORUS_RDMA_GID_INDEX", -1, 4095, options.rdma_gid_index);
  values.into("NCCL_IB_TC", "CHORUS_RDMA_TC", 0, 255, options.rdma_traffic_class);
  values.into("NCCL_IB_SL", "CHORUS_RDMA_SL", 0, 15, options.rdma_service_level);
  values.into("NCCL_IB_TIMEOUT", "CHORUS_RDMA_TIMEOUT", 1, 31, options.rdma_timeout);
  values.into("NCCL_IB_RETRY_CNT", "CHORUS_RDMA_RETRY", 0, 7, options.rdma_retry);
  if (const auto pairs = values.number("NCCL_IB_QPS_PER_CONNECTION", 1, 128);
      pairs && !env("CHORUS_RDMA_QPS")) {
    options.rdma_queue_pairs = std::min(*pairs, 4);
  }
  // NCCL's distances beyond which it stages: only "never" has a counterpart.
  const std::string level = lower(values.text("NCCL_NET_GDR_LEVEL").value_or(""));
  const bool never = level == "loc" || level == "0";
  if ((never || values.number("NCCL_DMABUF_ENABLE", INT_MIN, INT_MAX) == 0) &&
      !env("CHORUS_RDMA_GPU")) {
    options.rdma_gpu = 0;
  }
  const auto threads = values.number("NCCL_SOCKET_NTHREADS", 0, 16);
  const auto sockets = values.number("NCCL_NSOCKS_PERTHREAD", 0, 64);
  if ((threads.value_or(0) > 0 || sockets.value_or(0) > 0) && !env("CHORUS_TCP_SOCKETS")) {
    options.tcp_sockets =
        std::clamp(std::max(1, threads.value_or(1)) * std::max(1, sockets.value_or(1)), 1, 16);
  }
}

}  // namespace

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
  if (const auto blocking = values.number("NCCL_COMM_BLOCKING", 0, 1)) {
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

std::vector<std::string> honoured_names() { return {kHonoured.begin(), kHonoured.end()}; }

std::vector<Variable> set_variables() {
  std::vector<Variable> variables;
  for (const auto& [name, value] : all_values()) {
    variables.push_back(
        {name, value, std::find(kHonoured.begin(), kHonoured.end(), name) != kHonoured.end()});
  }
  return variables;
}

std::optional<std::string> value_of(std::string_view name) {
  const auto values = all_values();
  const auto found = values.find(std::string(name));
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

void tell_of_ignored_variables() {
  static std::mutex mutex;
  static std::set<std::string> told;
  for (const Variable& variable : set_variables()) {
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
