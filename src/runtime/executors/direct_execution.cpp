#include "runtime/executors/direct_execution.hpp"

#include <algorithm>
#include <cstddef>

#include "base/multiples.hpp"
#include "chorus/error.hpp"
#include "collectives/reduce.hpp"
#include "model/schedule/contract.hpp"
#include "transports/link/segments.hpp"

namespace chorus {
namespace {

constexpr std::size_t kCacheLineBytes = 64;  // of a cache: tiles begin on one where they can
// Tiles staged ahead of those folded: a peer that is a little late finds work, and what is in
// flight stays in the second-level cache.
constexpr int kAhead = 2;
// Lines of a slot that are taken back ahead of the next call, at one instruction each.
constexpr std::size_t kTakenBack = 2048;
// An output of this size is gone from the second-level cache before anybody reads it.
constexpr std::size_t kStreamed = 6 * 1024 * 1024;

/// Makes this core the one that owns the lines of [memory, memory + bytes), without waiting for it.
void take_lines(const void* memory, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) {
#if defined(__x86_64__)
    // The builtin is an ordinary prefetch here but for compilers told of the instruction.
    asm volatile("prefetchw %0" : : "m"(begin[at]));
#else
    __builtin_prefetch(begin + at, 1);
#endif
  }
}

}  // namespace

bool DirectExecution::fits(const DirectRoutine& routine, const Work& work,
                           const SharedWindow& shared_window) {
  return static_cast<std::size_t>(routine.most_blocks) * size_of(work.type) <=
         shared_window.slot_bytes();
}

void DirectExecution::reset(std::shared_ptr<const Routine> routine, const Work& work,
                            SharedWindow& shared_window, DirectCount& count) {
  const bool same = routine == routine_ && work.count == work_.count && work.type == work_.type;
  const bool same_fold = same && work.op == work_.op && work.divisor == work_.divisor;
  work_ = work;
  shared_window_ = &shared_window;
  count_ = &count;
  count.passed.resize(static_cast<std::size_t>(shared_window.world_size()));
  if (!same) {
    routine_ = std::move(routine);
    direct_ = &*routine_->direct;
    element_bytes_ = size_of(work.type);
    k_ = static_cast<std::size_t>(direct_->chunks_per_block);
    choose_tiles();
    choose_way();
    offered_.resize(static_cast<std::size_t>(shared_window.world_size()));
  }
  if (!same_fold) may_be_fast_ = make_fast_path();
  begin();
}

void DirectExecution::begin() {
  number_ = count_->calls++;
  base_ = count_->tiles;
  count_->tiles += static_cast<std::uint64_t>(num_tiles_);
  if (tuner_ != nullptr) begin_tuning();
  is_fast_ = may_be_fast_ && stays_staged();
  restages_ = reads_ = false;
  if (!is_fast_) choose_exposure();
  was_exposed_ = !is_fast_ && input_.kind > Reference::kStaged;
  num_known_ = 0;
  touches_ = results_ = false;
  staged_ = folded_ = collected_ = 0;
  read_tiles_.clear();
  finished_ = false;
  mismatch_ = -1;
  for (const Rank peer : direct_->partners) offered_[static_cast<std::size_t>(peer)].known = false;
}

// All ranks cut alike: by the most that any of them may have to stage.
void DirectExecution::choose_tiles() {
  const auto blocks = static_cast<std::size_t>(direct_->most_blocks);
  const std::size_t most = shared_window_->slot_bytes() / (blocks * element_bytes_);
  tile_count_ = work_.count;
  num_tiles_ = 1;
  in_offer_ = static_cast<std::size_t>(direct_->most_input_blocks) * work_.count * element_bytes_ <=
              Offer::kInlineBytes;
  if (work_.count <= most) return;
  const std::size_t line = std::max<std::size_t>(1, kCacheLineBytes / element_bytes_) * k_;
  const std::size_t step = most >= line ? line : 1;
  const std::size_t tiles = divide_up(work_.count, most / step * step);
  tile_count_ = divide_up(divide_up(work_.count, tiles), step) * step;
  num_tiles_ = static_cast<int>(divide_up(work_.count, tile_count_));
}

