#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/doctor/checks.hpp"

namespace chorus::doctor {

bool Files::has(const fs::path& name) const {
  std::error_code error;
  return fs::exists(path(name), error);
}

bool Files::usable(const fs::path& name) const {
  return ::access(path(name).c_str(), R_OK | W_OK) == 0;
}

std::string Files::text(const fs::path& name) const {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  std::error_code error;
  if (!fs::exists(path(name), error) || fs::is_directory(path(name), error)) return {};
  std::ifstream file(path(name), std::ios::binary);
  std::string all(kMost, '\0');
  file.read(all.data(), static_cast<std::streamsize>(all.size()));
  all.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return all;
}

std::string Files::line(const fs::path& name) const {
  std::string all = text(name);
  all.resize(std::min(all.find('\n'), all.size()));
  all.erase(all.find_last_not_of(" \t\r") + 1);
  for (char& c : all) c = c >= ' ' && c <= '~' ? c : '?';  // it ends up on a terminal
  return all;
}

std::vector<std::string> Files::names(const fs::path& directory) const {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(path(directory), error), end; !error && it != end;
       it.increment(error)) {
    found.push_back(it->path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<std::uint64_t> number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

std::vector<std::string> words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> found;
  for (std::string word; stream >> word;) found.push_back(word);
  return found;
}

std::vector<std::string> lines(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> found;
  for (std::string line; std::getline(stream, line);) found.push_back(line);
  return found;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes >= 1ULL << 40) return fmt::format("{} TiB", bytes >> 40);
  if (bytes >= 1ULL << 30) return fmt::format("{} GiB", bytes >> 30);
  if (bytes >= 1ULL << 20) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{} KiB", bytes >> 10);
}

std::vector<Pci> pci_devices(const Files& files) {
  std::vector<Pci> found;
  for (const std::string& name : files.names("sys/bus/pci/devices")) {
    const auto address = PciAddress::parse(name);
    if (!address) continue;
    const fs::path link = files.path("sys/bus/pci/devices") / name;
    std::error_code error;
    Pci device;
    device.address = *address;
    device.path = fs::canonical(link, error);
    if (error) device.path = link;
    const auto hex = [&](const char* file) {
      return static_cast<unsigned>(
          std::strtoul(files.line(device.path / file).c_str(), nullptr, 16));
    };
    device.device_class = hex("class") >> 8;
    device.vendor = hex("vendor");
    device.numa = static_cast<int>(number(files.line(device.path / "numa_node")).value_or(~0U));
    device.driver = fs::read_symlink(device.path / "driver", error).filename().string();
    found.push_back(std::move(device));
  }
  return found;
}

std::vector<Adapter> adapters(const Files& files, const std::vector<Pci>& devices) {
  std::vector<Adapter> found;
  for (const std::string& name : files.names("sys/class/infiniband")) {
    Adapter adapter{name, std::nullopt};
    std::error_code error;
    const fs::path device =
        fs::canonical(files.path("sys/class/infiniband") / name / "device", error);
    for (const Pci& pci : devices) {
      if (!error && pci.path == device) adapter.pci = pci;
    }
    found.push_back(std::move(adapter));
  }
  return found;
}

}  // namespace chorus::doctor
