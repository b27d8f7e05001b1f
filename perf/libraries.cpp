#include "perf/libraries.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>

#include "chorus/error.hpp"
#include "perf/cluster/start.hpp"
#include "perf/wire.hpp"

namespace chorus::perf {
namespace {

namespace fs = std::filesystem;

/// The command that starts ranks of Chorus: beside its worker, beside this one, or on PATH.
std::string chorus_command(const Library& library) {
  for (const fs::path& path :
       {fs::path(library.worker).parent_path() / "chorus", fs::path(beside_driver("chorus"))}) {
    if (::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return "chorus";
}

/// The libraries that chorus-perf knows, in the order in which it measures them.
struct Known {
  std::string_view name;
  std::string_view kind;   ///< what it is started like
  bool by_script = false;  ///< perf/peers.sh brings it
};
constexpr Known kKnown[] = {{"chorus", "chorus"},      {"openmpi", "openmpi"},
                            {"mpich", "mpich"},        {"openmpi5", "openmpi", true},
                            {"mpich5", "mpich", true}, {"impi", "impi", true},
                            {"gloo", "gloo"},          {"nccl", "nccl"}};

/// Whether `library` is started like `kind`: itself, a newer one ("openmpi5") or a variant
/// ("openmpi-ring").
bool is_kind_of(const Library& library, std::string_view kind) {
  const std::string_view name = std::string_view(library.name).substr(0, library.name.find('-'));
  const auto* const known = std::ranges::find(kKnown, name, &Known::name);
  return (known == std::end(kKnown) ? name : known->kind) == kind;
}

/// `command` of the MPI's own prefix, or else the system's `name`.
std::string launcher_of(const Library& library, const char* command, const char* name) {
  return library.home.empty() ? name : fmt::format("{}/bin/{}", library.home, command);
}

/// What an Open MPI that was moved needs to find itself.
Variables places_of(const Library& library) {
  Variables variables;
  if (library.home.empty()) return variables;
  for (const char* name : {"OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"}) {
    variables.emplace_back(name, library.home);
  }
  return variables;
}

Command openmpi(const Library& library, std::string_view transport, int ranks,
                const std::string& directory) {
  Command command;
  const bool newer = !library.home.empty();
  command.argv = {launcher_of(library, "mpirun", "mpirun.openmpi"),
                  "-n",
                  std::to_string(ranks),
                  "--oversubscribe",
                  "--mca",
                  "pml",
                  transport == "rdma" || library.name == "openmpi-ucx" ? "ucx" : "ob1",
                  "--mca",
                  "btl",
                  transport == "shm"   ? (newer ? "self,sm" : "self,vader")
                  : transport == "tcp" ? "self,tcp"
                                       : "self"};
  const auto add = [&](std::initializer_list<const char*> words) {
    command.argv.insert(command.argv.end(), words.begin(), words.end());
  };
  if (transport == "tcp") add({"--mca", "btl_tcp_if_include", "lo"});
  if (ranks <= usable_cpus()) {
    add({"--bind-to", "core"});
  } else {
    add({"--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"});
  }
  command.argv.insert(command.argv.end(), library.settings.begin(), library.settings.end());
  command.argv.push_back(library.worker);
  command.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"TMPDIR", directory}};
  for (const auto& place : places_of(library)) command.environment.push_back(place);
  if (transport == "rdma") {
    command.environment.emplace_back("UCX_TLS", "rc,self");
  } else if (library.name == "openmpi-ucx") {
    command.environment.emplace_back("UCX_TLS",
                                     transport == "shm" ? "posix,sysv,cma,self" : "tcp,self");
  }
  return command;
}

Command mpich(const Library& library, std::string_view transport, int ranks,
              const std::string& directory) {
  Command command;
  command.argv = {launcher_of(library, "mpiexec.hydra", "mpirun.mpich"), "-n",
                  std::to_string(ranks)};
  if (ranks <= usable_cpus()) {
    command.argv.insert(command.argv.end(), {"-bind-to", "core"});
  }
  command.argv.push_back(library.worker);
  command.environment = {{"TMPDIR", directory}};
  if (transport == "shm") {
    command.environment.emplace_back("UCX_TLS", "posix,sysv,cma,self");
  } else if (transport == "rdma") {
    command.environment.emplace_back("UCX_TLS", "rc,self");
  } else {
    command.environment.emplace_back("UCX_TLS", "tcp,self");
    command.environment.emplace_back("UCX_NET_DEVICES", "lo");
  }
  return command;
}

/// Intel MPI, which takes a host whose name leads nowhere for several.
Command intel_mpi(const Library& library, int ranks, const std::string& directory) {
  Command command;
  command.argv = {library.home + "/bin/mpiexec.hydra",
                  "-bootstrap",
                  "fork",
                  "-n",
                  std::to_string(ranks),
                  library.worker};
  command.environment = {{"TMPDIR", directory},
                         {"I_MPI_ROOT", library.home},
                         {"I_MPI_FABRICS", "shm"},
                         {"I_MPI_PIN", ranks <= usable_cpus() ? "1" : "0"}};
  if (ranks > usable_cpus()) command.environment.emplace_back("I_MPI_WAIT_MODE", "1");
  return command;
}

Command chorus_run(const Library& library, std::string_view transport, int ranks) {
  Command command;
  const bool on_gpu = transport == "gpu";
  command.argv = {chorus_command(library), "run", "-n",
                  std::to_string(ranks),   "--",  library.worker + (on_gpu ? "-gpu" : "")};
  if (!on_gpu) command.environment = {{"CHORUS_TRANSPORTS", std::string(transport)}};
  if (!library.plan.empty()) command.environment.emplace_back("CHORUS_PLAN", library.plan);
  command.argv.insert(command.argv.end(), library.settings.begin(), library.settings.end());
  return command;
}

/// The prefix of an MPI of a folder of peers, which its worker was built with.
std::string home_of(const std::string& worker) {
  std::ifstream file(worker + ".home");
  std::string home;
  std::getline(file, home);
  return home;
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::vector<Library> find_libraries(const std::string& directory) {
  std::vector<Library> found;
  for (const Known& known : kKnown) {
    const std::string program = fmt::format("chorus-perf-worker-{}", known.name);
    const std::string worker =
        directory.empty() ? beside_driver(program) : (fs::path(directory) / program).string();
    if (::access(worker.c_str(), X_OK) != 0) continue;
    found.push_back({std::string(known.name), worker, {}, {}, home_of(worker)});
  }
  return found;
}

std::string why_not(const Library& library, std::string_view transport) {
  const bool host_only = is_kind_of(library, "openmpi") || is_kind_of(library, "mpich") ||
                         is_kind_of(library, "impi") || library.name == "gloo" ||
                         library.name == "floor";
  if (transport == "gpu" && host_only) return library.name + " is measured on host memory only";
  if (library.name == "gloo" && transport != "tcp") return "Gloo has only TCP";
  if (!library.home.empty() && transport != "shm") {
    return "a peer of perf/peers.sh is measured inside one host only";
  }
  return {};
}

Launch launch_for(const Library& library, std::string_view transport, int ranks,
                  const std::string& directory) {
  if (is_kind_of(library, "openmpi")) return {{openmpi(library, transport, ranks, directory)}};
  if (is_kind_of(library, "mpich")) return {{mpich(library, transport, ranks, directory)}};
  if (is_kind_of(library, "impi")) return {{intel_mpi(library, ranks, directory)}};
  if (is_kind_of(library, "chorus") || !library.plan.empty())
    return {{chorus_run(library, transport, ranks)}};
  Launch launch;
  for (int rank = 0; rank < ranks; ++rank) {
    Command command;
    command.argv = {library.worker};
    command.argv.insert(command.argv.end(), library.settings.begin(), library.settings.end());
    command.environment = {{"CHORUS_PERF_RANK", std::to_string(rank)},
                           {"CHORUS_PERF_WORLD_SIZE", std::to_string(ranks)}};
    if (transport == "gpu") {
      command.argv.insert(command.argv.end(), {"--memory", "gpu"});
    } else if (library.name == "nccl") {  // only Chorus's own works on host memory
      command.environment.emplace_back("CHORUS_TRANSPORTS", transport);
    }
    launch.commands.push_back(std::move(command));
  }
  return launch;
}

std::string why_not_on_cluster(const Library& library) {
  if (is_kind_of(library, "impi")) return "Intel MPI is measured inside one host only";
  return {};
}

Launch launch_on(const Cluster& cluster, const Library& library, const std::string& topology_file,
                 const std::string& directory) {
  const std::vector<std::string> program = {library.worker};
  Variables files = places_of(library);
  files.emplace_back("TMPDIR", directory);
  if (is_kind_of(library, "openmpi")) {
    return {{openmpi_command(cluster, library.settings, program, files, library.home)}};
  }
  if (is_kind_of(library, "mpich")) {
    return {{mpich_command(cluster, library.settings, program, files, library.home)}};
  }
  Variables variables;
  if (is_kind_of(library, "chorus")) {
    if (!topology_file.empty()) variables.emplace_back("CHORUS_TOPOLOGY", topology_file);
    if (!library.plan.empty()) variables.emplace_back("CHORUS_PLAN", library.plan);
    return {rank_commands(cluster, program, variables)};
  }
  Launch launch{rank_commands(cluster, program, variables)};
  for (std::size_t rank = 0; rank < launch.commands.size(); ++rank) {
    Variables& environment = launch.commands[rank].environment;
    environment.emplace_back("CHORUS_PERF_RANK", std::to_string(rank));
    environment.emplace_back("CHORUS_PERF_WORLD_SIZE", std::to_string(launch.commands.size()));
    environment.emplace_back("CHORUS_PERF_INTERFACE", kHostInterface);
  }
  return launch;
}

namespace {

/// The first of `names` that PATH has; empty if none.
std::string on_path(std::initializer_list<const char*> names) {
  const char* path = std::getenv("PATH");
  const std::string_view all = path == nullptr ? "" : path;
  for (const char* name : names) {
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find(':', at), all.size());
      const fs::path candidate = fs::path(all.substr(at, end - at)) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return name;
      at = end + 1;
    }
  }
  return {};
}

std::string mpirun_of(const Library& library) {
  return is_kind_of(library, "openmpi") ? on_path({"mpirun.openmpi", "mpirun"})
                                        : on_path({"mpirun.mpich", "mpiexec.hydra"});
}

Command openmpi_in_job(const Library& library, std::string_view transport, const JobHosts& hosts) {
  Command command;
  command.argv = {mpirun_of(library), "-n", std::to_string(hosts.ranks), "--host", hosts.list};
  const auto add = [&](std::initializer_list<const char*> words) {
    command.argv.insert(command.argv.end(), words.begin(), words.end());
  };
  add({"--mca", "orte_keep_fqdn_hostnames", "1", "--oversubscribe", "--map-by", "slot"});
  add({"-x", kTokenVariable});
  if (hosts.oversubscribed) add({"--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"});
  if (transport == "tcp") add({"--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"});
  if (transport == "shm") add({"--mca", "pml", "ob1", "--mca", "btl", "self,vader"});
  if (transport == "rdma") {
    add({"--mca", "pml", "ucx", "-x", "UCX_TLS"});
    command.environment.emplace_back("UCX_TLS", "rc,posix,sysv,cma,self");
  }
  if (std::getenv("LD_LIBRARY_PATH") != nullptr) add({"-x", "LD_LIBRARY_PATH"});
  command.argv.insert(command.argv.end(), library.settings.begin(), library.settings.end());
  // Who runs the job as root has decided so.
  command.environment.emplace_back("OMPI_ALLOW_RUN_AS_ROOT", "1");
  command.environment.emplace_back("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  return command;
}

Command mpich_in_job(const Library& library, std::string_view transport, const JobHosts& hosts) {
  Command command;
  command.argv = {mpirun_of(library), "-n", std::to_string(hosts.ranks), "-hosts", hosts.list};
  const char* tls = transport == "tcp"    ? "tcp,posix,sysv,cma,self"
                    : transport == "rdma" ? "rc,posix,sysv,cma,self"
                    : transport == "shm"  ? "posix,sysv,cma,self"
                                          : nullptr;
  if (tls != nullptr) command.environment.emplace_back("UCX_TLS", tls);
  if (!hosts.oversubscribed) command.argv.insert(command.argv.end(), {"-bind-to", "core"});
  return command;
}

}  // namespace

JobLaunch launch_in_job(const Library& library, std::string_view transport, const JobHosts& hosts) {
  JobLaunch launch;
  launch.by_mpirun = is_kind_of(library, "openmpi") || is_kind_of(library, "mpich");
  if (launch.by_mpirun) {
    launch.command = is_kind_of(library, "openmpi") ? openmpi_in_job(library, transport, hosts)
                                                    : mpich_in_job(library, transport, hosts);
    launch.command.argv.push_back(library.worker);
    // A step of Slurm's within the job's own would wait for the job to end.
    launch.command.environment.emplace_back("SLURM_OVERLAP", "1");
    return launch;
  }
  const bool chorus = is_kind_of(library, "chorus");
  const bool on_gpu = transport == "gpu";
  launch.command.argv = {library.worker + (chorus && on_gpu ? "-gpu" : "")};
  launch.command.argv.insert(launch.command.argv.end(), library.settings.begin(),
                             library.settings.end());
  if (!chorus && on_gpu) {
    launch.command.argv.insert(launch.command.argv.end(), {"--memory", "gpu"});
  }
  if (transport == "tcp" || transport == "rdma") {
    launch.command.environment.emplace_back("CHORUS_TRANSPORTS", fmt::format("shm,{}", transport));
  } else if (transport == "shm") {
    launch.command.environment.emplace_back("CHORUS_TRANSPORTS", "shm");
  }
  if (!library.plan.empty()) launch.command.environment.emplace_back("CHORUS_PLAN", library.plan);
  return launch;
}

std::string why_not_in_job(const Library& library, std::string_view transport,
                           const JobHosts& hosts) {
  if (transport == "shm" && !hosts.one_host) {
    return "shared memory reaches the ranks of one host only; name another transport";
  }
  if (library.name == "floor") return "the floor is one of two ranks of one host";
  if (!library.home.empty()) {
    return "a peer of perf/peers.sh is measured without a launcher: chorus-perf starts it";
  }
  const bool mpi = is_kind_of(library, "openmpi") || is_kind_of(library, "mpich");
  if (mpi && mpirun_of(library).empty()) {
    return "its mpirun is not on PATH on the host of rank 0";
  }
  return transport == "auto" ? "" : why_not(library, transport);
}

std::vector<Absent> absent_from(const std::vector<Library>& chosen) {
  const std::vector<Library> found = find_libraries();
  std::vector<Absent> absent;
  for (const Known& known : kKnown) {
    const std::string name(known.name);
    if (name == "chorus") continue;
    const auto named = [&](const Library& library) { return library.name == name; };
    if (std::ranges::any_of(chosen, named)) continue;
    absent.push_back(
        {.library = name,
         .reason =
             std::ranges::none_of(found, named)
                 ? fmt::format("there is no chorus-perf-worker-{} next to chorus-perf: {}", name,
                               known.by_script ? "perf/peers.sh makes it"
                                               : "it was not installed where Chorus was built")
             : name == "nccl" ? "its buffers are on GPUs: --transport gpu"
                              : "not named by --library"});
  }
  return absent;
}

std::vector<Library> host_variants(const std::vector<Library>& libraries, int ranks) {
  std::vector<Library> variants;
  const auto add = [&](const char* of, const char* name, const std::vector<std::string>& settings) {
    for (const Library& library : libraries) {
      if (library.name == of) variants.push_back({name, library.worker, {}, settings});
    }
  };
  add("chorus", "chorus-allocated", {"--buffers", "library"});
  // UCX refuses to serve a machine without a network device unless told otherwise.
  add("openmpi", "openmpi-ucx", {"--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"});
  add("openmpi", "openmpi-han", {"--mca", "coll_han_priority", "100"});
  const std::string floor = beside_driver("chorus-perf-worker-floor");
  if (ranks == 2 && ::access(floor.c_str(), X_OK) == 0) variants.push_back({"floor", floor});
  return variants;
}

bool is_yardstick(std::string_view library) {
  return library == "floor" || library.starts_with("chorus");
}

std::vector<Library> tuned_variants(const std::vector<Library>& libraries) {
  const auto plain = std::find_if(libraries.begin(), libraries.end(),
                                  [](const Library& library) { return library.name == "openmpi"; });
  if (plain == libraries.end()) return {};
  struct Choice {
    const char* collective;
    const char* ring;
    const char* tree;
  };
  // The numbers are those of `ompi_info --param coll tuned`: ring, ring, ring, pairwise, pipeline;
  // Rabenseifner, recursive doubling, recursive halving, linear, scatter and all-gather.
  constexpr std::array kChoices = {Choice{"allreduce", "4", "6"}, Choice{"allgather", "4", "3"},
                                   Choice{"reduce_scatter", "3", "2"}, Choice{"alltoall", "2", "1"},
                                   Choice{"bcast", "3", "8"}};
  std::vector<Library> variants;
  for (const bool ring : {true, false}) {
    Library variant = *plain;
    variant.name += ring ? "-ring" : "-tree";
    variant.settings = {"--mca", "coll_tuned_use_dynamic_rules", "1"};
    for (const Choice& choice : kChoices) {
      for (const std::string& word :
           {std::string("--mca"), fmt::format("coll_tuned_{}_algorithm", choice.collective),
            std::string(ring ? choice.ring : choice.tree)}) {
        variant.settings.push_back(word);
      }
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

}  // namespace chorus::perf