// What only copies puts into a buffer in place nothing that was not there.
bool DirectExecution::changes_input() const {
  return direct_->program.copy_in_place && work_.input == work_.output &&
         is_combining(direct_->program.collective.kind);
}

void DirectExecution::choose_exposure() {
  const std::size_t block_bytes = work_.count * element_bytes_;
  const std::size_t in_bytes = static_cast<std::size_t>(direct_->input_blocks) * block_bytes;
  const std::size_t out_bytes = static_cast<std::size_t>(direct_->output_blocks) * block_bytes;
  input_ = output_ = {};
  offers_ = !direct_->readers.empty() || !direct_->writers.empty();
  streams_ = out_bytes >= kStreamed;
  if (!direct_->readers.empty()) {
    const bool clash = changes_input();
    if (!clash && in_bytes > kAlwaysStaged) input_ = refer(known_input_, work_.input, in_bytes);
    if (input_.kind == Reference::kNone && !clash && by_kernel_ && !count_->kernel_refuses) {
      input_ = {Reference::kPrivate, reinterpret_cast<std::uint64_t>(work_.input)};
    }
    if (input_.kind == Reference::kNone) input_.kind = Reference::kStaged;
  }
  if (!direct_->writers.empty() && out_bytes > kAlwaysStaged) {
    output_ = refer(known_output_, work_.output, out_bytes);
  }
}

Reference DirectExecution::refer(Known& known, const void* memory, std::size_t size_bytes) {
  const std::uint64_t generation = segments_generation();
  if (known.memory != memory || known.size_bytes != size_bytes || known.generation != generation) {
    known = {.memory = memory,
             .size_bytes = size_bytes,
             .generation = generation,
             .reference = shared_window_->refer(memory, size_bytes)};
  }
  return known.reference;
}

bool DirectExecution::step() {
  if (finished_) return false;
  if (is_fast_) return step_fast_path();
  bool moved = false;
  restage_if_refused();
  for (bool again = true; again && mismatch_ < 0;) {
    again = stage();
    again = fold_tile() || again;
    again = collect_tile() || again;
    moved = moved || again;
  }
  if (mismatch_ >= 0 || collected_ < num_tiles_ || staged_ < num_tiles_ || !left_alone()) {
    return moved;
  }
  finished_ = true;
  shared_window_->wake_sleepers();
  if (tuner_ != nullptr) end_tuning();
  if (offers_ && direct_->partners.empty()) take_lines_back();
  return true;
}

// The lines that the next call will write, if it is like this one. Those who read them last still
// hold them, and to take them back costs a trip to their cores: now nobody waits for that. Where
// this rank waits for others in each call, too, it gains nothing: they look at the line before it
// is written.
void DirectExecution::take_lines_back() const {
  const Offer& next = shared_window_->own().offers[(number_ + 1) % SharedWindow::kOffers];
  const std::size_t bytes =
      static_cast<std::size_t>(direct_->input_blocks) * work_.count * element_bytes_;
  const bool staged = input_.kind == Reference::kStaged && num_tiles_ == 1;
  if (staged && in_offer_) return take_lines(&next, offsetof(Offer, payload) + bytes);
  take_lines(&next, 1);
  if (staged && bytes <= kTakenBack) {
    take_lines(shared_window_->staging(shared_window_->rank(), base_ + 1), bytes);
  }
}

// Slot t mod kSlots is free once all others have passed tile t − kSlots. The same holds for offers,
// of which there are more than slots while every call has a tile.
bool DirectExecution::may_write_slot(std::uint64_t tile) {
  if (tile < count_->slots_until) return true;
  std::uint64_t passed = ~std::uint64_t{0};
  for (Rank peer = 0; peer < shared_window_->world_size(); ++peer) {
    if (peer == shared_window_->rank()) continue;
    std::uint64_t& theirs = count_->passed[static_cast<std::size_t>(peer)];
    if (tile >= theirs + SharedWindow::kSlots) {
      theirs = shared_window_->seen(peer, shared_window_->part(peer).passed);
    }
    if (theirs < passed) {
      passed = theirs;
      waiting_ = {.peer = peer, .instruction = 1, .of = 3, .to_send = true};
    }
  }
  count_->slots_until = passed > ~SharedWindow::kSlots ? passed : passed + SharedWindow::kSlots;
  return tile < count_->slots_until;
}

