// The matrix that `nvidia-smi topo -m` prints.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "chorus/error.hpp"
#include "topology/discover/box.hpp"
#include "topology/discover/rates.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/xml.hpp"

namespace chorus {
namespace {

constexpr int kMostNvlinks = 36;  // of one GPU, and more than any has
constexpr double kNvlinkGbS = 25;
constexpr std::size_t kMostDevices = 4096;

/// How two devices meet, the nearest first.
enum class Way { self, nvlink, pix, pxb, phb, node, sys };

struct Cell {
  Way way = Way::sys;
  int nvlinks = 0;
  bool operator==(const Cell&) const = default;
};

struct Row {
  std::string name;
  std::size_t line = 0;
  std::vector<Cell> cells;
  std::string cpus;  ///< "0-23"; empty if not told
  std::string numa;  ///< "0"; empty if not told
};

/// Splits at blanks; without escape sequences (the header is underlined on terminals).
std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> found;
  std::string word;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else if (line[i] == ' ' || line[i] == '\t' || line[i] == '\r') {
      if (!word.empty()) found.push_back(std::move(word));
      word.clear();
    } else {
      word += line[i];
    }
  }
  if (!word.empty()) found.push_back(std::move(word));
  return found;
}

bool is_gpu(const std::string& name) {
  return name.size() > 3 && name.starts_with("GPU") &&
         std::all_of(name.begin() + 3, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

class SmiReader {
 public:
  SmiReader(std::string_view text, std::string_view where) : where_(where) {
    if (text.size() > kMostInputBytes) {
      throw InputError(
          fmt::format("{}: larger than {} MiB: no matrix is", where_, kMostInputBytes >> 20));
    }
    split(text);
  }

  Box read() {
    std::size_t at = 0;
    while (at < lines_.size() && !is_header(lines_[at])) ++at;
    if (at == lines_.size()) {
      throw InputError(
          fmt::format("{}: no header line GPU0 GPU1 …: is it the output of "
                      "nvidia-smi topo -m?",
                      where_));
    }
    read_header(at++);
    for (; at < lines_.size() && rows_.size() < columns_.size(); ++at) {
      if (!lines_[at].empty()) read_row(at);
    }
    if (rows_.size() < columns_.size()) {
      fail(lines_.size(), fmt::format("the matrix ends after {} of {} rows: copy all of it",
                                      rows_.size(), columns_.size()));
    }
    for (; at < lines_.size(); ++at) read_legend(at);
    check();
    return box();
  }

 private:
  [[noreturn]] void fail(std::size_t line, std::string_view what) const {
    throw InputError(fmt::format("{}:{}: {}", where_, line, what));
  }

  void split(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      lines_.push_back(words(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  /// A header names GPU0 first and holds no cell; with one GPU, the row below begins alike.
  static bool is_header(const std::vector<std::string>& line) {
    return !line.empty() && line[0] == "GPU0" && (line.size() == 1 || line[1] != "X");
  }

  void read_header(std::size_t at) {
    for (const std::string& word : lines_[at]) {
      if (word == "CPU" || word == "NUMA") break;
      if (std::count(columns_.begin(), columns_.end(), word) > 0) {
        fail(at + 1, fmt::format("{} heads two columns", word));
      }
      columns_.push_back(word);
    }
    if (columns_.size() > kMostDevices) {
      fail(at + 1, fmt::format("more than {} devices", kMostDevices));
    }
  }

  Cell read_cell(const std::string& word, std::size_t line) const {
    static const std::map<std::string, Way> ways = {
        {"X", Way::self},    {"PIX", Way::pix}, {"PXB", Way::pxb}, {"PHB", Way::phb},
        {"NODE", Way::node}, {"SYS", Way::sys}, {"SOC", Way::sys}};
    if (const auto way = ways.find(word); way != ways.end()) return {way->second, 0};
    int count = 0;
    const char* end = word.data() + word.size();
    if (word.starts_with("NV") && word.size() > 2) {
      const auto [stop, error] = std::from_chars(word.data() + 2, end, count);
      if (error == std::errc{} && stop == end && count >= 1 && count <= kMostNvlinks) {
        return {Way::nvlink, count};
      }
    }
    fail(line,
         fmt::format("\"{}\" is not a connection: known are X, NV#, PIX, PXB, PHB, NODE and SYS",
                     word));
  }

  void read_row(std::size_t at) {
    const std::vector<std::string>& line = lines_[at];
    Row row;
    row.name = line[0];
    row.line = at + 1;
    if (row.name != columns_[rows_.size()]) {
      fail(row.line, fmt::format("row {} where {} was expected: rows and columns must name the "
                                 "same devices in the same order",
                                 row.name, columns_[rows_.size()]));
    }
    if (line.size() < columns_.size() + 1) {
      fail(row.line, fmt::format("row {} has {} of {} connections: copy all of the line", row.name,
                                 line.size() - 1, columns_.size()));
    }
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      row.cells.push_back(read_cell(line[i + 1], row.line));
    }
    const std::size_t rest = columns_.size() + 1;
    if (line.size() > rest && line[rest] != "N/A") row.cpus = line[rest];
    if (line.size() > rest + 1 && line[rest + 1] != "N/A") row.numa = line[rest + 1];
    rows_.push_back(std::move(row));
  }

  /// "NIC0: mlx5_0"
  void read_legend(std::size_t at) {
    const std::vector<std::string>& line = lines_[at];
    if (line.size() == 2 && line[0].size() > 1 && line[0].back() == ':') {
      legend_[line[0].substr(0, line[0].size() - 1)] = line[1];
    }
  }

  void check() const {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t j = 0; j < rows_.size(); ++j) {
        const Cell& cell = rows_[i].cells[j];
        if ((cell.way == Way::self) != (i == j)) {
          fail(rows_[i].line, fmt::format("X marks a device and itself, not {} and {}",
                                          rows_[i].name, rows_[j].name));
        }
        if (cell != rows_[j].cells[i]) {
          fail(rows_[i].line, fmt::format("{} and {} disagree about their connection (line {}): "
                                          "make both cells equal",
                                          rows_[i].name, rows_[j].name, rows_[j].line));
        }
        if (cell.way == Way::nvlink && !(is_gpu(rows_[i].name) && is_gpu(rows_[j].name))) {
          fail(rows_[i].line, fmt::format("NVLinks between {} and {}: only GPUs have them",
                                          rows_[i].name, rows_[j].name));
        }
      }
    }
  }

  /// Groups of devices joined by connections no farther than `farthest`.
  std::vector<int> groups(Way farthest) const {
    std::vector<int> group(rows_.size());
    std::iota(group.begin(), group.end(), 0);
    auto merge = [&](int a, int b) {
      if (group[a] != group[b]) std::replace(group.begin(), group.end(), group[a], group[b]);
    };
    std::map<std::string, int> first;  // device of each affinity
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const Way way = rows_[i].cells[j].way;
        if (way >= Way::pix && way <= farthest) merge(static_cast<int>(i), static_cast<int>(j));
      }
      // NVLinks hide where the GPUs are plugged in; affinities tell.
      const std::string& affinity = !rows_[i].numa.empty() ? rows_[i].numa : rows_[i].cpus;
      if (farthest < Way::node || affinity.empty()) continue;
      const auto [it, is_new] = first.emplace(affinity, static_cast<int>(i));
      if (!is_new) merge(static_cast<int>(i), it->second);
    }
    return group;
  }

  PciDevice device(std::size_t index) const {
    PciDevice device;
    device.address = made_up_address(index);
    if (is_gpu(rows_[index].name)) {
      device.kind = PciDevice::Kind::gpu;
      device.order = static_cast<int>(index);
      return device;
    }
    device.kind = PciDevice::Kind::nic;
    const auto legend = legend_.find(rows_[index].name);
    NetPort port;
    port.name = legend != legend_.end() ? legend->second : rows_[index].name;
    port.type = "infiniband";
    device.ports.push_back(std::move(port));
    return device;
  }

  static PciAddress made_up_address(std::size_t index) {
    return {PciAddress::kNoDomain, static_cast<std::uint32_t>(index), 0, 0};
  }

  Box box() const {
    Box box;
    box.name = where_;
    const std::vector<int> numa_of = groups(Way::node);
    const std::vector<int> switch_of = groups(Way::pxb);
    std::map<int, std::size_t> numas;
    std::map<int, std::vector<std::size_t>> switches;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (numas.emplace(numa_of[i], box.numa_nodes.size()).second) {
        NumaNode numa;
        if (!rows_[i].cpus.empty()) numa.detail = "CPUs " + rows_[i].cpus;
        box.numa_nodes.push_back(std::move(numa));
      }
      switches[switch_of[i]].push_back(i);
    }
    for (const auto& [group, members] : switches) {
      PciDevice bridge;
      bridge.kind = PciDevice::Kind::bridge;
      bridge.address = {PciAddress::kNoDomain, static_cast<std::uint32_t>(members.front()), 1, 0};
      for (const std::size_t member : members) bridge.children.push_back(device(member));
      box.numa_nodes[numas.at(numa_of[members.front()])].devices.push_back(std::move(bridge));
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) add_nvlinks(i, box);
    return box;
  }

  /// With more NVLinks in its row than a GPU has, the cells tell of ways through switches.
  void add_nvlinks(std::size_t i, Box& box) const {
    int sum = 0;
    int most = 0;
    for (const Cell& cell : rows_[i].cells) {
      sum += cell.nvlinks;
      most = std::max(most, cell.nvlinks);
    }
    constexpr int kDirectMost = 18;
    GpuLink link;
    link.from = made_up_address(i);
    if (sum > kDirectMost) {
      link.end = GpuLink::End::gpu_switch;
      link.gb_s = most * kNvlinkGbS;
      box.gpu_links.push_back(link);
      return;
    }
    for (std::size_t j = 0; j < rows_.size(); ++j) {
      if (rows_[i].cells[j].nvlinks == 0) continue;
      link.to = made_up_address(j);
      link.gb_s = rows_[i].cells[j].nvlinks * kNvlinkGbS;
      box.gpu_links.push_back(link);
    }
  }

  std::string where_;
  std::vector<std::vector<std::string>> lines_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
  std::map<std::string, std::string> legend_;
};

}  // namespace

Topology topology_from_nvidia_smi(std::string_view text, std::string_view where) {
  return topology_of(SmiReader(text, where).read());
}

}  // namespace chorus
