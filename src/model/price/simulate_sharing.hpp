// Transfers under way at the same time, sharing links and port groups fairly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// Max-min fair rates: no transfer can go faster but at the cost of one that is no faster itself.
///
/// Rates are worked out again only for the transfers that share a link or port group, directly or
/// through others, with one that began or ended.
class FairSharing {
 public:
  explicit FairSharing(const Topology& topology);

  /// A transfer of `bytes` > 0 over `path` begins to flow; `id` is the caller's, < 2³¹, used once.
  void begin(int id, const std::vector<int>& path, double bytes, double now_s);
  /// It has come to its end.
  void end(int id);

  /// Transfers that are tied to each other, and when the first of them ends if nothing else begins
  /// or ends.
  struct Forecast {
    double end_s = 0;
    int component = 0;
    std::uint32_t version = 0;  ///< current(component, version) tells whether it still holds
  };
  /// Works out the rates after any number of begin() and end() at `now_s`. Returns the forecasts
  /// that are new.
  const std::vector<Forecast>& update(double now_s);
  [[nodiscard]] bool current(const Forecast& forecast) const;
  /// Appends the transfers of the component that end by `until_s`, in ascending order.
  void ending(int component, double until_s, std::vector<int>& ids) const;
  /// When the transfer ends, by the last update.
  [[nodiscard]] double end_s(int id) const { return flows_[static_cast<std::size_t>(id)].end_s; }

 private:
  struct Use {
    int resource = 0;
    double times = 0;  ///< links of the path that load it
  };
  struct Flow {
    std::vector<Use> uses;
    double left_bytes = 0;  // at since_s
    double since_s = 0;
    double rate = -1;  // bytes per second; -1: not set yet
    double next_rate = -1;
    double end_s = 0;
    int component = -1;
    bool gathered = false;
    bool fixed = false;
  };
  struct Resource {
    double capacity = 0;  // bytes per second; infinite: no limit
    std::vector<int> flows;
    bool gathered = false;
    double left = 0;  // while filling
    double users = 0;
  };

  struct Component {
    std::vector<int> flows;
    std::uint32_t version = 0;
  };
  /// A resource and the rate that it would leave for each of its flows.
  struct Share {
    double rate = 0;
    int resource = 0;

    bool operator>(const Share& other) const {
      return rate > other.rate || (rate == other.rate && resource > other.resource);
    }
  };

  void gather(int first);
  void fill();
  void settle(double now_s);
  void touch(int resource);

  std::vector<Resource> resources_;  // links, then port groups
  std::vector<std::vector<int>> groups_of_;
  std::size_t num_links_ = 0;
  std::vector<Flow> flows_;  // by id
  std::vector<int> touched_;
  std::vector<int> unlimited_;                            // flows that nothing holds back
  std::vector<int> gathered_resources_, gathered_flows_;  // of one component
  std::vector<int> passed_resources_, passed_flows_;      // of all components of one update
  std::vector<Share> shares_;
  std::vector<Component> components_;
  std::vector<int> free_components_, left_components_;
  std::vector<Forecast> forecasts_;
};

}  // namespace chorus
