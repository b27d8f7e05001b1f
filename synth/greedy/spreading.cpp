// Greedy runs of all_gather and broadcast: chunks that many ranks want.
#include <bit>
#include <limits>
#include <random>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"
#include "model/schedule/contract.hpp"
#include "synth/greedy/run.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr std::size_t kNear = 16;       // in-neighbours that are counted one by one
constexpr int kLooksAt = 64;            // candidates of one choice
constexpr double kWorthGivingUp = 0.2;  // of the newcomer's time: what it must arrive earlier

/// Rows of bits.
class Bits {
 public:
  Bits(int rows, int columns) : words_((at(columns) + 63) / 64), bits_(at(rows) * words_) {}
  void set(int row, int column) { word(row, column) |= mask(column); }
  void clear(int row, int column) { word(row, column) &= ~mask(column); }
  [[nodiscard]] bool test(int row, int column) const {
    return (bits_[at(row) * words_ + at(column) / 64] & mask(column)) != 0;
  }
  [[nodiscard]] std::size_t words() const { return words_; }
  [[nodiscard]] const std::uint64_t* row(int row) const { return &bits_[at(row) * words_]; }

 private:
  static std::uint64_t mask(int column) { return std::uint64_t{1} << (at(column) % 64); }
  std::uint64_t& word(int row, int column) { return bits_[at(row) * words_ + at(column) / 64]; }

  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

class Spreading {
 public:
  Spreading(const GreedyGround& ground, Collective collective, int chunks_per_block,
            double chunk_bytes, std::uint64_t seed)
      : ground_(ground),
        network_(ground.network),
        n_(network_.world_size()),
        chunks_(num_blocks(collective.kind, n_) * chunks_per_block),
        clock_(network_, chunk_bytes),
        random_(seed),
        by_neighbours_first_(seed % 2 == 1),
        has_(n_, chunks_),
        gets_(n_, chunks_),
        holders_(at(chunks_), 0),
        pending_(at(n_)),
        missing_(static_cast<std::int64_t>(n_) * chunks_) {
    std::size_t most = 0;
    for (Rank rank = 0; rank < n_; ++rank) most = std::max(most, network_.in(rank).size());
    by_rank_ = most <= kNear;
    around_.assign(at(by_rank_ ? n_ : ground.num_clusters) * at(chunks_), 0);
    for (ChunkId chunk = 0; chunk < chunks_; ++chunk) {
      const Rank origin = collective.kind == CollectiveKind::all_gather ? chunk / chunks_per_block
                                                                        : collective.root;
      has_.set(origin, chunk);
      promise(origin, chunk);
    }
    const Edge* first = network_.edges().empty() ? nullptr : network_.edges().data();
    for (const Edge& edge : network_.edges()) {
      equal_edges_ &=
          edge.alpha_s == first->alpha_s && edge.beta_s_per_byte == first->beta_s_per_byte;
    }
  }

