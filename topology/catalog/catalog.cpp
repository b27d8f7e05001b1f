// Known machines, alone and in clusters.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/text/suggest.hpp"
#include "model/json/json.hpp"
#include "topology/catalog/machines.hpp"
#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/rates.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

/// A box as a cluster sees it.
struct CatalogBox {
  int host = 0;
  /// For each NIC the nodes that use it.
  std::vector<std::vector<int>> nic_users;
};

/// What the options of a term say, read once however many boxes are built.
struct Machine {
  NicFacts nic;
  long ranks = 0;
  long links = 0;
  /// Adds one box whose node names begin with `prefix`.
  std::function<CatalogBox(TopologyBuilder&, const std::string& prefix)> add;
};

void add_cables(TopologyBuilder& builder, const MachineFacts& facts, const std::vector<int>& gpus,
                Wire wire) {
  if (facts.cables.empty()) {
    for (std::size_t a = 0; a < gpus.size(); ++a) {
      for (std::size_t b = a + 1; b < gpus.size(); ++b) builder.both_ways(gpus[a], gpus[b], wire);
    }
    return;
  }
  for (const Cable& cable : facts.cables) {
    Wire bundle = wire;  // a message is striped over the cables between two GPUs
    bundle.gb_s = wire.gb_s * cable.count;
    builder.both_ways(gpus[cable.a], gpus[cable.b], bundle);
  }
}

void add_switch(TopologyBuilder& builder, const MachineFacts& facts, const std::string& prefix,
                int host, const std::vector<int>& gpus, Wire wire) {
  const int node = builder.node(prefix + "nvswitch", NodeKind::gpu_switch, host,
                                std::string(facts.switch_model));
  wire.alpha_us /= 2;
  for (const int gpu : gpus) builder.both_ways(gpu, node, wire);
}

/// GPUs below their sockets; PCIe and socket links where the machine has them modelled.
std::vector<int> add_gpus(TopologyBuilder& builder, const MachineFacts& facts,
                          const std::string& prefix, int host) {
  std::vector<int> gpus;
  std::vector<int> sockets;
  for (int i = 0; i < facts.gpus; ++i) {
    if (facts.gpus_per_socket > 0 && i % facts.gpus_per_socket == 0) {
      sockets.push_back(builder.node(fmt::format("{}{}{}", prefix, facts.part, sockets.size()),
                                     facts.part == "cpu" ? NodeKind::package : NodeKind::host,
                                     host));
    }
    const int parent = sockets.empty() ? host : sockets.back();
    gpus.push_back(builder.node(fmt::format("{}gpu{}", prefix, i), NodeKind::gpu, parent,
                                std::string(facts.gpu)));
    builder.rank(gpus.back());
    if (facts.pcie_gb_s > 0) {
      builder.both_ways(gpus.back(), parent, {facts.pcie_gb_s, 2 * kPcieHopUs, "pcie"});
    }
  }
  if (facts.socket_gb_s > 0) {
    for (std::size_t i = 1; i < sockets.size(); ++i) {
      builder.both_ways(sockets[i - 1], sockets[i], {facts.socket_gb_s, kSocketHopUs, "socket"});
    }
  }
  return gpus;
}

Machine gpu_machine(Spec& spec, const MachineFacts& facts) {
  spec.expect_shape(0, 0, 0, spec.name);
  const Wire wire{spec.number("rate", facts.gb_s), spec.number("alpha", facts.alpha_us),
                  facts.type};
  const int per_nic = spec.integer("gpus-per-nic", facts.nic.gpus_per_nic);
  if (per_nic > facts.gpus) {
    spec.fail(spec.name_at, fmt::format("gpus-per-nic={} is more than the {} GPUs of {}", per_nic,
                                        facts.gpus, spec.name));
  }
  Machine machine{facts.nic, facts.gpus, 0, {}};
  machine.links = facts.switch_model.empty() && facts.cables.empty() ? long{facts.gpus} * facts.gpus
                                                                     : long{facts.gpus} * 8;
  machine.add = [&facts, wire, per_nic](TopologyBuilder& builder, const std::string& prefix) {
    CatalogBox box;
    const std::string name = prefix.empty() ? "host" : prefix.substr(0, prefix.size() - 1);
    box.host = builder.node(name, NodeKind::host, -1, std::string(facts.name));
    const std::vector<int> gpus = add_gpus(builder, facts, prefix, box.host);
    if (facts.switch_model.empty()) {
      add_cables(builder, facts, gpus, wire);
    } else {
      add_switch(builder, facts, prefix, box.host, gpus, wire);
    }
    for (int i = 0; i < facts.gpus; i += per_nic) {
      const int end = std::min(i + per_nic, facts.gpus);
      box.nic_users.emplace_back(gpus.begin() + i, gpus.begin() + end);
    }
    return box;
  };
  return machine;
}

