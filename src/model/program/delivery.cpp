#include "model/program/delivery.hpp"

#include <algorithm>
#include <climits>
#include <numeric>
#include <span>

#include "base/index.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/replay.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

constexpr int kInitial = -1;  // a value that its rank has held from the beginning

struct ArrivalSource {
  Rank rank;
  int producer;  // arrival that made the value, or kInitial
};

/// One chunk arriving at one rank in one step.
struct Arrival {
  int step = 0;
  Rank dst = 0;
  ChunkId chunk = 0;
  Action action = Action::copy;
  bool completes = false;
  bool last = false;  // nothing arrives for this chunk and rank afterwards
  int own_producer = kInitial;
  int first_source = 0;
  int num_sources = 0;
  int first_send_step = INT_MAX;
  int readers = 0;
};

/// All arrivals of a schedule, with what made and who uses each value.
class ArrivalList {
 public:
  explicit ArrivalList(const Schedule& schedule)
      : schedule_(schedule),
        combining_(is_combining(schedule.collective.kind)),
        counts_(schedule.world_size),
        latest_(schedule.world_size, kInitial) {
    ByChunk by_chunk(schedule);
    for (ChunkId chunk = 0; chunk < num_named_chunks(schedule); ++chunk) {
      replay(chunk, by_chunk.of(chunk));
    }
    sort();
  }

  [[nodiscard]] std::span<const Arrival> all() const { return arrivals_; }
  [[nodiscard]] std::span<const ArrivalSource> sources(const Arrival& arrival) const {
    return std::span(sources_).subspan(arrival.first_source, arrival.num_sources);
  }
  [[nodiscard]] const Arrival& operator[](int index) const { return arrivals_[index]; }

 private:
  void replay(ChunkId chunk, std::span<TimedTransfer> transfers) {
    if (transfers.empty()) return;
    if (combining_) counts_.reset();
    // Correct schedules only: nothing here can be found at fault.
    (void)for_each_step(transfers, [&](std::span<TimedTransfer> step) {
      play(chunk, step);
      return std::optional<std::string>();
    });
    for (const TimedTransfer& transfer : transfers) {
      const int latest = std::exchange(latest_[transfer.dst], kInitial);
      if (latest == kInitial) continue;
      arrivals_[latest].last = true;
      if (wanted_at(schedule_, chunk, transfer.dst)) ++arrivals_[latest].readers;
    }
  }

  void play(ChunkId chunk, std::span<TimedTransfer> step) {
    const std::size_t first = arrivals_.size();
    const auto n = static_cast<std::size_t>(schedule_.world_size);
    for (std::size_t begin = 0; begin < step.size();) {
      const std::size_t end = run_end(step, begin, [](const auto& t) { return t.dst; });
      const auto group = distinct(step.subspan(begin, end - begin));
      add(chunk, group);
      if (combining_) {
        const std::size_t index = arrivals_.size() - first - 1;
        if (values_.size() < (index + 1) * n) values_.resize((index + 1) * n);
        const auto value = std::span(values_).subspan(index * n, n);
        counts_.fold(group, value);
        arrivals_.back().completes =
            group.front().action == Action::reduce &&
            std::all_of(value.begin(), value.end(), [](auto count) { return count == 1; });
      }
      begin = end;
    }
    for (std::size_t i = first; i < arrivals_.size(); ++i) {
      latest_[arrivals_[i].dst] = static_cast<int>(i);
      if (combining_) counts_.set(arrivals_[i].dst, std::span(values_).subspan((i - first) * n, n));
    }
  }

  /// The messages that matter: one of several equal copies, one reduction per source (a barrier
  /// may name more), in the order of ranks.
  static std::span<TimedTransfer> distinct(std::span<TimedTransfer> group) {
    if (group.front().action == Action::copy) return group.first(1);
    std::sort(group.begin(), group.end(),
              [](const auto& a, const auto& b) { return a.src < b.src; });
    const auto end = std::unique(group.begin(), group.end(),
                                 [](const auto& a, const auto& b) { return a.src == b.src; });
    return group.first(static_cast<std::size_t>(end - group.begin()));
  }

  void add(ChunkId chunk, std::span<const TimedTransfer> group) {
    const auto& [step, _, dst, action] = group.front();
    Arrival arrival{.step = step, .dst = dst, .chunk = chunk, .action = action};
    arrival.first_source = static_cast<int>(sources_.size());
    arrival.num_sources = static_cast<int>(group.size());
    if (action == Action::reduce) {
      arrival.own_producer = latest_[dst];
      if (latest_[dst] != kInitial) ++arrivals_[latest_[dst]].readers;
    }
    for (const TimedTransfer& transfer : group) {
      const int producer = latest_[transfer.src];
      sources_.push_back({transfer.src, producer});
      if (producer == kInitial) continue;
      ++arrivals_[producer].readers;
      arrivals_[producer].first_send_step = std::min(arrivals_[producer].first_send_step, step);
    }
    arrivals_.push_back(arrival);
  }

