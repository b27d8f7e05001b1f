// Which launcher started this process, and what it says about ranks.
#include "runtime/launch/launch.hpp"

#include <fmt/format.h>

#include <climits>
#include <initializer_list>
#include <optional>
#include <string>

#include "chorus/error.hpp"
#include "runtime/launch/pmi.hpp"
#include "runtime/launch/pmix.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

constexpr int kMaxRanks = 1 << 20;

std::optional<int> number(const char* name, int low) {
  const auto value = env_integer(name, low, kMaxRanks);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

/// The first of several variables that is set.
std::optional<int> first_number(std::initializer_list<const char*> names, int low) {
  for (const char* name : names) {
    if (const auto value = number(name, low)) return value;
  }
  return std::nullopt;
}

int required(const char* name, int low, std::string_view because) {
  if (const auto value = number(name, low)) return *value;
  throw InputError(fmt::format("{} is set but {} is not: set both or none", because, name));
}

/// Two variables that must say the same where both are set.
void require_equal(const char* name, const char* other) {
  const auto a = env(name), b = env(other);
  if (a && b && *a != *b) {
    throw InputError(
        fmt::format("{}={} contradicts {}={}: this process seems to be started by two "
                    "launchers; unset the variables of one",
                    name, *a, other, *b));
  }
}

Launch by_chorus() {
  Launch launch;
  launch.launcher = "chorus";
  launch.id = env("CHORUS_ID").value_or("");
  launch.rank = required("CHORUS_RANK", 0, launch.id.empty() ? "CHORUS_WORLD_SIZE" : "CHORUS_ID");
  launch.world_size = required("CHORUS_WORLD_SIZE", 1, "CHORUS_RANK");
  if (launch.id.empty()) {
    throw InputError("CHORUS_RANK is set but CHORUS_ID is not: set both or none");
  }
  launch.local_rank = number("CHORUS_LOCAL_RANK", 0).value_or(0);
  launch.local_world_size = number("CHORUS_LOCAL_WORLD_SIZE", 1).value_or(0);
  return launch;
}

/// How long a launcher has to say which rank this is.
constexpr int kAnswersWithinMs = 30'000;

Launch by_pmi() {
  Launch launch;
  launch.launcher = "pmi";
  require_equal("PMI_RANK", "PMIX_RANK");
  if (env("PMI_FD")) {
    launch.rank = required("PMI_RANK", 0, "PMI_FD");
    launch.world_size = required("PMI_SIZE", 1, "PMI_FD");
  } else {
    const PmiPlace place = place_by_pmi(kAnswersWithinMs);
    launch.rank = place.rank;
    launch.world_size = place.world_size;
  }
  launch.local_rank =
      first_number({"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"}, 0).value_or(0);
  launch.local_world_size = first_number({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}, 1).value_or(0);
  return launch;
}

Launch by_pmix() {
  Launch launch;
  launch.launcher = "pmix";
  require_equal("PMIX_RANK", "OMPI_COMM_WORLD_RANK");
  launch.rank = required("PMIX_RANK", 0, "PMIX_NAMESPACE");
  const auto world_size = first_number(
      {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1);
  launch.world_size = world_size ? *world_size : job_size_by_pmix();
  launch.local_rank = first_number({"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}, 0).value_or(0);
  launch.local_world_size = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1).value_or(0);
  return launch;
}

Launch by_torchrun() {
  Launch launch;
  launch.launcher = "torchrun";
  launch.rank = required("RANK", 0, "MASTER_ADDR");
  launch.world_size = required("WORLD_SIZE", 1, "RANK");
  launch.local_rank = number("LOCAL_RANK", 0).value_or(0);
  launch.local_world_size = number("LOCAL_WORLD_SIZE", 1).value_or(0);
  if (launch.world_size == 1) return launch;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!env(name)) {
      throw InputError(fmt::format(
          "RANK and WORLD_SIZE={} are set but {} is not: the ranks have no place to meet",
          launch.world_size, name));
    }
  }
  (void)env_integer("MASTER_PORT", 1, 65534);
  return launch;
}

bool started_by_torchrun() {
  return (env("RANK") && env("WORLD_SIZE")) ||
         (env("MASTER_ADDR") && (env("RANK") || env("WORLD_SIZE")));
}

void refuse_bare_slurm() {
  const auto tasks = first_number({"SLURM_STEP_NUM_TASKS"}, 1);
  // A program in a batch script is a task of its own: only steps of several tasks are meant.
  if (!tasks || *tasks < 2 || !env("SLURM_PROCID")) return;
  throw BootstrapError(
      fmt::format("srun started {} tasks but gave them no way to meet: start with srun --mpi=pmix "
                  "(srun --mpi=list shows what this Slurm has), with mpirun, or set RANK, "
                  "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                  *tasks));
}

Launch find() {
  if (env("CHORUS_ID") || env("CHORUS_RANK") || env("CHORUS_WORLD_SIZE")) return by_chorus();
  const bool mpi = env("PMI_FD") || env("PMIX_NAMESPACE");
  if (mpi && started_by_torchrun()) {
    const char* rank = env("PMI_FD") ? "PMI_RANK" : "PMIX_RANK";
    require_equal(rank, "RANK");
    require_equal(env("PMI_FD") ? "PMI_SIZE" : "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE");
  }
  if (env("PMI_FD")) return by_pmi();
  if (env("PMIX_NAMESPACE")) return by_pmix();
  if (started_by_torchrun()) return by_torchrun();
  if (env("PMI_PORT")) return by_pmi();
  refuse_bare_slurm();
  Launch single;
  single.launcher = "single";
  single.local_world_size = 1;
  return single;
}

}  // namespace

Launch Launch::from_env() {
  Launch launch = find();
  const auto complain = [&](std::string_view what, int value, int limit, std::string_view of) {
    throw InputError(fmt::format("{} {} contradicts {} {}: ranks count from 0 (variables of {})",
                                 what, value, of, limit, launch.launcher));
  };
  if (launch.rank >= launch.world_size) {
    complain("rank", launch.rank, launch.world_size, "world size");
  }
  const int local = launch.local_world_size;
  if (local > launch.world_size) {
    complain("local world size", local, launch.world_size, "world size");
  }
  if (local > 0 && launch.local_rank >= local) {
    complain("local rank", launch.local_rank, local, "local world size");
  }
  return launch;
}

}  // namespace chorus
