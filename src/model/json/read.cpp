// Topology, Schedule and Plan from JSON (formats: docs/formats.md).
#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/json/names.hpp"
#include "model/json/reader.hpp"
#include "model/json/topology.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using json::Node;

// The smallest ranges that every later check relies on; malformed() knows the exact ones.
constexpr int kMostRanksInFile = 32'767;
constexpr int kMostChunksInFile = 1 << 26;

template <class Enum, std::size_t n>
Enum choice(const Node& node, const std::array<std::string_view, n>& names) {
  std::string known;
  for (std::size_t i = 0; i < n; ++i) {
    if (node.text() == names[i]) return static_cast<Enum>(i);
    known += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
  }
  node.fail(fmt::format("'{}' is unknown: use one of {}", node.text(), known));
}

/// Nodes of a topology by name.
class NodeNames {
 public:
  void add(const Node& name) {
    if (name.text().empty()) name.fail("a node needs a name");
    if (!index_.try_emplace(name.text(), static_cast<int>(index_.size())).second) {
      name.fail(fmt::format("there is another node '{}': names must differ", name.text()));
    }
  }
  [[nodiscard]] int index(const Node& reference) const {
    const auto it = index_.find(reference.text());
    if (it != index_.end()) return it->second;
    reference.fail(fmt::format("no node is named '{}': add it to /nodes or correct the name",
                               reference.text()));
  }

 private:
  std::unordered_map<std::string, int> index_;
};

template <class Visit>
void for_each_item(const Node& array, Visit visit) {
  const std::size_t size = array.size();
  for (std::size_t i = 0; i < size; ++i) visit(array.item(i));
}

void read_nodes(const Node& array, NodeNames& names, Topology& topology) {
  for_each_item(array, [&](const Node& node) {
    node.expect_members({"name", "kind"}, {"parent", "detail"});
    names.add(node.member("name"));
  });
  for_each_item(array, [&](const Node& node) {
    topology.nodes.push_back(
        {.name = node.member("name").text(),
         .kind = choice<NodeKind>(node.member("kind"), kNodeKindNames),
         .parent = node.has("parent") ? names.index(node.member("parent")) : -1,
         .detail = node.has("detail") ? node.member("detail").text() : ""});
  });
}

Topology::Link read_link(const Node& node, const NodeNames& names) {
  node.expect_members({"src", "dst", "alpha_s", "beta_s_per_byte"}, {"type", "provenance"});
  return {.src = names.index(node.member("src")),
          .dst = names.index(node.member("dst")),
          .alpha_s = node.member("alpha_s").figure(kMostLinkSeconds),
          .beta_s_per_byte = node.member("beta_s_per_byte").figure(kMostLinkSecondsPerByte),
          .type = node.has("type") ? node.member("type").text() : "",
          .provenance = node.has("provenance")
                            ? choice<Provenance>(node.member("provenance"), kProvenanceNames)
                            : Provenance::declared};
}

Topology::PortGroup read_port_group(const Node& node, std::size_t num_links) {
  node.expect_members({"name", "beta_s_per_byte", "links"}, {"message_s"});
  Topology::PortGroup group{
      .name = node.member("name").text(),
      .links = {},
      .beta_s_per_byte = node.member("beta_s_per_byte").figure(kMostLinkSecondsPerByte),
      .message_s = node.has("message_s") ? node.member("message_s").figure(kMostLinkSeconds) : 0};
  for_each_item(node.member("links"), [&](const Node& link) {
    if (num_links == 0) link.fail("there are no links");
    group.links.push_back(link.integer(0, static_cast<int>(num_links) - 1));
  });
  return group;
}

Transfer read_transfer(const Node& node, const Schedule& schedule) {
  if (node.size() != 4) {
    node.fail(fmt::format("{} items where [src, dst, chunk, \"copy\" or \"reduce\"] is expected",
                          node.size()));
  }
  return {.src = node.item(0).integer(0, schedule.world_size - 1),
          .dst = node.item(1).integer(0, schedule.world_size - 1),
          .chunk = node.item(2).integer(0, schedule.num_chunks - 1),
          .action = choice<Action>(node.item(3), kActionNames)};
}

/// The members of a schedule, those of the file around it left to the caller.
Schedule read_schedule(const Node& node) {
  Schedule schedule{.name = node.member("name").text(),
                    .collective = {},
                    .world_size = node.member("world_size").integer(1, kMostRanksInFile),
                    .num_chunks = node.member("num_chunks").integer(1, kMostChunksInFile),
                    .steps = {}};
  const Node kind = node.member("collective");
  try {
    schedule.collective.kind = parse_collective_kind(kind.text());
  } catch (const InputError& error) {
    kind.fail(error.what());
  }
  if (is_rooted(schedule.collective.kind)) {
    schedule.collective.root = node.member("root").integer(0, schedule.world_size - 1);
  } else if (node.has("root")) {
    node.member("root").fail(
        fmt::format("{} has no root: remove it", name_of(schedule.collective.kind)));
  }
  if (node.has("symmetry")) {
    for_each_item(node.member("symmetry"), [&](const Node& radix) {
      schedule.symmetry.push_back(radix.integer(2, schedule.world_size));
    });
  }
  for_each_item(node.member("steps"), [&](const Node& transfers) {
    Step& step = schedule.steps.emplace_back();
    for_each_item(transfers,
                  [&](const Node& transfer) { step.push_back(read_transfer(transfer, schedule)); });
  });
  if (const auto fault = malformed(schedule)) {
    node.fail(fmt::format("{}: correct the schedule", *fault));
  }
  return schedule;
}