/// SOCKETSxSWITCHESxGPUS: GPUs behind PCIe switches whose uplink they share; with no switches
/// each GPU has its own root port.
Machine pcie_machine(Spec& spec, std::vector<int> shape) {
  const int generation = spec.integer("gen", 4);
  if (generation < 3 || generation > 5) {
    spec.fail(0, fmt::format("gen={} is unknown: PCIe generations 3, 4 and 5 are", generation));
  }
  // What NCCL expects of x16 in practice, and between Intel sockets since Sapphire Rapids.
  const double table_gb_s = generation == 3 ? 12 : generation == 4 ? 24 : 48;
  const Wire pcie{spec.number("rate", table_gb_s), spec.number("alpha", kPcieHopUs), "pcie"};
  const Wire socket{spec.number("socket", 22), kSocketHopUs, "socket"};
  const long per_socket = long{std::max(shape[1], 1)} * shape[2];
  Machine machine{{0, 12.5, 1.7, "infiniband", "EDR InfiniBand 100 Gb/s"},
                  long{shape[0]} * per_socket,
                  long{shape[0]} * (4 * per_socket + shape[0]),
                  {}};
  machine.add = [shape, pcie, socket](TopologyBuilder& builder, const std::string& prefix) {
    CatalogBox box;
    const std::string name = prefix.empty() ? "host" : prefix.substr(0, prefix.size() - 1);
    box.host = builder.node(name, NodeKind::host, -1, "PCIe box");
    std::vector<int> sockets;
    int switches = 0;
    int gpus = 0;
    for (int s = 0; s < shape[0]; ++s) {
      const int cpu = builder.node(fmt::format("{}cpu{}", prefix, s), NodeKind::package, box.host);
      for (int i = 0; i < std::max(shape[1], 1); ++i) {
        int above = cpu;
        if (shape[1] > 0) {
          above = builder.node(fmt::format("{}pcie{}", prefix, switches++), NodeKind::pcie_bridge,
                               cpu, "PCIe switch");
          builder.both_ways(above, cpu, pcie);
        }
        for (int g = 0; g < shape[2]; ++g) {
          const int gpu =
              builder.node(fmt::format("{}gpu{}", prefix, gpus++), NodeKind::gpu, above);
          builder.rank(gpu);
          builder.both_ways(gpu, above, pcie);
        }
      }
      for (const int other : sockets) builder.both_ways(other, cpu, socket);
      sockets.push_back(cpu);
    }
    box.nic_users = {{sockets.front()}};
    return box;
  };
  return machine;
}

/// NUMAxCORES: one rank per core, exchanging through memory.
Machine cpu_machine(Spec& spec) {
  spec.expect_shape(2, 2, 1, "cpu:2x16, two NUMA nodes of sixteen cores");
  const int numa_nodes = spec.shape[0];
  const int cores = spec.shape[1];
  const Wire memory{spec.number("rate", kCoreGbS), spec.number("alpha", kCoreHopUs), "shm"};
  const Wire socket{spec.number("socket", 16), kSocketHopUs, "socket"};
  Machine machine{{0, 12.5, 15, "ethernet", "100 Gb/s Ethernet"},
                  long{numa_nodes} * cores,
                  long{numa_nodes} * (2L * cores + numa_nodes),
                  {}};
  machine.add = [=](TopologyBuilder& builder, const std::string& prefix) {
    CatalogBox box;
    const std::string name = prefix.empty() ? "host" : prefix.substr(0, prefix.size() - 1);
    box.host = builder.node(name, NodeKind::host);
    std::vector<int> numas;
    std::vector<int> copies;
    for (int n = 0; n < numa_nodes; ++n) {
      const int numa = builder.node(fmt::format("{}numa{}", prefix, n), NodeKind::numa, box.host);
      for (int c = 0; c < cores; ++c) {
        const int core =
            builder.node(fmt::format("{}core{}", prefix, n * cores + c), NodeKind::core, numa);
        builder.rank(core);
        const auto [out, in] = builder.both_ways(core, numa, memory);
        copies.insert(copies.end(), {out, in});
      }
      for (const int other : numas) builder.both_ways(other, numa, socket);
      numas.push_back(numa);
    }
    builder.group(prefix + "copying", copies, memory.gb_s * numa_nodes * cores);
    box.nic_users = {{numas.front()}};
    return box;
  };
  return machine;
}

