// Findings of several hosts of one job as one list.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/findings.hpp"

namespace chorus::doctor {

/// What one host says of itself.
struct HostReport {
  std::string host;
  std::vector<Finding> findings;
  /// What hosts of one job should have in common: "kernel", "memlock", …
  std::map<std::string, std::string> facts;

  bool operator==(const HostReport&) const = default;
};

[[nodiscard]] std::map<std::string, std::string> facts_of(const Machine& machine);

[[nodiscard]] std::string to_json(const HostReport& report);
/// Throws InputError for what to_json() does not write.
[[nodiscard]] HostReport host_report_from_json(std::string_view text);

/// What was found on several hosts is one finding that names them; each fact in which hosts differ
/// is one more. The worst first.
[[nodiscard]] std::vector<Finding> merged(const std::vector<HostReport>& reports);

}  // namespace chorus::doctor
