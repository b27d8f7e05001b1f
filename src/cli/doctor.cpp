// chorus doctor: looks a machine over before a job does.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/doctor/findings.hpp"
#include "topology/import.hpp"
#include "topology/record.hpp"

namespace chorus {
namespace {

struct Options {
  std::string root = "/";
  bool json = false;
};

doctor::Machine machine_of(const Options& options) {
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

int run(const Options& options) {
  const auto findings = doctor::examine(machine_of(options));
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
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("doctor", "Find what will slow jobs on this machine down, or stop them");
  command->add_option("--root", options->root,
                      "Examine the proc, sys, dev, etc and usr below this directory, and its "
                      "nvml.json, in place of this machine");
  command->add_flag("--json", options->json, "Print JSON for scripts");
  command->footer("Exit code: 0 nothing worse than notes, 1 a fault, 3 warnings, 2 bad usage.");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace chorus
