// The interpreter of launches: what one block of a rank's kernel does. One template, compiled by
// g++ over HostMachine and by nvcc over CudaMachine.
//
// All threads of a block run the same statements; what differs is which operand, port or peer a
// thread looks at. Conditions that steer the block go through Machine::all() or any(), so that all
// threads take the same way.
#pragma once

#include <cstdint>

#include "device/block.hpp"
#include "device/fold.hpp"
#include "device/layout.hpp"

namespace chorus::device {

/// How the elements of a call are cut: into tiles, and tiles into chunks. The host cuts alike.
struct Cut {
  std::uint64_t count;  ///< elements of one block
  std::uint64_t tile_count;
  std::uint32_t chunks;   ///< per block
  std::uint32_t element;  ///< bytes

  CHORUS_INLINE std::uint64_t tile_elements(std::uint64_t tile) const {
    const std::uint64_t begin = tile * tile_count;
    return begin >= count ? 0 : smaller(tile_count, count - begin);
  }
  /// Chunks begin on lines of memory where that makes none much shorter.
  CHORUS_INLINE std::uint64_t line(std::uint64_t elements) const {
    const std::uint64_t per_line = kLineBytes / element;
    return chunks > 1 && elements / chunks >= 8 * per_line ? per_line : 1;
  }
  CHORUS_INLINE std::uint64_t begin(std::uint32_t chunk, std::uint64_t elements) const {
    if (chunk >= chunks) return elements;
    return chunk * elements / chunks / line(elements) * line(elements);
  }
  /// No chunk of a tile of so many elements has more.
  CHORUS_INLINE std::uint64_t longest(std::uint64_t elements) const {
    if (chunks == 1) return elements;
    return (elements + chunks - 1) / chunks + (line(elements) > 1 ? line(elements) : 0);
  }
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

  CHORUS_INLINE void run() {
    launch_ = static_cast<std::uint32_t>(m_.load_acquire(&arena_head_->launch)) + 1;
    direct_number_ = m_.load_acquire(&arena_head_->direct_calls);
    if (m_.thread() == 0) s_.cached = 0;
    bool well = true;
    for (std::uint32_t phase = 0; well && phase < head_.num_phases; ++phase) {
      well = run_phase(phase);
      if (well && phase + 1 < head_.num_phases) well = barrier(phase + 1);
    }
    depart();
  }

