// own_deliveries(): what one rank takes part in, from the transfers that a schedule names.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/program/delivery.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

/// The deliveries to `rank` and the messages from it, as images of those of cell 0's chunks.
Deliveries images_at(const Schedule& schedule, const Deliveries& named, Rank rank) {
  const Cells cells = cells_of(schedule);
  const int cell = cells.cell_of(rank);
  const auto is_counterpart = [&](Rank other) {
    return other % cells.size() == rank % cells.size();
  };
  Deliveries result;
  const auto add = [&](const Delivery& delivery, int by) {
    Delivery& image = result.list.emplace_back(delivery);
    image.dst = cells.moved(delivery.dst, by);
    image.chunk = moved_chunk(schedule, cells, delivery.chunk, by);
    for (Sender& sender : image.senders) {
      sender.rank = cells.moved(sender.rank, by);
      sender.producer = -1;
    }
    std::sort(image.senders.begin(), image.senders.end(),
              [](const Sender& a, const Sender& b) { return a.rank < b.rank; });
  };
  for (const Delivery& delivery : named.list) {
    std::vector<int> by;
    if (is_counterpart(delivery.dst)) by.push_back(cells.minus(cell, cells.cell_of(delivery.dst)));
    for (const Sender& sender : delivery.senders) {
      if (is_counterpart(sender.rank)) by.push_back(cells.minus(cell, cells.cell_of(sender.rank)));
    }
    std::sort(by.begin(), by.end());
    by.erase(std::unique(by.begin(), by.end()), by.end());
    for (const int g : by) add(delivery, g);
  }
  std::sort(result.list.begin(), result.list.end(), [](const Delivery& a, const Delivery& b) {
    return std::tie(a.step, a.dst, a.chunk) < std::tie(b.step, b.dst, b.chunk);
  });
  for (const auto& [holder, chunk] : named.early_copies) {
    if (!is_counterpart(holder)) continue;
    const int by = cells.minus(cell, cells.cell_of(holder));
    result.early_copies.emplace_back(rank, moved_chunk(schedule, cells, chunk, by));
  }
  std::sort(result.early_copies.begin(), result.early_copies.end());
  return result;
}

/// Joins the deliveries of one step between the same ranks whose chunks follow each other, at both
/// ends, into messages of several chunks. Both ends of a message know all of it and decide alike:
/// a delivery says where its chunk lies at its destination and at each of its senders.
class Joining {
 public:
  Joining(const Schedule& schedule, Rank rank) : schedule_(schedule), rank_(rank) {}

  Deliveries run(Deliveries apart) {
    Deliveries result;
    result.early_copies = std::move(apart.early_copies);
    for (Delivery& next : apart.list) {
      if (result.list.empty() || !follows(result.list.back(), next)) {
        result.list.push_back(std::move(next));
        continue;
      }
      Delivery& run = result.list.back();
      for (std::size_t i = 0; i < run.senders.size(); ++i) {
        read_from_output(run, next, run.senders[i], next.senders[i], result.early_copies);
      }
      ++run.count;
    }
    std::sort(result.early_copies.begin(), result.early_copies.end());
    return result;
  }

 private:
  [[nodiscard]] bool adjacent(Buffer buffer, ChunkId chunk, Rank rank) const {
    switch (buffer) {
      case Buffer::input:
        return input_index(schedule_, chunk + 1, rank) == input_index(schedule_, chunk, rank) + 1;
      case Buffer::output:
        return output_index(schedule_, chunk + 1, rank) == output_index(schedule_, chunk, rank) + 1;
      case Buffer::scratch:
        return true;  // numbered in the order of chunks, without gaps
    }
    return false;
  }

  /// The chunks that an all_gather's rank contributes may be read from its output, too, once they
  /// are copied there: so they travel with those that arrived.
  [[nodiscard]] bool may_read_output(const Sender& a, const Sender& b) const {
    return schedule_.collective.kind == CollectiveKind::all_gather && a.buffer != b.buffer &&
           a.buffer != Buffer::scratch && b.buffer != Buffer::scratch;
  }

  [[nodiscard]] bool follows(const Delivery& run, const Delivery& next) const {
    const ChunkId last = run.chunk + run.count - 1;
    if (run.step != next.step || run.dst != next.dst || last + 1 != next.chunk ||
        run.action != next.action || run.completes != next.completes ||
        run.destination != next.destination || run.senders.size() != next.senders.size() ||
        !adjacent(run.destination, last, run.dst)) {
      return false;
    }
    if (run.action == Action::reduce &&
        (run.own != next.own || !adjacent(run.own, last, run.dst))) {
      return false;
    }
    return std::equal(run.senders.begin(), run.senders.end(), next.senders.begin(),
                      [&](const Sender& a, const Sender& b) {
                        if (a.rank != b.rank) return false;
                        if (may_read_output(a, b)) return adjacent(Buffer::output, last, a.rank);
                        return a.buffer == b.buffer && adjacent(a.buffer, last, a.rank);
                      });
  }

