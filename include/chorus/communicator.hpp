// The C++ API: a Communicator and its collectives.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/error.hpp"
#include "chorus/export.hpp"
#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/schedule.hpp"
#include "chorus/types.hpp"

namespace chorus {

/// Where ranks meet and the secret that lets them in. Made by one process, passed to the others
/// as text (by MPI_Bcast, a file, an environment variable).
struct CHORUS_API UniqueId {
  std::string text;  ///< "chorus:<address>:<port>:<secret>"

  /// Starts listening for ranks on `interface_name` (name or address; empty: loopback) and
  /// returns the id they need. The listener lives in this process until every rank that joined
  /// has left. `world_size` 0: as many as the first rank that joins says.
  /// Throws BootstrapError naming the interface and the cause.
  static UniqueId make(int world_size, std::string_view interface_name = {});
};

/// One collective or point-to-point call, untyped: what every typed form below becomes.
struct Call {
  /// A collective, or one of the two point-to-point calls.
  enum class Kind : std::uint8_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    broadcast,
    reduce,
    gather,
    scatter,
    barrier,
    all_to_all_v,
    send,
    recv,
  };
  Kind kind = Kind::barrier;
  const void* input = nullptr;  ///< null where this rank contributes nothing
  void* output = nullptr;       ///< null where this rank receives nothing
  /// Elements of one block: the whole buffer for all_reduce, reduce, broadcast, send and recv;
  /// what one rank contributes (or takes) for the others.
  std::size_t count = 0;
  DataType type = DataType::uint8;
  Reduction reduction = {};  ///< of all_reduce, reduce and reduce_scatter; else left unread
  Rank peer = 0;             ///< root, destination or source; left unread where there is none
  /// all_to_all_v: elements to and from each rank, and where they begin, each [world_size].
  std::span<const std::size_t> send_counts = {}, send_offsets = {}, recv_counts = {},
                               recv_offsets = {};
};

class Request;

/// Waits for calls of any number of communicators of this thread, moving all of them: a wait on
/// one communicator moves nothing on another, whose peers may need just that. Returns the index of
/// a complete one (the first, if several are). Throws CollectiveError if any of them failed.
CHORUS_API std::size_t wait_any(std::span<Request* const> requests);
/// The same, until all are complete.
CHORUS_API void wait_all(std::span<Request* const> requests);

/// A started call. Progress is made by whoever waits or polls on this communicator, never by a
/// hidden thread. Buffers belong to the library until it is complete. Destroying an incomplete
/// request waits for it, and so does destroying its communicator.
class CHORUS_API Request {
 public:
  Request();
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();

  /// Returns when the call is complete. Throws CollectiveError if it failed.
  void wait();
  /// Makes some progress without blocking; true when the call is complete. Where ranks outnumber
  /// cores it lets another rank run if there was nothing to do: for those who do nothing but test.
  [[nodiscard]] bool test();
  /// The same, but keeps the core: for those who compute in between.
  [[nodiscard]] bool poll();

  struct CHORUS_LOCAL Impl;  ///< the library's own

 private:
  friend class Communicator;
  friend std::size_t wait_any(std::span<Request* const> requests);
  friend void wait_all(std::span<Request* const> requests);
  explicit Request(std::unique_ptr<Impl> impl);
  CHORUS_LOCAL bool look(bool give_way);
  CHORUS_LOCAL bool settle();
  CHORUS_LOCAL static void turn(std::span<Request* const> requests);
  std::unique_ptr<Impl> impl_;
};

/// What the calls of a communicator have moved so far, on this rank: payload, without what any
/// transport adds.
struct Traffic {
  std::uint64_t messages = 0;  ///< put into links, whatever the transport
  std::uint64_t message_bytes = 0;
  std::uint64_t messages_taken = 0;  ///< of those that others put: read, so that more can come
  /// Where ranks share memory and no message is sent: bytes that this rank took from the inputs of
  /// others and made for their outputs.
  std::uint64_t direct_bytes = 0;

