// The control plane: how ranks meet, learn of each other's death, and agree on who is to blame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.hpp"
#include "chorus/communicator.hpp"
#include "runtime/control/table.hpp"

namespace chorus {

namespace wire {
struct Place;
}

/// The server end: one per job, in the launcher (`chorus run`) or a thread of the process that made
/// the id. Keeps one TCP connection per rank; a connection that closes without a goodbye is a
/// death, and every other rank is told at once.
class Coordinator {
 public:
  struct Host {
    /// report_death() will be called for every rank: a closed connection waits for it a little,
    /// because it knows the cause.
    bool launcher = false;
    /// The ranks may join again after all have left; otherwise the thread and the listener end
    /// with the last goodbye.
    bool joined_often = false;
    /// Of a rank that is ready to take over a joining, by when that began (unix time in us): the
    /// ranks come when they have lost their coordinator, and nobody else may.
    std::optional<std::uint64_t> succeeds = std::nullopt;
  };
  /// Listens on `interface_name` (name or address; empty: loopback) and `port` (0: any free one)
  /// and starts its thread. `world_size` 0: what the first rank to join says. Throws
  /// BootstrapError.
  Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
              const Secret& secret, Host host);
  Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
              const Secret& secret);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// "chorus:<address>:<port>:<secret>"; IPv6 addresses in brackets.
  [[nodiscard]] std::string id() const;
  /// A launcher knows more: the process of `rank` ended ("killed by signal 9 (SIGKILL)"), perhaps
  /// before it joined, perhaps after its goodbye.
  /// Safe from any thread.
  void report_death(Rank rank, std::string_view how);
  /// Processes that wait for the job to take them in, as far as is known. Safe from any thread.
  [[nodiscard]] int waiting() const;
  /// Listens on these numeric addresses, too: ranks come by another where one falls silent.
  /// Returns where it listens, the first place included. Safe from any thread.
  std::vector<wire::Place> listen_also(std::span<const std::string> addresses);
  /// True when every rank has joined and said goodbye or died (in the last joining).
  [[nodiscard]] bool finished() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// This process's end: one per rank and job, shared by the communicators split from it. Thread
/// safe; none of its calls blocks but join(), exchange() and await_verdict().
class Control {
 public:
  /// The numeric addresses of this host at which other ranks may reach a coordinator in this
  /// process, by the one that reaches the coordinator of now; none: that one alone.
  using OwnAddresses = std::function<std::vector<std::string>(const std::string& local_address)>;

  struct Joining {
    int warn_after_ms = 30'000;
    /// In worlds of more ranks a relay of each host carries its ranks' connections; 0: of as many
    /// as is good where the coordinator is.
    int most_direct = 0;
    /// If the job has begun without this process, it waits until the members of the job take it in,
    /// as long as the coordinator there answers: rank() and world_size() are what they gave it. Its
    /// own connection leads to that coordinator, past the relays.
    bool rejoin = false;
    OwnAddresses own_addresses = {};
    /// Asked while it waits for others, and where it does not meet the coordinator: why they will
    /// not all come, once that is known elsewhere, within `grace_ms`.
    std::function<std::optional<std::string>(int grace_ms)> is_in_vain = {};
  };

  /// Connects to the coordinator named by `id`, proves the secret and waits until all ranks have.
  /// Tries again until timeout_ms have passed, but where nobody listens (any more) gives up after
  /// a second: an id exists only once its coordinator listens. Throws BootstrapError naming the
  /// missing ranks, or the ranks that came with another world size or another Chorus version, or
  /// the rank that died meanwhile. One of those who wait names the others in the log after
  /// `warn_after_ms` (Options).
  static std::shared_ptr<Control> join(const std::string& id, Rank rank, int world_size,
                                       int timeout_ms, const Joining& how);
  static std::shared_ptr<Control> join(const std::string& id, Rank rank, int world_size,
                                       int timeout_ms) {
    return join(id, rank, world_size, timeout_ms, {});
  }
  /// Says goodbye (unless the job has failed) and waits, up to a short time, until the others
  /// have too, where this process holds the coordinator.
  ~Control();

  /// Whether the relay that carries the connections of others is in this process.
  [[nodiscard]] bool carries_others() const;
  [[nodiscard]] Rank rank() const;  ///< in the world
  /// Whether this process was taken in by a job that had begun.
  [[nodiscard]] bool was_taken_in() const;
  [[nodiscard]] int world_size() const;
  [[nodiscard]] const Secret& secret() const;
  /// Names this joining, alike on all ranks and unlike any other: flight_job().
  [[nodiscard]] std::string job() const;
  /// The local address that reaches the coordinator: the default interface for data.
  [[nodiscard]] std::string local_address() const;

  /// All-gather of small blobs (≤ 1 MiB) among `members` (world ranks, this one included, the same
  /// list on all), for `key`, which names one exchange. Blocks. Result: [members]. Throws
  /// BootstrapError naming the members still missing after timeout_ms, or the one that died, or
  /// with the verdict on `group` if one is given and it fails meanwhile. `meanwhile` is called
  /// every 50 ms or so: links of this rank may owe others something that keeps them from joining
  /// in. What it throws ends the exchange for this rank.
  Table exchange(const std::string& key, std::span<const Rank> members,
                 std::span<const std::byte> blob, int timeout_ms, const std::string& group = {},
                 const std::function<void()>& meanwhile = {});

