// chorus topo: show a topology as text, JSON or a picture.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/files/files.hpp"
#include "cli/cli.hpp"
#include "cli/draw/draw.hpp"
#include "cli/gpu_pairs.hpp"
#include "device/driver/driver.hpp"
#include "formats/sketch_json.hpp"
#include "model/json/json.hpp"
#include "topology/discover/describe.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/import.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

struct TopoOptions {
  std::string source;
  std::string svg;
  std::string record;
  bool probe_gpus = false;
  bool list = false;
  bool json = false;
};

std::string listing() {
  std::size_t width = 0;
  for (const CatalogEntry& entry : catalog()) width = std::max(width, entry.name.size());
  std::string text;
  for (const CatalogEntry& entry : catalog()) {
    text += fmt::format("{:<{}}  {}\n", entry.name, width, entry.summary);
  }
  return text;
}

Topology from_text(const std::string& text, const std::string& where, int boxes) {
  if (formats::is_taccl_topology(text)) {
    return formats::topology_from_taccl_json(text, where, boxes);
  }
  return topology_from_text(text, where);
}

/// What NVML says of this machine's GPUs and, if asked for, what was measured between them.
NvmlReport gpus(const TopoOptions& options) {
  NvmlReport report = nvml_report();
  if (!options.probe_gpus) return report;
  const cuda::PeerSurvey survey = cuda::survey_peers(cuda::driver());
  const std::string pairs = text_of(survey);
  (void)std::fwrite(pairs.data(), 1, pairs.size(), stderr);  // standard output may be JSON
  mark_broken(report, survey);
  return report;
}

void run_topo(const TopoOptions& options) {
  if (options.list) return print(listing());
  if (!options.record.empty()) return record_machine(options.record, gpus(options));
  const Topology topology =
      options.probe_gpus ? discover(gpus(options)) : topology_from_argument(options.source);
  (void)one_is_standard_output({options.svg, options.json ? "-" : ""});  // throws where both are
  if (!options.svg.empty()) draw_svg(topology, options.svg);
  if (options.json) {
    print(to_json(topology));
  } else if (options.svg.empty()) {
    print(describe(topology));
  }
}

}  // namespace

Topology topology_from_argument(const std::string& source, int boxes) {
  if (source.empty()) return discover();
  if (source == "-") return from_text(read_input("-"), "standard input", boxes);
  std::error_code error;
  if (std::filesystem::is_directory(source, error)) return topology_from_record(source);
  if (means_a_file(source)) return from_text(read_input(source), source, boxes);
  return topology_from_name(source);
}

void add_topo(CLI::App& app, int& /*exit_code*/) {
  auto options = std::make_shared<TopoOptions>();
  CLI::App* command = app.add_subcommand("topo", "Show how a machine or network is wired");
  command->add_option("SOURCE", options->source, kTopologyHelp);
  command->add_option("--svg", options->svg, "Draw to this file (- for standard output)");
  command
      ->add_option("--record", options->record,
                   "Save what this machine's sources answer (hwloc, the kernel, NVML) to this "
                   "directory, which every command reads as a topology")
      ->excludes("SOURCE");
  command
      ->add_flag("--probe-gpus", options->probe_gpus,
                 "Measure every pair of GPUs first, check that data arrives intact, and avoid "
                 "pairs where it does not")
      ->excludes("SOURCE");
  command->add_flag("--json", options->json, "Print Chorus JSON, which every command reads");
  command->add_flag("--list", options->list, "List the machines and generators known by name")
      ->excludes("--json", "--svg", "--record", "SOURCE");
  command->footer(
      "Examples:\n"
      "  chorus topo                       this machine\n"
      "  chorus topo '2*dgx-a100'          two boxes of the catalog\n"
      "  chorus topo torus:4x4,rate=50     a generated graph\n"
      "  chorus topo --record node7        save this machine; elsewhere: chorus topo node7\n"
      "  nvidia-smi topo -m | chorus topo - --json > machine.json\n"
      "  chorus topo machine.json --svg machine.svg");
  command->callback([options] { run_topo(*options); });
}

}  // namespace chorus
