// Greedy runs of all_to_all, gather and scatter: chunks that one rank wants.
#include <queue>
#include <random>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"
#include "model/schedule/contract.hpp"
#include "synth/greedy/run.hpp"
#include "synth/routing/paths.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

class Exchanging {
 public:
  Exchanging(const GreedyGround& ground, Collective collective, int chunks_per_block,
             double chunk_bytes, std::uint64_t seed)
      : ground_(ground),
        network_(ground.network),
        n_(network_.world_size()),
        collective_(collective),
        chunks_per_block_(chunks_per_block),
        clock_(network_, chunk_bytes),
        random_(seed),
        waiting_(network_.edges().size()),
        distance_(at(n_) * at(n_)) {
    std::vector<double> cost;
    for (const Edge& edge : network_.edges()) {
      // What takes no time is a hop as well.
      cost.push_back(edge.alpha_s + chunk_bytes * edge.beta_s_per_byte + 1e-12);
    }
    CheapestPaths paths(network_);
    for (Rank src = 0; src < n_; ++src) {
      paths.run(src, cost);
      for (Rank dst = 0; dst < n_; ++dst)
        distance_[at(src) * at(n_) + at(dst)] = paths.distance(dst);
    }
  }

  std::optional<GreedyRun> run(const Budget& budget) {
    if (!place_all()) return std::nullopt;
    std::vector<int> freed;
    for (std::size_t edge = 0; edge < waiting_.size(); ++edge)
      freed.push_back(static_cast<int>(edge));
    shuffle(freed, random_);
    for (const int edge : freed) try_edge(edge);
    for (std::int64_t turn = 0; !clock_.over(); ++turn) {
      if (turn % 64 == 0 && budget.spent()) return std::nullopt;
      clock_.advance();
      freed.clear();
      std::vector<int> arrivals;
      for (const Clock::Event& event : clock_.happened()) {
        (event.arrival ? arrivals : freed).push_back(event.id);
      }
      for (const int id : arrivals) {
        const Hop& hop = run_.hops[at(id)];
        run_.seconds = clock_.now_s();
        offer(hop.chunk, hop.dst);
      }
      shuffle(freed, random_);
      for (const int resource : freed) refill(resource);
      for (const int id : arrivals) {
        for (const int edge : network_.out(run_.hops[at(id)].dst)) try_edge(edge);
      }
    }
    return std::move(run_);
  }

 private:
  /// A chunk that could take an edge, more urgent the farther it has to go.
  struct Offer {
    double way_s = 0;
    std::uint32_t tie = 0;
    ChunkId chunk = 0;

    bool operator<(const Offer& other) const {
      return std::tie(way_s, tie, chunk) < std::tie(other.way_s, other.tie, other.chunk);
    }
  };

  [[nodiscard]] double distance(Rank from, Rank to) const {
    return distance_[at(from) * at(n_) + at(to)];
  }

  [[nodiscard]] Rank origin_of(int block) const {
    if (collective_.kind == CollectiveKind::all_to_all) return block / n_;
    return collective_.kind == CollectiveKind::gather ? block : collective_.root;
  }
  [[nodiscard]] Rank destination_of(int block) const {
    if (collective_.kind == CollectiveKind::all_to_all) return block % n_;
    return collective_.kind == CollectiveKind::gather ? collective_.root : block;
  }

  /// All chunks at their origins. False if some rank cannot be reached.
  bool place_all() {
    const int chunks = num_blocks(collective_.kind, n_) * chunks_per_block_;
    place_.resize(at(chunks));
    for (ChunkId chunk = 0; chunk < chunks; ++chunk) {
      const int block = chunk / chunks_per_block_;
      const Rank src = origin_of(block);
      if (!(distance(src, destination_of(block)) < 1e300)) return false;
      offer(chunk, src);
    }
    return true;
  }

  /// The chunk has come to `rank`: every edge that brings it nearer may have it.
  void offer(ChunkId chunk, Rank rank) {
    place_[at(chunk)] = rank;
    const Rank dst = destination_of(chunk / chunks_per_block_);
    count_work(network_.out(rank).size(), 70);
    if (rank == dst) return;
    const double way_s = distance(rank, dst);
    for (const int index : network_.out(rank)) {
      const Edge& edge = network_.edges()[at(index)];
      const double on_s = distance(edge.dst, dst);
      // Strictly nearer, so that no chunk comes to a rank twice.
      if (on_s >= way_s * (1 - 1e-9)) continue;
      const double lost_s = clock_.arrival_s(edge) - clock_.now_s() + on_s - way_s;
      waiting_[at(index)].push(
          {way_s - lost_s, static_cast<std::uint32_t>(random_() >> 32), chunk});
    }
  }

  void refill(int resource) {
    const std::vector<int>& over = ground_.over[at(resource)];
    const std::size_t first = random_() % over.size();
    for (std::size_t i = 0; i < over.size(); ++i) {
      count_work(1, 16);
      if (!clock_.idle(resource)) return;
      try_edge(over[(first + i) % over.size()]);
    }
  }

  void try_edge(int index) {
    const Edge& edge = network_.edges()[at(index)];
    auto& waiting = waiting_[at(index)];
    while (!waiting.empty() && clock_.idle(edge)) {
      const ChunkId chunk = waiting.top().chunk;
      waiting.pop();
      if (place_[at(chunk)] != edge.src) continue;  // it took another way
      place_[at(chunk)] = -1;
      run_.hops.push_back({edge.src, edge.dst, chunk});
      clock_.begin(edge, static_cast<int>(run_.hops.size()) - 1);
    }
  }

  const GreedyGround& ground_;
  const Network& network_;
  const int n_;
  const Collective collective_;
  const int chunks_per_block_;
  Clock clock_;
  std::mt19937_64 random_;
  std::vector<std::priority_queue<Offer>> waiting_;  // by edge; some have left by other edges
  std::vector<double> distance_;                     // seconds from rank to rank
  std::vector<Rank> place_;                          // of each chunk; -1: under way
  GreedyRun run_;
};

}  // namespace

std::optional<GreedyRun> exchange_greedily(const GreedyGround& ground, Collective collective,
                                           int chunks_per_block, double chunk_bytes,
                                           std::uint64_t seed, const Budget& budget) {
  return Exchanging(ground, collective, chunks_per_block, chunk_bytes, seed).run(budget);
}

}  // namespace chorus::synth
