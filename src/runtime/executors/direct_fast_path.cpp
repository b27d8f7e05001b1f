// DirectExecution for small calls. To its peers such a call looks like any other.
#include <algorithm>
#include <array>

#include "base/copy.hpp"
#include "chorus/error.hpp"
#include "runtime/executors/direct_execution.hpp"

namespace chorus {
namespace {

constexpr std::size_t kMostSources = 64;
constexpr std::size_t kLine = 64;
// Lines of a partner's data that are fetched while its offer is awaited. Fetched with the line that
// tells of them they cost no trip of their own: all_reduce of 64 to 256 B takes 0.21 µs in place of
// 0.24 (2 ranks whose cores are siblings). Of 512 B it takes longer: the owner still writes them.
constexpr std::size_t kMostAhead = 4;

}  // namespace

// Most of what a call of a few bytes costs is to find out what is the same in each call alike:
// all_reduce of 8 B took 0.175 µs without this and what Communicator::Impl::run_again() keeps,
// and takes 0.14 (2 ranks whose cores are siblings).
bool DirectExecution::make_fast_path() {
  const DirectProgram& program = direct_->program;
  if (num_tiles_ != 1 || !direct_->writers.empty()) return false;
  const Rank me = shared_window_->rank();
  fast_path_ = {};
  for (const Move& move : program.moves) {
    if (move.destinations.size() != 1 || move.destinations[0].rank != me ||
        move.sources.size() > kMostSources) {
      return false;
    }
    const std::size_t bytes = run_bytes(move.chunk, move.count, 0);
    if (bytes == 0) continue;
    fast_path_.results.push_back({.at = in_buffer(move.destinations[0].index, 0),
                                  .count = bytes / element_bytes_,
                                  .size_bytes = bytes,
                                  .num_sources = move.sources.size()});
    for (const Place& place : move.sources) {
      const bool own = place.rank == me;
      fast_path_.sources.push_back(
          {.rank = place.rank, .at = own ? in_buffer(place.index, 0) : in_slot(place.index, 0)});
      if (!own) fast_path_.moved_bytes += bytes;
    }
  }
  for (const DirectRoutine::Run& run : direct_->staged) {
    const std::size_t bytes = run_bytes(run.chunk, run.count, 0);
    if (bytes == 0) continue;
    fast_path_.pieces.push_back(
        {.from = in_buffer(run.index, 0), .to = in_slot(run.index, 0), .size_bytes = bytes});
  }
  look_ahead();
  fast_path_.fold = Fold(work_.type, work_.op, work_.divisor);
  return true;
}

void DirectExecution::look_ahead() {
  for (const Rank partner : direct_->partners) {
    std::size_t begin = ~std::size_t{0};
    std::size_t end = 0;
    auto source = fast_path_.sources.begin();
    for (const FastPath::Result& result : fast_path_.results) {
      for (std::size_t i = 0; i < result.num_sources; ++i, ++source) {
        if (source->rank != partner) continue;
        begin = std::min(begin, source->at);
        end = std::max(end, source->at + result.size_bytes);
      }
    }
    // Slots begin on a line; in an offer the data begins within the one that is looked at.
    const std::size_t before = in_offer_ ? offsetof(Offer, payload) : 0;
    FastPath::Ahead ahead;
    if (begin < end) {
      const std::size_t first = std::max((begin + before) / kLine * kLine, in_offer_ ? kLine : 0);
      const std::size_t lines = (end + before - std::min(first, end + before) + kLine - 1) / kLine;
      if (lines <= kMostAhead) ahead = {.at = first - before, .lines = lines};
    }
    fast_path_.ahead.push_back(ahead);
  }
}

// False where the others can read the input itself.
bool DirectExecution::stays_staged() {
  offers_ = !direct_->readers.empty();
  input_ = output_ = {};
  streams_ = false;
  if (!offers_) return true;
  input_.kind = Reference::kStaged;
  const std::size_t bytes =
      static_cast<std::size_t>(direct_->input_blocks) * work_.count * element_bytes_;
  if (bytes <= kAlwaysStaged) return true;
  if (by_kernel_ && !count_->kernel_refuses) return false;
  if (changes_input()) return true;
  return refer(known_input_, work_.input, bytes).kind == Reference::kNone;
}

const std::byte* DirectExecution::staged_by(Rank rank) const {
  return in_offer_ ? shared_window_->part(rank).offers[number_ % SharedWindow::kOffers].payload
                   : shared_window_->staging(rank, base_);
}

bool DirectExecution::step_fast_path() {
  bool moved = false;
  if (staged_ == 0) {
    if (offers_) {
      if (!may_write_slot(base_)) return false;
      std::byte* const to =
          in_offer_ ? shared_window_->own().offers[number_ % SharedWindow::kOffers].payload
                    : shared_window_->staging(shared_window_->rank(), base_);
      for (const FastPath::Piece& piece : fast_path_.pieces) {
        stage_bytes(to + piece.to, work_.input + piece.from, piece.size_bytes);
      }
      offer();
    }
    staged_ = 1;
    moved = true;
  }
  if (!hear_fast_path()) {
    if (is_fast_) return moved;
    num_known_ = 0;
    return step();
  }
  fold_fast_path();
  shared_window_->publish(shared_window_->own().passed, base_ + 1);
  finished_ = true;
  shared_window_->wake_sleepers();
  if (tuner_ != nullptr) end_tuning();
  if (offers_ && direct_->partners.empty()) take_lines_back();
  return true;
}

// As offers_known(), one partner after the other. Where one offers more than what it staged, the
// call leaves the fast path.
bool DirectExecution::hear_fast_path() {
  for (; num_known_ < direct_->partners.size(); ++num_known_) {
    const Rank peer = direct_->partners[num_known_];
    const SharedWindow::Part& part = shared_window_->part(peer);
    const Offer& offer = part.offers[number_ % SharedWindow::kOffers];
    const FastPath::Ahead& ahead = fast_path_.ahead[num_known_];
    for (std::size_t i = 0; i < ahead.lines; ++i) {
      __builtin_prefetch(staged_by(peer) + ahead.at + i * kLine);
    }
    if (shared_window_->seen(peer, offer.sequence) != number_ + 1) {
      waiting_ = {.peer = peer, .instruction = 1, .of = 3};
      return false;
    }
    // It has failed and takes its offer back: the verdict is on its way.
    if (part.withdrawn.load(std::memory_order_acquire) != 0) return false;
    if (offer.tag != work_.tag) {
      mismatch_ = peer;
      return false;
    }
    if (offer.input_kind != Reference::kStaged) {  // it offers its buffer itself, or nothing
      is_fast_ = false;
      return false;
    }
    count_->passed[static_cast<std::size_t>(peer)] = offer.passed;
    if (is_timed_) note_begun(offer);
  }
  return true;
}

void DirectExecution::fold_fast_path() {
  const Rank me = shared_window_->rank();
  std::array<const void*, kMostSources> from;
  auto source = fast_path_.sources.begin();
  for (const FastPath::Result& result : fast_path_.results) {
    const std::size_t n = result.num_sources;
    for (std::size_t i = 0; i < n; ++i, ++source) {
      from[i] = (source->rank == me ? work_.input : staged_by(source->rank)) + source->at;
    }
    std::byte* const to = work_.output + result.at;
    if (n == 1 && work_.divisor == 1) {
      if (to != from[0]) copy_bytes(to, from[0], result.size_bytes);
    } else {
      fast_path_.fold(to, std::span(from).first(n), result.count);
    }
  }
  count_->moved_bytes += fast_path_.moved_bytes;
}

}  // namespace chorus