  /// By step, destination and chunk.
  void sort() {
    std::vector<int> order(arrivals_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      const Arrival& x = arrivals_[a];
      const Arrival& y = arrivals_[b];
      return std::pair(x.step, x.dst) < std::pair(y.step, y.dst);
    });
    std::vector<int> position(order.size());
    std::vector<Arrival> sorted;
    sorted.reserve(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      position[order[i]] = static_cast<int>(i);
      sorted.push_back(arrivals_[order[i]]);
    }
    const auto rename = [&](int& producer) {
      if (producer != kInitial) producer = position[producer];
    };
    for (Arrival& arrival : sorted) rename(arrival.own_producer);
    for (ArrivalSource& source : sources_) rename(source.producer);
    arrivals_ = std::move(sorted);
  }

  const Schedule& schedule_;
  bool combining_;
  std::vector<Arrival> arrivals_;
  std::vector<ArrivalSource> sources_;
  Counts counts_;
  std::vector<int> latest_;  // [world_size]: arrival that made the rank's value
  std::vector<std::uint8_t> values_;
};

/// Where a value may be read: one of the buffers, or `either` for what lies in the input and, if
/// it is copied early, in the output too.
enum class Source : std::uint8_t { input, output, scratch, either };

class Coalescer {
 public:
  Coalescer(const Schedule& schedule, const ArrivalList& arrivals, int most)
      : schedule_(schedule), arrivals_(arrivals), most_(most) {
    const CollectiveKind kind = schedule.collective.kind;
    // Where a rank wants only its own block, an unfinished value of it stays in scratch beside the
    // others it travels with, so that they still make one message.
    own_block_ = kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::scatter ||
                 kind == CollectiveKind::all_to_all;
    // An all_gather that doubles what it sends would otherwise split at the rank's own block,
    // which lies in the input while its neighbours lie in the output.
    copies_early_ = kind == CollectiveKind::all_gather;
  }

  Deliveries run() {
    const auto all = arrivals_.all();
    delivery_of_.resize(all.size());
    for (std::size_t begin = 0; begin < all.size();) {
      std::vector<Source> read = sources_of(all[begin]);
      std::size_t end = begin + 1;
      while (end < all.size() && all[end].chunk % most_ != 0 &&
             extends(all[end - 1], all[end], read)) {
        ++end;
      }
      emit(begin, end, read);
      begin = end;
    }
    std::sort(result_.early_copies.begin(), result_.early_copies.end());
    const auto last = std::unique(result_.early_copies.begin(), result_.early_copies.end());
    result_.early_copies.erase(last, result_.early_copies.end());
    return std::move(result_);
  }

 private:
  [[nodiscard]] Buffer destination(const Arrival& arrival) const {
    const bool output =
        wanted_at(schedule_, arrival.chunk, arrival.dst) && (!own_block_ || arrival.last);
    return output ? Buffer::output : Buffer::scratch;
  }

  [[nodiscard]] Buffer place(int producer) const {
    return producer == kInitial ? Buffer::input : destination(arrivals_[producer]);
  }

  [[nodiscard]] Source source(const ArrivalSource& from, ChunkId chunk) const {
    if (from.producer == kInitial && copies_early_ && wanted_at(schedule_, chunk, from.rank)) {
      return Source::either;
    }
    return static_cast<Source>(place(from.producer));
  }

  [[nodiscard]] std::vector<Source> sources_of(const Arrival& arrival) const {
    std::vector<Source> result;
    for (const ArrivalSource& from : arrivals_.sources(arrival)) {
      result.push_back(source(from, arrival.chunk));
    }
    return result;
  }

  /// True if `chunk` lies right before its successor in `rank`'s `buffer`.
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

  /// How a sender reads a run that goes on with a chunk found at `next`, if it can.
  [[nodiscard]] std::optional<Source> joined(Source run, Source next, ChunkId chunk,
                                             Rank rank) const {
    if (run != next) {
      const auto in_output = [](Source s) { return s == Source::output || s == Source::either; };
      if (!in_output(run) || !in_output(next)) return std::nullopt;
      run = Source::output;
    }
    const bool near = run == Source::either ? adjacent(Buffer::input, chunk, rank) &&
                                                  adjacent(Buffer::output, chunk, rank)
                                            : adjacent(static_cast<Buffer>(run), chunk, rank);
    return near ? std::optional(run) : std::nullopt;
  }

