#include "cli/doctor/findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/doctor/checks.hpp"
#include "model/json_reader.hpp"

namespace chorus::doctor {

std::string_view name_of(Severity severity) {
  constexpr std::string_view kNames[] = {"note", "warning", "fault"};
  return kNames[static_cast<std::size_t>(severity)];
}

std::vector<Finding> examine(const Machine& machine) {
  const Files files{fs::path(machine.root)};
  std::vector<Pci> pci = pci_devices(files);
  std::vector<Adapter> found = adapters(files, pci);
  const Scene scene{files, std::move(pci), std::move(found), machine.gpus};
  Findings findings;
  for (const auto check : {check_limits, check_memory, check_processors, check_network, check_rdma,
                           check_rdma_ports, check_pcie, check_gpus}) {
    check(scene, findings);
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return findings;
}

Severity worst(const std::vector<Finding>& findings) {
  Severity severity = Severity::note;
  for (const Finding& finding : findings) severity = std::max(severity, finding.severity);
  return severity;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    fmt::format_to(std::back_inserter(text), "{:<8} {}: {}\n         why: {}\n",
                   name_of(finding.severity), finding.check, finding.seen, finding.why);
    if (!finding.hosts.empty()) {
      fmt::format_to(std::back_inserter(text), "         on:  {}\n",
                     fmt::join(finding.hosts, ", "));
    }
    if (!finding.remedy.empty()) {
      fmt::format_to(std::back_inserter(text), "         do:  {}\n", finding.remedy);
    }
  }
  const auto count = [&](Severity severity) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& one) { return one.severity == severity; });
  };
  const auto counted = [&](Severity severity) {
    const auto number = count(severity);
    return fmt::format("{} {}{}", number, name_of(severity), number == 1 ? "" : "s");
  };
  return text + fmt::format("{}, {}, {}\n", counted(Severity::fault), counted(Severity::warning),
                            counted(Severity::note));
}

namespace {

std::string hosts_json(const std::vector<std::string>& hosts) {
  if (hosts.empty()) return {};
  std::vector<std::string> names;
  for (const std::string& host : hosts) names.push_back(json::quote(host));
  return fmt::format(",\n     \"hosts\": [{}]", fmt::join(names, ", "));
}

}  // namespace

std::string json_of(const std::vector<Finding>& findings) {
  std::string text = "{\n  \"format\": \"chorus-doctor\",\n  \"version\": 1,\n  \"findings\": [";
  bool first = true;
  for (const Finding& one : findings) {
    fmt::format_to(std::back_inserter(text),
                   "{}\n    {{\"check\": {}, \"severity\": \"{}\",\n     \"seen\": {},\n     "
                   "\"why\": {},\n     "
                   "\"remedy\": {}{}}}",
                   first ? "" : ",", json::quote(one.check), name_of(one.severity),
                   json::quote(one.seen), json::quote(one.why), json::quote(one.remedy),
                   hosts_json(one.hosts));
    first = false;
  }
  return text + (first ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace chorus::doctor
