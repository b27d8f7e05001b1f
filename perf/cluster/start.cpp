#include "perf/cluster/start.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/secret.hpp"

namespace chorus::perf {
namespace {

constexpr int kMasterPort = 29500;  // nobody else lives on these hosts

const Fabric::Host& host_of(const Cluster& cluster, int rank) {
  const Fabric& fabric = cluster.fabric();
  return fabric
      .hosts[static_cast<std::size_t>(fabric.host_of_rank[static_cast<std::size_t>(rank)])];
}

/// "net0,net1": by which libraries that can use several cables are told to.
std::string all_interfaces(const Cluster& cluster) {
  std::string list;
  for (int i = 0; i < cluster.fabric().num_networks; ++i) {
    list += (i == 0 ? "" : ",") + host_interface(i);
  }
  return list;
}

/// The variable or argument of Open MPI that says by which cables it may send: where some hosts
/// lack some, all that each has.
std::pair<std::string, std::string> openmpi_cables(const Cluster& cluster) {
  if (cluster.fabric().is_even()) return {"btl_tcp_if_include", all_interfaces(cluster)};
  return {"btl_tcp_if_exclude", "lo"};
}

/// The same for UCX below MPICH, which cannot do without a network that some hosts have.
std::string common_interfaces(const Cluster& cluster) {
  const Fabric& fabric = cluster.fabric();
  std::string list;
  for (int network = 0; network < fabric.num_networks; ++network) {
    bool all = true;
    for (int host = 0; host < static_cast<int>(fabric.hosts.size()); ++host) {
      all = all && fabric.has_cable(host, network);
    }
    if (all) list += (list.empty() ? "" : ",") + host_interface(network);
  }
  return list;
}

/// What processes on the cluster are told besides `variables`: where its hosts are listed, and what
/// the emulation cannot hide from Chorus, that they share this machine's cores.
Variables with_cluster(const Cluster& cluster, Variables variables) {
  variables.emplace_back(kHostsVariable, cluster.hosts_file());
  variables.emplace_back("CHORUS_MACHINE", cluster.hosts_file());
  // A launcher that a program starts there finds the hosts, too.
  const std::string enter = beside_driver("chorus-perf-enter");
  if (::access(enter.c_str(), X_OK) != 0) return variables;
  for (const auto& [name, value] :
       Variables{{"OMPI_MCA_plm", "rsh"},
                 {"OMPI_MCA_plm_rsh_agent", enter},
                 {"OMPI_MCA_oob_tcp_if_include", kHostInterface},
                 {"OMPI_MCA_" + openmpi_cables(cluster).first, openmpi_cables(cluster).second},
                 {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                 {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                 {"HYDRA_LAUNCHER", "ssh"},
                 {"HYDRA_LAUNCHER_EXEC", enter},
                 {"HYDRA_IFACE", kHostInterface}}) {
    variables.emplace_back(name, value);
  }
  return variables;
}

/// For mpirun: it runs where rank 0 does, finds the hosts by its agent, and each rank gets a slot.
Command launcher(const Cluster& cluster, const Variables& variables) {
  Command command;
  command.namespaces_of = cluster.keeper(cluster.fabric().host_of_rank.front());
  command.environment = with_cluster(cluster, variables);
  return command;
}

/// "10.231.7.1:1,10.231.7.3:2", in the order of ranks.
std::string host_list(const Cluster& cluster) {
  std::string list;
  const std::vector<int>& hosts = cluster.fabric().host_of_rank;
  for (std::size_t r = 0; r < hosts.size();) {
    std::size_t next = r;
    while (next < hosts.size() && hosts[next] == hosts[r]) ++next;
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",",
                        host_of(cluster, static_cast<int>(r)).address, next - r);
    r = next;
  }
  return list;
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

/// Open MPI 5 names the parts of its launcher otherwise, and finds itself by its prefix.
Command openmpi5_command(const Cluster& cluster, const std::vector<std::string>& settings,
                         const std::vector<std::string>& program, const Variables& variables,
                         const std::string& home) {
  Command command = launcher(cluster, variables);
  command.environment.insert(command.environment.end(), {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                         {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
                                                         {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                         {"LD_LIBRARY_PATH", home + "/lib"}});
  command.argv = {home + "/bin/mpirun",
                  "-n",
                  std::to_string(cluster.fabric().host_of_rank.size()),
                  "--host",
                  host_list(cluster),
                  "--prefix",
                  home};
  for (const auto& [name, value] : Variables{{"plm", "ssh"},
                                             {"plm_ssh_agent", enter_program()},
                                             {"prte_keep_fqdn_hostnames", "1"},
                                             {"prte_if_include", kHostInterface}}) {
    append(command.argv, {"--prtemca", name, value});
  }
  const auto [include, cables] = openmpi_cables(cluster);
  append(command.argv, {"--map-by",
                        "slot:OVERSUBSCRIBE",
                        "--bind-to",
                        "none",
                        "-x",
                        "LD_LIBRARY_PATH",
                        "-x",
                        "OPAL_PREFIX",
                        "-x",
                        "PMIX_PREFIX",
                        "--mca",
                        "pml",
                        "ob1",
                        "--mca",
                        "btl",
                        "self,sm,tcp",
                        "--mca",
                        include,
                        cables,
                        "--mca",
                        "mpi_yield_when_idle",
                        "1"});
  append(command.argv, settings);
  append(command.argv, program);
  return command;
}

}  // namespace

std::vector<Command> rank_commands(const Cluster& cluster, const std::vector<std::string>& program,
                                   const Variables& variables) {
  const Fabric& fabric = cluster.fabric();
  const std::string secret = Secret::random().text();
  std::vector<Command> commands;
  for (std::size_t r = 0; r < fabric.host_of_rank.size(); ++r) {
    const int rank = static_cast<int>(r);
    const int host = fabric.host_of_rank[r];
    const std::vector<int> beside = fabric.ranks_on(host);
    const auto local = std::find(beside.begin(), beside.end(), rank) - beside.begin();
    Command command;
    command.argv = program;
    command.namespaces_of = cluster.keeper(host);
    command.environment = with_cluster(cluster, variables);
    command.environment.insert(command.environment.end(),
                               {{"RANK", std::to_string(rank)},
                                {"WORLD_SIZE", std::to_string(fabric.host_of_rank.size())},
                                {"LOCAL_RANK", std::to_string(local)},
                                {"LOCAL_WORLD_SIZE", std::to_string(beside.size())},
                                {"MASTER_ADDR", host_of(cluster, 0).address},
                                {"MASTER_PORT", std::to_string(kMasterPort)},
                                {"CHORUS_SECRET", secret}});
    commands.push_back(std::move(command));
  }
  return commands;
}

Command openmpi_command(const Cluster& cluster, const std::vector<std::string>& settings,
                        const std::vector<std::string>& program, const Variables& variables,
                        const std::string& home) {
  if (!home.empty()) return openmpi5_command(cluster, settings, program, variables, home);
  Command command = launcher(cluster, variables);
  command.environment.insert(command.environment.end(), {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  command.argv = {"mpirun.openmpi", "-n", std::to_string(cluster.fabric().host_of_rank.size()),
                  "--host", host_list(cluster)};
  // Hosts are known by address and must stay so; control traffic, too, has to use their cable.
  append(command.argv, {"--mca",
                        "plm",
                        "rsh",
                        "--mca",
                        "plm_rsh_agent",
                        enter_program(),
                        "--mca",
                        "orte_keep_fqdn_hostnames",
                        "1",
                        "--mca",
                        "oob_tcp_if_include",
                        kHostInterface,
                        "--mca",
                        openmpi_cables(cluster).first,
                        openmpi_cables(cluster).second,
                        "--mca",
                        "pml",
                        "ob1",
                        "--mca",
                        "btl",
                        "self,vader,tcp"});
  // All hosts share this machine's cores.
  append(command.argv, {"--mca", "mpi_yield_when_idle", "1", "--oversubscribe", "--bind-to", "none",
                        "--map-by", "slot"});
  append(command.argv, settings);
  append(command.argv, program);
  return command;
}

Command mpich_command(const Cluster& cluster, const std::vector<std::string>& settings,
                      const std::vector<std::string>& program, const Variables& variables,
                      const std::string& home) {
  Command command = launcher(cluster, variables);
  if (home.empty()) {
    command.environment.emplace_back("UCX_TLS", "tcp,self");
    command.environment.emplace_back("UCX_NET_DEVICES", common_interfaces(cluster));
  } else {  // it comes with libfabric, which uses one interface
    command.environment.emplace_back("FI_PROVIDER", "tcp");
    command.environment.emplace_back("FI_TCP_IFACE", kHostInterface);
  }
  command.argv = {home.empty() ? "mpirun.mpich" : home + "/bin/mpiexec.hydra",
                  "-n",
                  std::to_string(cluster.fabric().host_of_rank.size()),
                  "-hosts",
                  host_list(cluster),
                  "-launcher",
                  "ssh",
                  "-launcher-exec",
                  enter_program(),
                  "-iface",
                  kHostInterface};
  append(command.argv, settings);
  append(command.argv, program);
  return command;
}

std::string enter_program() {
  std::string path = beside_driver("chorus-perf-enter");
  if (::access(path.c_str(), X_OK) != 0) {
    throw Error(path + " is not there; build or install chorus-perf-enter");
  }
  return path;
}

}  // namespace chorus::perf
