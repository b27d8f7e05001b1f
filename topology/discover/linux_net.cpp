#include "topology/discover/linux_net.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

namespace chorus {
namespace {

namespace fs = std::filesystem;

/// First line of a small file of the kernel; empty if it cannot be read (a speed of an interface
/// that is down is EINVAL).
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// GB/s of "100 Gb/sec (4X EDR)"; 0 if unreadable.
double infiniband_rate(const std::string& line) {
  char* end = nullptr;
  const double gigabits = std::strtod(line.c_str(), &end);
  const bool good = end != line.c_str() && std::string_view(end).starts_with(" Gb/sec");
  return good && gigabits > 0 && gigabits < 1e5 ? gigabits / 8 : 0;
}

/// GB/s of a line of megabits per second; 0 for the kernel's -1 and anything else unknown.
double ethernet_rate(const std::string& line) {
  int megabits = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), megabits);
  return error == std::errc{} && megabits > 0 ? megabits / 8000.0 : 0;
}

/// The PCI function on the way to `device`, the innermost first.
std::optional<PciAddress> pci_of(const fs::path& device) {
  std::error_code error;
  fs::path path = fs::canonical(device, error);
  while (!error && path.has_relative_path()) {
    if (const auto address = PciAddress::parse(path.filename().string())) return address;
    path = path.parent_path();
  }
  return std::nullopt;
}

/// Addresses by interface, "10.0.0.2, fe80::1".
std::map<std::string, std::string> addresses() {
  std::map<std::string, std::string> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const int family = entry->ifa_addr->sa_family;
    const void* bytes = nullptr;
    if (family == AF_INET) {
      bytes = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      bytes = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    }
    if (bytes == nullptr || ::inet_ntop(family, bytes, text, sizeof text) == nullptr) continue;
    std::string& all = found[entry->ifa_name];
    all += all.empty() ? text : fmt::format(", {}", text);
  }
  return found;
}

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A GID as people write it: an IPv4 address where it holds one, else as the kernel lists it.
std::string gid_text(const std::string& gid) {
  constexpr std::string_view kMapped = "0000:0000:0000:0000:0000:ffff:";
  if (!gid.starts_with(kMapped) || gid.size() != kMapped.size() + 9) return gid;
  const auto byte = [&](std::size_t at) {
    return std::strtol(gid.substr(kMapped.size() + at, 2).c_str(), nullptr, 16);
  };
  return fmt::format("{}.{}.{}.{}", byte(0), byte(2), byte(5), byte(7));
}

/// The entry of a RoCE port's table that would be used: RoCE v2 over IPv4, else whatever v2 there
/// is, else v1. "GID 3 10.0.0.2, RoCE v2"; empty if there is none.
std::string roce_gid(const fs::path& port) {
  std::string best;
  int best_rank = 0;
  for (int index = 0; index < 256; ++index) {
    const std::string number = std::to_string(index);
    const std::string type = first_line(port / "gid_attrs/types" / number);
    if (type.empty()) continue;
    const std::string gid = first_line(port / "gids" / number);
    const std::string text = gid_text(gid);
    const bool v2 = type == "RoCE v2";
    const int rank = !v2 ? 1 : gid.starts_with("fe80") ? 2 : text == gid ? 3 : 4;
    if (rank <= best_rank) continue;
    best_rank = rank;
    best = fmt::format("GID {} {}, {}", index, text, type);
  }
  return best;
}

/// An Ethernet interface that an RDMA adapter drives, too.
struct Roce {
  std::string detail;  ///< "RDMA mlx5_0 port 1 (GID 3 10.0.0.2, RoCE v2)"
  double gb_s = 0;
  bool software = false;
};

