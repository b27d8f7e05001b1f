// An emulated cluster: hosts in network namespaces of this machine, cables with rates.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "perf/cluster/fabric.hpp"
#include "perf/process.hpp"

namespace chorus::perf {

/// This process may not make network namespaces.
struct NotAllowed : Error {
  using Error::Error;
};

/// Stands from construction to destruction. Nothing of it has a name outside: namespaces live as
/// long as the processes in them, interfaces as long as their namespaces. So several can stand at
/// once, and a cluster whose owner is killed goes too: its keepers die with the owner, and a
/// guardian ends whatever else still runs inside.
///
/// Every host has a name (host0, …), a boot id and one interface of its own, and shares the files
/// of this machine.
class Cluster {
 public:
  /// Throws NotAllowed without CAP_SYS_ADMIN and CAP_NET_ADMIN, Error if ip or tc fail (iproute2),
  /// InputError for traffic between hosts that are not there.
  Cluster(Fabric fabric, const CableOptions& options);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster();

  [[nodiscard]] const Fabric& fabric() const { return fabric_; }
  [[nodiscard]] const CableOptions& options() const { return options_; }
  /// A process inside `host`: Command::namespaces_of.
  [[nodiscard]] pid_t keeper(int host) const { return keepers_[static_cast<std::size_t>(host)]; }
  /// For chorus-perf-enter: one line per host, "name address keeper directory", where the directory
  /// is for the temporary files of that host.
  [[nodiscard]] const std::string& hosts_file() const { return hosts_file_; }

 private:
  void start_keepers();
  void start_guardian();
  void lay_cables();
  void set_congestion_control();
  void write_hosts_file();
  void tear_down() noexcept;

  const Fabric fabric_;
  const CableOptions options_;
  const Scratch scratch_;
  std::string hosts_file_;
  std::vector<pid_t> keepers_;  // by host, then that of the switches
  Traffic traffic_;
  Fd alive_;  // the guardian reads the other end
  pid_t guardian_ = -1;
};

/// The variable by which processes inside know the hosts file.
inline constexpr const char* kHostsVariable = "CHORUS_PERF_CLUSTER";

}  // namespace chorus::perf
