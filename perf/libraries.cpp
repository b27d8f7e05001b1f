#include "perf/libraries.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

namespace fs = std::filesystem;

fs::path own_directory() { return fs::read_symlink("/proc/self/exe").parent_path(); }

/// The command that starts ranks of Chorus: beside its worker, or on PATH.
std::string chorus_command(const Library& library) {
  const fs::path beside = fs::path(library.worker).parent_path() / "chorus";
  return ::access(beside.c_str(), X_OK) == 0 ? beside.string() : "chorus";
}

Command openmpi(const Library& library, std::string_view transport, int ranks,
                const std::string& directory) {
  Command command;
  command.argv = {"mpirun.openmpi",
                  "-n",
                  std::to_string(ranks),
                  "--oversubscribe",
                  "--mca",
                  "pml",
                  transport == "rdma" ? "ucx" : "ob1",
                  "--mca",
                  "btl",
                  transport == "shm"   ? "self,vader"
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
  command.argv.push_back(library.worker);
  command.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"TMPDIR", directory}};
  if (transport == "rdma") command.environment.emplace_back("UCX_TLS", "rc,self");
  return command;
}

Command mpich(const Library& library, std::string_view transport, int ranks,
              const std::string& directory) {
  Command command;
  command.argv = {"mpirun.mpich", "-n", std::to_string(ranks)};
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

Command chorus_run(const Library& library, std::string_view transport, int ranks) {
  Command command;
  command.argv = {chorus_command(library), "run", "-n",
                  std::to_string(ranks),   "--",  library.worker};
  command.environment = {{"CHORUS_TRANSPORTS", std::string(transport)}};
  if (!library.plan.empty()) command.environment.emplace_back("CHORUS_PLAN", library.plan);
  return command;
}

}  // namespace

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

std::vector<Library> find_libraries(const std::string& directory) {
  const fs::path where = directory.empty() ? own_directory() : fs::path(directory);
  std::vector<Library> found;
  for (const char* name : {"chorus", "openmpi", "mpich", "gloo"}) {
    const fs::path worker = where / fmt::format("chorus-perf-worker-{}", name);
    if (::access(worker.c_str(), X_OK) == 0) found.push_back({name, worker.string()});
  }
  return found;
}

bool is_transport(std::string_view name) {
  return name == "shm" || name == "tcp" || name == "rdma";
}

std::string why_not(const Library& library, std::string_view transport) {
  if (library.name == "gloo" && transport != "tcp") return "Gloo has only TCP";
  return {};
}

Launch launch_for(const Library& library, std::string_view transport, int ranks,
                  const std::string& directory) {
  if (library.name == "openmpi") return {{openmpi(library, transport, ranks, directory)}};
  if (library.name == "mpich") return {{mpich(library, transport, ranks, directory)}};
  if (library.name == "chorus" || !library.plan.empty())
    return {{chorus_run(library, transport, ranks)}};
  Launch launch;
  for (int rank = 0; rank < ranks; ++rank) {
    Command command;
    command.argv = {library.worker};
    command.environment = {{"CHORUS_PERF_RANK", std::to_string(rank)},
                           {"CHORUS_PERF_WORLD_SIZE", std::to_string(ranks)}};
    launch.commands.push_back(std::move(command));
  }
  return launch;
}

}  // namespace chorus::perf
