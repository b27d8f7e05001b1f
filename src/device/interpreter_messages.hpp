// Part of the interpreter: lanes that run as far as messages, credit and other lanes let them.
#pragma once

#include "device/interpreter.hpp"

namespace chorus::device {

template <class M>
CHORUS_INLINE void Interpreter<M>::cache_image(std::uint64_t address) {
  const auto* const words = reinterpret_cast<const std::uint32_t*>(address);
  const std::uint32_t size = as<ImageHead>(words).words;
  if (s_.cached == address || size > kCachedWords) return;
  m_.sync();
  for (std::uint32_t i = m_.thread(); i < size; i += m_.threads()) s_.image[i] = words[i];
  if (m_.thread() == 0) s_.cached = address;
  m_.sync();
}

template <class M>
CHORUS_INLINE std::uint32_t Interpreter<M>::collect(std::uint32_t phase, std::uint32_t first) {
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
      // As many instances as blocks: a block has all lanes of one.
      const std::uint32_t lane = w / call.instances;
      const auto& entry =
          as<ImageLane>(image(call.program) + head.lanes + lane * (sizeof(ImageLane) / 4));
      if (m_.thread() == 0) {
        s_.works[found] = {
            c, lane, w % call.instances, w % call.instances, 0, entry.instructions, 0, ports, 1};
      }
      ports += entry.num_in + entry.num_out;
      ++found;
    }
  }
  m_.sync();
  return found;
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::run_messages(std::uint32_t phase, std::uint32_t first) {
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
      bool goes_on = true;
      while (goes_on && ready()) {
        moved = true;
        if (!execute()) return false;
        goes_on = advance();
      }
      if (!goes_on) --running;
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

template <class M>
CHORUS_INLINE bool Interpreter<M>::begin_work(std::uint32_t w) {
  current_ = w;
  load_ports();
  return !is_idle() || next_call();
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::is_idle() const {
  const Work& work = s_.works[current_];
  return work.tile >= call_of(work).num_tiles || lane_of(work).num_instructions == 0;
}

template <class M>
template <class Visit>
CHORUS_INLINE void Interpreter<M>::for_each_port(Visit&& visit) {
  const Work& work = s_.works[current_];
  const ImageLane& lane = lane_of(work);
  const CallArguments& call = call_of(work);
  for (std::uint32_t i = m_.thread(); i < lane.num_in + lane.num_out; i += m_.threads()) {
    const bool outgoing = i >= lane.num_in;
    const End end = end_of(work, outgoing ? i - lane.num_in : i, outgoing);
    visit(s_.ports[work.first_port + i], outgoing, own_ring(end, protocol_to(call, end)));
  }
}

template <class M>
CHORUS_INLINE void Interpreter<M>::load_ports() {
  for_each_port([&](PortState& state, bool outgoing, const Ring* own) {
    state = {m_.load_relaxed(outgoing ? &own->sent : &own->taken),
             outgoing ? m_.load_acquire(&own->credit) : 0};
  });
  m_.sync();
}

template <class M>
CHORUS_INLINE void Interpreter<M>::store_ports() {
  for_each_port([&](const PortState& state, bool outgoing, Ring* own) {
    m_.store_relaxed(outgoing ? &own->sent : &own->taken, state.position);
  });
}

template <class M>
CHORUS_NOINLINE bool Interpreter<M>::next_call() {
  do {
    store_ports();
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

template <class M>
CHORUS_INLINE bool Interpreter<M>::ready() {
  const Work& work = s_.works[current_];
  const std::uint32_t* const words = instruction_of(work);
  const auto& instruction = as<ImageInstruction>(words);
  const std::uint32_t num = instruction.num_sources + instruction.num_sends + instruction.num_after;
  bool can = true;
  for (std::uint32_t i = m_.thread(); i < num && can; i += m_.threads()) {
    if (i < instruction.num_sources) {
      const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
      can = operand.port == kLocal || has_message(work, instruction, operand.port);
    } else if (i < instruction.num_sources + instruction.num_sends) {
      can = has_credit(work, sends(words)[i - instruction.num_sources]);
    } else {
      const std::uint32_t d = i - instruction.num_sources - instruction.num_sends;
      can = is_done(work,
                    as<ImageDependency>(dependencies(words) + d * (sizeof(ImageDependency) / 4)));
    }
  }
  return m_.all(can);
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::has_message(const Work& work,
                                               const ImageInstruction& instruction,
                                               std::uint32_t port) {
  const CallArguments& call = call_of(work);
  const End end = end_of(work, port, false);
  const std::uint64_t position = in_state(work, port).position;
  if (protocol_to(call, end) == Protocol::bulk) {
    const Ring* const own = own_ring(end, Protocol::bulk);
    const std::uint64_t arrived = m_.load_acquire(&own->arrived[position % table_->shape.slots]);
    if (static_cast<std::uint32_t>(arrived) != static_cast<std::uint32_t>(position + 1)) {
      return false;
    }
    if (arrived >> 32 == call.tag) return true;
    mismatch(end.peer);
    return false;
  }
  // The fold waits for words. Only who has other lanes to run looks first, at the
  // beginning of the first chunk that has any bytes.
  if (alone_) return true;
  const Cut cut = cut_of(call, head_of(work));
  const std::uint64_t elements = cut.tile_elements(work.tile);
  std::uint32_t piece = 0;
  while (piece < instruction.count && chunk_bytes(cut, instruction, piece, elements) == 0) {
    ++piece;
  }
  if (piece == instruction.count) return true;
  const Source source = incoming(work, port, end, piece, cut, elements);
  std::uint64_t data = 0;
  const int state = Words::load(m_, source, 0, &data);
  if (state == 2) mismatch(end.peer);
  return state == 1;
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::has_credit(const Work& work, std::uint32_t port) {
  PortState& state = out_state(work, port);
  const std::uint32_t slots = table_->shape.slots;
  if (state.position < state.credit + slots) return true;
  const End end = end_of(work, port, true);
  const Ring* const own = own_ring(end, protocol_to(call_of(work), end));
  state.credit = m_.load_acquire(&own->credit);
  return state.position < state.credit + slots;
}

template <class M>
CHORUS_INLINE std::uint64_t* Interpreter<M>::progress_of(const Work& work,
                                                         std::uint32_t lane) const {
  const CallArguments& call = call_of(work);
  const std::uint32_t index = call.first_work + work.instance * head_of(work).num_lanes + lane;
  return reinterpret_cast<std::uint64_t*>(arena_ + Arena::progress(table_->shape)) + index;
}

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::stamp() const {
  return (std::uint64_t{launch_} * 256 + calls_[call_].phase) << kDoneBits;
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::is_done(const Work& work, const ImageDependency& dependency) {
  const ImageHead& head = head_of(work);
  const auto& lane = as<ImageLane>(image(call_of(work).program) + head.lanes +
                                   dependency.lane * (sizeof(ImageLane) / 4));
  const std::uint64_t round = work.tile / call_of(work).instances;
  const std::uint64_t needed = round * lane.num_instructions + dependency.instruction + 1;
  const std::uint64_t seen = m_.load_acquire(progress_of(work, dependency.lane));
  return seen >= (stamp() | needed) && (seen ^ stamp()) >> kDoneBits == 0;
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::advance() {
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

template <class M>
CHORUS_INLINE std::uint32_t Interpreter<M>::waits_for() {
  const Work& work = s_.works[current_];
  const std::uint32_t* const words = instruction_of(work);
  const auto& instruction = as<ImageInstruction>(words);
  for (std::uint32_t i = 0; i < instruction.num_sources; ++i) {
    const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
    if (operand.port != kLocal && !has_message(work, instruction, operand.port)) {
      return end_of(work, operand.port, false).peer;
    }
  }
  for (std::uint32_t i = 0; i < instruction.num_sends; ++i) {
    if (!has_credit(work, sends(words)[i])) return end_of(work, sends(words)[i], true).peer;
  }
  return kLocal;
}

template <class M>
CHORUS_INLINE End Interpreter<M>::end_of(const Work& work, std::uint32_t port,
                                         bool outgoing) const {
  const CallArguments& call = call_of(work);
  const std::uint32_t* const words = image(call.program);
  const ImageHead& head = as<ImageHead>(words);
  const ImageLane& lane = lane_of(work);
  const std::uint32_t index = (outgoing ? lane.first_out : lane.first_in) + port;
  const auto& entry = as<ImagePort>(words + (outgoing ? head.out_ports : head.in_ports) +
                                    index * (sizeof(ImagePort) / 4));
  return {entry.peer, call.first_connection + work.instance * head.num_channels + entry.channel};
}

template <class M>
CHORUS_INLINE Ring* Interpreter<M>::own_ring(const End& end, Protocol protocol) const {
  return reinterpret_cast<Ring*>(table_->incoming[end.peer] +
                                 Box::ring(table_->shape, end.connection, protocol));
}

template <class M>
CHORUS_INLINE Ring* Interpreter<M>::their_ring(const End& end, Protocol protocol) const {
  return reinterpret_cast<Ring*>(table_->outgoing[end.peer] +
                                 Box::ring(table_->shape, end.connection, protocol));
}

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::incoming_slot(const End& end, Protocol protocol,
                                                          std::uint64_t position) const {
  return table_->incoming_slots[end.peer] +
         Box::slot(table_->shape, end.connection, protocol, position);
}

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::outgoing_slot(const End& end, Protocol protocol,
                                                          std::uint64_t position) const {
  return table_->outgoing_slots[end.peer] +
         Box::slot(table_->shape, end.connection, protocol, position);
}

}  // namespace chorus::device