  [[nodiscard]] std::uint64_t bytes() const { return message_bytes + direct_bytes; }
  bool operator==(const Traffic&) const = default;
};

/// What deaths have made of a communicator that goes on after them (Options::on_loss).
struct Losses {
  int count = 0;           ///< how often it became smaller
  std::vector<Rank> lost;  ///< the last time: who died, as numbered before
  /// Whose input is in the result of the call that met it, as numbered before; empty: it threw.
  std::vector<Rank> contributors;
  std::string why;  ///< the sentence of the first death
};

/// What Communicator::copy_state() brought a rank.
struct StateCopy {
  std::uint64_t bytes = 0;  ///< that this rank received
  std::vector<Rank> from;   ///< from whom
  std::uint64_t hash = 0;   ///< of the whole state, the same on all ranks
};

/// A group of ranks that call the same collectives in the same order.
///
/// Owns its links and staging memory and releases them on destruction, which is collective (like
/// MPI_Finalize; several are ended in the same order on all ranks) unless it has failed. One thread
/// at a time, except abort(). One that was moved from throws InputError until it is assigned to.
///
/// With Options::on_loss "shrink" or "finish" it loses the ranks that die and goes on as the
/// smaller one, with the ranks that are left numbered anew in their order; a call of a request that
/// failed by a death throws CollectiveError, and the next call LossError. Ending it with "finish"
/// is a call, too.
class CHORUS_API Communicator {
 public:
  /// Joins the job this process was launched into (Launch::from_env()): `chorus run`, mpirun of
  /// Open MPI or MPICH, srun, torchrun-style variables; a world of one if there is none.
  static Communicator join(const Options& options = Options::from_env());

  /// Meets the other ranks at `id` and returns when all `world_size` have come. Throws
  /// BootstrapError naming the ranks still missing after options.join_timeout_ms, or
  /// TopologyError naming a pair that no transport connects, with each transport's reason.
  static Communicator join(const UniqueId& id, Rank rank, int world_size,
                           const Options& options = Options::from_env());

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  [[nodiscard]] Rank rank() const;
  [[nodiscard]] int world_size() const;

  /// What has become of it. Valid until its next call.
  [[nodiscard]] const Losses& losses() const;

  /// Collective: ranks with the same color (≥ 0) form a new communicator, ordered by key, ties by
  /// rank. A negative color gets none.
  [[nodiscard]] std::optional<Communicator> split(int color, int key = 0);

  /// Collective among `members` alone (ranks of this communicator without repeats, this one among
  /// them, the same list on all): they form a communicator, ranked in this order, that lives and
  /// fails by itself. `name` tells it from others, alike on all members and never used before (the
  /// tag of MPI_Comm_create_group). `timeout_ms` is its Options::timeout_ms; 0: this one's.
  /// Callable from any thread, while another one waits in a call, too. Throws InputError for
  /// members that cannot be, BootstrapError naming those that have not come or have died.
  [[nodiscard]] Communicator group(std::span<const Rank> members, std::string_view name,
                                   int timeout_ms = 0) const;

  /// Collective among all ranks but `excluded` (any order, without repeats, not this rank): those
  /// form a new communicator in the same order. Works also after a failure, whichever rank failed;
  /// this communicator is then of no more use. Throws InputError for ranks
  /// that do not exist, BootstrapError if another member has died or excludes other ranks.
  [[nodiscard]] Communicator shrink(std::span<const Rank> excluded);

