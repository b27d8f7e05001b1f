// Integral multi-commodity routing of least worst load.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/routing/loads.hpp"
#include "synth/routing/paths.hpp"

namespace chorus::synth {

/// One block that has to get from one rank to another.
struct Demand {
  Rank src = 0;
  Rank dst = 0;
};

struct Routing {
  int pieces = 1;
  std::vector<Path> paths;  ///< [demand · pieces + piece]
  double load_s = 0;        ///< of the most loaded resource or lane, per byte of a block
  double total_s = 0;       ///< the same, summed over resources
};

/// Finds routings of one set of demands, and keeps the ways it came across.
class Router {
 public:
  /// `demands` are grouped by source, sources ascending, none with equal ends. On a folded network
  /// those from cell 0, which stand for their images.
  Router(const Network& network, std::vector<Demand> demands, double block_bytes, Budget budget);

  /// False if the network does not connect some demand's ends, or the budget was spent before that
  /// was known.
  [[nodiscard]] bool connected() const { return connected_; }
  /// Ways of least alpha, of these the least loaded.
  [[nodiscard]] Routing shortest(int pieces);
  /// Least worst load, then short ways; with a higher `use_weight` rather short ways. `lane_weight`
  /// is that of Loads. Stops early if the budget is spent.
  [[nodiscard]] Routing balanced(int pieces, double use_weight, double lane_weight = 0);
  /// No routing of any number of pieces has less worst load: seconds per byte of a block.
  [[nodiscard]] double bound_s() const { return bound_s_; }

 private:
  Routing start(int pieces, Loads& loads, double sharpness);
  void sweep(Routing& routing, Loads& loads, bool explore);
  void set_costs(const Loads& loads);
  void explore(std::size_t first, std::size_t last);
  void improve(Routing& routing, Loads& loads, std::size_t demand);
  Routing tidied(Routing routing, double lane_weight);
  void raise_bound(const Loads& loads);
  [[nodiscard]] bool large() const;

  const Network& network_;
  const std::vector<Demand> demands_;
  const double block_bytes_;
  const Budget budget_;
  bool connected_ = true;
  double bound_s_ = 0;
  double noise_ = 0;  // relative, on prices
  std::mt19937_64 random_;
  CheapestPaths cheapest_;
  std::vector<std::vector<Path>> known_;  // ways, by demand
  std::vector<std::size_t> sources_;      // where each source's demands begin, and the end
  std::vector<double> edge_cost_;
};

}  // namespace chorus::synth