  /// As timeout_ms of exchange(): for what is done beside calls. Who is stuck is named by the calls
  /// that wait for it.
  static constexpr int kNoDeadlineMs = 1'000'000'000;

  // Notes: what one rank tells another of its group, in order, without either waiting.

  /// Of at most 256 bytes, to group rank `to`, which has opened the group. Nobody learns of it
  /// where `to` has left.
  void note(const std::string& group, Rank to, std::span<const std::byte> blob);
  struct Note {
    Rank from;
    std::vector<std::byte> blob;
  };
  /// Those that poll() has read so far.
  [[nodiscard]] std::vector<Note> take_notes(const std::string& group);

  // Failure. A "group" is a communicator: `key` names it, the same on all members.

  /// `aside`: of something that the job can do without, whose failure is no reason to leave.
  void open_group(const std::string& key, std::span<const Rank> members, bool aside = false);
  void close_group(const std::string& key);

  /// For who has made its last call in `group`, of `members`: waits a moment for the others to do
  /// the same. True if they have. Otherwise they end another communicator
  /// first, perhaps, or compute: keep_until_left() has to follow then, else close_group(). Throws
  /// BootstrapError as exchange().
  bool leave_group(const std::string& group, std::span<const Rank> members,
                   const std::function<void()>& meanwhile);
  /// Keeps `keep_up`, and calls it now and then, until all have left, or timeout_ms have passed,
  /// which is logged. The end of this object waits for that.
  void keep_until_left(const std::string& group, std::span<const Rank> members,
                       std::function<void()> keep_up, int timeout_ms);

  /// Reads what the coordinator said; a few ns when there is nothing (at most one system call).
  void poll();
  /// The verdict on `group`, if it has failed: one sentence, the same on every member, naming the
  /// culprit by its rank in the group.
  [[nodiscard]] std::optional<std::string> verdict(const std::string& group);

  /// The members of `group`, by their rank in it, that have died, if that is its verdict.
  [[nodiscard]] std::optional<std::vector<Rank>> lost(const std::string& group);

  /// "My connection to group rank `peer` broke": a claim, judged by the coordinator, which knows
  /// whose process really ended and who merely left because of it.
  void report_lost(const std::string& group, Rank peer, std::string_view why);
  /// "I have been waiting in call `sequence`, whose signature is this, for group rank `waiting_for`
  /// (or -1)": the coordinator compares the signatures of one sequence number; different ones are a
  /// verdict with both. The same when a message with another call's tag arrives. To be said again
  /// about every second while the wait lasts: a rank that is waited for long after it left its
  /// group is a verdict too, and each report refreshes who_is_missing().
  void report_waiting(const std::string& group, std::uint64_t sequence, std::string_view signature,
                      Rank waiting_for);
  /// All messages with a peer that this rank has begun, or ever will.
  struct Conversed {
    Rank peer;
    std::uint32_t sent, received;  ///< how many, modulo 2^31 (as MessageNumber::index)
  };
  /// "I make no further call in this group": whoever reports that it waits for a message beyond
  /// these waits in vain, which is a verdict. Peers that are not listed have had none.
  void report_ending(const std::string& group, std::span<const Conversed> all);
  /// Which members have not reported call `sequence`, as the coordinator answered the last
  /// report_waiting() of it: "rank 2 has not reported it: its last reported call is 16; rank 3 has
  /// not reported it: it last waited in message(count 1, int32) from rank 2 to rank 3; rank 4 has
  /// not reported any call yet". Empty if none is missing, or not known (yet). For timeout errors.
  [[nodiscard]] std::string who_is_missing(const std::string& group, std::uint64_t sequence);
  /// Whether, by that answer, this rank is the one of those that wait in the call that tells
  /// people.
  [[nodiscard]] bool speaks(const std::string& group, std::uint64_t sequence);
  /// `reason` for failing call `sequence`, with who_is_missing() behind it.
  [[nodiscard]] std::string with_missing(const std::string& reason, const std::string& group,
                                         std::uint64_t sequence);
  /// Fails the group with `reason`, said by this rank. Callable from any thread.
  void abort(const std::string& group, std::string_view reason);

  /// This rank is about to leave, alone: the others are told why. An earlier failure stands.
  void leaves_because(std::string_view reason);

  /// Why this rank would leave now: the first failure that was not overcome.
  [[nodiscard]] std::optional<std::string> reason_to_leave() const;

  /// The failures so far were overcome: who leaves now does not leave because of them.
  void survived();

  /// How long a rank that lost or reaches no peer waits for the word on whose fault it is.
  static constexpr int kVerdictGraceMs = 1500;
  /// Blocks until there is a verdict on `group`, at most `grace_ms`.
  std::optional<std::string> await_verdict(const std::string& group,
                                           int grace_ms = kVerdictGraceMs);
  /// As await_verdict(), but only a member's death counts, and that of the coordinator: for what
  /// all members find out alike, and then leave because of, each at its own time.
  std::optional<std::string> await_death(const std::string& group, int grace_ms = kVerdictGraceMs);

  /// Threads of this rank that are in a call here look again whether they shall go on
  /// (`meanwhile` of exchange()).
  void wake();

  /// Becomes readable when poll() has something to do. The same descriptor for all the life of
  /// this object.
  [[nodiscard]] int fd() const;

  struct Impl;

 private:
  explicit Control(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus
