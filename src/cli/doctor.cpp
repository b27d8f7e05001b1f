// chorus doctor: looks a machine over before a job does.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/host.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "cli/cli.hpp"
#include "cli/doctor/findings.hpp"
#include "cli/doctor/hosts.hpp"
#include "cli/doctor/paths.hpp"
#include "runtime/control/control.hpp"
#include "runtime/launch/launch.hpp"
#include "topology/import/import.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

struct DoctorOptions {
  std::string root = "/";
  bool json = false;
};

doctor::Machine machine_of(const DoctorOptions& options) {
  doctor::Machine machine{options.root, {}};
  if (options.root == "/") {
    machine.gpus = nvml_report();
    return machine;
  }
  const std::filesystem::path root(options.root);
  if (!std::filesystem::is_directory(root / "proc") &&
      !std::filesystem::is_directory(root / "sys")) {
    throw InputError(fmt::format(
        "{}: holds neither proc nor sys: copy them from the machine to be examined", options.root));
  }
  const std::string nvml = (root / kNvmlFile).string();
  if (std::filesystem::exists(nvml)) machine.gpus = nvml_from_json(text_of_file(nvml), nvml);
  return machine;
}

using Exchange = std::function<std::vector<std::string>(
    const std::string& key, const std::string& mine, const std::function<void()>& meanwhile)>;

/// What the rank that speaks for this host finds of its connections to the others. `hosts`: by
/// rank.
std::vector<doctor::Finding> paths_of_job(const Control& control, const Options& settings,
                                          const std::vector<std::string>& hosts, bool speaks,
                                          const Exchange& exchange) {
  std::vector<std::string> names;  // by host, in the order of the ranks that speak
  std::vector<std::size_t> speakers;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto first = std::find(hosts.begin(), hosts.end(), hosts[rank]) - hosts.begin();
    if (static_cast<std::size_t>(first) != rank) continue;
    speakers.push_back(rank);
    names.push_back(hosts[rank].substr(0, hosts[rank].find(' ')));
  }
  if (speakers.size() < 2) return {};
  std::unique_ptr<doctor::PathCheck> check;
  std::string address;
  if (speaks) {
    const auto here = static_cast<std::size_t>(control.rank());
    const auto host = std::find(speakers.begin(), speakers.end(), here) - speakers.begin();
    const bool named = !settings.interface_name.empty();
    check = std::make_unique<doctor::PathCheck>(
        static_cast<int>(host), static_cast<int>(speakers.size()), control.secret(),
        named ? settings.interface_name : control.local_address(), !named);
    const std::vector<std::byte> bytes = check->address();
    address.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::vector<std::string> said = exchange("addresses", address, {});
  std::vector<std::vector<std::byte>> addresses;
  for (const std::size_t rank : speakers) {
    const auto bytes = std::as_bytes(std::span(said[rank]));
    addresses.emplace_back(bytes.begin(), bytes.end());
  }
  if (check) {
    check->connect(addresses);
    while (!check->progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto go_on = [&check] {
    if (check) static_cast<void>(check->progress());
  };
  static_cast<void>(exchange("paths", {}, go_on));
  return check ? check->findings(names) : std::vector<doctor::Finding>();
}

/// Every host of the job looks itself over; what rank 0 makes of it, and nothing on the others.
std::optional<std::vector<doctor::Finding>> examine_job(const Launch& launch) {
  const chorus::Options settings = chorus::Options::from_env();
  std::shared_ptr<void> keep_alive;
  const std::string id = resolve_id(launch, settings, keep_alive);
  const auto control = Control::join(id, launch.rank, launch.world_size, settings.join_timeout_ms);
  std::vector<Rank> members(static_cast<std::size_t>(launch.world_size));
  std::iota(members.begin(), members.end(), 0);
  const auto exchange = [&](const std::string& key, const std::string& mine,
                            const std::function<void()>& meanwhile = {}) {
    std::vector<std::string> texts;
    for (const auto& blob :
         control->exchange("doctor/" + key, members, std::as_bytes(std::span(mine)),
                           settings.join_timeout_ms, {}, meanwhile)) {
      texts.emplace_back(reinterpret_cast<const char*>(blob.data()), blob.size());
    }
    return texts;
  };
  // One rank of each host speaks for it.
  const std::string host = host_name() + " " + boot_id();
  const auto hosts = exchange("hosts", host);
  const bool speaks = std::find(hosts.begin(), hosts.end(), host) - hosts.begin() == launch.rank;
  const std::vector<doctor::Finding> paths =
      paths_of_job(*control, settings, hosts, speaks, exchange);
  std::string mine;
  if (speaks) {
    const doctor::Machine machine{"/", nvml_report()};
    std::vector<doctor::Finding> findings = doctor::examine(machine);
    findings.insert(findings.end(), paths.begin(), paths.end());
    mine = doctor::to_json(
        {.host = host_name(), .findings = std::move(findings), .facts = doctor::facts_of(machine)});
  }
  const auto all = exchange("findings", mine);
  if (launch.rank != 0) return std::nullopt;
  std::vector<doctor::HostReport> reports;
  for (const std::string& text : all) {
    if (!text.empty()) reports.push_back(doctor::host_report_from_json(text));
  }
  return doctor::merged(reports);
}

int run(const DoctorOptions& options) {
  const Launch launch = Launch::from_env();
  std::vector<doctor::Finding> findings;
  if (launch.world_size > 1 && options.root == "/") {
    auto of_job = examine_job(launch);
    if (!of_job) return exit_well;
    findings = std::move(*of_job);
  } else {
    if (launch.rank != 0) return exit_well;
    findings = doctor::examine(machine_of(options));
  }
  print(options.json ? doctor::json_of(findings) : doctor::text_of(findings));
  constexpr int kWarnings = 3;
  switch (doctor::worst(findings)) {
    case doctor::Severity::fault:
      return exit_fault_found;
    case doctor::Severity::warning:
      return kWarnings;
    case doctor::Severity::note:
      break;
  }
  return exit_well;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command =
      app.add_subcommand("doctor", "Find what will slow jobs on this machine down, or stop them");
  command->add_option("--root", options->root,
                      "Examine the proc, sys, dev, etc and usr below this directory, and its "
                      "nvml.json, instead of this machine");
  command->add_flag("--json", options->json, "Print JSON for scripts");
  command->footer(
      "Exit code: 0 nothing worse than notes, 1 a fault, 3 warnings, 2 bad usage.\n"
      "Examples:\n"
      "  chorus doctor\n"
      "  mpirun --host a,b --map-by node chorus doctor     every host of a job, and where they "
      "differ");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace chorus
