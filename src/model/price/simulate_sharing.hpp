// Transfers under way at the same time, sharing links and port groups fairly.
#pragma once

#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// Max-min fair rates: no transfer can go faster but at the cost of one that is no faster itself.
///
/// That is the case where every transfer crosses a link or port group that is full and on which
/// none is faster (its bottleneck; Bertsekas and Gallager, Data Networks, 6.5.2). So when transfers
/// begin and end, rates are worked out again only for those that lose their bottleneck by it, and
/// for those that lose theirs by the new rates of others.
class FairSharing {
 public:
  explicit FairSharing(const Topology& topology);

  /// A transfer of `bytes` > 0 over `path` begins to flow; `id` is the caller's, < 2³¹, used once.
  void begin(int id, const std::vector<int>& path, double bytes, double now_s);
  /// It has come to its end.
  void end(int id);

  /// Until when what begins and ends is to be taken together with what happens at `now_s`, before
  /// update(): what should happen at once may differ in the last bits; and where very many are
  /// under way, new rates every thousandth of the time do, or less often the more there are.
  [[nodiscard]] double taken_together_until(double now_s) const;
  /// Works out the rates after any number of begin() and end() at `now_s`.
  void update(double now_s);
  /// When the first transfer ends if none begins or ends before; infinite if none is under way.
  [[nodiscard]] double first_end_s();
  /// Replaces `ids` by the transfers that end by `until_s`, in ascending order.
  void ending(double until_s, std::vector<int>& ids);
  /// When the transfer ends, by the last update.
  [[nodiscard]] double end_s(int id) const { return flows_[static_cast<std::size_t>(id)].end_s; }
  /// Bytes per second, by the last update.
  [[nodiscard]] double rate(int id) const { return flows_[static_cast<std::size_t>(id)].rate; }

 private:
  struct Use {
    int resource = 0;
    double times = 0;       ///< links of the path that load it
    std::size_t place = 0;  ///< among its users
  };
  struct Flow {
    std::vector<Use> uses;
    double left_bytes = 0;  // at since_s
    double since_s = 0;
    double rate = -1;  // bytes per second; -1: not set yet
    double next_rate = -1;
    double end_s = 0;
    double queued_s = 0;  // when `ends_` has it for the first time
    int bottleneck = -1;  // none while open
    bool open = false;    // its rate is being worked out
  };
  struct User {
    int flow = 0;
    double times = 0;
  };
  /// The rates of those whose bottleneck it is are equal, and no user's rate is higher.
  struct Resource {
    double capacity = 0;  // bytes per second; infinite: no limit
    std::vector<User> users;
    double load = 0;     // by all users' rates
    int held = 0;        // users whose bottleneck it is
    double level = 0;    // their rate
    double highest = 0;  // no user has a higher rate

    bool open = false;  // some user's rate is being worked out
    std::vector<User> open_users;
    double left = 0;         // by those whose rates stay, then also by those that are fixed
    double open_times = 0;   // of users without a rate
    double new_level = -1;   // of open users whose bottleneck it is; -1: it is none's
    double new_highest = 0;  // of open users
  };
  /// A resource and the rate that it would leave for each of its open users.
  struct Share {
    double rate = 0;
    int resource = 0;

    bool operator>(const Share& other) const {
      return rate > other.rate || (rate == other.rate && resource > other.resource);
    }
  };

  void open(int id);
  void open_held_by(int resource);
  void open_above(int resource, double rate);
  void open_all_tied();
  void fill();
  bool open_who_lose_theirs();
  void settle(double now_s);
  void take_up(Flow& flow, double rate);

  std::vector<Resource> resources_;  // links, then port groups
  std::vector<std::vector<int>> groups_of_;
  std::size_t num_links_ = 0;
  std::vector<Flow> flows_;  // by id
  int under_way_ = 0;
  std::vector<int> touched_, new_;
  std::vector<int> open_flows_, open_resources_;  // of one update
  std::vector<Share> shares_;
  using End = std::pair<double, int>;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;  // never later than they are
};

}  // namespace chorus