  /// Called by threads that wait. True: they shall not wait any longer.
  CHORUS_BOTH bool gave_up(std::uint32_t spins, std::uint32_t peer) {
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
  CHORUS_BOTH bool mismatch(std::uint32_t peer) {
    report(Failure::mismatch, peer);
    return true;
  }

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

  // The first failure of a rank wins; its peers' kernels shall not wait for it.
  CHORUS_BOTH CHORUS_NOINLINE void report(Failure failure, std::uint32_t peer) {
    if (!m_.first(&arena_head_->failed)) return;
    const Work& work = s_.works[current_];
    m_.store_relaxed(&status_->sequence, calls_[call_].sequence);
    m_.store_relaxed(&status_->peer, peer);
    m_.store_relaxed(&status_->lane, work.lane);
    m_.store_relaxed(&status_->instruction, work.next + 1);
    m_.store_relaxed(&status_->tile, work.tile);
    m_.tell_host(&status_->failure, static_cast<std::uint64_t>(failure));
    for (std::uint32_t rank = 0; rank < table_->shape.ranks; ++rank) {
      if (rank == table_->rank) continue;
      m_.store_relaxed(&reinterpret_cast<ArenaHead*>(table_->arenas[rank])->poison,
                       table_->rank + 1);
    }
  }

  // All blocks of this rank have come `round` times.
  CHORUS_INLINE bool barrier(std::uint64_t round) {
    m_.sync();
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

  CHORUS_INLINE void depart() {
    m_.sync();
    if (m_.thread() != 0) return;
    if (m_.add(&arena_head_->departures, 1) + 1 < m_.blocks()) return;
    // The last one: nobody else is left in this launch.
    m_.store_relaxed(&arena_head_->arrivals, 0);
    m_.store_relaxed(&arena_head_->moved, 0);
    m_.store_relaxed(&arena_head_->departures, 0);
    m_.store_relaxed(&arena_head_->direct_calls, direct_number_);
    m_.store_release(&arena_head_->launch, launch_);
    if (head_.num_calls > 0) {
      m_.store_relaxed(&status_->ended, calls_[head_.num_calls - 1].sequence);
    }
  }

  CHORUS_INLINE bool run_phase(std::uint32_t phase) {
    std::uint32_t first = 0;
    while (first < head_.num_calls && calls_[first].phase != phase) ++first;
    if (first == head_.num_calls) return true;
    call_ = first;
    current_ = 0;
    if (m_.block() == 0 && m_.thread() == 0) {
      m_.store_relaxed(&status_->begun, calls_[first].sequence);
    }
    const CallArguments& call = calls_[first];
    if (call.direct == 0) return run_messages(phase, first);
    bool exposed = false;
    if (!exchange_offers(call, exposed)) return false;
    if (!(exposed ? make_moves(call) : run_messages(phase, first))) return false;
    return settle();
  }

  // Direct calls ---------------------------------------------------------------------------------

  CHORUS_INLINE double factor_of(const CallArguments& call) const {
    if (call.scale_at == 0) return call.scale;
    double factor = 1.0;
    for_type(call.type, [&](auto constant) {
      factor = factor_at<decltype(constant)::value>(call.scale_at);
      return true;
    });
    return factor;
  }
  CHORUS_INLINE Offer* offer_at(std::uint32_t owner, std::uint32_t from) const {
    return reinterpret_cast<Offer*>(table_->arenas[owner] +
                                    Arena::offer(table_->shape, direct_number_, from));
  }

  /// Tells all where this rank's buffers are, and waits until all have told. `exposed`: all can
  /// be reached by all; alike on all ranks.
  CHORUS_INLINE bool exchange_offers(const CallArguments& call, bool& exposed) {
    const std::uint32_t ranks = table_->shape.ranks;
    if (m_.block() == 0) {
      for (std::uint32_t peer = m_.thread(); peer < ranks; peer += m_.threads()) {
        Offer* const offer = offer_at(peer, table_->rank);
        offer->input = offered(call.input, call.input_segment);
        offer->output = offered(call.output, call.output_segment);
        offer->scale = factor_of(call);
        offer->input_segment = call.input_segment;
        offer->output_segment = call.output_segment;
        offer->tag = call.tag;
        m_.store_release(&offer->number, direct_number_ + 1);
      }
    }
    bool well = true;
    bool reached = true;
    for (std::uint32_t peer = m_.thread(); peer < ranks && well; peer += m_.threads()) {
      const Offer* const offer = offer_at(table_->rank, peer);
      for (std::uint32_t spins = 0; well && m_.load_acquire(&offer->number) != direct_number_ + 1;
           ++spins) {
        well = !gave_up(spins, peer);
      }
      if (!well) break;
      if (offer->tag != call.tag) {
        mismatch(peer);
        well = false;
      }
      reached =
          reached && offer->input_segment != kNotExposed && offer->output_segment != kNotExposed;
    }
    exposed = m_.all(reached);
    return m_.all(well);
  }

  /// How others shall find `address`: as it is, or from the beginning of a segment.
  CHORUS_INLINE std::uint64_t offered(std::uint64_t address, std::uint32_t segment) const {
    if (segment == 0 || segment == kNotExposed) return address;
    return address - table_->segments[table_->rank * kMostSegments + segment - 1];
  }
  CHORUS_INLINE std::uint64_t reach(std::uint32_t owner, std::uint64_t where,
                                    std::uint32_t segment) const {
    if (segment == 0) return where;
    const std::uint32_t index = owner * kMostSegments + smaller(segment, kMostSegments) - 1;
    return table_->segments[index] + where;
  }

  // Each block does its share of every move.
  CHORUS_INLINE bool make_moves(const CallArguments& call) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(call.direct);
    const ImageHead& head = as<ImageHead>(words);
    Cut cut = cut_of(call, head);
    cut.tile_count = call.count;
    std::uint32_t at = head.moves;
    for (std::uint32_t i = 0; i < head.num_moves; ++i) {
      const auto& move = as<ImageMove>(words + at);
      if (!make_move(call, cut, move, words + at + sizeof(ImageMove) / 4)) return false;
      at += move.words;
    }
    return true;
  }

  CHORUS_INLINE bool make_move(const CallArguments& call, const Cut& cut, const ImageMove& move,
                               const std::uint32_t* places) {
    const std::uint32_t piece = move.chunk % cut.chunks;
    const std::uint64_t elements =
        cut.begin(piece + move.count, call.count) - cut.begin(piece, call.count);
    const std::uint64_t bytes = elements * cut.element;
    // Shares are whole lines.
    const std::uint64_t share =
        round_up((bytes + m_.blocks() - 1) / m_.blocks(), larger(kLineBytes, cut.element));
    const std::uint64_t begin = smaller(share * m_.block(), bytes);
    const std::uint64_t mine = smaller(share, bytes - begin);
    if (mine == 0) return true;
    m_.sync();  // the job before is done
    FoldJob& job = s_.job;
    const auto offset = [&](const ImagePlace& place) {
      return (place.index / cut.chunks * call.count +
              cut.begin(place.index % cut.chunks, call.count)) *
                 cut.element +
             begin;
    };
    const std::uint32_t num = move.num_sources + move.num_destinations;
    for (std::uint32_t i = m_.thread(); i < num; i += m_.threads()) {
      const auto& place = as<ImagePlace>(places + 2 * i);
      const Offer& offer = *offer_at(table_->rank, place.rank);
      if (i < move.num_sources) {
        const bool is_scaled = offer.scale != 1.0;
        job.sources[i] = {reach(place.rank, offer.input, offer.input_segment) + offset(place),
                          offer.scale,
                          0,
                          kLocal,
                          0,
                          static_cast<std::uint8_t>(is_scaled)};
      } else {
        job.targets[i - move.num_sources] =
            reach(place.rank, offer.output, offer.output_segment) + offset(place);
      }
    }
    if (m_.thread() == 0) {
      job.bytes = mine;
      job.num_sources = move.num_sources;
      job.num_targets = move.num_destinations;
      job.num_wires = 0;
      job.protocol = Protocol::bulk;
      job.divisor = call.divisor;
      job.tag = call.tag;
    }
    m_.sync();
    drop_own_copies();
    return fold(m_, *this, job, call.type, call.op);
  }

  /// What lies in its place already is not copied onto itself.
  CHORUS_INLINE void drop_own_copies() {
    FoldJob& job = s_.job;
    if (job.num_sources > 1 || job.divisor != 1 || job.sources[0].is_scaled != 0) return;
    m_.sync();
    if (m_.thread() == 0) {
      std::uint32_t kept = 0;
      for (std::uint32_t t = 0; t < job.num_targets; ++t) {
        if (job.targets[t] != job.sources[0].at) job.targets[kept++] = job.targets[t];
      }
      job.num_targets = kept;
    }
    m_.sync();
  }

  // This rank has done its part of the direct call; all others have too.
  CHORUS_INLINE bool settle() {
    ++direct_number_;
    m_.sync();
    if (m_.thread() == 0) {
      ++settled_;
      s_.verdict = m_.add(&arena_head_->moved, 1) + 1 == settled_ * m_.blocks() ? 1 : 0;
    }
    m_.sync();
    if (s_.verdict == 0) return true;
    const std::uint32_t ranks = table_->shape.ranks;
    bool well = true;
    for (std::uint32_t peer = m_.thread(); peer < ranks; peer += m_.threads()) {
      m_.store_release(reinterpret_cast<std::uint64_t*>(table_->arenas[peer] +
                                                        Arena::done(table_->shape, table_->rank)),
                       direct_number_);
    }
    for (std::uint32_t peer = m_.thread(); peer < ranks && well; peer += m_.threads()) {
      const auto* const done =
          reinterpret_cast<const std::uint64_t*>(arena_ + Arena::done(table_->shape, peer));
      for (std::uint32_t spins = 0; well && m_.load_acquire(done) < direct_number_; ++spins) {
        well = !gave_up(spins, peer);
      }
    }
    return m_.all(well);
  }

  // Messages -------------------------------------------------------------------------------------

  CHORUS_INLINE void cache_image(std::uint64_t address) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(address);
    const std::uint32_t size = as<ImageHead>(words).words;
    if (s_.cached == address || size > kCachedWords) return;
    m_.sync();
    for (std::uint32_t i = m_.thread(); i < size; i += m_.threads()) s_.image[i] = words[i];
    if (m_.thread() == 0) s_.cached = address;
    m_.sync();
  }

