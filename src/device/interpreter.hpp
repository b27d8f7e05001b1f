// The interpreter of launches: what one block of a rank's kernel does. One template, compiled by
// g++ over HostMachine and by nvcc over CudaMachine.
//
// All threads of a block run the same statements; what differs is which operand, port or peer a
// thread looks at. Conditions that steer the block go through Machine::all() or any(), so that all
// threads take the same way.
#pragma once

#include <cstdint>

#include "device/block.hpp"
#include "device/cut.hpp"
#include "device/fold.hpp"
#include "device/layout.hpp"

namespace chorus::device {

/// Where a port of a lane leads.
struct End {
  std::uint32_t peer;
  std::uint32_t connection;
};

template <class M>
class Interpreter {
 public:
  CHORUS_INLINE Interpreter(M& machine, const LaunchHead& head, const CallArguments* calls)
      : m_(machine),
        s_(machine.shared()),
        head_(head),
        calls_(calls),
        table_(reinterpret_cast<const RankTable*>(head.table)),
        arena_(table_->arenas[table_->rank]),
        arena_head_(reinterpret_cast<ArenaHead*>(arena_)),
        status_(reinterpret_cast<HostStatus*>(table_->status)) {}

  CHORUS_INLINE void run();

  /// Called by threads that wait. True: they shall not wait any longer.
  CHORUS_BOTH bool gave_up(std::uint32_t spins, std::uint32_t peer);
  CHORUS_BOTH bool mismatch(std::uint32_t peer);

 private:
  CHORUS_INLINE const CallArguments& call_of(const Work& work) const { return calls_[work.call]; }
  CHORUS_INLINE const std::uint32_t* image(std::uint64_t address) const {
    return s_.cached == address ? s_.image : reinterpret_cast<const std::uint32_t*>(address);
  }
  template <class T>
  CHORUS_INLINE static const T& as(const std::uint32_t* words) {
    return *reinterpret_cast<const T*>(words);
  }
  CHORUS_INLINE static Cut cut_of(const CallArguments& call, const ImageHead& head) {
    return {call.count, call.tile_count, head.chunks_per_block,
            static_cast<std::uint32_t>(size_of_type(call.type))};
  }
  CHORUS_INLINE static std::uint32_t size_of_type(DataType type) {
    return static_cast<std::uint32_t>(size_of(type));
  }
  CHORUS_INLINE const ImageHead& head_of(const Work& work) const {
    return as<ImageHead>(image(call_of(work).program));
  }
  CHORUS_INLINE const ImageLane& lane_of(const Work& work) const {
    const ImageHead& head = head_of(work);
    return as<ImageLane>(image(call_of(work).program) + head.lanes +
                         work.lane * (sizeof(ImageLane) / 4));
  }
  CHORUS_INLINE const std::uint32_t* instruction_of(const Work& work) const {
    return image(call_of(work).program) + work.instruction;
  }
  CHORUS_INLINE static const std::uint32_t* operands(const std::uint32_t* instruction) {
    return instruction + sizeof(ImageInstruction) / 4;
  }
  CHORUS_INLINE static const std::uint32_t* dependencies(const std::uint32_t* instruction) {
    return operands(instruction) +
           as<ImageInstruction>(instruction).num_sources * (sizeof(ImageOperand) / 4);
  }
  CHORUS_INLINE static const std::uint32_t* sends(const std::uint32_t* instruction) {
    return dependencies(instruction) +
           as<ImageInstruction>(instruction).num_after * (sizeof(ImageDependency) / 4);
  }
  CHORUS_INLINE PortState& in_state(const Work& work, std::uint32_t port) const {
    return s_.ports[work.first_port + port];
  }
  CHORUS_INLINE PortState& out_state(const Work& work, std::uint32_t port) const {
    return s_.ports[work.first_port + lane_of(work).num_in + port];
  }

  // The launch: below.
  CHORUS_BOTH CHORUS_NOINLINE void report(Failure failure, std::uint32_t peer);
  CHORUS_INLINE bool barrier(std::uint64_t round);
  CHORUS_INLINE void depart();
  CHORUS_INLINE bool run_phase(std::uint32_t phase);
  CHORUS_INLINE double factor_of(const CallArguments& call) const;
  /// What lies in its place already is not copied onto itself.
  CHORUS_INLINE void drop_own_copies();

