#include "transports/rdma/device.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/check.hpp"
#include "base/cores.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

/// Kinds of GID entries, less wanted first.
enum class GidRank : int { unusable, roce1, roce2_link_local, roce2_ipv6, roce2_ipv4 };

bool is_zero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

GidRank rank_of(const ibv_gid_entry& entry, const Gid& gid) {
  if (is_zero(gid)) return GidRank::unusable;
  if (entry.gid_type == IBV_GID_TYPE_ROCE_V1) return GidRank::roce1;
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return GidRank::unusable;
  if (is_ipv4(gid)) return GidRank::roce2_ipv4;
  const bool link_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
  return link_local ? GidRank::roce2_link_local : GidRank::roce2_ipv6;
}

/// False if the port has no GID that can be used.
bool choose_gid(const Verbs& verbs, ibv_context* context, const RdmaSettings& settings, int entries,
                RdmaPort& port) {
  if (!port.ethernet) {  // the subnet manager's; LIDs address the packets
    ibv_gid_entry entry{};
    if (verbs.query_gid_ex(context, static_cast<std::uint32_t>(port.number), 0, &entry, 0,
                           sizeof entry) != 0) {
      return false;
    }
    std::memcpy(port.gid.data(), entry.gid.raw, port.gid.size());
    port.gid_index = 0;
    return true;
  }
  GidRank best = GidRank::unusable;
  for (int index = 0; index < entries; ++index) {
    if (settings.gid_index >= 0 && index != settings.gid_index) continue;
    ibv_gid_entry entry{};
    if (verbs.query_gid_ex(context, static_cast<std::uint32_t>(port.number),
                           static_cast<std::uint32_t>(index), &entry, 0, sizeof entry) != 0) {
      continue;
    }
    Gid gid;
    std::memcpy(gid.data(), entry.gid.raw, gid.size());
    const GidRank rank = rank_of(entry, gid);
    if (rank <= best) continue;
    best = rank;
    port.gid = gid;
    port.gid_index = index;
  }
  return best != GidRank::unusable;
}

double gigabytes_per_second(int width, int speed) {
  const double lanes = width == 1    ? 1
                       : width == 2  ? 4
                       : width == 4  ? 8
                       : width == 8  ? 12
                       : width == 16 ? 2
                                     : 0;
  double lane_gigabits = 0;
  switch (speed) {
    case 1:
      lane_gigabits = 2;
      break;  // SDR, 8b/10b coded
    case 2:
      lane_gigabits = 4;
      break;  // DDR
    case 4:
      lane_gigabits = 8;
      break;  // QDR
    case 8:
      lane_gigabits = 10;
      break;  // FDR10
    case 16:
      lane_gigabits = 13.6;
      break;  // FDR
    case 32:
      lane_gigabits = 25;
      break;  // EDR
    case 64:
      lane_gigabits = 50;
      break;  // HDR
    case 128:
      lane_gigabits = 100;
      break;  // NDR
    default:
      break;
  }
  return lanes * lane_gigabits / 8;
}

int numa_node_of(const std::string& device) {
  int node = -1;
  std::ifstream("/sys/class/infiniband/" + device + "/device/numa_node") >> node;
  return node;
}

/// NUMA nodes of the cores that this process may use; empty if the kernel does not say.
std::set<int> own_numa_nodes() {
  namespace fs = std::filesystem;
  std::set<int> nodes;
  for (const int core : usable_cores()) {
    std::error_code error;
    for (fs::directory_iterator it(fmt::format("/sys/devices/system/cpu/cpu{}", core), error), end;
         !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.starts_with("node")) nodes.insert(std::atoi(name.c_str() + 4));
    }
  }
  return nodes;
}

/// Keeps what is near where that is a question: a process bound to one of several nodes.
void prefer_near(std::vector<std::shared_ptr<RdmaDevice>>& devices) {
  const std::set<int> here = own_numa_nodes();
  if (here.size() != 1) return;
  const auto near = [&](const auto& device) {
    return device->port().numa_node < 0 || here.contains(device->port().numa_node);
  };
  if (std::any_of(devices.begin(), devices.end(), near)) {
    std::erase_if(devices, [&](const auto& device) { return !near(device); });
  }
}

bool in_natural_order(const RdmaPort& a, const RdmaPort& b) {
  // mlx5_2 before mlx5_10
  if (a.device.size() != b.device.size()) return a.device.size() < b.device.size();
  return a.device != b.device ? a.device < b.device : a.number < b.number;
}

