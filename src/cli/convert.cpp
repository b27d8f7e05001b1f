// `chorus convert`: schedules and topologies between Chorus's formats and other systems'.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "formats/format.hpp"
#include "formats/msccl_xml.hpp"
#include "formats/mscclpp_plan.hpp"
#include "formats/sccl_json.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using formats::Format;

struct ConvertArguments {
  std::string in, out, to, protocol = "Simple";
  std::optional<int> entry;
  int channels = 1;
  bool topology = false;
  double link_gb_s = formats::ScclLinks{}.gb_s;
};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

Format target(const ConvertArguments& arguments) {
  if (!arguments.to.empty()) return formats::parse_format(arguments.to);
  if (ends_with(arguments.out, ".xml")) return Format::msccl_xml;
  if (ends_with(arguments.out, ".json")) return Format::schedule;
  throw InputError(fmt::format(
      "the name '{}' does not show the format: add --to chorus, msccl-xml, sccl or mscclpp",
      arguments.out));
}

/// The one schedule to write; a plan may hold several.
PlanEntry chosen(const ConvertArguments& arguments) {
  std::vector<PlanEntry> entries = schedules_from_argument(arguments.in).entries;
  const int count = static_cast<int>(entries.size());
  if (count != 1 && !arguments.entry) {
    std::string list;
    for (int i = 0; i < count; ++i) {
      list +=
          fmt::format("\n  {}: {} '{}' from {}", i, name_of(entries[i].schedule.collective.kind),
                      printable_name(entries[i].schedule.name),
                      counted(static_cast<long long>(entries[i].min_bytes), "byte"));
    }
    throw InputError(fmt::format("{} has {} and {} holds one: choose with --entry{}", arguments.in,
                                 counted(count, "schedule"), arguments.out, list));
  }
  const int index = arguments.entry.value_or(0);
  if (index >= count) {
    throw InputError(
        fmt::format("--entry {}: {} has schedules 0 to {}", index, arguments.in, count - 1));
  }
  return std::move(entries[index]);
}

std::string converted(const ConvertArguments& arguments) {
  const Format format = target(arguments);
  const PlanEntry entry = chosen(arguments);
  const Schedule& schedule = entry.schedule;
  if (format != Format::schedule) {  // where a wrong one is written, it can be looked at
    if (const auto fault = first_fault(schedule)) {
      throw Error(fmt::format("{}: '{}' is wrong: {}", arguments.in, printable_name(schedule.name),
                              *fault));
    }
  }
  switch (format) {
    case Format::schedule:
      return to_json(schedule);
    case Format::msccl_xml: {
      formats::MscclXmlOptions options{.channels = arguments.channels,
                                       .protocol = arguments.protocol};
      options.min_bytes = entry.min_bytes;
      options.max_bytes = std::min(entry.max_bytes, options.max_bytes);
      return formats::to_msccl_xml(schedule, options);
    }
    case Format::sccl:
      return formats::to_sccl_json(schedule);
    case Format::mscclpp:
      return formats::to_mscclpp_plan(schedule,
                                      {.min_bytes = entry.min_bytes, .max_bytes = entry.max_bytes});
    case Format::plan:
      break;
  }
  throw InputError(
      "a plan is made for a topology, not converted from a schedule: write --to chorus");
}

std::string converted_topology(const ConvertArguments& arguments) {
  const formats::ScclLinks links{.gb_s = arguments.link_gb_s};
  const bool to_sccl = arguments.to == "sccl";
  if (!to_sccl && !arguments.to.empty() && arguments.to != "chorus") {
    throw InputError(
        fmt::format("a topology is written --to chorus or sccl, not {}", arguments.to));
  }
  if (arguments.in == "-" || ends_with(arguments.in, ".json")) {
    const std::string text = read_input(arguments.in);
    if (formats::is_sccl_topology(text)) {
      const Topology topology = formats::topology_from_sccl_json(text, arguments.in, links);
      return to_sccl ? formats::topology_to_sccl_json(topology, links) : to_json(topology);
    }
    const Topology topology = topology_from_json(text, arguments.in);
    return to_sccl ? formats::topology_to_sccl_json(topology, links) : to_json(topology);
  }
  const Topology topology = topology_from_argument(arguments.in);
  return to_sccl ? formats::topology_to_sccl_json(topology, links) : to_json(topology);
}

void run_convert(const ConvertArguments& arguments) {
  const std::string text =
      arguments.topology ? converted_topology(arguments) : converted(arguments);
  write_output(arguments.out, text);
}

}  // namespace

void add_convert(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ConvertArguments>();
  CLI::App* command =
      app.add_subcommand("convert", "Convert a schedule between Chorus, MSCCL, MSCCL++ and SCCL");
  command->add_option("in", arguments->in, kSchedulesHelp)->required();
  command->add_option("out", arguments->out, "the file to write, - for standard output")
      ->required();
  command
      ->add_option("--to", arguments->to,
                   "chorus, msccl-xml, sccl or mscclpp; by the ending of OUT if left out")
      ->check(one_of({"chorus", "msccl-xml", "sccl", "mscclpp"}, "a format"));
  command->add_option("--entry", arguments->entry, "which schedule of a plan, from 0")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--proto", arguments->protocol, "protocol to name in MSCCL XML")
      ->check(CLI::IsMember({"Simple", "LL", "LL128"}))
      ->capture_default_str();
  command
      ->add_option(
          "--channels", arguments->channels,
          "connections per pair of ranks in MSCCL XML (twice that where it reduces and copies)")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  command->add_flag("--topology", arguments->topology,
                    "convert a topology between Chorus and SCCL (--to chorus or sccl)");
  command->add_option("--link-gb-s", arguments->link_gb_s, "what one unit of an SCCL link carries")
      ->check(number_within(kLeastGbS, kMostGbS))
      ->capture_default_str();
  command->footer("Example: chorus convert allreduce.xml allreduce.json");
  command->callback([arguments, &exit_code] {
    run_convert(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
