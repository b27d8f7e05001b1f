// Topology, Schedule, Program and Plan as JSON that people can read and diff (formats:
// docs/formats.md).
#include <fmt/format.h>

#include <functional>
#include <iterator>

#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/json/names.hpp"
#include "model/json/reader.hpp"
#include "model/json/topology.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using json::quote;

/// Takes text piece by piece: schedules of thousands of ranks are too long to be held as text.
using Take = std::function<void(std::string_view)>;

/// `items` of `write`, one per line, indented by `indent` spaces.
template <class Items, class Write>
void put_lines(const Items& items, int indent, Write write, const Take& take) {
  if (std::empty(items)) return take("[]");
  std::string_view before = "[";
  for (const auto& item : items) {
    take(fmt::format("{}\n{:{}}{}", before, "", indent + 2, write(item)));
    before = ",";
  }
  take(fmt::format("\n{:{}}]", "", indent));
}

template <class Items, class Write>
std::string lines(const Items& items, int indent, Write write) {
  std::string result;
  put_lines(items, indent, write, [&](std::string_view text) { result += text; });
  return result;
}

/// `items` of `write` on one line.
template <class Items, class Write>
std::string row(const Items& items, Write write) {
  std::string result = "[";
  for (const auto& item : items) {
    if (result.size() > 1) result += ", ";
    fmt::format_to(std::back_inserter(result), "{}", write(item));
  }
  return result + "]";
}

std::string header(std::string_view format) {
  return fmt::format("{{\n  \"format\": \"{}\",\n  \"version\": {},\n", format, kFormatVersion);
}

void refuse(const char* what, const std::optional<std::string>& fault) {
  if (fault) throw InputError(fmt::format("an invalid {} cannot be saved: {}", what, *fault));
}

std::string collective_members(const Collective& collective, int indent) {
  std::string result =
      fmt::format("{:{}}\"collective\": \"{}\",\n", "", indent, name_of(collective.kind));
  if (is_rooted(collective.kind)) {
    result += fmt::format("{:{}}\"root\": {},\n", "", indent, collective.root);
  }
  return result;
}

/// The members of a schedule, up to the last.
void put_members(const Schedule& schedule, int indent, const Take& take) {
  const auto transfer = [](const Transfer& t) {
    return fmt::format("[{}, {}, {}, \"{}\"]", t.src, t.dst, t.chunk,
                       kActionNames[static_cast<std::size_t>(t.action)]);
  };
  const auto step = [&](const Step& transfers) { return row(transfers, transfer); };
  const std::string symmetry =
      schedule.symmetry.empty()
          ? ""
          : fmt::format("{:{}}\"symmetry\": {},\n", "", indent,
                        row(schedule.symmetry, [](int radix) { return radix; }));
  take(fmt::format("{:{}}\"name\": {},\n", "", indent, quote(schedule.name)));
  take(collective_members(schedule.collective, indent));
  take(fmt::format(
      "{0:{1}}\"world_size\": {2},\n{0:{1}}\"num_chunks\": {3},\n{4}{0:{1}}\"steps\": ", "", indent,
      schedule.world_size, schedule.num_chunks, symmetry));
  put_lines(schedule.steps, indent, step, take);
  take("\n");
}

std::string entry_text(const PlanEntry& entry) {
  const std::string max_bytes =
      entry.max_bytes == UINT64_MAX ? "null" : fmt::format("{}", entry.max_bytes);
  refuse("schedule", malformed(entry.schedule));
  std::string text = fmt::format(
      "{{\n      \"min_bytes\": {},\n      \"max_bytes\": {},\n"
      "      \"min_bytes_time_s\": {},\n      \"per_byte_time_s\": {},\n"
      "      \"schedule\": {{\n",
      entry.min_bytes, max_bytes, entry.min_bytes_time_s, entry.per_byte_time_s);
  put_members(entry.schedule, 8, [&](std::string_view piece) { text += piece; });
  return text + "      }\n    }";
}

std::string range_text(const LocalRange& range) {
  return fmt::format("[\"{}\", {}]", kBufferNames[static_cast<std::size_t>(range.buffer)],
                     range.index);
}

std::string instruction_text(const Instruction& instruction) {
  const auto source = [](const Operand& operand) {
    return operand.incoming >= 0 ? fmt::format("[\"incoming\", {}]", operand.incoming)
                                 : range_text(operand.local);
  };
  const auto number = [](int n) { return n; };
  const auto dependency = [](const Dependency& d) {
    return fmt::format("[{}, {}]", d.lane, d.instruction);
  };
  std::string result = fmt::format("{{\"chunks\": [{}, {}], \"sources\": {}", instruction.chunk,
                                   instruction.count, row(instruction.sources, source));
  if (instruction.destination) {
    result += fmt::format(", \"destination\": {}", range_text(*instruction.destination));
  }
  if (!instruction.sends.empty()) {
    result += fmt::format(", \"sends\": {}", row(instruction.sends, number));
  }
  if (!instruction.after.empty()) {
    result += fmt::format(", \"after\": {}", row(instruction.after, dependency));
  }
  if (instruction.completes) result += ", \"completes\": true";
  if (instruction.step >= 0) result += fmt::format(", \"step\": {}", instruction.step);
  return result + "}";
}