  /// True, with `read` brought up to date, if `next` can travel with the run that ends in `tail`.
  bool extends(const Arrival& tail, const Arrival& next, std::vector<Source>& read) const {
    if (tail.step != next.step || tail.dst != next.dst || tail.chunk + 1 != next.chunk ||
        tail.action != next.action || tail.completes != next.completes ||
        tail.num_sources != next.num_sources || destination(tail) != destination(next) ||
        !adjacent(destination(tail), tail.chunk, tail.dst)) {
      return false;
    }
    if (tail.action == Action::reduce &&
        (place(tail.own_producer) != place(next.own_producer) ||
         !adjacent(place(tail.own_producer), tail.chunk, tail.dst))) {
      return false;
    }
    std::vector<Source> longer;
    for (int i = 0; i < tail.num_sources; ++i) {
      const ArrivalSource& from = arrivals_.sources(next)[i];
      if (arrivals_.sources(tail)[i].rank != from.rank) return false;
      const auto how = joined(read[i], source(from, next.chunk), tail.chunk, from.rank);
      if (!how) return false;
      longer.push_back(*how);
    }
    read = std::move(longer);
    return true;
  }

  void emit(std::size_t begin, std::size_t end, std::span<const Source> read) {
    const Arrival& first = arrivals_.all()[begin];
    Delivery delivery{.step = first.step,
                      .dst = first.dst,
                      .chunk = first.chunk,
                      .count = static_cast<int>(end - begin),
                      .action = first.action,
                      .completes = first.completes,
                      .own = place(first.own_producer),
                      .destination = destination(first),
                      .senders = {},
                      .next_send_step = first.first_send_step};
    for (std::size_t i = begin; i < end; ++i) {
      const Arrival& arrival = arrivals_.all()[i];
      delivery_of_[i] = static_cast<int>(result_.list.size());
      delivery.readers = std::max(delivery.readers, arrival.readers);
      if (arrival.first_send_step != delivery.next_send_step) delivery.next_send_step = -1;
    }
    if (delivery.next_send_step == INT_MAX) delivery.next_send_step = -1;
    for (int i = 0; i < first.num_sources; ++i) {
      delivery.senders.push_back(sender(begin, end, i, read[i]));
    }
    result_.list.push_back(std::move(delivery));
  }

  Sender sender(std::size_t begin, std::size_t end, int index, Source read) {
    const Rank rank = arrivals_.sources(arrivals_.all()[begin])[index].rank;
    Sender result{.rank = rank, .buffer = Buffer::input, .producer = -1};
    if (read != Source::either) result.buffer = static_cast<Buffer>(read);
    for (std::size_t i = begin; i < end; ++i) {
      const Arrival& arrival = arrivals_.all()[i];
      const ArrivalSource& from = arrivals_.sources(arrival)[index];
      if (read == Source::output && from.producer == kInitial) {
        result_.early_copies.emplace_back(rank, arrival.chunk);
      }
      const int producer = from.producer == kInitial ? -1 : delivery_of_[from.producer];
      if (i == begin) result.producer = producer;
      if (producer != result.producer) result.producer = -1;
    }
    if (result.producer == -1) return result;
    const Delivery& made = result_.list[result.producer];
    const bool exactly =
        made.chunk == arrivals_.all()[begin].chunk && made.count == static_cast<int>(end - begin);
    if (!exactly) result.producer = -1;
    return result;
  }

  const Schedule& schedule_;
  const ArrivalList& arrivals_;
  int most_;
  bool own_block_ = false;
  bool copies_early_ = false;
  std::vector<int> delivery_of_;  // by arrival
  Deliveries result_;
};

}  // namespace

Deliveries deliveries(const Schedule& schedule, int most) {
  const ArrivalList arrivals(schedule);
  return Coalescer(schedule, arrivals, most).run();
}

std::vector<ChunkId> own_chunks(const Schedule& schedule, const std::vector<Delivery>& deliveries,
                                const std::vector<int>& received, Rank rank) {
  std::vector<ChunkId> arrived;
  for (const int i : received) {
    const Delivery& delivery = deliveries[at(i)];
    for (int c = 0; c < delivery.count; ++c) arrived.push_back(delivery.chunk + c);
  }
  std::sort(arrived.begin(), arrived.end());
  const int k = schedule.num_chunks / num_blocks(schedule.collective.kind, schedule.world_size);
  const int size = input_blocks(schedule.collective, schedule.world_size, rank) * k;
  std::vector<ChunkId> result;
  for (int i = 0; i < size; ++i) {
    const ChunkId chunk = input_chunk(schedule, i, rank);
    if (wanted_at(schedule, chunk, rank) &&
        !std::binary_search(arrived.begin(), arrived.end(), chunk)) {
      result.push_back(chunk);
    }
  }
  return result;
}

}  // namespace chorus
