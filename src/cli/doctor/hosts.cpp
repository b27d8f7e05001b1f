#include "cli/doctor/hosts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/files/kernel_text.hpp"
#include "chorus/error.hpp"
#include "cli/doctor/checks.hpp"

namespace chorus::doctor {
namespace {

using Json = nlohmann::json;

/// The soft limit of a line of /proc/self/limits.
std::string limit(const std::string& limits, std::string_view name) {
  const auto found = words(value_in(limits, name));
  return found.empty() ? "" : found.front();
}

Finding difference(const std::string& fact,
                   const std::map<std::string, std::vector<std::string>>& hosts_of_value) {
  std::vector<std::string> parts;
  std::vector<std::string> all;
  for (const auto& [value, hosts] : hosts_of_value) {
    parts.push_back(
        fmt::format("{} on {}", value.empty() ? "none" : value, fmt::join(hosts, ", ")));
    all.insert(all.end(), hosts.begin(), hosts.end());
  }
  return {.check = "hosts-differ",
          .severity = Severity::warning,
          .seen = fmt::format("{}: {}", fact, fmt::join(parts, "; ")),
          .why =
              "a job is as fast as its slowest host, and what goes wrong on some hosts only is "
              "hard to find",
          .remedy = "make the hosts alike, or start the job on those that are",
          .hosts = all};
}

}  // namespace

std::map<std::string, std::string> facts_of(const Machine& machine) {
  const Files files{fs::path(machine.root)};
  const std::string limits = files.text("proc/self/limits");
  std::map<std::string, std::string> facts = {
      {"chorus", CHORUS_VERSION},
      {"kernel", files.line("proc/sys/kernel/osrelease")},
      {"system", value_in(files.text("etc/os-release"), "PRETTY_NAME")},
      {"processor", value_in(files.text("proc/cpuinfo"), "model name")},
      {"processors", value_in(files.text("proc/self/status"), "Cpus_allowed_list")},
      {"locked memory", limit(limits, "Max locked memory")},
      {"open files", limit(limits, "Max open files")},
      {"processes", limit(limits, "Max processes")},
      {"TCP congestion control", files.line("proc/sys/net/ipv4/tcp_congestion_control")},
      {"GPU driver", machine.gpus.driver},
      {"GPUs", std::to_string(machine.gpus.gpus.size())}};
  const std::uint64_t memory_kib =
      number(value_in(files.text("proc/meminfo"), "MemTotal")).value_or(0);
  facts["memory"] = fmt::format("{} GiB", (memory_kib + (1 << 19)) >> 20);
  std::vector<std::string> adapters;
  for (const std::string& name : files.names("sys/class/infiniband")) {
    adapters.push_back(fmt::format("{} with firmware {}", name,
                                   files.line("sys/class/infiniband/" + name + "/fw_ver")));
  }
  facts["RDMA adapters"] = fmt::format("{}", fmt::join(adapters, ", "));
  return facts;
}

std::string to_json(const HostReport& report) {
  Json findings = Json::array();
  for (const Finding& one : report.findings) {
    findings.push_back({{"check", one.check},
                        {"severity", static_cast<int>(one.severity)},
                        {"seen", one.seen},
                        {"why", one.why},
                        {"remedy", one.remedy}});
  }
  return Json{{"host", report.host}, {"findings", findings}, {"facts", report.facts}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

HostReport host_report_from_json(std::string_view text) try {
  const Json json = Json::parse(text);
  HostReport report{.host = json.at("host"), .findings = {}, .facts = json.at("facts")};
  for (const Json& one : json.at("findings")) {
    const int severity = one.at("severity");
    if (severity < 0 || severity > static_cast<int>(Severity::fault)) {
      throw InputError("a host sent a finding of unknown severity");
    }
    report.findings.push_back({.check = one.at("check"),
                               .severity = static_cast<Severity>(severity),
                               .seen = one.at("seen"),
                               .why = one.at("why"),
                               .remedy = one.at("remedy"),
                               .hosts = {}});
  }
  return report;
} catch (const Json::exception& error) {
  throw InputError(fmt::format("a host sent malformed findings: {}", error.what()));
}

std::vector<Finding> merged(const std::vector<HostReport>& reports) {
  std::vector<Finding> all;
  std::map<std::string, std::map<std::string, std::vector<std::string>>> facts;
  for (const HostReport& report : reports) {
    for (const Finding& finding : report.findings) {
      const auto same = std::find_if(all.begin(), all.end(), [&](Finding known) {
        known.hosts.clear();
        return known == finding;
      });
      Finding& into = same == all.end() ? all.emplace_back(finding) : *same;
      into.hosts.push_back(report.host);
    }
    for (const auto& [fact, value] : report.facts) facts[fact][value].push_back(report.host);
  }
  for (const auto& [fact, values] : facts) {
    if (values.size() > 1) all.push_back(difference(fact, values));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return all;
}

}  // namespace chorus::doctor
