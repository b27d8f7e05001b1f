// Part of the interpreter: one instruction of a lane, folded, sent on and told of.
#pragma once

#include "device/interpreter.hpp"

namespace chorus::device {

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::chunk_bytes(const Cut& cut,
                                                        const ImageInstruction& instruction,
                                                        std::uint32_t piece,
                                                        std::uint64_t elements) const {
  const std::uint32_t j = (instruction.chunk + piece) % cut.chunks;
  return (cut.begin(j + 1, elements) - cut.begin(j, elements)) * cut.element;
}

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::stride(const CallArguments& call, Protocol protocol,
                                                   const Cut& cut, std::uint64_t elements) const {
  const std::uint64_t bytes = cut.longest(elements) * cut.element;
  // The call was cut for slots of words: bulk has room in them if it does not begin on lines.
  if (call.protocol == Protocol::mixed && protocol == Protocol::bulk) return round_up(bytes, 16);
  return wire_bytes(protocol, bytes);
}

template <class M>
CHORUS_INLINE std::uint32_t Interpreter<M>::flag_of(const CallArguments& call,
                                                    std::uint64_t number) const {
  return words_flag(number, call.tag);
}

template <class M>
CHORUS_INLINE Source Interpreter<M>::incoming(const Work& work, std::uint32_t port, const End& end,
                                              std::uint32_t piece, const Cut& cut,
                                              std::uint64_t elements) const {
  const CallArguments& call = call_of(work);
  const std::uint64_t position = in_state(work, port).position;
  const Protocol protocol = protocol_to(call, end);
  return {incoming_slot(end, protocol, position) + piece * stride(call, protocol, cut, elements),
          1.0,
          flag_of(call, position + 1),
          end.peer,
          static_cast<std::uint8_t>(protocol == Protocol::words),
          0};
}

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::local(const CallArguments& call, const Cut& cut,
                                                  std::uint32_t buffer, std::uint32_t index,
                                                  std::uint32_t tile) const {
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

template <class M>
CHORUS_INLINE std::uint32_t Interpreter<M>::bulk_sends(const Work& work, const std::uint32_t* words,
                                                       std::uint32_t num) const {
  const CallArguments& call = call_of(work);
  if (call.protocol != Protocol::mixed) return call.protocol == Protocol::bulk ? num : 0;
  std::uint32_t bulk = 0;
  for (std::uint32_t i = 0; i < num; ++i) {
    bulk += is_relayed(end_of(work, sends(words)[i], true)) ? 1 : 0;
  }
  return bulk;
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::execute() {
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
  if (call.protocol != Protocol::bulk) {
    pad(work, words, cut, elements);
    m_.sync();  // publish() moves the positions that pad() reads
  }
  publish(work, words);
  return true;
}

template <class M>
CHORUS_INLINE void Interpreter<M>::prepare_job(const Work& work, const std::uint32_t* words,
                                               std::uint32_t piece, const Cut& cut,
                                               std::uint64_t elements) {
  const auto& instruction = as<ImageInstruction>(words);
  const CallArguments& call = call_of(work);
  FoldJob& job = s_.job;  // the fold before ended with a barrier: nobody reads it any more
  const bool completes = instruction.completes != 0 && call.divisor != 1;
  std::uint64_t stored =
      instruction.has_destination != 0
          ? local(call, cut, instruction.buffer, instruction.index + piece, work.tile)
          : 0;
  const double scale = factor_of(call);
  if (instruction.num_sources == 1 && !completes) {  // a copy, which may be in place
    const auto& source = as<ImageOperand>(operands(words));
    const bool scaled = source.buffer == 0 && scale != 1.0;
    if (source.port == kLocal && !scaled &&
        local(call, cut, source.buffer, source.index + piece, work.tile) == stored) {
      stored = 0;
    }
  }
  const std::uint32_t num = instruction.num_sources + instruction.num_sends;
  const std::uint32_t first_send = stored != 0 ? 1 : 0;
  for (std::uint32_t i = m_.thread(); i < num; i += m_.threads()) {
    if (i < instruction.num_sources) {
      const auto& operand = as<ImageOperand>(operands(words) + i * (sizeof(ImageOperand) / 4));
      if (operand.port == kLocal) {
        const double factor = operand.buffer == 0 ? scale : 1.0;
        job.sources[i] = {local(call, cut, operand.buffer, operand.index + piece, work.tile),
                          factor,
                          0,
                          kLocal,
                          0,
                          static_cast<std::uint8_t>(factor != 1.0)};
      } else {
        job.sources[i] =
            incoming(work, operand.port, end_of(work, operand.port, false), piece, cut, elements);
      }
      continue;
    }
    const std::uint32_t send = i - instruction.num_sources;
    const std::uint32_t port = sends(words)[send];
    const End end = end_of(work, port, true);
    const std::uint64_t position = out_state(work, port).position;
    const Protocol protocol = protocol_to(call, end);
    const std::uint64_t at =
        outgoing_slot(end, protocol, position) + piece * stride(call, protocol, cut, elements);
    const std::uint32_t bulk = bulk_sends(work, words, send);
    if (protocol == Protocol::bulk) {
      job.targets[first_send + bulk] = at;
    } else {
      job.wires[send - bulk] = {at, flag_of(call, position + 1)};
    }
  }
  if (m_.thread() == 0) {
    job.bytes = chunk_bytes(cut, instruction, piece, elements);
    job.num_sources = instruction.num_sources;
    const std::uint32_t bulk = bulk_sends(work, words, instruction.num_sends);
    job.num_targets = first_send + bulk;
    job.num_wires = instruction.num_sends - bulk;
    job.protocol = call.protocol == Protocol::bulk ? Protocol::bulk : Protocol::words;
    job.divisor = completes ? call.divisor : 1;
    if (stored != 0) job.targets[0] = stored;
  }
  m_.sync();
}

template <class M>
CHORUS_INLINE void Interpreter<M>::pad(const Work& work, const std::uint32_t* words, const Cut& cut,
                                       std::uint64_t elements) {
  const auto& instruction = as<ImageInstruction>(words);
  const CallArguments& call = call_of(work);
  const std::uint64_t used = instruction.count * stride(call, Protocol::words, cut, elements);
  const std::uint64_t size = table_->shape.slot_bytes[static_cast<std::uint32_t>(Protocol::words)];
  for (std::uint32_t i = 0; i < instruction.num_sends; ++i) {
    const std::uint32_t port = sends(words)[i];
    const std::uint64_t position = out_state(work, port).position;
    if (position % kPadPeriod >= table_->shape.slots) continue;
    const End end = end_of(work, port, true);
    if (protocol_to(call, end) == Protocol::bulk) continue;
    const Wire wire{outgoing_slot(end, Protocol::words, position), flag_of(call, position + 1)};
    const std::uint64_t zeros[2] = {0, 0};
    for (std::uint64_t unit = used / 16 + m_.thread(); unit < size / 16; unit += m_.threads()) {
      Words::store(m_, wire, unit, zeros);
    }
  }
}

template <class M>
CHORUS_INLINE void Interpreter<M>::publish(const Work& work, const std::uint32_t* words) {
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
      m_.store_release(&their_ring(end, protocol_to(call, end))->credit, state.position);
      continue;
    }
    const std::uint32_t port = sends(words)[i - instruction.num_sources];
    const End end = end_of(work, port, true);
    PortState& state = out_state(work, port);
    const std::uint64_t number = state.position + 1;
    if (protocol_to(call, end) == Protocol::bulk) {
      Ring* const theirs = their_ring(end, Protocol::bulk);
      if (is_relayed(end)) {
        const Cut cut = cut_of(call, head_of(work));
        m_.store_relaxed(
            &theirs->bytes[state.position % table_->shape.slots],
            instruction.count * stride(call, Protocol::bulk, cut, cut.tile_elements(work.tile)));
      }
      m_.store_release(&theirs->arrived[state.position % table_->shape.slots],
                       static_cast<std::uint64_t>(call.tag) << 32 | (number & 0xffffffff));
    }
    state.position = number;
  }
  if (m_.thread() == 0 && lane_of(work).is_awaited != 0) {
    m_.store_release(progress_of(work, work.lane), stamp() | (work.done + 1));
  }
}

}  // namespace chorus::device
