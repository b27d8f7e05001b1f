// The RDMA adapters of this machine as the kernel lists them, and what has gone over each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace chorus::testing {

/// "rxe0", "rxe1", … in order.
inline std::vector<std::string> adapters() {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/sys/class/infiniband", error), end;
       !error && it != end; it.increment(error)) {
    found.push_back(it->path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A counter of the first port of Soft-RoCE: "sent_pkts", "completer_retry_err", …
inline std::uint64_t counter(const std::string& adapter, const std::string& name) {
  std::uint64_t value = 0;
  std::ifstream("/sys/class/infiniband/" + adapter + "/ports/1/hw_counters/" + name) >> value;
  return value;
}

inline std::vector<std::uint64_t> counters(const std::string& name) {
  std::vector<std::uint64_t> values;
  for (const std::string& adapter : adapters()) values.push_back(counter(adapter, name));
  return values;
}

}  // namespace chorus::testing