  /// Collective: these ranks, which keep their numbers, and as many processes as make up
  /// `world_size`, which meanwhile call join(id, rank, world_size) with the numbers from
  /// world_size() on (as NCCL's ncclCommGrow), form a new communicator. One rank at least gives the
  /// id, of UniqueId::make(world_size); the others may give an empty one. This communicator stays
  /// as it is. Throws InputError unless world_size is larger than now, BootstrapError where ranks
  /// give different ids or sizes, or a process does not come.
  [[nodiscard]] Communicator grow(const UniqueId& id, int world_size);
  /// The same with other options than this one's, alike on all ranks.
  [[nodiscard]] Communicator grow(const UniqueId& id, int world_size, const Options& options);

  /// Processes that wait to be taken in where this job met: started anew for it, with
  /// Options::rejoin. Asks there, which takes a connection. Not collective. Throws BootstrapError
  /// where the process that held the place has ended (docs/elastic.md).
  [[nodiscard]] int num_waiting() const;

  /// Collective: these ranks and `count` processes that wait where this job met form a new
  /// communicator, as by grow(). Those that wait are numbered in the order of the ranks that they
  /// were started as. Throws as grow() and num_waiting() do.
  [[nodiscard]] Communicator take_in(int count);

  /// Whether this process was taken in by a job that had begun without it: the others have state
  /// that it has not (copy_state).
  [[nodiscard]] bool was_taken_in() const;

  /// Collective: ranks that hold a state (`has`), the same bytes in spans of the same sizes, give
  /// it to those that do not. It comes from the holders on a rank's own machine, each of which
  /// sends a part; where there is none, from all holders to all such ranks, which hand each other
  /// what they got. Throws InputError on all ranks where nobody has it or the sizes differ,
  /// CollectiveError naming those whose bytes are not the same in the end.
  StateCopy copy_state(std::span<const std::span<std::byte>> state, bool has);

  /// Starts any call. Throws InputError for arguments that can be judged locally, CollectiveError
  /// otherwise.
  Request start(const Call& call);

  /// Runs any call to its end (inside a group: at the group's); the typed forms below are thin
  /// shells over this.
  void run(const Call& call);

  /// Calls made between group_start() and group_end() start together: sends and receives of one
  /// group cannot block each other. Blocking forms return at once inside a group; group_end()
  /// waits for all. Nests.
  void group_start();
  void group_end();

  /// Fails every call in progress on every rank of this communicator with `reason`. Callable from
  /// any thread; never blocks.
  void abort(std::string_view reason);

  /// Tells the others that this rank makes no further call (one throws InputError), as the
  /// destructor does before it waits for them. Calls under way go on; a rank that waits for one
  /// that never comes fails within seconds. Not collective; never blocks on the network.
  void announce_end();

  /// From now on a call of this rank that moves nothing for `timeout_ms` fails all ranks
  /// (Options::timeout_ms). Not collective. Throws InputError unless it is positive.
  void set_timeout_ms(int timeout_ms);

  /// Why this communicator has failed, as far as is known by now. Callable from any thread, while
  /// another one waits in a call, too; never blocks on the network.
  [[nodiscard]] std::optional<std::string> failure() const;

  /// Collective: from now on run the schedules of `plan`, the same on every rank; what it leaves
  /// open the built-in ones serve. Throws InputError if the plan is for another world size,
  /// SynthesisError naming the first fault of a wrong schedule, BootstrapError if ranks differ.
  void use(const Plan& plan);

  /// Collective: waits until the schedules for the network between the hosts are made, and begins
  /// with them. Otherwise calls run at once, by what is known, while the network is probed and
  /// schedules are synthesized beside them (Options::probe_ms, synthesis_ms), and the better ones
  /// begin with a call on which all ranks agree: for who measures, or decides by topology().
  /// Returns at once where nothing is being made. Throws CollectiveError as a call does.
  void await_plan();

  /// Collective, with no call under way: measures the network between the hosts again, for some
  /// seconds, and synthesizes for what it finds. When collectives
  /// take other times than they did, the log of rank 0 says that this is due. False, having done
  /// nothing, where the network was not probed: one host, a topology or a plan given, probing
  /// switched off. Throws InputError on all ranks, naming the one that has calls under way.
  bool reprobe();

