// A job of another launcher (mpirun, srun, torchrun): one process of chorus-perf per rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chorus/options.hpp"
#include "perf/report/machine.hpp"
#include "perf/report/report.hpp"
#include "perf/session.hpp"
#include "runtime/control/control.hpp"

namespace chorus::perf {

class AllocationPart;

/// The processes of the job, on all its hosts. Rank 0 measures, and asks the others to start, end
/// and watch workers beside it; their control plane is that of any job of Chorus.
class Allocation {
 public:
  /// Collective. Throws chorus::Error as Communicator::join does.
  explicit Allocation(const chorus::Launch& launch);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  /// On rank 0: lets the others leave.
  ~Allocation();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// "pmix", "torchrun", …
  [[nodiscard]] const std::string& launcher() const { return launcher_; }

  struct Host {
    std::string name;
    std::string key;      ///< host_key()
    std::string address;  ///< by which it reaches the others
    std::vector<int> ranks;
    Machine machine;
  };
  /// In the order of their first ranks.
  [[nodiscard]] const std::vector<Host>& hosts() const { return hosts_; }

  /// On all ranks but 0: does what rank 0 asks for, until it leaves.
  void serve();

  // On rank 0 alone.

  /// A process per rank, which learns its rank from CHORUS_PERF_RANK and as `chorus run` tells it.
  /// Throws chorus::Error naming the rank and host that cannot start it.
  [[nodiscard]] std::unique_ptr<Workers> start(const Command& command);
  /// For a session whose workers `start` starts.
  [[nodiscard]] AcrossHosts session(
      std::function<std::unique_ptr<Workers>(const std::vector<std::string>&)> start);
  /// "name:2,name:2", in the order of ranks, for mpirun: addresses where names mean something else.
  [[nodiscard]] std::string host_list() const;
  /// All hosts' load from begin to end, of the one that others used most. `pids`: the workers, by
  /// rank; `launchers` run on this host.
  void begin_load(const std::vector<pid_t>& pids, const std::vector<pid_t>& launchers);
  [[nodiscard]] Ticks end_load();

 private:
  class Remote;

  [[nodiscard]] std::vector<std::string> exchange(const std::string& blob);
  /// Has all ranks do `request`, this one among them; their answers, by rank.
  std::vector<std::string> ask(const std::string& request);

  int rank_;
  int world_size_;
  std::string launcher_;
  std::shared_ptr<void> keep_alive_;
  std::shared_ptr<Control> control_;
  std::uint64_t exchanges_ = 0;
  std::vector<Host> hosts_;
  std::vector<int> host_of_rank_;
  std::unique_ptr<AllocationPart> part_;
  int next_id_ = 0;
};

/// What of this process's environment no worker of it may see: the variables by which a launcher
/// tells a process its rank.
[[nodiscard]] std::vector<std::string> variables_of_launchers();

/// Whether the hosts are emulated on one machine (CHORUS_MACHINE says so), whose cores they share.
[[nodiscard]] bool hosts_share_a_machine();

/// The hosts, for a report.
[[nodiscard]] std::vector<ReportHost> report_hosts(const Allocation& job);

}  // namespace chorus::perf