/// The NICs of one box and their cables into the network. Where several nodes use one NIC, what
/// they send and what they receive are each limited to its rate: it is no way around the box.
void add_nics(TopologyBuilder& builder, const CatalogBox& box, const std::string& prefix,
              const NicFacts& nic, const std::vector<int>& switches) {
  const double inner_us = std::min(kNicHopUs, nic.path_alpha_us / 4);
  const Wire inner{nic.gb_s, inner_us, "pcie"};
  const Wire outer{nic.gb_s, nic.path_alpha_us / 2 - inner_us, nic.type};
  for (std::size_t i = 0; i < box.nic_users.size(); ++i) {
    const std::string name = fmt::format("{}nic{}", prefix, i);
    const int node = builder.node(name, NodeKind::nic, box.host, std::string(nic.detail));
    std::vector<int> sent;
    std::vector<int> received;
    for (const int user : box.nic_users[i]) {
      const auto [out, in] = builder.both_ways(user, node, inner);
      sent.push_back(out);
      received.push_back(in);
    }
    if (sent.size() > 1) {
      builder.group(name + " out", sent, nic.gb_s);
      builder.group(name + " in", received, nic.gb_s);
    }
    builder.both_ways(node, switches[i % switches.size()], outer);
  }
}

/// A box that stands in a cluster.
struct Placed {
  CatalogBox box;
  NicFacts nic;
};

/// A fat tree of two levels: `leaf` hosts to a leaf switch, whose cables to the spine carry 1/over
/// of what its hosts can send.
void add_leaves(TopologyBuilder& builder, const std::vector<Placed>& boxes, int leaf, double over) {
  const int spine = builder.node("spine", NodeKind::network_switch);
  const auto leaf_size = static_cast<std::size_t>(leaf);
  for (std::size_t first = 0; first < boxes.size(); first += leaf_size) {
    const std::vector<int> switches = {
        builder.node(fmt::format("leaf{}", first / leaf_size), NodeKind::network_switch)};
    double below = 0;
    for (std::size_t h = first; h < first + leaf_size; ++h) {
      below += boxes[h].nic.gb_s * static_cast<double>(boxes[h].box.nic_users.size());
    }
    builder.both_ways(switches.front(), spine, {below / over, kSwitchHopUs, boxes[first].nic.type});
    for (std::size_t h = first; h < first + leaf_size; ++h) {
      add_nics(builder, boxes[h].box, fmt::format("host{}/", h), boxes[h].nic, switches);
    }
  }
}

/// What joins the boxes, as the options of the last term say.
struct Network {
  bool rails = false;
  int leaf = 0;
  double over = 1;
};

Network network_of(Spec& spec, int hosts) {
  const Network network{spec.yes_no("rails", false), spec.integer("leaf", 0),
                        spec.number("over", 1)};
  if (network.leaf > 0 && network.rails) {
    spec.fail(spec.begin_at, "leaf= and rails=yes exclude each other");
  }
  if (network.leaf > 0 && hosts % network.leaf != 0) {
    spec.fail(spec.begin_at, fmt::format("leaf={} does not divide {} hosts", network.leaf, hosts));
  }
  return network;
}

