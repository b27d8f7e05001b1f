#include "cli/doctor/findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/doctor/checks.hpp"

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

std::string json_of(const std::vector<Finding>& findings) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Finding& one : findings) {
    Json& entry = list.emplace_back(Json{{"check", one.check},
                                         {"severity", name_of(one.severity)},
                                         {"seen", one.seen},
                                         {"why", one.why},
                                         {"remedy", one.remedy}});
    if (!one.hosts.empty()) entry["hosts"] = one.hosts;
  }
  const Json whole{{"format", "chorus-doctor"}, {"version", 1}, {"findings", std::move(list)}};
  // Files of a copied machine may hold anything, other text than UTF-8, too.
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace chorus::doctor
