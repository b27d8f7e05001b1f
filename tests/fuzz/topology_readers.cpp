// Readers of topologies. Those behind topology_from_text() are called one by one: the check there
// would hide what they let pass, and none of them is to lean on it.
#include <fmt/format.h>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "formats/sccl_json.hpp"
#include "formats/sketch_json.hpp"
#include "model/json/json.hpp"
#include "tests/fuzz/all_readers.hpp"
#include "tests/fuzz/samples.hpp"
#include "tests/model/samples.hpp"
#include "topology/discover/describe.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/hw_tree.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/import.hpp"
#include "topology/import/record.hpp"

namespace chorus::fuzz {
namespace {

/// What all other code relies on, and the ways in which the commands use a topology.
std::string judge(const Topology& topology) {
  if (const auto fault = malformed(topology)) return "an unsound topology: " + *fault;
  if (describe(topology).empty()) return "no description";
  std::string text;
  try {
    text = to_json(topology);
  } catch (const InputError&) {  // names that are not UTF-8, which JSON cannot hold
    return "";
  }
  if (topology_from_json(text, "written") != topology) return "JSON gives another topology back";
  return "";
}

template <class Read>
std::string judged(const Read& read, const std::string& input) {
  set_log_level(LogLevel::error);
  Topology topology;
  try {
    topology = read(input);
  } catch (const InputError& refused) {
    return std::string_view(refused.what()).empty() ? "refused without a word" : "";
  }
  return judge(topology);
}

std::string nccl_xml(const std::string& input) {
  return judged([](const auto& text) { return topology_from_nccl_xml(text, "fuzz"); }, input);
}

std::string hwloc_xml(const std::string& input) {
  return judged([](const auto& text) { return topology_from_hwloc_xml(text, "fuzz"); }, input);
}

std::string nvidia_smi(const std::string& input) {
  return judged([](const auto& text) { return topology_from_nvidia_smi(text, "fuzz"); }, input);
}

std::string any_text(const std::string& input) {
  return judged([](const auto& text) { return topology_from_text(text, "fuzz"); }, input);
}

std::string name(const std::string& input) {
  return judged([](const auto& text) { return topology_from_name(text); }, input);
}

std::string sccl(const std::string& input) {
  return judged([](const auto& text) { return formats::topology_from_sccl_json(text, "fuzz"); },
                input);
}

std::string taccl(const std::string& input) {
  return judged([](const auto& text) { return formats::topology_from_taccl_json(text, "fuzz", 2); },
                input);
}

const HwMachine& recorded_machine() {
  static const HwMachine kMachine = machine_from_hwloc_xml(
      files("machines/eight-gpus-mesh", "", "hwloc.xml").front(), "recorded");
  return kMachine;
}

std::string nvml_record(const std::string& input) {
  return judged(
      [](const auto& text) {
        const NvmlReport report = nvml_from_json(text, "fuzz");
        Box box = box_of(recorded_machine());
        (void)add_nvml(box, report);
        return topology_of(std::move(box));
      },
      input);
}

std::string host_record(const std::string& input) {
  return judged(
      [](const auto& text) {
        const HostRecord host = host_from_json(text, "fuzz");
        Box box = box_of(recorded_machine());
        add_interfaces(box, host.interfaces);
        return topology_of(std::move(box));
      },
      input);
}

std::vector<std::string> json_samples() {
  return {to_json(test::sample_topology()), to_json(topology_from_name("2*dgx1")),
          to_json(topology_from_name("lan:2x2,trunk=0.025"))};
}

std::vector<std::string> nccl_samples() {
  std::vector<std::string> all = files("topology", "nccl-topology", ".xml");
  std::erase_if(all, [](const std::string& text) { return text.find("<graphs") < text.size(); });
  return all;
}

std::vector<std::string> name_samples() {
  std::vector<std::string> names = {"2*dgx-h100,rails=yes,nic=50,nic-alpha=2",
                                    "fat-tree:2x2x2,over=2,rate=10,alpha=0.5",
                                    "lan:2x2,trunk=0.025", "hwloc:pack:2 numa:1 core:4 pu:2"};
  for (const CatalogEntry& entry : catalog()) names.emplace_back(entry.name);
  return names;
}

constexpr const char* kTacclBox =
    R"({"name": "box", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
  "node_betas_list": [23, 46], "node_invbws_list": [23, 46],
  "remote_invbw": 107, "remote_alpha": 2.6, "remote_beta": 105})";
constexpr const char* kTacclLinks =
    R"({"name": "pair", "gpus_per_node": 2, "nics_per_node": 1, "alpha": 1,
  "links": [[0, 2], [1, 0]], "betas": [[0, 40], [20, 0]], "invbws": [[0, 41], [21, 0]],
  "remote_invbw": 107, "remote_alpha": 2.6, "remote_beta": 105})";
constexpr const char* kScclTopology =
    R"({"msccl_type": "topology", "name": "three", "switches": [[[0, 1], [2], 1, "s"]],
  "links": [[0, 1, 2], [1, 0, 1], [2, 1, 0]]})";

}  // namespace

std::vector<Reader> topology_readers() {
  const auto either = [] {
    std::vector<std::string> all = json_samples();
    const std::vector<std::string> matrices = files("topology", "", ".txt");
    all.insert(all.end(), matrices.begin(), matrices.end());
    return all;
  };
  return {
      {"topology_nccl_xml", Grammar::xml, nccl_xml, nccl_samples},
      {"topology_hwloc_xml", Grammar::xml, hwloc_xml,
       [] { return files("machines", "hwloc", ".xml"); }},
      {"topology_nvidia_smi", Grammar::text, nvidia_smi,
       [] { return files("topology", "", ".txt"); }},
      {"topology_json", Grammar::json, any_text, either},
      {"topology_name", Grammar::text, name, name_samples},
      {"topology_sccl_json", Grammar::json, sccl,
       [] { return std::vector<std::string>{kScclTopology}; }},
      {"topology_taccl_json", Grammar::json, taccl,
       [] {
         return std::vector<std::string>{kTacclBox, kTacclLinks};
       }},
      {"record_nvml_json", Grammar::json, nvml_record,
       [] { return files("machines", "", "nvml.json"); }},
      {"record_host_json", Grammar::json, host_record,
       [] { return files("machines", "", "host.json"); }},
  };
}

}  // namespace chorus::fuzz
