#include "topology/import/record.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/hw_tree.hpp"
#include "topology/discover/hwloc_live.hpp"
#include "topology/import/import.hpp"

namespace chorus {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, std::string_view text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) {
    throw InputError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  }
}

}  // namespace

void record_machine(const std::string& directory, const NvmlReport& gpus) {
  std::error_code error;
  const fs::path to(directory);
  fs::create_directories(to, error);
  if (error) {
    throw InputError(fmt::format("{}: cannot be made: {}", directory, error.message()));
  }
  write(to / kHwlocFile, hwloc_xml());
  write(to / kHostFile, to_json(HostRecord{host_name(), linux_interfaces("/sys")}));
  write(to / kNvmlFile, to_json(gpus));
}

namespace {

/// What `made_of` makes of what was recorded in `directory`: the box, and NVML's report.
template <typename MadeOf>
auto from_record(const std::string& directory, const MadeOf& made_of) {
  const fs::path from(directory);
  const std::string hwloc = (from / kHwlocFile).string();
  const std::string host = (from / kHostFile).string();
  const std::string nvml = (from / kNvmlFile).string();
  if (!fs::exists(hwloc)) {
    throw InputError(fmt::format("{}: holds no {}: make the record with chorus topo --record {}",
                                 directory, kHwlocFile, directory));
  }
  HwMachine machine = machine_from_hwloc_xml(text_of_file(hwloc), hwloc);
  machine.name =
      from.has_filename() ? from.filename().string() : from.parent_path().filename().string();
  HostRecord recorded;
  if (fs::exists(host)) recorded = host_from_json(text_of_file(host), host);
  if (!recorded.name.empty()) machine.name = recorded.name;
  NvmlReport report;
  if (fs::exists(nvml)) report = nvml_from_json(text_of_file(nvml), nvml);
  try {
    Box box = box_of(machine);
    add_interfaces(box, recorded.interfaces);
    for (const std::string& remark : add_nvml(box, report)) log(LogLevel::warn, "", remark);
    return made_of(std::move(box), report);
  } catch (const TopologyError& fault) {
    throw InputError(fmt::format("{}:1: {}", hwloc, fault.what()));
  }
}

}  // namespace

Topology topology_from_record(const std::string& directory) {
  return from_record(directory, [&](Box box, const NvmlReport&) {
    return sound(topology_of(std::move(box)), directory);
  });
}

DiscoveredHost host_from_record(const std::string& directory) {
  return from_record(directory, [&](Box box, const NvmlReport& gpus) {
    return host_of(std::move(box), directory, gpus);
  });
}

}  // namespace chorus