/// Of the kernel, which may know more of them than libibverbs.
std::vector<std::string> adapters_of_kernel() {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/sys/class/infiniband", error), end;
       !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Why an adapter cannot be opened, of which libibverbs says no more than that it cannot.
std::string why_closed(const ibv_device& device, int error) {
  const std::string file = fmt::format("/dev/infiniband/{}", device.dev_name);
  if (::access(file.c_str(), F_OK) != 0) {
    return "cannot be opened: no /dev/infiniband/uverbs* of theirs is here (docker run "
           "--device=/dev/infiniband)";
  }
  if (::access(file.c_str(), R_OK | W_OK) != 0) {
    return "cannot be opened: this user may not read and write /dev/infiniband/uverbs* (chmod 666, "
           "for good by a rule of udev)";
  }
  return fmt::format("cannot be opened: {}", why_refused(error));
}

/// Goes through the ports of one adapter.
class Survey {
 public:
  Survey(const Verbs& verbs, const RdmaSettings& settings)
      : verbs_(verbs), settings_(settings), list_(settings.hca) {}

  void look_at(ibv_device* device) {
    const std::string name = verbs_.get_device_name(device);
    ibv_context* probe = verbs_.open_device(device);
    if (probe == nullptr) {
      withheld = true;
      refuse(name, why_closed(*device, errno));
      return;
    }
    ibv_device_attr attributes{};
    const int ports = verbs_.query_device(probe, &attributes) == 0 ? attributes.phys_port_cnt : 0;
    verbs_.close_device(probe);
    for (int port = 1; port <= ports; ++port) look_at(device, name, port);
  }

  /// Why ports cannot be used, those of one cause together: "mlx5_0 port 1, mlx5_1 port 1 …".
  [[nodiscard]] std::string refusals() const {
    std::string text;
    for (const auto& [why, ports] : refused_) {
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", fmt::join(ports, ", "), why);
    }
    return text;
  }

  std::vector<std::shared_ptr<RdmaDevice>> found;
  bool withheld = false;

 private:
  void refuse(const std::string& port, const std::string& why) {
    const auto same =
        std::find_if(refused_.begin(), refused_.end(), [&](auto& one) { return one.first == why; });
    if (same != refused_.end()) {
      same->second.push_back(port);
    } else {
      refused_.push_back({why, {port}});
    }
  }

  void look_at(ibv_device* device, const std::string& name, int number) {
    RdmaPort port;
    port.device = name;
    port.number = number;
    if (!list_.admits(name, number)) {
      return refuse(port.name(), fmt::format("left out by CHORUS_RDMA_HCA={}", settings_.hca));
    }
    ibv_context* context = verbs_.open_device(device);
    if (context == nullptr) return;
    ibv_port_attr attributes{};
    if (verbs_.query_port(context, static_cast<std::uint8_t>(number), &attributes) != 0) {
      verbs_.close_device(context);
      return refuse(port.name(), "without an answer to a query");
    }
    port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.lid = attributes.lid;
    port.mtu = attributes.active_mtu;
    port.gb_s = gigabytes_per_second(attributes.active_width, attributes.active_speed);
    port.numa_node = numa_node_of(name);
    std::string why_not;
    if (attributes.state != IBV_PORT_ACTIVE) {
      why_not = "not active (see `rdma link`)";
    } else if (!choose_gid(verbs_, context, settings_, attributes.gid_tbl_len, port)) {
      why_not = settings_.gid_index >= 0
                    ? fmt::format("without a GID {} (CHORUS_RDMA_GID_INDEX)", settings_.gid_index)
                    : "without a GID: its interface needs an address";
    }
    if (!why_not.empty()) {
      verbs_.close_device(context);
      return refuse(port.name(), why_not);
    }
    try {
      found.push_back(std::make_shared<RdmaDevice>(verbs_, context, port));
    } catch (const LinkError& error) {
      withheld = true;
      refuse(port.name(), error.what());
    }
  }

  const Verbs& verbs_;
  const RdmaSettings& settings_;
  const HcaList list_;
  std::vector<std::pair<std::string, std::vector<std::string>>> refused_;  // by cause, in order
};

}  // namespace

bool is_ipv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](auto byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool ipv4 = is_ipv4(gid);
  ::inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.data() + (ipv4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string RdmaPort::name() const { return fmt::format("{} port {}", device, number); }

RdmaDevice::RdmaDevice(const Verbs& verbs, ibv_context* opened, RdmaPort port)
    : verbs_(verbs), port_(std::move(port)), context_(opened) {
  const auto never_block = [](int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
  };
  domain_ = verbs_.alloc_pd(context_);
  if (domain_ != nullptr) channel_ = verbs_.create_comp_channel(context_);
  if (channel_ == nullptr || !never_block(channel_->fd) || !never_block(context_->async_fd) ||
      verbs_.query_device(context_, &limits_) != 0) {
    const int error = errno;
    close();
    throw LinkError(fmt::format("cannot be used: {}", why_refused(error)));
  }
}

RdmaDevice::~RdmaDevice() { close(); }

void RdmaDevice::close() {
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  if (domain_ != nullptr) verbs_.dealloc_pd(domain_);
  verbs_.close_device(context_);
}

void RdmaDevice::drain_channel() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (verbs_.get_cq_event(channel_, &queue, &context) == 0) verbs_.ack_cq_events(queue, 1);
}

void RdmaDevice::hear() {
  ibv_async_event event{};
  while (verbs_.get_async_event(context_, &event) == 0) {
    std::string fault;
    bool better = false;
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        fault = "the adapter failed or was removed";
        gone_ = true;
        break;
      case IBV_EVENT_PORT_ERR:
        if (event.element.port_num == port_.number) fault = "the port went down";
        break;
      case IBV_EVENT_PORT_ACTIVE:
        better = event.element.port_num == port_.number;
        break;
      case IBV_EVENT_GID_CHANGE:
        better = same_gid();
        if (!better) fault = fmt::format("its GID {} changed", port_.gid_index);
        break;
      default:  // of queues, whose completions tell it too; or good news
        break;
    }
    verbs_.ack_async_event(&event);
    if (fault_.empty() && !fault.empty()) {
      fault_ = fault;
      ++faults_;
    }
    if (!better) continue;
    ++news_;
    static_cast<void>(sound());
  }
}