/// By interface.
std::map<std::string, Roce> roce_ports(const fs::path& sys) {
  std::map<std::string, Roce> found;
  for (const fs::path& adapter : entries(sys / "class/infiniband")) {
    for (const fs::path& port : entries(adapter / "ports")) {
      if (first_line(port / "link_layer") != "Ethernet") continue;
      std::string interface;
      for (int index = 0; interface.empty() && index < 16; ++index) {
        interface = first_line(port / "gid_attrs/ndevs" / std::to_string(index));
      }
      if (interface.empty()) interface = first_line(adapter / "parent");  // Soft-RoCE
      if (interface.empty()) continue;
      Roce roce;
      roce.software = !fs::exists(adapter / "device");
      roce.gb_s = roce.software ? 0 : infiniband_rate(first_line(port / "rate"));
      const std::string gid = roce_gid(port);
      const bool active = first_line(port / "state").find("ACTIVE") != std::string::npos;
      roce.detail = fmt::format("{} {} port {} ({})", roce.software ? "Soft-RoCE" : "RDMA",
                                adapter.filename().string(), port.filename().string(),
                                !active       ? "down"
                                : gid.empty() ? "no GID"
                                              : gid);
      found.emplace(interface, std::move(roce));
    }
  }
  return found;
}

std::vector<NetInterface> infiniband_ports(const fs::path& sys) {
  std::vector<NetInterface> found;
  for (const fs::path& adapter : entries(sys / "class/infiniband")) {
    for (const fs::path& port : entries(adapter / "ports")) {
      if (first_line(port / "link_layer") == "Ethernet") continue;  // RoCE: listed as Ethernet
      NetInterface interface;
      interface.port.name = adapter.filename().string();
      if (port.filename() != "1") interface.port.name += ":" + port.filename().string();
      interface.port.type = "infiniband";
      interface.port.gb_s = infiniband_rate(first_line(port / "rate"));
      const std::string state = first_line(port / "state");
      interface.port.connected = state.find("ACTIVE") != std::string::npos;
      interface.port.detail = interface.port.connected ? first_line(port / "rate") : "down";
      interface.pci = pci_of(adapter / "device");
      found.push_back(std::move(interface));
    }
  }
  return found;
}

}  // namespace

std::vector<NetInterface> linux_interfaces(const std::string& sys) {
  constexpr int kLoopbackType = 772;   // ARPHRD_LOOPBACK
  constexpr int kInfinibandType = 32;  // ARPHRD_INFINIBAND: its adapter is listed instead
  const auto address_of = addresses();
  const auto roce_of = roce_ports(sys);
  std::vector<NetInterface> found = infiniband_ports(sys);
  for (const fs::path& path : entries(fs::path(sys) / "class/net")) {
    if (!fs::is_directory(path)) continue;
    if (fs::exists(path / "bridge")) continue;  // no way out of its own; its members are listed
    const std::string type = first_line(path / "type");
    if (type == std::to_string(kLoopbackType)) continue;
    if (type == std::to_string(kInfinibandType) && !found.empty()) continue;
    NetInterface interface;
    interface.port.name = path.filename().string();
    interface.port.is_virtual = !fs::exists(path / "device");
    // "unknown" is what drivers without carrier detection say of a working interface.
    const std::string state = first_line(path / "operstate");
    interface.port.connected = state == "up" || state == "unknown";
    if (interface.port.is_virtual && !interface.port.connected) continue;
    interface.port.gb_s = ethernet_rate(first_line(path / "speed"));
    const auto address = address_of.find(interface.port.name);
    interface.port.detail = !interface.port.connected     ? "down"
                            : address != address_of.end() ? address->second
                                                          : "no address";
    if (interface.port.is_virtual) interface.port.detail += ", virtual";
    if (const auto roce = roce_of.find(interface.port.name); roce != roce_of.end()) {
      interface.port.detail += ", " + roce->second.detail;
      // Software carries its packets no faster than the interface carries others.
      if (!roce->second.software) interface.port.type = "roce";
      if (interface.port.gb_s <= 0) interface.port.gb_s = roce->second.gb_s;
    }
    interface.pci = pci_of(path / "device");
    found.push_back(std::move(interface));
  }
  return found;
}

}  // namespace chorus