Topology joined(TopologyBuilder builder, const std::vector<Placed>& boxes, const Network& network) {
  if (network.leaf > 0) {
    add_leaves(builder, boxes, network.leaf, network.over);
    return builder.take();
  }
  std::size_t rails = 0;
  for (const Placed& placed : boxes) rails = std::max(rails, placed.box.nic_users.size());
  std::vector<int> switches;
  for (std::size_t i = 0; i < (network.rails ? rails : 1); ++i) {
    switches.push_back(builder.node(network.rails ? fmt::format("rail{}", i) : "network",
                                    NodeKind::network_switch));
  }
  for (std::size_t h = 0; h < boxes.size(); ++h) {
    add_nics(builder, boxes[h].box, fmt::format("host{}/", h), boxes[h].nic, switches);
  }
  return builder.take();
}

Topology build(std::span<Spec> specs, std::vector<Machine> machines) {
  TopologyBuilder builder(specs.front().text);
  long ranks = 0;
  long links = 0;
  int hosts = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int count = specs[i].hosts.value_or(1);
    if (machines[i].ranks > kMostRanks / count - ranks / count ||
        machines[i].links > kMostLinks / count - links / count) {
      specs[i].fail(specs[i].begin_at,
                    fmt::format("larger than {} ranks or {} links", kMostRanks, kMostLinks));
    }
    ranks += count * machines[i].ranks;
    links += count * machines[i].links;
    hosts += count;
  }
  if (specs.size() == 1 && !specs.front().hosts) {
    specs.front().expect_all_used();
    machines.front().add(builder, "");
    return builder.take();
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    NicFacts& nic = machines[i].nic;
    nic.gb_s = specs[i].number("nic", nic.gb_s);
    nic.path_alpha_us = specs[i].number("nic-alpha", nic.path_alpha_us);
  }
  const Network network = network_of(specs.back(), hosts);
  for (const Spec& spec : specs) spec.expect_all_used();
  std::vector<Placed> boxes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (int h = 0; h < specs[i].hosts.value_or(1); ++h) {
      const std::string prefix = fmt::format("host{}/", boxes.size());
      boxes.push_back({machines[i].add(builder, prefix), machines[i].nic});
    }
  }
  return joined(std::move(builder), boxes, network);
}

std::vector<CatalogEntry> make_catalog() {
  std::vector<CatalogEntry> entries;
  for (const MachineFacts& facts : machines()) entries.push_back({facts.name, facts.summary});
  constexpr CatalogEntry kOthers[] = {
      {"pcie4", "one socket, 4 GPUs behind one PCIe 4 switch; gen=3|4|5"},
      {"pcie8", "two sockets, each with 4 GPUs behind one PCIe 4 switch; gen=3|4|5"},
      {"pcie:2x2x4", "PCIe box: SOCKETSxSWITCHESxGPUS, GPUs of a switch share its uplink"},
      {"cpu:2x16", "machine without GPUs: NUMAxCORES, one rank per core"},
      {"2*dgx-a100", "cluster: HOSTS*MACHINE, joined by a network; nic=GB/s, rails=yes"},
      {"2*dgx-h100+3*dgx1", "cluster of several kinds, each with its own NICs"},
      {"4*ndv2,without=host1/gpu3",
       "with faults: without=NODE, cut=NODE-NODE, slow=NODE:0.5, slow=NODE>NODE:0.5"},
      {"128*dgx-h100,leaf=16,over=2",
       "the same in a fat tree: leaf= hosts per switch, over= as below"},
      {"ring:8", "ring of N"},
      {"mesh:4x4", "grid of up to four dimensions"},
      {"torus:4x4x4", "grid closed in each dimension"},
      {"hypercube:4", "2^N ranks"},
      {"full-mesh:8", "a link between any two"},
      {"switch:8", "star: N ranks around one switch"},
      {"fat-tree:4x8", "LEAVESxRANKS, or more levels; over= is the oversubscription"},
      {"dragonfly:5x4x2", "GROUPSxROUTERSxRANKS; local= and global= are rates"},
      {"lan:4x2x2", "hosts around Ethernet switches in a row; rate= trunk= slow= (the last host)"},
      {"homo", "lan:4, equal cables of 2 Gb/s; chorus-perf cluster emulates this and the next"},
      {"pairs", "lan:2x2 with a trunk of 200 Mb/s"},
      {"slow", "lan:4 with one host at 200 Mb/s"},
      {"islands", "lan:4x2x2 with two trunks of 200 Mb/s"},
      {"random:16", "random graph; degree= seed= spread= (the fastest cable over the slowest)"},
      {"switch-tree:16", "ranks at the switches of a random tree; switches= seed= spread="},
      {"random-lan:7", "an Ethernet cluster drawn by a seed; hosts= switches= cables= ring= rate="},
      {"hwloc:numa:2 core:4 pu:1", "a machine in hwloc's synthetic notation"},
  };
  entries.insert(entries.end(), std::begin(kOthers), std::end(kOthers));
  return entries;
}

