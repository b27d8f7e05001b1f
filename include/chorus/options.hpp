// Everything a user can set, each with its meaning, unit, default and environment variable.
#pragma once

#include <cstddef>
#include <string>

#include "chorus/export.hpp"

namespace chorus {

/// How a communicator behaves. `Options{}` is right for almost everybody; from_env() is what
/// join() uses when none is given.
struct CHORUS_API Options {
  /// Longest wait for ranks to meet, ms. CHORUS_JOIN_TIMEOUT_MS
  int join_timeout_ms = 60'000;
  /// What becomes of a communicator of which ranks die: "error": calls throw, and it is finished;
  /// "shrink": one call throws LossError on each survivor, and it goes on without the dead;
  /// "finish": the survivors complete blocking collectives that are under way, too, from what they
  /// gave. That takes a barrier behind each, and a copy of what is overwritten (docs/elastic.md).
  /// CHORUS_ON_LOSS
  std::string on_loss = "error";
  /// If the job has begun without this process, it waits until the members take it in
  /// (Communicator::take_in) as long as the place where the job met answers, in place of being
  /// refused: for processes that are started anew, as by `chorus run --respawn`. CHORUS_REJOIN (0
  /// or 1)
  bool rejoin = false;
  /// Longest wait for a peer inside a collective before it fails, ms. CHORUS_TIMEOUT_MS
  int timeout_ms = 600'000;
  /// A call that waits this long names in the log whom it waits for, and again after twice, four
  /// times this, ms; 0: never. CHORUS_WARN_AFTER_MS
  int warn_after_ms = 30'000;
  /// Transports that may be used, best first, comma separated. CHORUS_TRANSPORTS
  std::string transports = "shm,rdma,tcp";
  /// Network interfaces (by name) or addresses that TCP uses, separated by commas, the one that
  /// reaches all ranks first; empty: the one that reaches the rendezvous, and beside it all others
  /// that lead to a peer. CHORUS_SOCKET_IFNAME
  std::string interface_name;
  /// Sockets per TCP link, [1, 16]. CHORUS_TCP_SOCKETS
  int tcp_sockets = 2;
  /// RDMA adapters that may be used, as NCCL_IB_HCA has it: "mlx5_0:1,mlx5_1" by the beginnings of
  /// their names, with ports; "=" before the list: by their whole names; "^" before it: all others.
  /// Empty: all. CHORUS_RDMA_HCA
  std::string rdma_hca;
  /// Index of the GID of RoCE ports, as `show_gids` lists them; -1: the port's RoCE v2 entry over
  /// IPv4, else over IPv6, else RoCE v1. CHORUS_RDMA_GID_INDEX
  int rdma_gid_index = -1;
  /// Traffic class of RDMA packets, [0, 255]. CHORUS_RDMA_TC
  int rdma_traffic_class = 0;
  /// Service level of RDMA packets, [0, 15]. CHORUS_RDMA_SL
  int rdma_service_level = 0;
  /// An RDMA packet is repeated when it is not acknowledged within 4.096 µs · 2^this, [1, 31].
  /// CHORUS_RDMA_TIMEOUT
  int rdma_timeout = 16;
  /// How often, before the adapter gives the peer up, [0, 7]. CHORUS_RDMA_RETRY
  int rdma_retry = 6;
  /// RDMA connections per pair of adapters, [1, 4]. CHORUS_RDMA_QPS
  int rdma_queue_pairs = 1;
  /// RDMA ports that one link uses side by side, at most, [1, 8]. CHORUS_RDMA_RAILS
  int rdma_rails = 4;
  /// Between GPUs that exchange over RDMA, whether adapters reach GPU memory where they can: 0: no,
  /// messages pass host memory; 1: they read it; 2: they read it and write into it. CHORUS_RDMA_GPU
  int rdma_gpu = 2;
  /// Bytes of one staging slot, a multiple of 64. CHORUS_SLOT_BYTES
  std::size_t slot_bytes = 128 * 1024;
  /// Slots per connection, [2, 32]. Credits return by halves: with 4, a TCP ping-pong takes 10.5
  /// µs, with 8 it takes 7.9 (fewer frames that carry only credit). CHORUS_SLOTS
  int slots = 8;
  /// Fold contributions in the order of ranks, whatever the size and topology: the same bits for
  /// the same inputs always. Costs speed at large sizes. CHORUS_DETERMINISTIC (0 or 1)
  bool deterministic = false;
  /// Only consider this schedule (a name of `chorus algorithms`), or empty. CHORUS_ALGORITHM
  std::string algorithm;
  /// JSON file of the topology to assume instead of discovering one, or empty. CHORUS_TOPOLOGY
  std::string topology_file;
  /// JSON file of a plan to load, or empty. CHORUS_PLAN
  std::string plan_file;
  /// Where ranks are on several hosts and nobody described the topology: the longest that all
  /// experiments take by which they probe the network, beside the first calls, ms; 0: never.
  /// CHORUS_PROBE_MS
  int probe_ms = 20'000;
  /// Directory that keeps what was probed; empty: nowhere. Options::from_env(): the user's cache
  /// directory ($XDG_CACHE_HOME/chorus or ~/.cache/chorus). CHORUS_PROBE_CACHE
  std::string probe_cache;
  /// Age beyond which a kept probe is made again, s. CHORUS_PROBE_MAX_AGE_S
  int probe_max_age_s = 86'400;
  /// Where the network was probed and calls show that it is another one by now: it is probed again
  /// beside calls, and the schedules for what is found begin with a call on which all ranks agree.
  /// CHORUS_REPLAN (0 or off, 1 or on)
  bool replan = true;
  /// What data paths inside a host are chosen by: "auto": its cores are measured, once per machine;
  /// "off": assumed figures; else a file of `chorus probe --host -o`. CHORUS_HOST_PROBE
  std::string host_probe = "auto";
  /// Where the topology is described (topology_file) or probed and there is no plan: the longest
  /// that rank 0 synthesizes one, beside the first calls, ms; 0: never. CHORUS_SYNTHESIS_MS
  int synthesis_ms = 10'000;
  /// A communicator is made with the schedules for its network, as by await_plan(), and not before
  /// them: for programs that measure and cannot be changed. CHORUS_AWAIT_PLAN (0 or 1)
  bool await_plan = false;
  /// Folder where a rank writes its flight record when a collective fails; empty: nowhere. "auto":
  /// a private one, $XDG_STATE_HOME/chorus or else `chorus-UID` in $TMPDIR or /tmp, where old
  /// records are removed. CHORUS_FLIGHT_DIR
  std::string flight_dir = "auto";
  /// How long a waiting rank spins (or, where ranks outnumber cores, yields) before it sleeps, µs.
  /// CHORUS_SPIN_US
  int spin_us = 200;
  /// The time slices that a rank which gives its core away while it waits asks the scheduler for,
  /// µs; 0: as they are. With short ones it gets the core back soon where other programs compete
  /// for it (Linux 6.12 and later, which takes 100 µs at least). CHORUS_SLICE_US
  int slice_us = 100;
  /// Where ranks compute while calls are under way (Communicator::start, Request::poll): about how
  /// long between two polls, µs; 0: ranks wait for their calls. A message waits for its receiver's
  /// next poll, at every step of a schedule, so schedules of fewer steps are synthesized. Rank 0's
  /// counts. CHORUS_POLL_US
  int poll_us = 0;
  /// Names the machine whose cores this rank shares with all ranks that name the same, where they
  /// cannot see it: virtual machines of one host, emulated hosts. Empty: the kernel's boot id,
  /// which containers share. CHORUS_MACHINE
  std::string machine;
  /// error, warn, info or debug. CHORUS_LOG
  std::string log_level = "warn";

  /// Defaults overridden by CHORUS_* variables. Throws InputError naming the variable whose value
  /// is malformed; warns about CHORUS_* variables that do not exist.
  static Options from_env();
};

/// How this process was launched: by `chorus run`, mpirun, srun, torchrun or by hand.
struct CHORUS_API Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  ///< ranks on this host; 0: the launcher does not say
  std::string id;            ///< UniqueId text, or empty when `launcher` has another way to meet
  std::string launcher;      ///< "chorus", "pmi", "pmix", "torchrun", "single"

  /// Throws InputError when variables contradict each other.
  static Launch from_env();
};

}  // namespace chorus
