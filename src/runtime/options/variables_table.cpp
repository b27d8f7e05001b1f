// The table of variables: what each is called, takes and does.
#include <climits>

#include "runtime/options/variables.hpp"

namespace chorus {
namespace {

using Section = Variable::Section;
using Kind = Variable::Type;

constexpr Variable number(const char* name, int Options::*field, const char* field_name,
                          long long low, long long high, const char* text) {
  return {.name = name,
          .section = Section::options,
          .type = Kind::number,
          .text = text,
          .field = field,
          .field_name = field_name,
          .low = low,
          .high = high};
}

constexpr Variable words(const char* name, Kind type, std::string Options::*field,
                         const char* field_name, const char* text, bool may_be_empty = false,
                         const char* otherwise = "") {
  return {.name = name,
          .section = Section::options,
          .type = type,
          .text = text,
          .field = field,
          .field_name = field_name,
          .may_be_empty = may_be_empty,
          .otherwise = otherwise};
}

constexpr Variable other(Section section, const char* name, Kind type, const char* text,
                         const char* otherwise = "", long long low = 0, long long high = 0) {
  return {.name = name,
          .section = section,
          .type = type,
          .text = text,
          .low = low,
          .high = high,
          .otherwise = otherwise};
}

constexpr Variable nccl(const char* name, Kind type, const char* stands_for, const char* text,
                        long long low = 0, long long high = 0) {
  return {.name = name,
          .section = Section::nccl,
          .type = type,
          .text = text,
          .low = low,
          .high = high,
          .stands_for = stands_for};
}

const Variable table[] = {
    number("CHORUS_JOIN_TIMEOUT_MS", &Options::join_timeout_ms, "join_timeout_ms", 1, INT_MAX,
           "Longest wait for ranks to meet, ms."),
    words(
        "CHORUS_ON_LOSS", Kind::on_loss, &Options::on_loss, "on_loss",
        "What becomes of a communicator of which ranks die; shrink: it goes on without them after "
        "one call has failed; finish: the survivors complete that call, too (docs/elastic.md)."),
    {.name = "CHORUS_REJOIN",
     .section = Section::options,
     .type = Kind::flag,
     .text = "1: if the job has begun without this process, it waits until the others take it in "
             "(docs/elastic.md), in place of being refused; chorus run --respawn sets it.",
     .field = &Options::rejoin,
     .field_name = "rejoin"},
    number("CHORUS_TIMEOUT_MS", &Options::timeout_ms, "timeout_ms", 1, INT_MAX,
           "Longest wait for a peer inside a call before it fails, ms."),
    number("CHORUS_WARN_AFTER_MS", &Options::warn_after_ms, "warn_after_ms", 0, INT_MAX,
           "A call that waits this long names in the log whom it waits for, and again after twice, "
           "four times this, ms; 0: never."),
    words("CHORUS_TRANSPORTS", Kind::names, &Options::transports, "transports",
          "Transports that may be used, best first."),
    words("CHORUS_SOCKET_IFNAME", Kind::text, &Options::interface_name, "interface_name",
          "Network interfaces (by name) or addresses that TCP uses, separated by commas, the one "
          "that reaches all ranks first; none: the one that reaches the rendezvous, and beside it "
          "all others that lead to a peer."),
    number("CHORUS_TCP_SOCKETS", &Options::tcp_sockets, "tcp_sockets", 1, 16,
           "Sockets per TCP link."),
    words(
        "CHORUS_RDMA_HCA", Kind::text, &Options::rdma_hca, "rdma_hca",
        "RDMA adapters that may be used, as NCCL_IB_HCA has it: mlx5_0:1,mlx5_1 by the beginnings "
        "of their names, with ports; = before the list: by whole names; ^ before it: all others. "
        "None: all."),
    number("CHORUS_RDMA_GID_INDEX", &Options::rdma_gid_index, "rdma_gid_index", -1, 4095,
           "Index of the GID of RoCE ports, as show_gids lists them; -1: the port's RoCE v2 entry "
           "over IPv4, else over IPv6, else RoCE v1."),
    number("CHORUS_RDMA_TC", &Options::rdma_traffic_class, "rdma_traffic_class", 0, 255,
           "Traffic class of RDMA packets."),
    number("CHORUS_RDMA_SL", &Options::rdma_service_level, "rdma_service_level", 0, 15,
           "Service level of RDMA packets."),
    number("CHORUS_RDMA_TIMEOUT", &Options::rdma_timeout, "rdma_timeout", 1, 31,
           "An RDMA packet is repeated when it is not acknowledged within 4.096 us * 2^this."),
    number("CHORUS_RDMA_RETRY", &Options::rdma_retry, "rdma_retry", 0, 7,
           "How often an RDMA packet is repeated before the adapter gives the peer up."),
    number("CHORUS_RDMA_QPS", &Options::rdma_queue_pairs, "rdma_queue_pairs", 1, 4,
           "RDMA connections per pair of adapters."),
    number("CHORUS_RDMA_RAILS", &Options::rdma_rails, "rdma_rails", 1, 8,
           "RDMA ports that one link uses side by side, at most."),
    number("CHORUS_RDMA_GPU", &Options::rdma_gpu, "rdma_gpu", 0, 2,
           "Whether adapters reach GPU memory where they can: 0: no, messages pass host memory; 1: "
           "they read it; 2: they read it and write into it."),
    {.name = "CHORUS_SLOT_BYTES",
     .section = Section::options,
     .type = Kind::bytes,
     .text = "Bytes of one staging slot.",
     .field = &Options::slot_bytes,
     .field_name = "slot_bytes",
     .low = 1024,
     .high = 64 * 1024 * 1024},
    number("CHORUS_SLOTS", &Options::slots, "slots", 2, 32,
           "Slots per connection; left at its default, 32 where ranks do not meet on loopback."),
    {.name = "CHORUS_DETERMINISTIC",
     .section = Section::options,
     .type = Kind::flag,
     .text = "1: contributions are folded in the order of ranks, whatever the size and topology; "
             "costs speed at large sizes.",
     .field = &Options::deterministic,
     .field_name = "deterministic"},
    words("CHORUS_ALGORITHM", Kind::text, &Options::algorithm, "algorithm",
          "Only this schedule is considered, a name of chorus algorithms."),
    words(
        "CHORUS_TOPOLOGY", Kind::file, &Options::topology_file, "topology_file",
        "Topology (JSON) to use instead of discovering one; chorus topo SOURCE --json writes it."),
    words("CHORUS_PLAN", Kind::file, &Options::plan_file, "plan_file",
          "Plan (JSON) to run; chorus synth TOPOLOGY -o FILE writes it."),
    number("CHORUS_PROBE_MS", &Options::probe_ms, "probe_ms", 0, 3'600'000,
           "Where ranks are on several hosts and nobody described the topology: the longest that "
           "all experiments take by which they probe the network, beside the first calls, ms; 0: "
           "never."),
    words("CHORUS_PROBE_CACHE", Kind::folder, &Options::probe_cache, "probe_cache",
          "Folder that keeps what was probed; empty: nowhere.", true,
          "$XDG_CACHE_HOME/chorus or ~/.cache/chorus"),
    words("CHORUS_HOST_PROBE", Kind::text, &Options::host_probe, "host_probe",
          "What data paths inside a host are chosen by; auto: its cores are measured, once per "
          "machine; off: assumed figures; else a file that chorus probe --host -o wrote."),
    number("CHORUS_PROBE_MAX_AGE_S", &Options::probe_max_age_s, "probe_max_age_s", 0, INT_MAX,
           "Age beyond which a kept probe is made again, s."),
    {.name = "CHORUS_REPLAN",
     .section = Section::options,
     .type = Kind::flag,
     .text =
         "0 or off: where calls show that the network is another one than was probed, a warning "
         "says so; else it is probed again beside calls, and the schedules for what is found "
         "begin with a call on which all ranks agree.",
     .field = &Options::replan,
     .field_name = "replan"},
    number(
        "CHORUS_SYNTHESIS_MS", &Options::synthesis_ms, "synthesis_ms", 0, 3'600'000,
        "Where the topology is described or probed and there is no plan: the longest that rank 0 "
        "synthesizes one, beside the first calls, ms; 0: never."),
    {.name = "CHORUS_AWAIT_PLAN",
     .section = Section::options,
     .type = Kind::flag,
     .text = "1: a communicator is made with the schedules for its network, and not before them: "
             "for programs that measure and cannot be changed.",
     .field = &Options::await_plan,
     .field_name = "await_plan"},
    words(
        "CHORUS_FLIGHT_DIR", Kind::folder, &Options::flight_dir, "flight_dir",
        "Folder where a rank writes its flight record when a call fails; empty: nowhere; auto: "
        "a private one, $XDG_STATE_HOME/chorus or else chorus-<user id> in $TMPDIR or /tmp, where "
        "old records are removed.",
        true),
    number("CHORUS_SPIN_US", &Options::spin_us, "spin_us", 0, 1'000'000,
           "How long a waiting rank spins (or, where ranks outnumber cores, yields) before it "
           "sleeps, us."),
    number(
        "CHORUS_SLICE_US", &Options::slice_us, "slice_us", 0, 100'000,
        "The time slices that a rank which gives its core away while it waits asks the scheduler "
        "for (Linux 6.12 and later), us; 0: as they are."),
    number(
        "CHORUS_POLL_US", &Options::poll_us, "poll_us", 0, 1'000'000,
        "Where ranks compute while calls are under way: about how long between two polls, us; 0: "
        "ranks wait for their calls. Rank 0's counts."),
    words("CHORUS_MACHINE", Kind::text, &Options::machine, "machine",
          "Names the machine whose cores this rank shares with all ranks that name the same: "
          "virtual machines of one host. None: the kernel's boot id."),
    words("CHORUS_LOG", Kind::level, &Options::log_level, "log_level",
          "What is written to standard error: info tells once per communicator what it runs on, "
          "debug each call's schedule with its predicted and real time."),

    other(Section::job, "CHORUS_ID", Kind::secret,
          "Where the ranks meet and the secret they prove: set by chorus run."),
    other(Section::job, "CHORUS_RANK", Kind::number, "This rank: set by chorus run.", "", 0,
          INT_MAX),
    other(Section::job, "CHORUS_WORLD_SIZE", Kind::number,
          "How many ranks there are: set by chorus run.", "", 1, INT_MAX),
    other(Section::job, "CHORUS_LOCAL_RANK", Kind::number,
          "This rank among those of its host: set by chorus run.", "", 0, INT_MAX),
    other(Section::job, "CHORUS_LOCAL_WORLD_SIZE", Kind::number,
          "How many ranks are on this host: set by chorus run.", "", 1, INT_MAX),
    other(Section::job, "CHORUS_SECRET", Kind::secret,
          "Secret of ranks that meet by MASTER_ADDR and MASTER_PORT: 32 hex digits, alike on all.",
          "derived from MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID"),
    other(Section::job, "CHORUS_NCCL_FALLBACK_LIBRARY", Kind::file,
          "Another libnccl, on all ranks or none, for the calls of CHORUS_NCCL_FALLBACK."),
    other(Section::job, "CHORUS_NCCL_FALLBACK", Kind::names,
          "Calls of NCCL that go to the other libnccl: allreduce, allgather, reducescatter, "
          "alltoall, broadcast, reduce, gather, scatter, send, recv, or all."),
    other(Section::job, "CHORUS_AS_GLOO", Kind::flag,
          "1: who asks PyTorch for the backend gloo gets Chorus.", "0"),

    nccl("NCCL_CHECK_POINTERS", Kind::number, "", "Not 0: pointers are checked in every call.",
         INT_MIN, INT_MAX),
    nccl("NCCL_COMM_BLOCKING", Kind::flag, "", "Overrides config.blocking."),
    nccl("NCCL_COMM_ID", Kind::text, "", "address:port where rank 0 listens, instead of an id."),
    nccl("NCCL_CONF_FILE", Kind::file, "",
         "File of NAME=value lines that is read instead of ~/.nccl.conf."),
    nccl("NCCL_DEBUG", Kind::text, "",
         "VERSION, WARN, INFO, ABORT or TRACE: the log, in NCCL's form."),
    nccl("NCCL_DEBUG_FILE", Kind::file, "",
         "File that the log goes to; %h is the host, %p the process."),
    nccl("NCCL_DEBUG_SUBSYS", Kind::names, "",
         "What is logged: INIT, COLL, P2P, BOOTSTRAP, ENV, REG, ALL; ^ before the list: all "
         "others."),
    nccl("NCCL_DMABUF_ENABLE", Kind::number, "CHORUS_RDMA_GPU",
         "0: adapters do not touch GPU memory.", INT_MIN, INT_MAX),
    nccl("NCCL_IB_DISABLE", Kind::number, "CHORUS_TRANSPORTS", "Not 0: no RDMA.", INT_MIN, INT_MAX),
    nccl("NCCL_IB_GID_INDEX", Kind::number, "CHORUS_RDMA_GID_INDEX", "As CHORUS_RDMA_GID_INDEX.",
         -1, 4095),
    nccl("NCCL_IB_HCA", Kind::text, "CHORUS_RDMA_HCA", "As CHORUS_RDMA_HCA."),
    nccl("NCCL_IB_QPS_PER_CONNECTION", Kind::number, "CHORUS_RDMA_QPS",
         "As CHORUS_RDMA_QPS; more than 4 are 4.", 1, 128),
    nccl("NCCL_IB_RETRY_CNT", Kind::number, "CHORUS_RDMA_RETRY", "As CHORUS_RDMA_RETRY.", 0, 7),
    nccl("NCCL_IB_SL", Kind::number, "CHORUS_RDMA_SL", "As CHORUS_RDMA_SL.", 0, 15),
    nccl("NCCL_IB_TC", Kind::number, "CHORUS_RDMA_TC", "As CHORUS_RDMA_TC.", 0, 255),
    nccl("NCCL_IB_TIMEOUT", Kind::number, "CHORUS_RDMA_TIMEOUT", "As CHORUS_RDMA_TIMEOUT.", 1, 31),
    nccl("NCCL_MULTI_RANK_GPU_ENABLE", Kind::number, "",
         "Not 0: ncclCommInitAll takes a device twice.", INT_MIN, INT_MAX),
    nccl("NCCL_NET", Kind::text, "CHORUS_TRANSPORTS", "Socket: no RDMA."),
    nccl("NCCL_NET_GDR_LEVEL", Kind::text, "CHORUS_RDMA_GPU",
         "LOC or 0: adapters do not touch GPU memory. Other levels change nothing."),
    nccl("NCCL_NSOCKS_PERTHREAD", Kind::number, "CHORUS_TCP_SOCKETS",
         "With NCCL_SOCKET_NTHREADS: their product is CHORUS_TCP_SOCKETS, at most 16.", 0, 64),
    nccl("NCCL_P2P_DISABLE", Kind::number, "",
         "Not 0: no rank touches another's GPU memory; with NCCL_SHM_DISABLE no shared memory.",
         INT_MIN, INT_MAX),
    nccl("NCCL_SHM_DISABLE", Kind::number, "CHORUS_TRANSPORTS",
         "Not 0, and NCCL_P2P_DISABLE too: no shared memory between ranks of a host.", INT_MIN,
         INT_MAX),
    nccl(
        "NCCL_SOCKET_IFNAME", Kind::text, "CHORUS_SOCKET_IFNAME",
        "Interfaces by prefix, = before the list: by name, ^ before it: all others; the first that "
        "is up."),
    nccl("NCCL_SOCKET_NTHREADS", Kind::number, "CHORUS_TCP_SOCKETS",
         "With NCCL_NSOCKS_PERTHREAD: their product is CHORUS_TCP_SOCKETS, at most 16.", 0, 16),

    other(Section::surroundings, "RANK", Kind::number, "This rank, from torchrun and the like.", "",
          0, INT_MAX),
    other(Section::surroundings, "WORLD_SIZE", Kind::number,
          "How many ranks there are, from torchrun and the like.", "", 1, INT_MAX),
    other(Section::surroundings, "LOCAL_RANK", Kind::number,
          "This rank among those of its host, from torchrun and the like.", "", 0, INT_MAX),
    other(Section::surroundings, "LOCAL_WORLD_SIZE", Kind::number,
          "How many ranks are on this host, from torchrun and the like.", "", 1, INT_MAX),
    other(Section::surroundings, "MASTER_ADDR", Kind::text,
          "Host of rank 0, where it listens, from torchrun and the like."),
    other(Section::surroundings, "MASTER_PORT", Kind::number,
          "Port where rank 0 listens, from torchrun and the like.", "", 1, 65534),
    other(Section::surroundings, "TORCHELASTIC_USE_AGENT_STORE", Kind::text,
          "True: torchrun has MASTER_PORT itself, and rank 0 listens one port higher."),
    other(Section::surroundings, "TORCHELASTIC_RUN_ID", Kind::text,
          "Names the run; part of the secret where CHORUS_SECRET is not set."),
    other(Section::surroundings, "PMI_FD", Kind::number,
          "PMI-1: descriptor to the launcher (mpirun of MPICH, srun). PMI_RANK, PMI_SIZE, "
          "PMI_LOCAL_RANK, PMI_LOCAL_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS go with it.",
          "", 0, INT_MAX),
    other(Section::surroundings, "PMIX_NAMESPACE", Kind::text,
          "PMIx: names the job (mpirun of Open MPI, srun --mpi=pmix). PMIX_RANK and "
          "OMPI_COMM_WORLD_* go with it."),
    other(Section::surroundings, "SLURM_STEP_NUM_TASKS", Kind::number,
          "How many tasks srun started. SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS and SLURM_NPROCS "
          "are read too.",
          "", 1, INT_MAX),
    other(Section::surroundings, "XDG_CACHE_HOME", Kind::folder, "See CHORUS_PROBE_CACHE."),
    other(Section::surroundings, "XDG_STATE_HOME", Kind::folder, "See CHORUS_FLIGHT_DIR."),
    other(Section::surroundings, "HOME", Kind::folder, "See CHORUS_PROBE_CACHE."),
    other(Section::surroundings, "TMPDIR", Kind::folder, "See CHORUS_FLIGHT_DIR.", "/tmp"),
};

}  // namespace

std::span<const Variable> variables() { return table; }

}  // namespace chorus
