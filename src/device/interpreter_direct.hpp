// Part of the interpreter: calls whose ranks read and write each other's buffers in place.
#pragma once

#include "device/interpreter.hpp"

namespace chorus::device {

template <class M>
CHORUS_INLINE Offer* Interpreter<M>::offer_at(std::uint32_t owner, std::uint32_t from) const {
  return reinterpret_cast<Offer*>(table_->arenas[owner] +
                                  Arena::offer(table_->shape, direct_number_, from));
}

template <class M>
CHORUS_INLINE bool Interpreter<M>::exchange_offers(const CallArguments& call, bool& exposed) {
  const std::uint32_t ranks = table_->shape.ranks;
  if (m_.block() == 0) {
    for (std::uint32_t peer = m_.thread(); peer < ranks; peer += m_.threads()) {
      Offer* const offer = offer_at(peer, table_->rank);
      offer->input = offered(peer, call.input, call.input_segment);
      offer->output = offered(peer, call.output, call.output_segment);
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

template <class M>
CHORUS_INLINE std::uint64_t Interpreter<M>::offered(std::uint32_t peer, std::uint64_t address,
                                                    std::uint32_t segment) const {
  if (segment == 0 || segment == kNotExposed) return address;
  const std::uint64_t* const views = table_->segments + (segment - 1) * table_->shape.ranks;
  return address - views[table_->rank] + views[peer];
}

// Each block does its share of every move.
template <class M>
CHORUS_INLINE bool Interpreter<M>::make_moves(const CallArguments& call) {
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

template <class M>
CHORUS_INLINE bool Interpreter<M>::make_move(const CallArguments& call, const Cut& cut,
                                             const ImageMove& move, const std::uint32_t* places) {
  const std::uint32_t piece = move.chunk % cut.chunks;
  const std::uint64_t elements =
      cut.begin(piece + move.count, call.count) - cut.begin(piece, call.count);
  const std::uint64_t bytes = elements * cut.element;
  const std::uint64_t share = share_of_block(bytes, m_.blocks());
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
      job.sources[i] = {offer.input + offset(place),         offer.scale, 0, kLocal, 0,
                        static_cast<std::uint8_t>(is_scaled)};
    } else {
      job.targets[i - move.num_sources] = offer.output + offset(place);
    }
  }
  if (m_.thread() == 0) {
    job.bytes = mine;
    job.num_sources = move.num_sources;
    job.num_targets = move.num_destinations;
    job.num_wires = 0;
    job.protocol = Protocol::bulk;
    job.divisor = call.divisor;
  }
  m_.sync();
  drop_own_copies();
  return fold(m_, *this, job, call.type, call.op);
}

// This rank has done its part of the direct call; all others have too.
template <class M>
CHORUS_INLINE bool Interpreter<M>::settle() {
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

}  // namespace chorus::device
