// first_fault(Schedule): replays a schedule on contribution counts, one chunk after the other.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model/contract.hpp"

namespace chorus {
namespace {

using Fault = std::optional<std::string>;

struct TimedTransfer {
  int step;
  Rank src;
  Rank dst;
  Action action;
};

/// All transfers of a schedule sorted by chunk, then by step, then as listed.
class ByChunk {
 public:
  explicit ByChunk(const Schedule& schedule)
      : begin_(static_cast<std::size_t>(schedule.num_chunks) + 1) {
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
std::size_t run_end(std::span<const TimedTransfer> transfers, std::size_t begin, Key key) {
  std::size_t end = begin + 1;
  while (end < transfers.size() && key(transfers[end]) == key(transfers[begin])) ++end;
  return end;
}

/// Sorts the transfers of each step by destination and calls `visit(step's transfers)`.
template <class Visit>
Fault for_each_step(std::span<TimedTransfer> transfers, Visit visit) {
  for (std::size_t begin = 0; begin < transfers.size();) {
    const std::size_t end = run_end(transfers, begin, [](const auto& t) { return t.step; });
    const auto step = transfers.subspan(begin, end - begin);
    std::stable_sort(step.begin(), step.end(),
                     [](const auto& a, const auto& b) { return a.dst < b.dst; });
    if (Fault fault = visit(step)) return fault;
    begin = end;
  }
  return std::nullopt;
}

/// The ranks [first, second) that must hold `chunk` afterwards.
std::pair<Rank, Rank> takers(const Schedule& schedule, ChunkId chunk) {
  const Rank one = taker(schedule, chunk);
  return one == -1 ? std::pair{0, schedule.world_size} : std::pair{one, one + 1};
}

/// Kinds that only copy: presence is all there is to count, and only one rank contributes.
class CopyReplay {
 public:
  explicit CopyReplay(const Schedule& schedule)
      : schedule_(schedule), holds_(static_cast<std::size_t>(schedule.world_size)) {}

  Fault run(ChunkId chunk, std::span<TimedTransfer> transfers) {
    for (const Rank rank : touched_) holds_[rank] = 0;
    touched_ = {origin(schedule_, chunk)};
    holds_[touched_.front()] = 1;
    Fault fault = for_each_step(transfers, [&](std::span<const TimedTransfer> step) -> Fault {
      for (const TimedTransfer& t : step) {
        if (holds_[t.src]) continue;
        return fmt::format("step {}: rank {} sends chunk {} to rank {} but does not hold it",
                           t.step, t.src, chunk, t.dst);
      }
      for (const TimedTransfer& t : step) {
        if (!holds_[t.dst]) touched_.push_back(t.dst);
        holds_[t.dst] = 1;
      }
      return std::nullopt;
    });
    return fault ? fault : missing(chunk);
  }

 private:
  [[nodiscard]] Fault missing(ChunkId chunk) const {
    const auto [begin, end] = takers(schedule_, chunk);
    for (Rank rank = begin; rank < end; ++rank) {
      if (holds_[rank]) continue;
      return fmt::format("rank {} never receives chunk {}, which {} promises it (from rank {})",
                         rank, chunk, name_of(schedule_.collective.kind), origin(schedule_, chunk));
    }
    return std::nullopt;
  }

  const Schedule& schedule_;
  std::vector<std::uint8_t> holds_;
  std::vector<Rank> touched_;
};

/// Kinds that combine: a count per holder and contributor.
class CombiningReplay {
 public:
  explicit CombiningReplay(const Schedule& schedule)
      : schedule_(schedule), counts_(schedule.world_size) {}

  Fault run(ChunkId chunk, std::span<TimedTransfer> transfers) {
    counts_.reset();
    Fault fault = for_each_step(
        transfers, [&](std::span<const TimedTransfer> step) { return play(chunk, step); });
    return fault ? fault : wrong_result(chunk);
  }

 private:
  /// All sources are read before any destination is written.
  Fault play(ChunkId chunk, std::span<const TimedTransfer> step) {
    const std::size_t n = schedule_.world_size;
    arrived_.clear();
    for (std::size_t begin = 0; begin < step.size();) {
      const std::size_t end = run_end(step, begin, [](const auto& t) { return t.dst; });
      const auto group = step.subspan(begin, end - begin);
      if (Fault fault = conflict(chunk, group)) return fault;
      if (values_.size() < (arrived_.size() + 1) * n) values_.resize((arrived_.size() + 1) * n);
      counts_.fold(group, std::span(values_).subspan(arrived_.size() * n, n));
      arrived_.push_back(group.front().dst);
      begin = end;
    }
    for (std::size_t i = 0; i < arrived_.size(); ++i) {
      counts_.set(arrived_[i], std::span(values_).subspan(i * n, n));
    }
    return std::nullopt;
  }

  [[nodiscard]] Fault conflict(ChunkId chunk, std::span<const TimedTransfer> group) const {
    const TimedTransfer& first = group.front();
    for (const TimedTransfer& other : group.subspan(1)) {
      if (other.action != first.action) {
        return fmt::format(
            "step {}: chunk {} is both copied and reduced into rank {} (from ranks "
            "{} and {})",
            first.step, chunk, first.dst, first.src, other.src);
      }
      if (first.action == Action::copy && !counts_.same(first.src, other.src)) {
        return fmt::format("step {}: ranks {} and {} copy different values of chunk {} to rank {}",
                           first.step, first.src, other.src, chunk, first.dst);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] Fault wrong_result(ChunkId chunk) const {
    // A barrier has no data: hearing from a rank twice does no harm.
    const bool once = schedule_.collective.kind != CollectiveKind::barrier;
    const auto [begin, end] = takers(schedule_, chunk);
    for (Rank rank = begin; rank < end; ++rank) {
      for (Rank of = 0; of < schedule_.world_size; ++of) {
        const int count = counts_.count(rank, of);
        if (count == 1 || (count > 1 && !once)) continue;
        if (count == 0) {
          return fmt::format("rank {} ends without the contribution of rank {} to chunk {}", rank,
                             of, chunk);
        }
        return fmt::format(
            "rank {} ends with the contribution of rank {} to chunk {} reduced {} "
            "times",
            rank, of, chunk, count);
      }
    }
    return std::nullopt;
  }

  const Schedule& schedule_;
  Counts counts_;
  std::vector<Rank> arrived_;
  std::vector<std::uint8_t> values_;  // [arrived · n]
};

template <class Replay>
Fault replay_all(const Schedule& schedule) {
  ByChunk transfers(schedule);
  Replay replay(schedule);
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    if (Fault fault = replay.run(chunk, transfers.of(chunk))) {
      return fault;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> first_fault(const Schedule& schedule) {
  if (Fault fault = malformed(schedule)) return fault;
  if (schedule.world_size == 1) return std::nullopt;  // well formed, so without transfers
  // At least half of all chunks must move, whatever the kind. Seen before memory is taken for each
  // of the chunks that a short file can announce.
  std::size_t transfers = 0;
  for (const Step& step : schedule.steps) transfers += step.size();
  if (transfers < static_cast<std::size_t>(schedule.num_chunks) / 2) {
    return fmt::format("{} transfers cannot deliver the {} chunks of {} on {} ranks", transfers,
                       schedule.num_chunks, name_of(schedule.collective.kind), schedule.world_size);
  }
  return is_combining(schedule.collective.kind) ? replay_all<CombiningReplay>(schedule)
                                                : replay_all<CopyReplay>(schedule);
}

}  // namespace chorus