std::string program_text(const Program& program) {
  const auto port = [](const Port& p) { return fmt::format("[{}, {}]", p.peer, p.channel); };
  const auto lane = [](const Lane& l) { return lines(l.instructions, 8, instruction_text); };
  return fmt::format(
      "{{\n      \"rank\": {},\n      \"scratch_chunks\": {},\n"
      "      \"incoming\": {},\n      \"outgoing\": {},\n      \"lanes\": {}\n    }}",
      program.rank, program.scratch_chunks, row(program.incoming, port),
      row(program.outgoing, port), lines(program.lanes, 6, lane));
}

}  // namespace

std::string topology_members(const Topology& topology, int indent) {
  const auto name = [&](int node) { return quote(topology.nodes[node].name); };
  const auto node = [&](const Topology::Node& n) {
    std::string text = fmt::format("{{\"name\": {}, \"kind\": \"{}\"", quote(n.name),
                                   kNodeKindNames[static_cast<std::size_t>(n.kind)]);
    if (n.parent >= 0) text += fmt::format(", \"parent\": {}", name(n.parent));
    if (!n.detail.empty()) text += fmt::format(", \"detail\": {}", quote(n.detail));
    return text + "}";
  };
  const auto link = [&](const Topology::Link& l) {
    std::string text =
        fmt::format("{{\"src\": {}, \"dst\": {}, \"alpha_s\": {}, \"beta_s_per_byte\": {}",
                    name(l.src), name(l.dst), l.alpha_s, l.beta_s_per_byte);
    if (!l.type.empty()) text += fmt::format(", \"type\": {}", quote(l.type));
    return text + fmt::format(", \"provenance\": \"{}\"}}",
                              kProvenanceNames[static_cast<std::size_t>(l.provenance)]);
  };
  const auto group = [&](const Topology::PortGroup& g) {
    const std::string message =
        g.message_s == 0 ? "" : fmt::format(", \"message_s\": {}", g.message_s);
    return fmt::format("{{\"name\": {}, \"beta_s_per_byte\": {}{}, \"links\": {}}}", quote(g.name),
                       g.beta_s_per_byte, message, row(g.links, [](int l) { return l; }));
  };
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  return fmt::format(
      "{0}\"name\": {1},\n{0}\"nodes\": {2},\n{0}\"links\": {3},\n"
      "{0}\"port_groups\": {4},\n{0}\"ranks\": {5}\n",
      margin, quote(topology.name), lines(topology.nodes, indent, node),
      lines(topology.links, indent, link), lines(topology.port_groups, indent, group),
      row(topology.rank_nodes, name));
}

std::string to_json(const Topology& topology) {
  refuse("topology", malformed(topology));
  return header("chorus-topology") + topology_members(topology, 2) + "}\n";
}

void write_json(const Schedule& schedule, const std::function<void(std::string_view)>& take) {
  refuse("schedule", malformed(schedule));
  take(header("chorus-schedule"));
  put_members(schedule, 2, take);
  take("}\n");
}

std::string to_json(const Schedule& schedule) {
  std::string text;
  write_json(schedule, [&](std::string_view piece) { text += piece; });
  return text;
}

std::string to_json(std::span<const Program> programs) {
  if (programs.empty()) throw InputError("no programs to save");
  const Program& first = programs.front();
  return header("chorus-programs") + fmt::format("  \"name\": {},\n", quote(first.name)) +
         collective_members(first.collective, 2) +
         fmt::format(
             "  \"world_size\": {},\n  \"num_chunks\": {},\n  \"num_channels\": {},\n"
             "  \"programs\": {}\n}}\n",
             first.world_size, first.num_chunks, first.num_channels,
             lines(programs, 2, program_text));
}

std::string to_json(const Plan& plan) {
  std::string wiring;
  if (!plan.topology.nodes.empty()) {
    refuse("plan", malformed(plan.topology));
    wiring = "  \"wiring\": {\n" + topology_members(plan.topology, 4) + "  },\n";
  }
  return header("chorus-plan") +
         fmt::format("  \"topology\": {},\n  \"world_size\": {},\n{}  \"entries\": {}\n}}\n",
                     quote(plan.topology_fingerprint), plan.world_size, wiring,
                     lines(plan.entries, 2, entry_text));
}

}  // namespace chorus