  /// The lanes of this phase that this block takes: their number.
  CHORUS_INLINE std::uint32_t collect(std::uint32_t phase, std::uint32_t first) {
    std::uint32_t found = 0;
    std::uint32_t ports = 0;
    for (std::uint32_t c = first; c < head_.num_calls; ++c) {
      const CallArguments& call = calls_[c];
      if (call.phase != phase || call.follows != 0) continue;
      const ImageHead& head = as<ImageHead>(image(call.program));
      const std::uint32_t total = head.num_lanes * call.instances;
      const std::uint32_t skip =
          (m_.block() + m_.blocks() - call.first_work % m_.blocks()) % m_.blocks();
      for (std::uint32_t w = skip; w < total && found < kMostWorks; w += m_.blocks()) {
        const std::uint32_t lane = w % head.num_lanes;
        const auto& entry =
            as<ImageLane>(image(call.program) + head.lanes + lane * (sizeof(ImageLane) / 4));
        if (m_.thread() == 0) {
          s_.works[found] = {
              c, lane, w / head.num_lanes, w / head.num_lanes, 0, entry.instructions, 0, ports, 1};
        }
        ports += entry.num_in + entry.num_out;
        ++found;
      }
    }
    m_.sync();
    return found;
  }

  CHORUS_INLINE bool run_messages(std::uint32_t phase, std::uint32_t first) {
    cache_image(calls_[first].program);
    const std::uint32_t num_works = collect(phase, first);
    alone_ = num_works == 1;
    std::uint32_t running = 0;
    for (std::uint32_t w = 0; w < num_works; ++w) running += begin_work(w) ? 1 : 0;
    std::uint32_t spins = 0;
    while (running > 0) {
      bool moved = false;
      for (std::uint32_t w = 0; w < num_works; ++w) {
        if (s_.works[w].running == 0) continue;
        current_ = w;
        call_ = s_.works[w].call;
        std::uint32_t state = ready();
        while (state == kReady) {
          moved = true;
          if (!execute()) return false;
          if (!advance()) {
            --running;
            state = kWaits;
          } else {
            state = ready();
          }
        }
        if (state == kBroken) return false;
      }
      if (moved) {
        spins = 0;
      } else if (running > 0) {
        const bool stop = m_.thread() == 0 && gave_up(spins++, waits_for());
        if (m_.any(stop)) return false;
      }
    }
    return true;
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

  /// A port of a work's lane and where it leads.
  struct End {
    std::uint32_t peer;
    std::uint32_t connection;
  };
  CHORUS_INLINE End end_of(const Work& work, std::uint32_t port, bool outgoing) const {
    const CallArguments& call = call_of(work);
    const std::uint32_t* const words = image(call.program);
    const ImageHead& head = as<ImageHead>(words);
    const ImageLane& lane = lane_of(work);
    const std::uint32_t index = (outgoing ? lane.first_out : lane.first_in) + port;
    const auto& entry = as<ImagePort>(words + (outgoing ? head.out_ports : head.in_ports) +
                                      index * (sizeof(ImagePort) / 4));
    return {entry.peer, call.first_connection + work.instance * head.num_channels + entry.channel};
  }
  CHORUS_INLINE Ring* ring(std::uint32_t owner, std::uint32_t peer, std::uint32_t connection,
                           Protocol protocol) const {
    return reinterpret_cast<Ring*>(table_->arenas[owner] +
                                   Arena::ring(table_->shape, peer, connection, protocol));
  }
  /// Where message `position` (from 0) lies at `owner`, coming from `peer`.
  CHORUS_INLINE std::uint64_t slot(std::uint32_t owner, std::uint32_t peer,
                                   std::uint32_t connection, Protocol protocol,
                                   std::uint64_t position) const {
    const Shape& shape = table_->shape;
    return table_->arenas[owner] + Arena::slots(shape, peer, connection, protocol) +
           position % shape.slots * shape.slot_bytes[static_cast<std::uint32_t>(protocol)];
  }
  CHORUS_INLINE PortState& in_state(const Work& work, std::uint32_t port) const {
    return s_.ports[work.first_port + port];
  }
  CHORUS_INLINE PortState& out_state(const Work& work, std::uint32_t port) const {
    return s_.ports[work.first_port + lane_of(work).num_in + port];
  }

  /// Begins work `w`. False if it has nothing to do.
  CHORUS_INLINE bool begin_work(std::uint32_t w) {
    current_ = w;
    load_ports();
    return !is_idle() || next_call();
  }
  CHORUS_INLINE bool is_idle() const {
    const Work& work = s_.works[current_];
    return work.tile >= call_of(work).num_tiles || lane_of(work).num_instructions == 0;
  }
  /// Loads the positions of the work's ports.
  CHORUS_INLINE void load_ports() {
    m_.sync();
    const Work& work = s_.works[current_];
    const ImageLane& lane = lane_of(work);
    const CallArguments& call = call_of(work);
    for (std::uint32_t i = m_.thread(); i < lane.num_in + lane.num_out; i += m_.threads()) {
      const bool outgoing = i >= lane.num_in;
      const End end = end_of(work, outgoing ? i - lane.num_in : i, outgoing);
      const Ring* const own = ring(table_->rank, end.peer, end.connection, call.protocol);
      s_.ports[work.first_port + i] = {m_.load_relaxed(outgoing ? &own->sent : &own->taken),
                                       outgoing ? m_.load_acquire(&own->credit) : 0};
    }
    m_.sync();
  }
  /// Stores them.
  CHORUS_INLINE void end_work() {
    m_.sync();
    const Work& work = s_.works[current_];
    const ImageLane& lane = lane_of(work);
    const CallArguments& call = call_of(work);
    for (std::uint32_t i = m_.thread(); i < lane.num_in + lane.num_out; i += m_.threads()) {
      const bool outgoing = i >= lane.num_in;
      const End end = end_of(work, outgoing ? i - lane.num_in : i, outgoing);
      Ring* const own = ring(table_->rank, end.peer, end.connection, call.protocol);
      m_.store_relaxed(outgoing ? &own->sent : &own->taken, s_.ports[work.first_port + i].position);
    }
    m_.sync();
  }
  /// The work has done its call: on to the next message of the same connection, if there is one.
  CHORUS_NOINLINE bool next_call() {
    do {
      end_work();
      Work& work = s_.works[current_];
      const std::uint32_t next = call_of(work).next;
      m_.sync();
      if (m_.thread() == 0) {
        if (next == kLocal) {
          work.running = 0;
        } else {
          work.call = next;
          work.tile = work.instance;
          work.next = 0;
          work.done = 0;
          work.instruction = lane_of(work).instructions;
        }
      }
      m_.sync();
      if (next == kLocal) return false;
      load_ports();
    } while (is_idle());
    return true;
  }

  static constexpr int kDoneBits = 24;  // instructions of one lane, over all tiles
  static constexpr std::uint32_t kWaits = 0;
  static constexpr std::uint32_t kReady = 1;
  static constexpr std::uint32_t kBroken = 2;

  /// May the current work's next instruction run? The same answer for all threads.
  CHORUS_INLINE std::uint32_t ready() {
    const Work& work = s_.works[current_];
    const std::uint32_t* const words = instruction_of(work);
    const auto& instruction = as<ImageInstruction>(words);
    const std::uint32_t num =
        instruction.num_sources + instruction.num_sends + instruction.num_after;
    std::uint32_t state = kReady;
    for (std::uint32_t i = m_.thread(); i < num && state == kReady; i += m_.threads()) {
      if (i < instruction.num_sources) {
        const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
        if (operand.port != kLocal) state = message_state(work, instruction, operand.port);
      } else if (i < instruction.num_sources + instruction.num_sends) {
        state = has_credit(work, sends(words)[i - instruction.num_sources]) ? kReady : kWaits;
      } else {
        const std::uint32_t d = i - instruction.num_sources - instruction.num_sends;
        state = is_done(work, as<ImageDependency>(dependencies(words) +
                                                  d * (sizeof(ImageDependency) / 4)))
                    ? kReady
                    : kWaits;
      }
    }
    const bool broken = m_.any(state == kBroken);
    const bool ready = m_.all(state == kReady);
    return broken ? kBroken : ready ? kReady : kWaits;
  }

  CHORUS_INLINE std::uint32_t message_state(const Work& work, const ImageInstruction& instruction,
                                            std::uint32_t port) {
    const CallArguments& call = call_of(work);
    const End end = end_of(work, port, false);
    const std::uint64_t position = in_state(work, port).position;
    if (call.protocol == Protocol::bulk) {
      const Ring* const own = ring(table_->rank, end.peer, end.connection, Protocol::bulk);
      const std::uint64_t arrived = m_.load_acquire(&own->arrived[position % table_->shape.slots]);
      if (static_cast<std::uint32_t>(arrived) != static_cast<std::uint32_t>(position + 1)) {
        return kWaits;
      }
      if (arrived >> 32 == call.tag) return kReady;
      mismatch(end.peer);
      return kBroken;
    }
    // The fold waits for words and lines. Only who has other lanes to run looks first, at the
    // beginning of the first chunk that has any bytes.
    if (alone_) return kReady;
    const Cut cut = cut_of(call, head_of(work));
    const std::uint64_t elements = cut.tile_elements(work.tile);
    std::uint32_t piece = 0;
    while (piece < instruction.count && chunk_bytes(cut, instruction, piece, elements) == 0) {
      ++piece;
    }
    if (piece == instruction.count) return kReady;
    const Source source = incoming(work, port, end, piece * stride(call, cut, elements));
    int state = 0;
    if (call.protocol == Protocol::words) {
      std::uint64_t data[2];
      state = Words::load(m_, source, 0, call.tag, data);
    } else {
      state = Lines::state_of(m_.load_flag(source.at), source, call.tag);
    }
    if (state == 2) mismatch(end.peer);
    return state == 2 ? kBroken : state == 1 ? kReady : kWaits;
  }

  CHORUS_INLINE bool has_credit(const Work& work, std::uint32_t port) {
    PortState& state = out_state(work, port);
    const std::uint32_t slots = table_->shape.slots;
    if (state.position < state.credit + slots) return true;
    const End end = end_of(work, port, true);
    const Ring* const own = ring(table_->rank, end.peer, end.connection, call_of(work).protocol);
    state.credit = m_.load_acquire(&own->credit);
    return state.position < state.credit + slots;
  }

  CHORUS_INLINE std::uint64_t* progress_of(const Work& work, std::uint32_t lane) const {
    const CallArguments& call = call_of(work);
    const std::uint32_t index = call.first_work + work.instance * head_of(work).num_lanes + lane;
    return reinterpret_cast<std::uint64_t*>(arena_ + Arena::progress(table_->shape)) + index;
  }
  /// Lanes count what they have done in this phase of this launch; a number of an earlier one
  /// carries another stamp.
  CHORUS_INLINE std::uint64_t stamp() const {
    return (std::uint64_t{launch_} * 256 + calls_[call_].phase) << kDoneBits;
  }
  CHORUS_INLINE bool is_done(const Work& work, const ImageDependency& dependency) {
    const ImageHead& head = head_of(work);
    const auto& lane = as<ImageLane>(image(call_of(work).program) + head.lanes +
                                     dependency.lane * (sizeof(ImageLane) / 4));
    const std::uint64_t round = work.tile / call_of(work).instances;
    const std::uint64_t needed = round * lane.num_instructions + dependency.instruction + 1;
    const std::uint64_t seen = m_.load_acquire(progress_of(work, dependency.lane));
    return seen >= (stamp() | needed) && (seen ^ stamp()) >> kDoneBits == 0;
  }

  CHORUS_INLINE std::uint64_t chunk_bytes(const Cut& cut, const ImageInstruction& instruction,
                                          std::uint32_t piece, std::uint64_t elements) const {
    const std::uint32_t j = (instruction.chunk + piece) % cut.chunks;
    return (cut.begin(j + 1, elements) - cut.begin(j, elements)) * cut.element;
  }
  /// From one chunk of a message to the next, in its slot.
  CHORUS_INLINE std::uint64_t stride(const CallArguments& call, const Cut& cut,
                                     std::uint64_t elements) const {
    return wire_bytes(call.protocol, cut.longest(elements) * cut.element);
  }
  CHORUS_INLINE std::uint32_t flag_of(const CallArguments& call, std::uint64_t number) const {
    return call.protocol == Protocol::words ? words_flag(number, call.tag)
                                            : static_cast<std::uint32_t>(number);
  }
  CHORUS_INLINE Source incoming(const Work& work, std::uint32_t port, const End& end,
                                std::uint64_t offset) const {
    const CallArguments& call = call_of(work);
    const std::uint64_t position = in_state(work, port).position;
    return {slot(table_->rank, end.peer, end.connection, call.protocol, position) + offset,
            1.0,
            flag_of(call, position + 1),
            end.peer,
            static_cast<std::uint8_t>(call.protocol != Protocol::bulk),
            0};
  }
  CHORUS_INLINE std::uint64_t local(const CallArguments& call, const Cut& cut, std::uint32_t buffer,
                                    std::uint32_t index, std::uint32_t tile) const {
    constexpr std::uint32_t kScratch = 2;
    if (buffer == kScratch) {
      return call.scratch +
             (index * call.scratch_stride + tile * (call.scratch_stride / call.num_tiles)) *
                 cut.element;
    }
    const std::uint64_t base = buffer == 0 ? call.input : call.output;
    return base + (index / cut.chunks * call.count + tile * cut.tile_count +
                   cut.begin(index % cut.chunks, cut.tile_elements(tile))) *
                      cut.element;
  }

  /// Folds and sends what the current instruction says. False: gave up.
  CHORUS_INLINE bool execute() {
    const Work& work = s_.works[current_];
    const std::uint32_t* const words = instruction_of(work);
    const auto& instruction = as<ImageInstruction>(words);
    const CallArguments& call = call_of(work);
    const Cut cut = cut_of(call, head_of(work));
    const std::uint64_t elements = cut.tile_elements(work.tile);
    for (std::uint32_t piece = 0; piece < instruction.count; ++piece) {
      if (chunk_bytes(cut, instruction, piece, elements) == 0) continue;
      prepare_job(work, words, piece, cut, elements);
      if (!m_.all(fold(m_, *this, s_.job, call.type, call.op))) return false;
    }
    if (call.protocol != Protocol::bulk) pad(work, words, cut, elements);
    m_.sync();
    publish(work, words);
    return true;
  }

  CHORUS_INLINE void prepare_job(const Work& work, const std::uint32_t* words, std::uint32_t piece,
                                 const Cut& cut, std::uint64_t elements) {
    const auto& instruction = as<ImageInstruction>(words);
    const CallArguments& call = call_of(work);
    const bool bulk = call.protocol == Protocol::bulk;
    const std::uint64_t offset = piece * stride(call, cut, elements);
    FoldJob& job = s_.job;
    const std::uint64_t stored =
        instruction.has_destination != 0
            ? local(call, cut, instruction.buffer, instruction.index + piece, work.tile)
            : 0;
    m_.sync();  // nobody reads the job before any more
    const std::uint32_t num = instruction.num_sources + instruction.num_sends;
    const std::uint32_t first_send = stored != 0 ? 1 : 0;
    for (std::uint32_t i = m_.thread(); i < num; i += m_.threads()) {
      if (i < instruction.num_sources) {
        const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
        if (operand.port == kLocal) {
          const double factor = operand.buffer == 0 ? factor_of(call) : 1.0;
          job.sources[i] = {local(call, cut, operand.buffer, operand.index + piece, work.tile),
                            factor,
                            0,
                            kLocal,
                            0,
                            static_cast<std::uint8_t>(factor != 1.0)};
        } else {
          job.sources[i] = incoming(work, operand.port, end_of(work, operand.port, false), offset);
        }
        continue;
      }
      const std::uint32_t send = i - instruction.num_sources;
      const std::uint32_t port = sends(words)[send];
      const End end = end_of(work, port, true);
      const std::uint64_t position = out_state(work, port).position;
      const std::uint64_t at =
          slot(end.peer, table_->rank, end.connection, call.protocol, position) + offset;
      if (bulk) {
        job.targets[first_send + send] = at;
      } else {
        job.wires[send] = {at, flag_of(call, position + 1)};
      }
    }
    if (m_.thread() == 0) {
      job.bytes = chunk_bytes(cut, instruction, piece, elements);
      job.num_sources = instruction.num_sources;
      job.num_targets = first_send + (bulk ? instruction.num_sends : 0);
      job.num_wires = bulk ? 0 : instruction.num_sends;
      job.protocol = call.protocol;
      job.divisor = instruction.completes != 0 ? call.divisor : 1;
      job.tag = call.tag;
      if (stored != 0) job.targets[0] = stored;
    }
    m_.sync();
    drop_own_copies();
  }

  /// Once in a while a slot is written to its end, so that no flag in it grows too old.
  CHORUS_INLINE void pad(const Work& work, const std::uint32_t* words, const Cut& cut,
                         std::uint64_t elements) {
    const auto& instruction = as<ImageInstruction>(words);
    const CallArguments& call = call_of(work);
    const std::uint64_t used = instruction.count * stride(call, cut, elements);
    const std::uint64_t size = table_->shape.slot_bytes[static_cast<std::uint32_t>(call.protocol)];
    for (std::uint32_t i = 0; i < instruction.num_sends; ++i) {
      const std::uint32_t port = sends(words)[i];
      const std::uint64_t position = out_state(work, port).position;
      if (position % kPadPeriod >= table_->shape.slots) continue;
      const End end = end_of(work, port, true);
      const Wire wire{slot(end.peer, table_->rank, end.connection, call.protocol, position),
                      flag_of(call, position + 1)};
      const std::uint64_t zeros[2] = {0, 0};
      for (std::uint64_t unit = used / 16 + m_.thread(); unit < size / 16; unit += m_.threads()) {
        if (call.protocol == Protocol::words) {
          Words::store(m_, wire, unit, call.tag, zeros);
        } else {
          Lines::store(m_, wire, unit, call.tag, zeros);
        }
      }
    }
  }

  /// Tells the receivers of what was sent, the senders of what was taken, other lanes of what is
  /// done.
  CHORUS_INLINE void publish(const Work& work, const std::uint32_t* words) {
    const auto& instruction = as<ImageInstruction>(words);
    const CallArguments& call = call_of(work);
    const std::uint32_t num = instruction.num_sources + instruction.num_sends;
    for (std::uint32_t i = m_.thread(); i < num; i += m_.threads()) {
      if (i < instruction.num_sources) {
        const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
        if (operand.port == kLocal) continue;
        const End end = end_of(work, operand.port, false);
        PortState& state = in_state(work, operand.port);
        ++state.position;
        m_.store_release(&ring(end.peer, table_->rank, end.connection, call.protocol)->credit,
                         state.position);
        continue;
      }
      const std::uint32_t port = sends(words)[i - instruction.num_sources];
      const End end = end_of(work, port, true);
      PortState& state = out_state(work, port);
      const std::uint64_t number = state.position + 1;
      if (call.protocol == Protocol::bulk) {
        Ring* const theirs = ring(end.peer, table_->rank, end.connection, Protocol::bulk);
        m_.store_release(&theirs->arrived[state.position % table_->shape.slots],
                         static_cast<std::uint64_t>(call.tag) << 32 | (number & 0xffffffff));
      }
      state.position = number;
    }
    if (m_.thread() == 0 && lane_of(work).is_awaited != 0) {
      m_.store_release(progress_of(work, work.lane), stamp() | (work.done + 1));
    }
    m_.sync();
  }

  /// To the next instruction. False: the work has ended.
  CHORUS_INLINE bool advance() {
    Work& work = s_.works[current_];
    const ImageLane& lane = lane_of(work);
    const CallArguments& call = call_of(work);
    const std::uint32_t words = as<ImageInstruction>(instruction_of(work)).words;
    const bool wraps = work.next + 1 == lane.num_instructions;
    const bool ends = wraps && work.tile + call.instances >= call.num_tiles;
    m_.sync();
    if (m_.thread() == 0) {
      ++work.done;
      work.next = wraps ? 0 : work.next + 1;
      work.instruction = wraps ? lane.instructions : work.instruction + words;
      if (wraps) work.tile += call.instances;
    }
    m_.sync();
    if (!ends) return true;
    const bool more = next_call();
    call_ = s_.works[current_].call;
    return more;
  }

  /// The peer that some lane of this block waits for: for messages to people.
  CHORUS_INLINE std::uint32_t waits_for() {
    const Work& work = s_.works[current_];
    const std::uint32_t* const words = instruction_of(work);
    const auto& instruction = as<ImageInstruction>(words);
    for (std::uint32_t i = 0; i < instruction.num_sources; ++i) {
      const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
      if (operand.port != kLocal && message_state(work, instruction, operand.port) != kReady) {
        return end_of(work, operand.port, false).peer;
      }
    }
    for (std::uint32_t i = 0; i < instruction.num_sends; ++i) {
      if (!has_credit(work, sends(words)[i])) return end_of(work, sends(words)[i], true).peer;
    }
    return kLocal;
  }

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
  bool alone_ = false;
};

}  // namespace chorus::device