  void read_from_output(const Delivery& run, const Delivery& next, Sender& sender,
                        const Sender& of_next,
                        std::vector<std::pair<Rank, ChunkId>>& copies) const {
    if (!may_read_output(sender, of_next)) return;
    if (sender.rank == rank_) {
      if (of_next.buffer == Buffer::input) copies.emplace_back(rank_, next.chunk);
      for (int i = 0; i < run.count && sender.buffer == Buffer::input; ++i) {
        copies.emplace_back(rank_, run.chunk + i);
      }
    }
    sender.buffer = Buffer::output;
  }

  const Schedule& schedule_;
  Rank rank_;
};

/// The most chunks that any two ranks exchange in one step in a row: an upper bound that all ranks
/// compute alike, though each sees only its own messages.
///
/// Two chunks may follow each other for some ranks though they do not in cell 0: their images do
/// where a digit wraps around. So chunks count as neighbours if any image of theirs are.
class LongestRun {
 public:
  explicit LongestRun(const Schedule& schedule)
      : schedule_(schedule),
        cells_(cells_of(schedule)),
        per_rank_(schedule.num_chunks / schedule.world_size) {}

  int run() {
    int longest = 1;
    std::vector<std::tuple<Rank, Rank, ChunkId>> sent;  // with src moved to cell 0
    for (const Step& step : schedule_.steps) {
      sent.clear();
      for (const Transfer& transfer : step) {
        const int by = cells_.minus(0, cells_.cell_of(transfer.src));
        sent.emplace_back(cells_.moved(transfer.src, by), cells_.moved(transfer.dst, by),
                          moved_chunk(schedule_, cells_, transfer.chunk, by));
      }
      std::sort(sent.begin(), sent.end());
      for (std::size_t begin = 0; begin < sent.size();) {
        std::size_t end = begin;
        position_.clear();
        while (end < sent.size() && std::get<0>(sent[end]) == std::get<0>(sent[begin]) &&
               std::get<1>(sent[end]) == std::get<1>(sent[begin])) {
          position_.try_emplace(std::get<2>(sent[end++]), static_cast<int>(position_.size()));
        }
        if (end - begin > 1) longest = std::max(longest, largest_cluster());
        begin = end;
      }
    }
    return longest;
  }

 private:
  /// Of the chunks in position_, those connected by being neighbours.
  int largest_cluster() {
    parent_.resize(position_.size());
    std::iota(parent_.begin(), parent_.end(), 0);
    size_.assign(position_.size(), 1);
    int largest = 1;
    for (const auto& [chunk, position] : position_) {
      for_each_successor(chunk, [&, here = position](ChunkId next) {
        const auto found = position_.find(next);
        if (found != position_.end()) largest = std::max(largest, join(here, found->second));
      });
    }
    return largest;
  }

  template <class Visit>
  void for_each_successor(ChunkId chunk, Visit visit) const {
    const Rank rank = chunk / per_rank_;
    if (chunk % per_rank_ + 1 < per_rank_ || rank % cells_.size() + 1 < cells_.size()) {
      return visit(chunk + 1);
    }
    int by = 0;  // 1, or 1 in the lowest digits, which all wrap around but the last
    int stride = 1;
    for (const int radix : cells_.radices()) {
      by += stride;
      stride *= radix;
      visit(cells_.plus(cells_.cell_of(rank), by) * cells_.size() * per_rank_);
    }
  }

  int find(int i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  int join(int a, int b) {
    a = find(a);
    b = find(b);
    if (a != b) {
      parent_[a] = b;
      size_[b] += size_[a];
    }
    return size_[b];
  }

  const Schedule& schedule_;
  const Cells cells_;
  const int per_rank_;
  std::unordered_map<ChunkId, int> position_;
  std::vector<int> parent_, size_;
};

}  // namespace

OwnDeliveries own_deliveries(const Schedule& schedule, Rank rank) {
  if (schedule.symmetry.empty()) {
    OwnDeliveries own{.deliveries = deliveries(schedule, schedule.num_chunks), .longest = 1};
    for (const Delivery& delivery : own.deliveries.list) {
      own.longest = std::max(own.longest, delivery.count);
    }
    return own;
  }
  Deliveries images = images_at(schedule, deliveries(schedule, 1), rank);
  // Of all_to_all what a relay sends on seldom lies together, and one block each is what lets a
  // slot hold a long one.
  if (schedule.collective.kind == CollectiveKind::all_to_all) return {std::move(images), 1};
  return {Joining(schedule, rank).run(std::move(images)), LongestRun(schedule).run()};
}

}  // namespace chorus
