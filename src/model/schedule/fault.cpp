// first_fault(Schedule): replays a schedule on contribution counts, one chunk after the other.
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/replay.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

using Fault = std::optional<std::string>;

/// The ranks [first, second) that must hold `chunk` afterwards.
std::pair<Rank, Rank> destinations(const Schedule& schedule, ChunkId chunk) {
  const Rank one = destination_of(schedule, chunk);
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
    const auto [begin, end] = destinations(schedule_, chunk);
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
    const auto [begin, end] = destinations(schedule_, chunk);
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

/// With symmetry the chunks of cell 0 stand for all: what happens to any other chunk is the image
/// of what happens to one of them, and so is what the collective promises of it.
template <class Replay>
Fault replay_all(const Schedule& schedule) {
  ByChunk transfers(schedule);
  Replay replay(schedule);
  for (ChunkId chunk = 0; chunk < num_named_chunks(schedule); ++chunk) {
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
  const std::size_t transfers = num_transfers(schedule);
  if (transfers < static_cast<std::size_t>(schedule.num_chunks) / 2) {
    return fmt::format("{} cannot deliver {} of {} on {}",
                       counted(static_cast<long long>(transfers), "transfer"),
                       counted(schedule.num_chunks, "chunk"), name_of(schedule.collective.kind),
                       counted(schedule.world_size, "rank"));
  }
  return is_combining(schedule.collective.kind) ? replay_all<CombiningReplay>(schedule)
                                                : replay_all<CopyReplay>(schedule);
}

}  // namespace chorus