// (A) One more tile; the offer goes with the first.
bool DirectExecution::stage() {
  if (staged_ == num_tiles_) return false;
  const bool copies = input_.kind == Reference::kStaged;
  if (copies && staged_ >= collected_ + kAhead) return false;
  const std::uint64_t tile = base_ + static_cast<std::uint64_t>(staged_);
  if (offers_ && (copies || staged_ == 0) && !may_write_slot(tile)) return false;
  if (copies) {
    Offer& own = shared_window_->own().offers[number_ % SharedWindow::kOffers];
    copy_to_slot(staged_,
                 in_offer_ ? own.payload : shared_window_->staging(shared_window_->rank(), tile));
  }
  if (staged_ == 0 && offers_ && !restages_) offer();
  if (!copies) {
    staged_ = num_tiles_;
    return true;
  }
  ++staged_;
  if (num_tiles_ > 1 || restages_) {
    shared_window_->publish(shared_window_->own().staged,
                            base_ + static_cast<std::uint64_t>(staged_));
  }
  return true;
}

void DirectExecution::stage_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  count_->ways.copy(to, {from, bytes}, count_->ways.next(bytes, num_tiles_ > 1));
}

void DirectExecution::copy_to_slot(int tile, std::byte* slot) {
  for (const DirectRoutine::Run& run : direct_->staged) {
    const std::size_t bytes = run_bytes(run.chunk, run.count, tile);
    if (bytes == 0) continue;
    stage_bytes(slot + in_slot(run.index, tile), work_.input + in_buffer(run.index, tile), bytes);
  }
}

void DirectExecution::offer() {
  Offer& offer = shared_window_->own().offers[number_ % SharedWindow::kOffers];
  offer.tag = work_.tag;
  offer.input_kind = input_.kind;
  offer.output_kind = output_.kind;
  offer.passed = shared_window_->own().passed.load(std::memory_order_relaxed);
  if (input_.kind >= Reference::kOwnSpace) offer.buffers.where[0] = input_.where;
  if (output_.kind >= Reference::kOwnSpace) offer.buffers.where[1] = output_.where;
  if (!in_offer_) offer.buffers.begun_ns = begun_ns_;
  shared_window_->publish(offer.sequence, number_ + 1);
}

bool DirectExecution::offers_known() {
  if (num_known_ == direct_->partners.size()) return true;
  for (const Rank peer : direct_->partners) {
    if (offered_[static_cast<std::size_t>(peer)].known) continue;
    const Offer& offer = shared_window_->part(peer).offers[number_ % SharedWindow::kOffers];
    if (shared_window_->seen(peer, offer.sequence) != number_ + 1) {
      waiting_ = {.peer = peer, .instruction = 1, .of = 3};
      return false;
    }
    // It has failed and takes its offer back: the verdict is on its way.
    if (shared_window_->part(peer).withdrawn.load(std::memory_order_acquire) != 0) return false;
    if (offer.tag != work_.tag) {
      mismatch_ = peer;
      return false;
    }
    learn(peer, offer);
  }
  return true;
}