  /// What the ranks are taken to be wired by: described (Options::topology_file), probed, or
  /// assumed of the machines they are on; with a port group for cores that several hosts share.
  /// Several networks that are known to join hosts are one here, and limits of it.
  /// Valid until the next collective call, use() or reprobe(), or the end of this communicator.
  [[nodiscard]] const Topology& topology() const;

  [[nodiscard]] Traffic traffic() const;

  /// What would run for `call`, at what predicted cost, and why not the others; for people.
  [[nodiscard]] std::string explain(const Call& call) const;

  /// Seconds that a collective `call` should take by the cost model; 0 for messages.
  [[nodiscard]] double predicted_s(const Call& call);

  // In each form below a span's size gives the count; all ranks pass the same. Input and output
  // must not overlap but where a form says that it works in place. A form that refuses its
  // arguments within a group drops the group.

  /// data [count], the same count on every rank: replaced by the reduction over all ranks.
  template <Element T>
  void all_reduce(std::span<T> data, Reduction reduction = {}) {
    run({.kind = Call::Kind::all_reduce,
         .input = data.data(),
         .output = data.data(),
         .count = data.size(),
         .type = kDataType<T>,
         .reduction = reduction});
  }
  /// in [count] → out [count]. In place if equal.
  template <Element T>
  void all_reduce(std::span<const T> in, std::span<T> out, Reduction reduction = {}) {
    require(in.size() == out.size(), "all_reduce: input and output differ in size");
    run({.kind = Call::Kind::all_reduce,
         .input = in.data(),
         .output = out.data(),
         .count = in.size(),
         .type = kDataType<T>,
         .reduction = reduction});
  }
  /// mine [count] → all [world_size · count]. In place if mine is all's block of this rank.
  template <Element T>
  void all_gather(std::span<const T> mine, std::span<T> all) {
    require(all.size() == mine.size() * ranks(), "all_gather: output is not world_size × input");
    run({.kind = Call::Kind::all_gather,
         .input = mine.data(),
         .output = all.data(),
         .count = mine.size(),
         .type = kDataType<T>});
  }
  /// all [world_size · count] → mine [count]. In place if mine is all's block of this rank.
  template <Element T>
  void reduce_scatter(std::span<const T> all, std::span<T> mine, Reduction reduction = {}) {
    require(all.size() == mine.size() * ranks(),
            "reduce_scatter: input is not world_size × output");
    run({.kind = Call::Kind::reduce_scatter,
         .input = all.data(),
         .output = mine.data(),
         .count = mine.size(),
         .type = kDataType<T>,
         .reduction = reduction});
  }
  /// in [world_size · count] → out [world_size · count]; block i goes to rank i. In place if equal.
  template <Element T>
  void all_to_all(std::span<const T> in, std::span<T> out) {
    require(in.size() == out.size() && in.size() % ranks() == 0,
            "all_to_all: input and output must be world_size equal blocks");
    run({.kind = Call::Kind::all_to_all,
         .input = in.data(),
         .output = out.data(),
         .count = in.size() / ranks(),
         .type = kDataType<T>});
  }
  /// Element counts and offsets, each [world_size]: in[send_offsets[i] …] goes to rank i, what
  /// comes from rank i lands at out[recv_offsets[i] …]. What is sent and what is received must not
  /// overlap.
  template <Element T>
  void all_to_all_v(std::span<const T> in, std::span<const std::size_t> send_counts,
                    std::span<const std::size_t> send_offsets, std::span<T> out,
                    std::span<const std::size_t> recv_counts,
                    std::span<const std::size_t> recv_offsets) {
    require(inside(send_counts, send_offsets, in.size()),
            "all_to_all_v: what is sent lies beyond the input");
    require(inside(recv_counts, recv_offsets, out.size()),
            "all_to_all_v: what is received lies beyond the output");
    run({.kind = Call::Kind::all_to_all_v,
         .input = in.data(),
         .output = out.data(),
         .type = kDataType<T>,
         .send_counts = send_counts,
         .send_offsets = send_offsets,
         .recv_counts = recv_counts,
         .recv_offsets = recv_offsets});
  }
  /// data [count]: root's is copied to every rank.
  template <Element T>
  void broadcast(std::span<T> data, Rank root) {
    run({.kind = Call::Kind::broadcast,
         .input = data.data(),
         .output = data.data(),
         .count = data.size(),
         .type = kDataType<T>,
         .peer = root});
  }
  /// in [count] → out [count] on root; out may be empty elsewhere. In place if equal.
  template <Element T>
  void reduce(std::span<const T> in, std::span<T> out, Rank root, Reduction reduction = {}) {
    require(rank() != root || in.size() == out.size(),
            "reduce: the root's input and output differ in size");
    run({.kind = Call::Kind::reduce,
         .input = in.data(),
         .output = out.data(),
         .count = in.size(),
         .type = kDataType<T>,
         .reduction = reduction,
         .peer = root});
  }
  /// mine [count] → all [world_size · count] on root; all may be empty elsewhere. In place if mine
  /// is all's block of the root.
  template <Element T>
  void gather(std::span<const T> mine, std::span<T> all, Rank root) {
    require(rank() != root || all.size() == mine.size() * ranks(),
            "gather: the root's output is not world_size × input");
    run({.kind = Call::Kind::gather,
         .input = mine.data(),
         .output = all.data(),
         .count = mine.size(),
         .type = kDataType<T>,
         .peer = root});
  }
  /// all [world_size · count] on root → mine [count]; all may be empty elsewhere. In place if mine
  /// is all's block of the root.
  template <Element T>
  void scatter(std::span<const T> all, std::span<T> mine, Rank root) {
    require(rank() != root || all.size() == mine.size() * ranks(),
            "scatter: the root's input is not world_size × output");
    run({.kind = Call::Kind::scatter,
         .input = all.data(),
         .output = mine.data(),
         .count = mine.size(),
         .type = kDataType<T>,
         .peer = root});
  }
  /// Returns when every rank has called it.
  void barrier() { run({.kind = Call::Kind::barrier}); }