  // Direct calls: interpreter_direct.hpp.
  CHORUS_INLINE Offer* offer_at(std::uint32_t owner, std::uint32_t from) const;
  /// Tells all where this rank's buffers are, and waits until all have told. `exposed`: all can
  /// be reached by all; alike on all ranks.
  CHORUS_INLINE bool exchange_offers(const CallArguments& call, bool& exposed);
  /// Where `peer` finds `address`.
  CHORUS_INLINE std::uint64_t offered(std::uint32_t peer, std::uint64_t address,
                                      std::uint32_t segment) const;
  CHORUS_INLINE bool make_moves(const CallArguments& call);
  CHORUS_INLINE bool make_move(const CallArguments& call, const Cut& cut, const ImageMove& move,
                               const std::uint32_t* places);
  CHORUS_INLINE bool settle();

  // Lanes that send and receive: interpreter_messages.hpp.
  CHORUS_INLINE void cache_image(std::uint64_t address);
  /// The lanes of this phase that this block takes: their number.
  CHORUS_INLINE std::uint32_t collect(std::uint32_t phase, std::uint32_t first);
  CHORUS_INLINE bool run_messages(std::uint32_t phase, std::uint32_t first);
  /// Begins work `w`. False if it has nothing to do.
  CHORUS_INLINE bool begin_work(std::uint32_t w);
  CHORUS_INLINE bool is_idle() const;
  /// Calls visit(state, is_outgoing, own ring) for each port of the current work, each on one
  /// thread. Has no barrier.
  template <class Visit>
  CHORUS_INLINE void for_each_port(Visit&& visit);
  /// Loads the positions of the work's ports.
  CHORUS_INLINE void load_ports();
  /// Stores them. Has no barrier.
  CHORUS_INLINE void store_ports();
  /// The work has done its call: on to the next message of the same connection, if there is one.
  CHORUS_NOINLINE bool next_call();
  /// May the current work's next instruction run? The same answer for all threads.
  CHORUS_INLINE bool ready();
  /// The next message of the port is there. One of another call is reported, and never there.
  CHORUS_INLINE bool has_message(const Work& work, const ImageInstruction& instruction,
                                 std::uint32_t port);
  CHORUS_INLINE bool has_credit(const Work& work, std::uint32_t port);
  CHORUS_INLINE std::uint64_t* progress_of(const Work& work, std::uint32_t lane) const;
  /// Lanes count what they have done in this phase of this launch; a number of an earlier one
  /// carries another stamp.
  CHORUS_INLINE std::uint64_t stamp() const;
  CHORUS_INLINE bool is_done(const Work& work, const ImageDependency& dependency);
  /// To the next instruction. False: the work has ended.
  CHORUS_INLINE bool advance();
  /// The peer that some lane of this block waits for: for messages to people.
  CHORUS_INLINE std::uint32_t waits_for();
  CHORUS_INLINE End end_of(const Work& work, std::uint32_t port, bool outgoing) const;
  /// Messages to it go through host memory: who carries them on must know how long they are.
  CHORUS_INLINE bool is_relayed(const End& end) const { return table_->arenas[end.peer] == 0; }
  CHORUS_INLINE Protocol protocol_to(const CallArguments& call, const End& end) const {
    if (call.protocol != Protocol::mixed) return call.protocol;
    return is_relayed(end) ? Protocol::bulk : Protocol::words;
  }
  /// Of what `end` sends here, and of what goes there.
  CHORUS_INLINE Ring* own_ring(const End& end, Protocol protocol) const;
  CHORUS_INLINE Ring* their_ring(const End& end, Protocol protocol) const;
  /// Where message `position` (from 0) lies that `end` sends here, and that goes there.
  CHORUS_INLINE std::uint64_t incoming_slot(const End& end, Protocol protocol,
                                            std::uint64_t position) const;
  CHORUS_INLINE std::uint64_t outgoing_slot(const End& end, Protocol protocol,
                                            std::uint64_t position) const;

  static constexpr int kDoneBits = 24;  // instructions of one lane, over all tiles