// The peer can write its part at any time: every field is read once, and checked where it is used.
void DirectExecution::learn(Rank peer, const Offer& offer) {
  Offered& offered = offered_[static_cast<std::size_t>(peer)];
  count_->passed[static_cast<std::size_t>(peer)] = offer.passed;
  offered.input = {offer.input_kind, offer.buffers.where[0]};
  offered.output = {offer.output_kind, offer.buffers.where[1]};
  offered.input_at = offered.output_at = nullptr;
  offered.payload = offer.payload;
  const Collective collective = direct_->program.collective;
  const int n = shared_window_->world_size();
  const std::size_t block_bytes = work_.count * element_bytes_;
  offered.restages = false;
  if (is_timed_) note_begun(offer);
  if (offered.input.kind == Reference::kPrivate) {
    reads_ = touches_ = true;
  } else if (offered.input.kind > Reference::kStaged) {
    const auto blocks = static_cast<std::size_t>(input_blocks(collective, n, peer));
    offered.input_at = shared_window_->reach(peer, offered.input, blocks * block_bytes);
    touches_ = true;
  }
  if (offered.output.kind > Reference::kStaged) {
    const auto blocks = static_cast<std::size_t>(output_blocks(collective, n, peer));
    offered.output_at = shared_window_->reach(peer, offered.output, blocks * block_bytes);
    touches_ = true;
  }
  offered.known = true;
  ++num_known_;
}

bool DirectExecution::sources_staged(std::uint64_t tile) {
  if (num_tiles_ == 1 && !reads_) return true;
  for (const Rank peer : direct_->partners) {
    const Offered& offered = offered_[static_cast<std::size_t>(peer)];
    if (offered.input.kind != Reference::kStaged) continue;
    if (shared_window_->seen(peer, shared_window_->part(peer).staged) > tile) continue;
    if (tile == base_ && !offered.restages) continue;  // came with the offer
    waiting_ = {.peer = peer, .instruction = 2, .of = 3};
    return false;
  }
  return true;
}

// (B) One more tile.
bool DirectExecution::fold_tile() {
  if (folded_ == num_tiles_ || !offers_known()) return false;
  const std::uint64_t tile = base_ + static_cast<std::uint64_t>(folded_);
  if (!sources_staged(tile)) return false;
  if (folded_ == 0) {
    results_ = false;
    for (const Move& move : direct_->program.moves) {
      for (const Place& place : move.destinations) {
        const Offered& offered = offered_[static_cast<std::size_t>(place.rank)];
        results_ = results_ || (place.rank != shared_window_->rank() &&
                                offered.output.kind == Reference::kNone);
      }
    }
  }
  if (results_ && !may_write_slot(tile)) return false;
  if (touches_ && !shared_window_->begin_access()) return false;
  bool made = fetch_private(folded_);
  for (const Move& move : direct_->program.moves) made = made && make(move, folded_);
  if (touches_) shared_window_->end_access();
  if (!made) return false;
  ++folded_;
  if (touches_ || results_) {
    shared_window_->publish(shared_window_->own().folded,
                            base_ + static_cast<std::uint64_t>(folded_));
  }
  return true;
}

bool DirectExecution::make(const Move& move, int tile) {
  const std::size_t bytes = run_bytes(move.chunk, move.count, tile);
  if (bytes == 0) return true;
  if (copies_by_kernel(move)) return read_straight(move, tile);
  const Rank me = shared_window_->rank();
  const auto elsewhere = [&](const Place& place) { return place.rank != me; };
  count_->moved_bytes +=
      bytes * static_cast<std::uint64_t>(std::ranges::count_if(move.sources, elsewhere) +
                                         std::ranges::count_if(move.destinations, elsewhere));
  cached_.clear();
  streamed_.clear();
  std::vector<void*>& outputs = streams_ ? streamed_ : cached_;
  bool to_results = false;
  for (const Place& place : move.destinations) {
    const std::size_t at = in_buffer(place.index, tile);
    if (place.rank == me) {
      outputs.insert(outputs.begin(), work_.output + at);
      continue;
    }
    const Offered& offered = offered_[static_cast<std::size_t>(place.rank)];
    if (offered.output.kind == Reference::kNone) {
      to_results = true;
    } else {
      outputs.push_back(offered.output_at + at);
    }
  }
  if (to_results) {
    const std::uint64_t number = base_ + static_cast<std::uint64_t>(tile);
    cached_.push_back(shared_window_->results(me, number) +
                      in_slot(move.destinations[0].index, tile));
  }
  sources_.clear();
  for (const Place& place : move.sources) sources_.push_back(source(place, tile));
  fold({.cached = cached_, .streamed = streamed_}, sources_, bytes / element_bytes_, work_.type,
       work_.op, work_.divisor);
  return true;
}