  std::optional<GreedyRun> run(const Budget& budget) {
    std::vector<int> all(network_.edges().size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    shuffle(all, random_);
    for (const int edge : all) try_edge(edge);
    std::vector<int> freed;
    for (std::int64_t turn = 0; !clock_.over(); ++turn) {
      if (turn % 64 == 0 && budget.spent()) return std::nullopt;
      clock_.advance();
      freed.clear();
      arrived_.clear();
      for (const Clock::Event& event : clock_.happened()) {
        if (!event.arrival) {
          freed.push_back(event.id);
        } else if (!jobs_[at(event.id)].given_up) {
          arrive(event.id);
        }
      }
      shuffle(freed, random_);
      for (const int resource : freed) refill(resource);
      for (const Hop& hop : arrived_) wake(hop.dst, hop.chunk);
    }
    if (missing_ > 0) return std::nullopt;
    GreedyRun result;
    for (const Job& job : jobs_) {
      if (job.given_up) continue;
      const Edge& edge = network_.edges()[at(job.edge)];
      result.hops.push_back({edge.src, edge.dst, job.chunk});
      result.seconds = std::max(result.seconds, job.end_s);
    }
    return result;
  }

 private:
  struct Job {
    int edge = 0;
    ChunkId chunk = 0;
    double begin_s = 0;
    double end_s = 0;
    bool given_up = false;
  };

  /// `rank` has the chunk or will have it: it is less rare now.
  void promise(Rank rank, ChunkId chunk) {
    gets_.set(rank, chunk);
    ++holders_[at(chunk)];
    --missing_;
    count_around(rank, chunk, 1);
  }

  void count_around(Rank rank, ChunkId chunk, int by) {
    if (!by_rank_) {
      around_[at(ground_.cluster[at(rank)]) * at(chunks_) + at(chunk)] += by;
      return;
    }
    for (const int index : network_.out(rank)) {
      around_[at(network_.edges()[at(index)].dst) * at(chunks_) + at(chunk)] += by;
    }
  }

  void arrive(int id) {
    const Job& job = jobs_[at(id)];
    const Edge& edge = network_.edges()[at(job.edge)];
    has_.set(edge.dst, job.chunk);
    std::erase(pending_[at(edge.dst)], id);
    arrived_.push_back({edge.src, edge.dst, job.chunk});
  }

  /// The resource is free: whichever edge over it can use it does.
  void refill(int resource) {
    const std::vector<int>& over = ground_.over[at(resource)];
    const std::size_t first = random_() % over.size();
    for (std::size_t i = 0; i < over.size(); ++i) {
      if (!clock_.idle(resource)) return;
      try_edge(over[(first + i) % over.size()]);
    }
  }

  /// A chunk is new at `rank`: edges that had nothing to carry may have now.
  void wake(Rank rank, ChunkId chunk) {
    const std::span<const int> out = network_.out(rank);
    if (out.empty()) return;
    const std::size_t first = random_() % out.size();
    int busy = -1;  // the resource that was in the way last: mostly the rank's own port
    for (std::size_t i = 0; i < out.size(); ++i) {
      const int index = out[(first + i) % out.size()];
      const Edge& edge = network_.edges()[at(index)];
      if (gets_.test(edge.dst, chunk) && equal_edges_) continue;
      if (!edge.resources.empty() && edge.resources.front() == busy) continue;
      if (!edge.resources.empty() && !clock_.idle(edge.resources.front())) {
        busy = edge.resources.front();
        continue;
      }
      try_edge(index);
    }
  }

  void try_edge(int index) {
    const Edge& edge = network_.edges()[at(index)];
    while (clock_.idle(edge)) {
      const ChunkId chunk = choose(edge);
      if (chunk >= 0) {
        promise(edge.dst, chunk);
        begin(index, chunk);
      } else if (equal_edges_ || !take_over(index)) {
        return;
      }
    }
  }

  void begin(int index, ChunkId chunk) {
    const Edge& edge = network_.edges()[at(index)];
    const auto id = static_cast<int>(jobs_.size());
    jobs_.push_back({index, chunk, clock_.now_s(), 0});
    jobs_.back().end_s = clock_.begin(edge, id);
    pending_[at(edge.dst)].push_back(id);
  }

  /// Of the chunks that the edge could bring the one that is hardest to get at its end otherwise;
  /// -1 if there is none.
  ChunkId choose(const Edge& edge) {
    const std::uint64_t* const here = has_.row(edge.src);
    const std::uint64_t* const there = gets_.row(edge.dst);
    const std::size_t words = has_.words();
    const std::size_t place = at(by_rank_ ? edge.dst : ground_.cluster[at(edge.dst)]);
    const int* const around = &around_[place * at(chunks_)];
    const std::size_t first = random_() % words;
    const auto turn = static_cast<int>(random_() % 64);
    ChunkId best = -1;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    int looks = 0;
    for (std::size_t i = 0; i < words && looks < kLooksAt; ++i) {
      const std::size_t word = first + i < words ? first + i : first + i - words;
      std::uint64_t bits = std::rotr(here[word] & ~there[word], turn);
      for (; bits != 0; bits &= bits - 1, ++looks) {
        const int bit = (std::countr_zero(bits) + turn) % 64;
        const auto chunk = static_cast<ChunkId>(word * 64 + at(bit));
        const std::int64_t near = around[chunk];
        const std::int64_t far = holders_[at(chunk)];
        const std::int64_t score =
            by_neighbours_first_ ? near * (n_ + 1) + far : far * (n_ + 1) + near;
        if (score >= least) continue;
        least = score;
        best = chunk;
      }
    }
    count_work(20 + words + at(looks), 3);
    return best;
  }

  /// Gives up the chunk that would arrive latest at the end of the edge for one over this edge, if
  /// that is much earlier.
  bool take_over(int index) {
    const Edge& edge = network_.edges()[at(index)];
    const double mine_s = clock_.arrival_s(edge);
    double latest_s = mine_s + kWorthGivingUp * (mine_s - clock_.now_s());
    int found = -1;
    for (const int id : pending_[at(edge.dst)]) {
      const Job& job = jobs_[at(id)];
      if (job.end_s <= latest_s || !has_.test(edge.src, job.chunk)) continue;
      latest_s = job.end_s;
      found = id;
    }
    if (found < 0) return false;
    Job& job = jobs_[at(found)];
    job.given_up = true;
    std::erase(pending_[at(edge.dst)], found);
    const ChunkId chunk = job.chunk;
    const Edge& slow = network_.edges()[at(job.edge)];
    const double begun_s = job.begin_s;
    begin(index, chunk);
    clock_.give_up(slow, begun_s);
    return true;
  }

  const GreedyGround& ground_;
  const Network& network_;
  const int n_;
  const int chunks_;
  Clock clock_;
  std::mt19937_64 random_;
  const bool by_neighbours_first_;
  bool by_rank_ = true;       // around_ is by rank, not by cluster
  bool equal_edges_ = true;   // none is faster than another
  Bits has_;                  // chunks that have arrived, by rank
  Bits gets_;                 // and those on their way
  std::vector<int> holders_;  // ranks that get each chunk
  std::vector<int> around_;   // of those, the in-neighbours of a rank (or the ranks of a cluster)
  std::vector<Job> jobs_;
  std::vector<std::vector<int>> pending_;  // hops under way, by destination
  std::vector<Hop> arrived_;
  std::int64_t missing_;
};

}  // namespace

std::optional<GreedyRun> spread_greedily(const GreedyGround& ground, Collective collective,
                                         int chunks_per_block, double chunk_bytes,
                                         std::uint64_t seed, const Budget& budget) {
  return Spreading(ground, collective, chunks_per_block, chunk_bytes, seed).run(budget);
}

}  // namespace chorus::synth
