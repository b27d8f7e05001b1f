// What a routing puts on every resource and lane, and the price of putting more there.
#pragma once

#include <span>
#include <vector>

#include "synth/network.hpp"
#include "synth/routing/paths.hpp"

namespace chorus::synth {

/// Loads in seconds per byte of a block; prices that rise exponentially with the load, so that the
/// cheapest way is the one that does least for the worst load.
class Loads {
 public:
  /// `piece_bytes` turns what port groups take per message into seconds per byte. Every piece is
  /// 1 / `pieces` of a block. `alpha_weight` is the price of the largest alpha of any edge.
  /// `use_weight` is what an idle resource costs, of the price of a full one: the more, the shorter
  /// the ways.
  ///
  /// Lanes that cross one resource share it evenly, however much each of them has to carry. So a
  /// lane (an edge in use) of many pieces ends late: it counts as loaded as if `lane_weight` of its
  /// fellows carried as many. 0: lanes do not count.
  Loads(const Network& network, int pieces, double piece_bytes, double alpha_weight,
        double use_weight, double lane_weight = 0);

  void add(const Path& path) { change(path, 1); }
  void remove(const Path& path) { change(path, -1); }
  /// Prices from now on: exp(sharpness · (load / scale − 1)), in steps of one piece.
  void reprice(double sharpness, double scale);
  /// Prices from now on: what is used, and no resource is to get more than `most`.
  void cap(double most);

  [[nodiscard]] double price(int edge) const;
  [[nodiscard]] double price(const Path& path) const;
  /// Of the most loaded resource or lane.
  [[nodiscard]] double worst() const;
  /// Sum over all resources: what breaks ties between routings of equal worst load.
  [[nodiscard]] double total() const;
  /// Prices of the linear program's dual: per edge, for a load of one byte. Returns their sum over
  /// resources, by which distances are to be divided.
  double dual_prices(double sharpness, std::vector<double>& edge_cost) const;

 private:
  void change(const Path& path, int by);
  void reprice_one(int resource);
  void reprice_lane(int edge);
  void weigh_lanes();
  [[nodiscard]] double price_of(double step, int pieces) const;

  const Network& network_;
  std::vector<double> weight_;       // of one piece, by resource
  std::vector<int> count_;           // pieces that cross, by resource
  std::vector<double> price_;        // of one more piece, by resource
  std::vector<double> alpha_price_;  // by edge
  struct Lane {
    int pieces = 0;
    double weight = 0;  // of one piece
    double price = 0;   // of one more
  };
  std::vector<Lane> lanes_;  // by edge
  double sharpness_ = 1;
  double scale_ = 1;
  int pieces_ = 1;
  double use_weight_ = 0;
  double lane_weight_ = 0;
  bool capped_ = false;
};

}  // namespace chorus::synth