PlanEntry read_entry(const Node& node, const Plan& plan) {
  node.expect_members(
      {"min_bytes", "max_bytes", "min_bytes_time_s", "per_byte_time_s", "schedule"});
  const Node max_bytes = node.member("max_bytes");
  const Node schedule = node.member("schedule");
  schedule.expect_members({"name", "collective", "world_size", "num_chunks", "steps"},
                          {"root", "symmetry"});
  PlanEntry entry{.min_bytes = node.member("min_bytes").whole(0, UINT64_MAX),
                  .max_bytes = max_bytes.is_null() ? UINT64_MAX : max_bytes.whole(0, UINT64_MAX),
                  .schedule = read_schedule(schedule),
                  .min_bytes_time_s = node.member("min_bytes_time_s").figure(),
                  .per_byte_time_s = node.member("per_byte_time_s").figure()};
  if (entry.max_bytes < entry.min_bytes) {
    max_bytes.fail(fmt::format("{} is less than min_bytes, {}: no size is in between",
                               entry.max_bytes, entry.min_bytes));
  }
  if (entry.schedule.world_size != plan.world_size) {
    schedule.member("world_size")
        .fail(fmt::format("a schedule for {} in a plan for {}: use one for {}",
                          counted(entry.schedule.world_size, "rank"), plan.world_size,
                          plan.world_size));
  }
  if (entry.schedule.collective.root != 0) {
    schedule.member("root").fail("schedules of a plan are made for root 0: rename the ranks");
  }
  return entry;
}

void check_order(const Node& node, const PlanEntry& previous, const PlanEntry& entry) {
  const auto before = previous.schedule.collective.kind;
  const auto kind = entry.schedule.collective.kind;
  if (before < kind) return;
  if (before > kind) {
    node.fail(
        fmt::format("{} comes after {}: sort entries in the order all_reduce, all_gather, "
                    "reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, barrier",
                    name_of(kind), name_of(before)));
  }
  if (entry.min_bytes <= previous.max_bytes) {
    node.member("min_bytes")
        .fail(fmt::format("{} is not above max_bytes of the {} entry before: make the ranges "
                          "disjoint and ascending",
                          entry.min_bytes, name_of(kind)));
  }
}

std::string read_fingerprint(const Node& node) {
  const std::string& text = node.text();
  if (text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos) {
    return text;
  }
  node.fail("a fingerprint is 16 hex digits in lower case, as in `chorus topo --json`");
}

Topology read_topology(const Node& root, std::string_view where) {
  Topology topology;
  topology.name = root.member("name").text();
  NodeNames names;
  read_nodes(root.member("nodes"), names, topology);
  for_each_item(root.member("links"),
                [&](const Node& node) { topology.links.push_back(read_link(node, names)); });
  for_each_item(root.member("port_groups"), [&](const Node& node) {
    topology.port_groups.push_back(read_port_group(node, topology.links.size()));
  });
  for_each_item(root.member("ranks"),
                [&](const Node& node) { topology.rank_nodes.push_back(names.index(node)); });
  return sound(std::move(topology), where);
}

void read_wiring(const Node& node, std::string_view where, Plan& plan) {
  plan.topology = topology_from_members(node, fmt::format("{}: /wiring", where));
  if (fingerprint(plan.topology) != plan.topology_fingerprint) {
    node.fail("is not the topology of the plan's fingerprint: remove it, or make the plan again");
  }
}

}  // namespace

Topology topology_from_members(const Node& node, std::string_view where) {
  node.expect_members({"name", "nodes", "links", "port_groups", "ranks"});
  return read_topology(node, where);
}

Topology topology_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const Node root(value, where);
  json::expect_format(root, "chorus-topology", kFormatVersion);
  root.expect_members({"format", "version", "name", "nodes", "links", "port_groups", "ranks"});
  return read_topology(root, fmt::format("{}: /", where));
}

Schedule schedule_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const Node root(value, where);
  json::expect_format(root, "chorus-schedule", kFormatVersion);
  root.expect_members(
      {"format", "version", "name", "collective", "world_size", "num_chunks", "steps"},
      {"root", "symmetry"});
  return read_schedule(root);
}

Plan plan_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const Node root(value, where);
  json::expect_format(root, "chorus-plan", kFormatVersion);
  root.expect_members({"format", "version", "topology", "world_size", "entries"}, {"wiring"});
  Plan plan{.topology_fingerprint = read_fingerprint(root.member("topology")),
            .topology = {},
            .world_size = root.member("world_size").integer(1, kMostRanksInFile),
            .entries = {}};
  if (root.has("wiring")) read_wiring(root.member("wiring"), where, plan);
  for_each_item(root.member("entries"), [&](const Node& node) {
    PlanEntry entry = read_entry(node, plan);
    if (!plan.entries.empty()) check_order(node, plan.entries.back(), entry);
    plan.entries.push_back(std::move(entry));
  });
  return plan;
}

}  // namespace chorus
