// The links of one communicator: which transport serves which pair, made when first needed.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/text/log.hpp"
#include "chorus/options.hpp"
#include "runtime/control/control.hpp"
#include "runtime/executors/ports.hpp"
#include "topology/discover/cpu_place.hpp"
#include "topology/discover/host_rates.hpp"
#include "transports/link/wakeups.hpp"
#include "transports/shm/shared_window.hpp"
#include "transports/transports.hpp"

namespace chorus {

/// What every member of a communicator knows of every other.
struct Member {
  Rank world_rank = 0;
  std::string host;    ///< equal for ranks of one machine
  int host_cores = 1;  ///< that the members on this machine may run on, together
  /// Lowest member on the same machine: under the same kernel, in whatever container, or as
  /// CHORUS_MACHINE says.
  Rank neighbor = 0;
  int machine_cores = 1;        ///< that the members on that machine may run on, together
  bool oversubscribed = false;  ///< those members outnumber these cores
  std::vector<int> units = {};  ///< that it may run on; of ranks of other hosts not kept
  CpuPlace place = {};          ///< where these are
  int adapter_numa = -1;        ///< CpuPlace::numa beside the adapter of its host
  /// What copying costs on that machine; not null.
  std::shared_ptr<const HostRates> rates{std::shared_ptr<void>(), &assumed_host_rates()};
};

/// Where a communicator stands among the ranks of the job.
struct GroupPlace {
  std::string key = {};            ///< names the communicator in the control plane
  std::vector<Rank> members = {};  ///< world ranks, by group rank
  Rank rank = 0;                   ///< this one's
  /// The cores of this machine are too few for the ranks that this one was split from, of whom the
  /// others go on as well.
  bool oversubscribed = false;
  /// What wakes this rank, shared with the communicator that this one was split from; null: none.
  std::shared_ptr<Wakeups> wakeups = {};
};

/// By which transports (a bit each) one rank can use a peer, and why not by the others.
struct Reach {
  std::uint32_t usable = 0;
  std::string why_not = {};

  bool operator==(const Reach&) const = default;
};

/// Exchanges addresses, chooses a transport for each pair, and connects lazily: a pair that never
/// talks has no link.
class Connections {
 public:
  /// Whether the ranks shall have memory in common besides their links (shared_window()).
  enum class Memory { in_common, of_links };

  /// Collective over the group. `agreement` is text that must be equal on all members (options,
  /// plan, version). Throws BootstrapError or TopologyError, naming ranks and reasons.
  Connections(Control& control, const GroupPlace& place, const Options& options,
              const SlotLayout& layout, const std::string& agreement,
              Memory memory = Memory::in_common);

  [[nodiscard]] Link& link(Rank peer);
  /// Alike on all members, and unlike those of communicators that had the same name before.
  [[nodiscard]] std::uint64_t serial() const { return serial_; }
  /// Link::pace of each peer's link, also of those that are yet to be made.
  void pace(std::vector<double> bytes_per_s);
  /// Link::expect_copies of each link, also of those that are yet to be made.
  void expect_copies(MessageCopiesBySize copies);
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  /// What is found out of the members' machines.
  [[nodiscard]] std::vector<Member>& members() { return members_; }
  /// What wakes this rank: for communicators that are split from this one.
  [[nodiscard]] const std::shared_ptr<Wakeups>& wakeups() const { return wakeups_; }
  /// "shm", "rdma" or "tcp"; "self" for this rank.
  [[nodiscard]] std::string_view transport_of(Rank peer) const;
  /// True if any pair of the group, not only of this rank, is joined by another transport than shm.
  [[nodiscard]] bool any_network() const { return any_network_; }
  /// True if every pair of ranks of one host is joined by shm.
  [[nodiscard]] bool hosts_share_memory() const { return hosts_share_memory_; }
  [[nodiscard]] std::span<const std::unique_ptr<Transport>> transports() const {
    return transports_;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Link>>& links() const { return links_; }
  /// Where all ranks of the group share memory, what they have in common; else null.
  [[nodiscard]] SharedWindow* shared_window() const { return shared_window_.get(); }
  /// Moves connections forward.
  void progress();

 private:
  void make_transports(const GroupPlace& place, const Options& options, const Secret& secret,
                       const std::string& local_address, const SlotLayout& layout);
  /// How many pairs of ranks a transport serves, and those that it could not.
  struct Served {
    std::size_t pairs = 0, not_pairs = 0;
    std::string why_not;  ///< of the first
  };
  void choose(Control& control, const GroupPlace& place, const Options& options);
  /// `there`: how each of `some` reaches each of `others`, which may be the same ranks; and `back`.
  void judge(std::span<const Rank> some, std::span<const Rank> others, const Reach& there,
             const Reach& back, std::vector<Served>& served);
  void tell(const std::vector<Served>& served, LogLevel level) const;
  void open_shared_window();
  [[nodiscard]] std::span<const std::byte> address(Rank peer, std::size_t transport) const;
  void drop_unused_transports();

  Rank rank_ = 0;
  std::uint64_t serial_ = 0;
  std::shared_ptr<Wakeups> wakeups_;
  bool any_network_ = false;
  bool hosts_share_memory_ = true;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<Transport>> transports_;
  Table table_;                           // what each said of itself
  std::vector<std::uint32_t> addresses_;  // [peer]: where in that its addresses begin
  std::vector<std::size_t> order_;        // [transport]: which of its addresses
  std::vector<int> chosen_;               // [peer]: index of transport
  std::shared_ptr<SharedWindow> shared_window_;
  std::vector<std::unique_ptr<Link>> links_;  // [peer], null until needed
  std::vector<double> paces_;                 // [peer], bytes per second; empty: no limits
  MessageCopiesBySize copies_;                // Link::expect_copies()
};

}  // namespace chorus