std::optional<Machine> machine_of(Spec& spec) {
  if (spec.name == "cpu") return cpu_machine(spec);
  if (spec.name == "pcie4" || spec.name == "pcie8") {
    spec.expect_shape(0, 0, 0, spec.name);
    return pcie_machine(spec, {spec.name == "pcie4" ? 1 : 2, 1, 4});
  }
  if (spec.name == "pcie") {
    spec.expect_shape(3, 3, 0, "pcie:2x2x4");
    if (spec.shape[0] == 0 || spec.shape[2] == 0) {
      spec.fail(spec.shape_at, "only the number of switches may be 0");
    }
    return pcie_machine(spec, spec.shape);
  }
  for (const MachineFacts& facts : machines()) {
    if (facts.name == spec.name) return gpu_machine(spec, facts);
  }
  return std::nullopt;
}

std::vector<std::string_view> machine_names() {
  std::vector<std::string_view> names = {"pcie", "pcie4", "pcie8", "cpu"};
  for (const MachineFacts& facts : machines()) names.push_back(facts.name);
  return names;
}

[[noreturn]] void unknown_name(const Spec& spec) {
  std::vector<std::string_view> names = machine_names();
  names.emplace_back("hwloc");
  names.insert(names.end(), generator_names().begin(), generator_names().end());
  spec.fail(spec.name_at, fmt::format("{} is not a known machine or generator; {}known: {}",
                                      spec.name, hint(spec.name, names), fmt::join(names, ", ")));
}

}  // namespace

std::optional<Topology> make_machines(std::span<Spec> specs) {
  std::vector<Machine> machines;
  for (Spec& spec : specs) {
    std::optional<Machine> machine = machine_of(spec);
    if (!machine) return std::nullopt;
    machines.push_back(*std::move(machine));
  }
  return build(specs, std::move(machines));
}

std::span<const CatalogEntry> catalog() {
  static const std::vector<CatalogEntry> entries = make_catalog();
  return entries;
}

bool means_a_file(std::string_view source) {
  for (const std::string_view ending : {".json", ".xml", ".txt"}) {
    if (source.ends_with(ending)) return true;
  }
  if (source.substr(0, source.find(',')).find('/') != std::string_view::npos) return true;
  std::error_code error;
  const auto found = std::filesystem::status(source, error);
  return std::filesystem::exists(found) && !std::filesystem::is_directory(found);
}

Topology topology_from_name(std::string_view name) {
  constexpr std::string_view kHwloc = "hwloc:";
  if (name.starts_with(kHwloc)) {
    return sound(topology_from_synthetic(name.substr(kHwloc.size())), name);
  }
  std::vector<Spec> specs = Spec::parse(name);
  const auto generated_names = generator_names();
  for (const Spec& spec : specs) {
    const bool generator = std::ranges::find(generated_names, spec.name) != generated_names.end();
    if (specs.size() > 1 && generator) {
      spec.fail(spec.name_at,
                fmt::format("machines can be joined by '+', and {} is a generator", spec.name));
    }
  }
  std::optional<Topology> topology = make_machines(specs);
  if (!topology) topology = make_generated(specs.front());
  if (topology) return sound(with_faults(*std::move(topology), specs), name);
  const std::vector<std::string_view> known = machine_names();
  unknown_name(*std::ranges::find_if(
      specs, [&](const Spec& spec) { return std::ranges::find(known, spec.name) == known.end(); }));
}

}  // namespace chorus
