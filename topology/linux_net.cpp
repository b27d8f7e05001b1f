#include "topology/linux_net.hpp"

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
    interface.pci = pci_of(path / "device");
    found.push_back(std::move(interface));
  }
  return found;
}

}  // namespace chorus
