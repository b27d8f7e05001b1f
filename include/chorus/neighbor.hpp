// Decentralized averaging: ranks of a graph mix their vectors with those of their neighbours.
// Header only, on the public API.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus::neighbor {

/// Who is whose neighbour among n ranks.
enum class Graph {
  ring,         ///< r ± 1
  grid,         ///< the four beside r on a torus a × b = n, a the largest divisor up to √n
  exponential,  ///< r ± 1, 2, 4, … (static exponential graph: Ying et al., 2021)
  full,         ///< everybody
};

/// A rank whose vector is mixed in, and its weight.
struct Weight {
  Rank rank = 0;
  double weight = 0;

  bool operator==(const Weight&) const = default;
};

/// Row `rank` of the mixing matrix W of `graph` over n ranks, itself included, in the order of
/// ranks: 1 / (neighbours + 1) each. Neighbourhood is mutual and all have equally many neighbours,
/// so W is symmetric and doubly stochastic: averages are kept, and differences shrink by its second
/// largest eigenvalue in every mixing.
[[nodiscard]] inline std::vector<Weight> mixing_row(Graph graph, int n, Rank rank) {
  std::vector<Rank> near{rank};
  const auto add = [&](int step) { near.push_back(((rank + step) % n + n) % n); };
  switch (graph) {
    case Graph::ring:
      add(1);
      add(-1);
      break;
    case Graph::grid: {
      int rows = 1;
      for (int d = 1; d * d <= n; ++d) rows = n % d == 0 ? d : rows;
      const int cols = n / rows;
      const int row = rank / cols;
      const int col = rank % cols;
      for (const int by : {1, -1}) {
        near.push_back(row * cols + (col + by + cols) % cols);
        near.push_back((row + by + rows) % rows * cols + col);
      }
      break;
    }
    case Graph::exponential:
      for (int step = 1; step < n; step *= 2) {
        add(step);
        add(-step);
      }
      break;
    case Graph::full:
      for (int step = 1; step < n; ++step) add(step);
      break;
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  std::vector<Weight> row;
  for (const Rank r : near) row.push_back({r, 1.0 / static_cast<double>(near.size())});
  return row;
}

/// values [count] of rank `me` become Σ weight · values of the ranks in `row`, added in their
/// order; `theirs` [count · (row.size() − 1)] are the others', in the order of ranks.
inline void combine(std::span<const Weight> row, Rank me, std::span<float> values,
                    std::span<const float> theirs) {
  const std::size_t n = values.size();
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    std::size_t at = i;
    for (const Weight& w : row) {
      const bool own = w.rank == me;
      sum += w.weight * double(own ? values[i] : theirs[at]);
      if (!own) at += n;
    }
    values[i] = static_cast<float>(sum);
  }
}

/// combine() with what the neighbours hold. Every rank calls it with its row of one mixing matrix,
/// symmetric in who is named, and sends count to each neighbour. `theirs` is where those arrive.
inline void mix(Communicator& ranks, std::span<const Weight> row, std::span<float> values,
                std::span<float> theirs) {
  const std::size_t n = values.size();
  ranks.group_start();
  std::size_t at = 0;
  for (const Weight& w : row) {
    if (w.rank == ranks.rank()) continue;
    ranks.send<float>(values, w.rank);
    ranks.recv<float>(theirs.subspan(at, n), w.rank);
    at += n;
  }
  ranks.group_end();
  combine(row, ranks.rank(), values, theirs);
}

}  // namespace chorus::neighbor