  // What one instruction does: interpreter_execute.hpp.
  CHORUS_INLINE std::uint64_t chunk_bytes(const Cut& cut, const ImageInstruction& instruction,
                                          std::uint32_t piece, std::uint64_t elements) const;
  /// From one chunk of a message to the next, in its slot.
  CHORUS_INLINE std::uint64_t stride(const CallArguments& call, Protocol protocol, const Cut& cut,
                                     std::uint64_t elements) const;
  CHORUS_INLINE std::uint32_t flag_of(const CallArguments& call, std::uint64_t number) const;
  /// Where chunk `piece` of the message that comes by the port lies.
  CHORUS_INLINE Source incoming(const Work& work, std::uint32_t port, const End& end,
                                std::uint32_t piece, const Cut& cut, std::uint64_t elements) const;
  CHORUS_INLINE std::uint64_t local(const CallArguments& call, const Cut& cut, std::uint32_t buffer,
                                    std::uint32_t index, std::uint32_t tile) const;
  /// How many of the first `num` sends go by bulk.
  CHORUS_INLINE std::uint32_t bulk_sends(const Work& work, const std::uint32_t* words,
                                         std::uint32_t num) const;
  /// Folds and sends what the current instruction says. False: gave up.
  CHORUS_INLINE bool execute();
  CHORUS_INLINE void prepare_job(const Work& work, const std::uint32_t* words, std::uint32_t piece,
                                 const Cut& cut, std::uint64_t elements);
  /// Once in a while a slot is written to its end, so that no flag in it grows too old.
  CHORUS_INLINE void pad(const Work& work, const std::uint32_t* words, const Cut& cut,
                         std::uint64_t elements);
  /// Tells the receivers of what was sent, the senders of what was taken, other lanes of what is
  /// done.
  CHORUS_INLINE void publish(const Work& work, const std::uint32_t* words);