bool RdmaDevice::same_gid() const {
  ibv_gid_entry entry{};
  return verbs_.query_gid_ex(context_, static_cast<std::uint32_t>(port_.number),
                             static_cast<std::uint32_t>(port_.gid_index), &entry, 0,
                             sizeof entry) == 0 &&
         std::memcmp(entry.gid.raw, port_.gid.data(), port_.gid.size()) == 0;
}

bool RdmaDevice::sound() {
  if (fault_.empty()) return true;
  if (gone_) return false;
  ibv_port_attr attributes{};
  if (verbs_.query_port(context_, static_cast<std::uint8_t>(port_.number), &attributes) == 0 &&
      attributes.state == IBV_PORT_ACTIVE && same_gid()) {
    fault_.clear();
  }
  return fault_.empty();
}

RdmaMemory::RdmaMemory(std::shared_ptr<RdmaDevice> device, std::byte* at, std::size_t bytes,
                       int access)
    : device_(std::move(device)) {
  region_ = device_->verbs().register_memory(device_->domain(), at, bytes, access);
  if (region_ != nullptr) return;
  const int error = errno;
  rlimit limit{};
  std::string hint;
  if (error == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY) {
    hint = fmt::format("{}; at most {} KiB may be locked here: raise it with `ulimit -l unlimited`",
                       std::strerror(error), limit.rlim_cur / 1024);
  } else {
    hint = why_refused(error);
  }
  throw LinkError(fmt::format("{} cannot register {} bytes of memory: {}", device_->port().name(),
                              bytes, hint));
}

RdmaMemory::RdmaMemory(std::shared_ptr<RdmaDevice> device, const DeviceMemory& memory,
                       std::uint64_t at, std::size_t bytes, int access)
    : device_(std::move(device)) {
  CHORUS_CHECK(memory.holds(at, bytes), "not in this memory");
  const auto reg = device_->verbs().register_dmabuf;
  if (reg == nullptr) {
    throw LinkError("libibverbs.so.1 is too old for dma-bufs: rdma-core 34 has them");
  }
  region_ = reg(device_->domain(), at - memory.address(), bytes, at, memory.descriptor(), access);
  if (region_ != nullptr) return;
  const int error = errno;
  const bool never = error == EOPNOTSUPP || error == EPROTONOSUPPORT || error == ENOSYS;
  throw LinkError(fmt::format("{} does not take {} bytes of GPU memory as a dma-buf: {}{}",
                              device_->port().name(), bytes, std::strerror(error),
                              never ? " (neither its driver nor Linux before 5.12 has them)" : ""));
}

RdmaMemory::~RdmaMemory() {
  if (region_ != nullptr) device_->verbs().deregister_memory(region_);
}

std::string why_refused(int error) {
  const char* const remedy =
      error == EAGAIN ? " (the share of RDMA objects of this control group, rdma.max, is used up)"
      : error == ENOMEM
          ? " (the adapter has no more: `rdma resource show` tells who holds how much)"
          : "";
  return std::strerror(error) + std::string(remedy);
}

std::vector<std::shared_ptr<RdmaDevice>> open_rdma_devices(const RdmaSettings& settings,
                                                           std::string& why_not, bool* withheld) {
  const std::vector<std::string> known = adapters_of_kernel();
  if (withheld != nullptr) *withheld = !known.empty();
  const Verbs* verbs = Verbs::load(why_not);
  if (verbs == nullptr) return {};
  int count = 0;
  ibv_device** const list = verbs->get_device_list(&count);
  Survey survey(*verbs, settings);
  for (int i = 0; list != nullptr && i < count; ++i) survey.look_at(list[i]);
  if (list != nullptr) verbs->free_device_list(list);
  auto& devices = survey.found;
  if (devices.empty()) {
    why_not = count > 0 ? survey.refusals()
              : known.empty()
                  ? "this machine has no RDMA adapter"
                  : fmt::format(
                        "libibverbs lists none of {}: there is no /dev/infiniband (docker "
                        "run --device=/dev/infiniband), or no provider of theirs is "
                        "installed; `chorus doctor` tells",
                        fmt::join(known, ", "));
    if (withheld != nullptr && count > 0) *withheld = survey.withheld;
    return {};
  }
  std::sort(devices.begin(), devices.end(),
            [](const auto& a, const auto& b) { return in_natural_order(a->port(), b->port()); });
  prefer_near(devices);
  if (devices.size() > static_cast<std::size_t>(settings.max_rails)) {
    devices.resize(static_cast<std::size_t>(settings.max_rails));
  }
  return std::move(devices);
}

}  // namespace chorus