const std::byte* DirectExecution::source(const Place& place, int tile) {
  if (place.rank == shared_window_->rank()) return work_.input + in_buffer(place.index, tile);
  const Offered& offered = offered_[static_cast<std::size_t>(place.rank)];
  if (offered.input.kind == Reference::kStaged) {
    if (in_offer_) return offered.payload + in_slot(place.index, tile);
    const std::uint64_t number = base_ + static_cast<std::uint64_t>(tile);
    return shared_window_->staging(place.rank, number) + in_slot(place.index, tile);
  }
  if (offered.input.kind == Reference::kPrivate) return fetched_[num_used_++].data();
  if (offered.input.kind == Reference::kNone) {
    throw LinkError("shm: a rank offers no input where it must", place.rank);
  }
  return offered.input_at + in_buffer(place.index, tile);
}

// (C) One more tile of what others left for this rank; nothing where they stored it themselves.
bool DirectExecution::collect_tile() {
  if (collected_ >= folded_) return false;
  const std::uint64_t tile = base_ + static_cast<std::uint64_t>(collected_);
  if (output_.kind == Reference::kNone) {
    for (const Rank peer : direct_->writers) {
      if (shared_window_->seen(peer, shared_window_->part(peer).folded) > tile) continue;
      waiting_ = {.peer = peer, .instruction = 3, .of = 3};
      return false;
    }
    for (const DirectRoutine::Run& run : direct_->collected) {
      const std::size_t bytes = run_bytes(run.chunk, run.count, collected_);
      if (bytes == 0) continue;
      copy(work_.output + in_buffer(run.index, collected_),
           shared_window_->results(run.rank, tile) + in_slot(run.index, collected_), bytes,
           streams_);
    }
  }
  ++collected_;
  shared_window_->publish(shared_window_->own().passed,
                          base_ + static_cast<std::uint64_t>(collected_));
  return true;
}

// True once nobody reads this rank's input or stores into its output any more.
bool DirectExecution::left_alone() {
  const std::uint64_t end = base_ + static_cast<std::uint64_t>(num_tiles_);
  const auto done = [&](const std::vector<Rank>& peers) {
    for (const Rank peer : peers) {
      if (shared_window_->seen(peer, shared_window_->part(peer).folded) >= end) continue;
      waiting_ = {.peer = peer, .instruction = 3, .of = 3};
      return false;
    }
    return true;
  };
  return (!was_exposed_ || done(direct_->readers)) &&
         (output_.kind <= Reference::kStaged || done(direct_->writers));
}

Waiting DirectExecution::waiting() const { return finished_ ? Waiting{} : waiting_; }

std::size_t DirectExecution::tile_elements(int tile) const {
  return std::min(tile_count_, work_.count - static_cast<std::size_t>(tile) * tile_count_);
}

std::size_t DirectExecution::ahead(int index, int tile) const {
  if (k_ == 1) return 0;
  return static_cast<std::size_t>(index) % k_ * tile_elements(tile) / k_;
}

std::size_t DirectExecution::run_bytes(int chunk, int count, int tile) const {
  const std::size_t n = tile_elements(tile);
  if (k_ == 1) return n * element_bytes_;
  const std::size_t first = static_cast<std::size_t>(chunk) % k_;
  const std::size_t last = first + static_cast<std::size_t>(count);
  return (last * n / k_ - first * n / k_) * element_bytes_;
}

std::size_t DirectExecution::in_buffer(int index, int tile) const {
  return (block_of(index) * work_.count + static_cast<std::size_t>(tile) * tile_count_ +
          ahead(index, tile)) *
         element_bytes_;
}

std::size_t DirectExecution::in_slot(int index, int tile) const {
  return (block_of(index) * tile_count_ + ahead(index, tile)) * element_bytes_;
}

}  // namespace chorus
