// What the checks of chorus doctor share.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/findings.hpp"
#include "topology/discover/box.hpp"

namespace chorus::doctor {

namespace fs = std::filesystem;

using Findings = std::vector<Finding>;

/// Reading below a root. Whatever is missing, unreadable or too large is empty.
class Files {
 public:
  explicit Files(fs::path root) : root_(std::move(root)) {}

  /// Names are relative to the root; absolute ones are taken as they are.
  [[nodiscard]] fs::path path(const fs::path& name) const { return root_ / name; }
  [[nodiscard]] bool has(const fs::path& name) const;
  /// Whether this user may read and write it.
  [[nodiscard]] bool usable(const fs::path& name) const;
  /// At most 1 MiB.
  [[nodiscard]] std::string text(const fs::path& name) const;
  /// First line without blanks at its end, printable.
  [[nodiscard]] std::string line(const fs::path& name) const;
  /// Names in a directory, sorted.
  [[nodiscard]] std::vector<std::string> names(const fs::path& directory) const;

 private:
  fs::path root_;
};

/// A whole number ≥ 0 at the front of `text`, after blanks; nothing if there is none.
[[nodiscard]] std::optional<std::uint64_t> number(std::string_view text);
[[nodiscard]] std::vector<std::string> words(std::string_view text);
[[nodiscard]] std::vector<std::string> lines(std::string_view text);
/// "8 MiB"
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

struct Pci {
  PciAddress address;
  fs::path path;  ///< in sysfs, resolved: its parents are the bridges above
  unsigned device_class = 0;
  unsigned vendor = 0;
  int numa = -1;
  std::string driver;  ///< empty: none is bound

  [[nodiscard]] bool is_gpu() const {
    return vendor == 0x10de && (device_class == 0x0302 || device_class == 0x0300);
  }
};
[[nodiscard]] std::vector<Pci> pci_devices(const Files& files);

/// The RDMA adapters by name, and the PCI function of each (none for software).
struct Adapter {
  std::string name;
  std::optional<Pci> pci;
};
[[nodiscard]] std::vector<Adapter> adapters(const Files& files, const std::vector<Pci>& devices);

/// What all checks look at.
struct Scene {
  Files files;
  std::vector<Pci> pci;
  std::vector<Adapter> adapters;
  const NvmlReport& nvml;
};

void check_limits(const Scene& scene, Findings& findings);
void check_memory(const Scene& scene, Findings& findings);
void check_processors(const Scene& scene, Findings& findings);
void check_network(const Scene& scene, Findings& findings);
void check_rdma(const Scene& scene, Findings& findings);
void check_rdma_ports(const Scene& scene, Findings& findings);
void check_pcie(const Scene& scene, Findings& findings);
void check_gpus(const Scene& scene, Findings& findings);

}  // namespace chorus::doctor