  M& m_;
  BlockShared& s_;
  const LaunchHead& head_;
  const CallArguments* calls_;
  const RankTable* table_;
  std::uint64_t arena_;
  ArenaHead* arena_head_;
  HostStatus* status_;
  std::uint32_t launch_ = 0;
  std::uint64_t direct_number_ = 0;
  std::uint64_t settled_ = 0;
  std::uint64_t waiting_since_ = 0;
  std::uint32_t call_ = 0;     ///< under way
  std::uint32_t current_ = 0;  ///< work under way
  std::uint64_t begun_ = 0;    ///< as the host was told
  bool alone_ = false;
};

template <class M>
CHORUS_INLINE void Interpreter<M>::run() {
  // What this rank's launch before left; the stream has ordered it.
  launch_ = static_cast<std::uint32_t>(m_.load_relaxed(&arena_head_->launch)) + 1;
  direct_number_ = m_.load_relaxed(&arena_head_->direct_calls);
  // Shared memory is what the block before left on this multiprocessor: no thread may read `cached`
  // before it is reset, or it takes that block's image for this one's and meets other barriers.
  if (m_.thread() == 0) s_.cached = 0;
  m_.sync();
  bool well = true;
  for (std::uint32_t phase = 0; well && phase < head_.num_phases; ++phase) {
    well = run_phase(phase);
    if (well && phase + 1 < head_.num_phases) well = barrier(phase + 1);
  }
  depart();
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::run_phase(std::uint32_t phase) {
  std::uint32_t first = 0;
  while (first < head_.num_calls && calls_[first].phase != phase) ++first;
  if (first == head_.num_calls) return true;
  call_ = first;
  current_ = 0;
  begun_ = calls_[first].sequence;
  if (m_.block() == 0 && m_.thread() == 0) m_.store_relaxed(&status_->begun, begun_);
  const CallArguments& call = calls_[first];
  if (call.direct == 0) return run_messages(phase, first);
  bool exposed = false;
  if (!exchange_offers(call, exposed)) return false;
  if (exposed) return make_moves(call) && settle();
  // Nobody touches another's buffers, so nobody waits for the others' goodbye. The offers after
  // the next ones lie where these do: who makes them has the next ones of all ranks, of which each
  // made its own when its blocks had read these.
  ++direct_number_;
  return run_messages(phase, first);
}

// All blocks of this rank have come `round` times. A phase ends with a barrier of the block, here
// and before depart().
template <class M>
CHORUS_INLINE bool Interpreter<M>::barrier(std::uint64_t round) {
  bool well = true;
  if (m_.thread() == 0) {
    m_.add(&arena_head_->arrivals, 1);
    for (std::uint32_t spins = 0;
         well && m_.load_acquire(&arena_head_->arrivals) < round * m_.blocks(); ++spins) {
      well = !gave_up(spins, kLocal);
    }
  }
  return m_.all(well);
}

template <class M>
CHORUS_INLINE void Interpreter<M>::depart() {
  if (m_.thread() != 0) return;
  if (m_.add(&arena_head_->departures, 1) + 1 < m_.blocks()) return;
  // The last one: nobody else is left in this launch.
  m_.store_relaxed(&arena_head_->arrivals, 0);
  m_.store_relaxed(&arena_head_->moved, 0);
  m_.store_relaxed(&arena_head_->departures, 0);
  m_.store_relaxed(&arena_head_->direct_calls, direct_number_);
  m_.store_relaxed(&arena_head_->launch, launch_);
  if (head_.num_calls > 0) {
    m_.store_relaxed(&status_->ended, begun_);
  }
}

template <class M>
CHORUS_BOTH bool Interpreter<M>::gave_up(std::uint32_t spins, std::uint32_t peer) {
  constexpr std::uint32_t kOften = M::kSpinsPerLook / 16;
  if (spins % kOften == kOften - 1) {
    if (m_.load_relaxed(&arena_head_->failed) != 0) return true;
    if (m_.load_relaxed(&arena_head_->poison) != 0) {
      report(Failure::poisoned,
             static_cast<std::uint32_t>(m_.load_relaxed(&arena_head_->poison)) - 1);
      return true;
    }
  }
  if (spins % M::kSpinsPerLook == M::kSpinsPerLook - 1) {
    if (m_.load_relaxed(&status_->abort) != 0) {
      report(Failure::aborted, peer);
      return true;
    }
    const std::uint64_t now = m_.now_ns();
    if (spins == M::kSpinsPerLook - 1) {
      waiting_since_ = now;
    } else if (now - waiting_since_ > head_.timeout_ns) {
      report(Failure::timeout, peer);
      return true;
    }
  }
  m_.pause(spins);
  return false;
}

template <class M>
CHORUS_BOTH bool Interpreter<M>::mismatch(std::uint32_t peer) {
  report(Failure::mismatch, peer);
  return true;
}

// The first failure of a rank wins; its peers' kernels shall not wait for it.
template <class M>
CHORUS_BOTH CHORUS_NOINLINE void Interpreter<M>::report(Failure failure, std::uint32_t peer) {
  if (!m_.first(&arena_head_->failed)) return;
  const Work& work = s_.works[current_];
  m_.store_relaxed(&status_->sequence, calls_[call_].sequence);
  m_.store_relaxed(&status_->peer, peer);
  m_.store_relaxed(&status_->lane, work.lane);
  m_.store_relaxed(&status_->instruction, work.next + 1);
  m_.store_relaxed(&status_->tile, work.tile);
  m_.tell_host(&status_->failure, static_cast<std::uint64_t>(failure));
  for (std::uint32_t rank = 0; rank < table_->shape.ranks; ++rank) {
    if (rank == table_->rank || table_->arenas[rank] == 0) continue;
    m_.store_relaxed(&reinterpret_cast<ArenaHead*>(table_->arenas[rank])->poison, table_->rank + 1);
  }
}

template <class M>
CHORUS_INLINE double Interpreter<M>::factor_of(const CallArguments& call) const {
  if (call.scale_at == 0) return call.scale;
  double factor = 1.0;
  for_type(call.type, [&](auto constant) {
    factor = factor_at<decltype(constant)::value>(call.scale_at);
    return true;
  });
  return factor;
}

template <class M>
CHORUS_INLINE void Interpreter<M>::drop_own_copies() {
  FoldJob& job = s_.job;
  if (job.num_sources > 1 || job.divisor != 1 || job.sources[0].is_scaled != 0) return;
  if (m_.thread() == 0) {
    std::uint32_t kept = 0;
    for (std::uint32_t t = 0; t < job.num_targets; ++t) {
      if (job.targets[t] != job.sources[0].at) job.targets[kept++] = job.targets[t];
    }
    job.num_targets = kept;
  }
  m_.sync();
}

}  // namespace chorus::device

#include "device/interpreter_direct.hpp"
#include "device/interpreter_execute.hpp"
#include "device/interpreter_messages.hpp"