  /// data [count] to one peer, which calls recv with the same count and type.
  template <Element T>
  void send(std::span<const T> data, Rank peer) {
    run({.kind = Call::Kind::send,
         .input = data.data(),
         .count = data.size(),
         .type = kDataType<T>,
         .peer = peer});
  }
  template <Element T>
  void recv(std::span<T> data, Rank peer) {
    run({.kind = Call::Kind::recv,
         .output = data.data(),
         .count = data.size(),
         .type = kDataType<T>,
         .peer = peer});
  }

  /// True if a message of `from` has come that no recv was started for: one of its count and type
  /// would not wait, or not for long (MPI_Iprobe). Makes some progress, never blocks. Throws
  /// CollectiveError once the communicator has failed.
  [[nodiscard]] bool has_message(Rank from);

  struct CHORUS_LOCAL Impl;  ///< the library's own

 private:
  friend class DeviceCommunicator;
  explicit Communicator(std::unique_ptr<Impl> impl);
  /// Throws InputError if this one has been moved from.
  [[nodiscard]] CHORUS_LOCAL Impl& impl() const;
  void require(bool condition, const char* why);
  CHORUS_LOCAL void run_aside(const Call& call);
  CHORUS_LOCAL void finish(const Call& call);
  CHORUS_LOCAL void finish_last() noexcept;
  struct CHORUS_LOCAL Finishing;
  [[noreturn]] CHORUS_LOCAL void go_on_or_rethrow();
  template <typename Calls>
  CHORUS_LOCAL void survivably(const Calls& calls);
  static bool inside(std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                     std::size_t size);
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }
  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus
