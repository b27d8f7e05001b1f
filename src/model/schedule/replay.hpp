// How a schedule is replayed: one chunk after the other, on contribution counts. For model/ only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {

struct TimedTransfer {
  int step;
  Rank src;
  Rank dst;
  Action action;
};

/// All transfers that a schedule names sorted by chunk, then by step, then as listed.
class ByChunk {
 public:
  explicit ByChunk(const Schedule& schedule)
      : begin_(static_cast<std::size_t>(num_named_chunks(schedule)) + 1) {
    std::size_t total = 0;
    for (const Step& step : schedule.steps) {
      total += step.size();
      for (const Transfer& transfer : step) ++begin_[transfer.chunk + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    transfers_.resize(total);
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
      for (const auto& [src, dst, chunk, action] : schedule.steps[step]) {
        transfers_[next[chunk]++] = {static_cast<int>(step), src, dst, action};
      }
    }
  }

  std::span<TimedTransfer> of(ChunkId chunk) {
    return std::span(transfers_).subspan(begin_[chunk], begin_[chunk + 1] - begin_[chunk]);
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<TimedTransfer> transfers_;
};

/// What every rank holds of one chunk, as counts of contributions.
///
/// A count saturates at 255: only 0, 1 and "more than once" are told apart. A row is written out
/// only once its rank has received something, so a chunk that few ranks touch costs little.
class Counts {
 public:
  explicit Counts(int world_size)
      : n_(world_size), received_(static_cast<std::size_t>(world_size)) {}

  /// Forgets everything: each rank in [0, n) holds its own contribution once.
  void reset() {
    std::fill(received_.begin(), received_.end(), 0);
    rows_.resize(n_ * n_);
  }

  /// Folds all of `group` (one step and destination) into `out` [n].
  void fold(std::span<const TimedTransfer> group, std::span<std::uint8_t> out) const {
    const Rank own = group.front().action == Action::reduce ? group.front().dst : -1;
    std::fill(out.begin(), out.end(), 0);
    if (own != -1) add(own, out);
    for (const TimedTransfer& transfer : group) {
      add(transfer.src, out);
      if (own == -1) break;  // copies were found equal: one stands for all
    }
  }

  void set(Rank rank, std::span<const std::uint8_t> value) {
    std::copy(value.begin(), value.end(), rows_.begin() + rank * n_);
    received_[rank] = 1;
  }

  [[nodiscard]] bool same(Rank a, Rank b) const {
    if (!received_[a] || !received_[b]) {
      for (std::size_t i = 0; i < n_; ++i) {
        if (count(a, static_cast<Rank>(i)) != count(b, static_cast<Rank>(i))) return false;
      }
      return true;
    }
    const auto row = rows_.begin() + a * n_;
    return std::equal(row, row + n_, rows_.begin() + b * n_);
  }

  /// How often `rank` holds the contribution of `of`.
  [[nodiscard]] int count(Rank rank, Rank of) const {
    return received_[rank] ? rows_[rank * n_ + of] : (rank == of ? 1 : 0);
  }

 private:
  void add(Rank rank, std::span<std::uint8_t> out) const {
    if (!received_[rank]) {
      out[rank] = static_cast<std::uint8_t>(std::min(out[rank] + 1, 255));
      return;
    }
    const std::uint8_t* row = rows_.data() + rank * n_;
    for (std::size_t i = 0; i < n_; ++i) {
      out[i] = static_cast<std::uint8_t>(std::min(out[i] + row[i], 255));
    }
  }

  std::size_t n_;
  std::vector<std::uint8_t> received_;
  std::vector<std::uint8_t> rows_;  // [n · n]
};

/// End of the run of equal `key`s that begins at `begin`.
template <class Key>
[[nodiscard]] std::size_t run_end(std::span<const TimedTransfer> transfers, std::size_t begin,
                                  Key key) {
  std::size_t end = begin + 1;
  while (end < transfers.size() && key(transfers[end]) == key(transfers[begin])) ++end;
  return end;
}

/// Sorts the transfers of each step by destination and calls `visit(step's transfers)` until it
/// returns something.
template <class Visit>
std::optional<std::string> for_each_step(std::span<TimedTransfer> transfers, Visit visit) {
  for (std::size_t begin = 0; begin < transfers.size();) {
    const std::size_t end = run_end(transfers, begin, [](const auto& t) { return t.step; });
    const auto step = transfers.subspan(begin, end - begin);
    std::stable_sort(step.begin(), step.end(),
                     [](const auto& a, const auto& b) { return a.dst < b.dst; });
    if (auto fault = visit(step)) return fault;
    begin = end;
  }
  return std::nullopt;
}

}  // namespace chorus
