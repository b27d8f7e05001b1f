// Transfers under way at the same time, sharing links and port groups fairly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"
#include "model/price/cost.hpp"

namespace chorus {

/// The paths that transfers take, each once.
class PathsInUse {
 public:
  /// `taken`: by transfer, which of `routes`, whose paths have to stay where they are.
  PathsInUse(const std::vector<Route>& routes, const std::vector<std::size_t>& taken) {
    std::vector<int> number(routes.size(), -1);
    for (const std::size_t route : taken) {
      if (number[route] < 0) {
        number[route] = static_cast<int>(all_.size());
        all_.emplace_back(routes[route].path);
      }
      of_transfers_.push_back(number[route]);
    }
  }

  [[nodiscard]] const std::vector<std::span<const int>>& all() const { return all_; }
  /// By transfer: which of all().
  [[nodiscard]] const std::vector<int>& of_transfers() const { return of_transfers_; }
  [[nodiscard]] int of(int transfer) const {
    return of_transfers_[static_cast<std::size_t>(transfer)];
  }

 private:
  std::vector<std::span<const int>> all_;
  std::vector<int> of_transfers_;
};

/// Max-min fair rates: no transfer can go faster but at the cost of one that is no faster itself.
///
/// That is the case where every transfer crosses a link or port group that is full and on which
/// none is faster (its bottleneck; Bertsekas and Gallager, Data Networks, 6.5.2). So when transfers
/// begin and end, rates are worked out again only for those that lose their bottleneck by it, and
/// for those that lose theirs by the new rates of others.
///
/// Of links and port groups that are crossed one after the other only the narrow ones can be full.
/// What is never full before another that all of its users cross is left out.
class FairSharing {
 public:
  /// A link or port group that a path crosses.
  struct Use {
    int resource = 0;
    int times = 0;  ///< links of the path that load it
  };

  /// Shares of the time that a transfer takes, for `largest_window`: of simulations, and of
  /// searches.
  static constexpr double kAccurateWindow = 0.02, kRoughWindow = 0.3;

  /// `paths`: those that transfers take, each by its links, some more than once.
  FairSharing(const Topology& topology, const std::vector<std::span<const int>>& paths,
              double largest_window = kAccurateWindow);

  /// What may limit a transfer over paths[path].
  [[nodiscard]] std::span<const Use> uses_of(int path) const {
    const std::size_t from = uses_from_[static_cast<std::size_t>(path)];
    return std::span(uses_).subspan(from, uses_from_[static_cast<std::size_t>(path) + 1] - from);
  }
  /// Bytes per second.
  [[nodiscard]] double capacity(int resource) const {
    return resources_[static_cast<std::size_t>(resource)].capacity;
  }
  [[nodiscard]] std::size_t num_resources() const { return resources_.size(); }

  /// A transfer of `bytes` > 0 over paths[path] begins to flow; `id` is the caller's, < 2³¹, used
  /// once.
  void begin(int id, int path, double bytes, double now_s);
  /// It has come to its end.
  void end(int id);

  /// Works out the rates after any number of begin() and end() at `now_s`.
  void update(double now_s);

  /// Lets time pass until nothing happens any more, in order of time: `happens(event)` with what is
  /// on top of `events`, a priority queue by `time_s`, `ended(id, end_s)` with a transfer that has
  /// come to its end; both may begin transfers and push events. Events go first; of ends at one
  /// time, the lower id.
  ///
  /// The rates are worked out for all together that begins or ends at one time but for the last
  /// bits; and where very many are under way and each that begins or ends changes the rates of
  /// many, within `largest_window`, at most, of the time that a transfer takes. Then `goes_on()`
  /// says whether to go on. Returns when the last thing happened; nothing if it said no.
  template <class Events, class Happens, class Ended, class GoesOn>
  std::optional<double> pass_time(Events& events, Happens happens, Ended ended, GoesOn goes_on) {
    const auto next_s = [&] {
      return std::min(events.empty() ? kNever : events.top().time_s, first_end_s());
    };
    double now_s = 0;
    for (double next = next_s(); next != kNever; next = next_s()) {
      const double until_s = taken_together_until(next);
      for (now_s = next; next <= until_s; next = next_s()) {
        now_s = std::max(now_s, next);
        if (!events.empty() && events.top().time_s <= first_end_s()) {
          const auto event = events.top();
          events.pop();
          happens(event);
          continue;
        }
        find_ending();
        const double first_s = now_s;
        for (const int id : ending_) {
          const double end_s = std::max(first_s, flow(id).end_s);
          now_s = std::max(now_s, end_s);
          end(id);
          ended(id, end_s);
        }
      }
      update(now_s);
      if (!goes_on()) return std::nullopt;
    }
    return now_s;
  }

  /// Bytes per second of a transfer that is under way, by the last update.
  [[nodiscard]] double rate(int id) const { return flow(id).rate; }

 private:
  /// A transfer under way. What comes later takes the slot of what has ended: all of them, to be
  /// gone through time and again, stay together.
  struct Flow {
    std::vector<int> places = {};  // by use of its path: among the users of the resource
    int path = 0;
    double rate = -1;  // bytes per second; -1: not set yet
    double next_rate = -1;
    int bottleneck = -1;    // none while open
    bool open = false;      // its rate is being worked out
    double left_bytes = 0;  // at since_s
    double since_s = 0;
    double begun_s = 0;
    double end_s = 0;
    double queued_s = 0;  // when `ends_` has it for the first time
    int id = 0;
  };
  /// When transfers began and ended since the last update.
  struct Changes {
    double sum_s = 0;
    int count = 0;

    void add(double time_s) { add({time_s, 1}); }
    void add(const Changes& others) {
      sum_s += others.sum_s;
      count += others.count;
    }
    [[nodiscard]] double mean_s() const { return sum_s / count; }
  };
  struct User {
    int slot = 0;
    int times = 0;
  };
  /// The rates of those whose bottleneck it is are equal, and no user's rate is higher.
  struct Resource {
    double capacity = 0;  // bytes per second; infinite: no limit
    std::vector<User> users;
    double load = 0;     // by all users' rates
    int held = 0;        // users whose bottleneck it is
    double level = 0;    // their rate
    double highest = 0;  // no user has a higher rate
    Changes changes;     // of its users

    bool open = false;  // some user's rate is being worked out
    std::vector<User> open_users;
  };
  /// Of an open resource, what fill() works with.
  struct Filling {
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

  [[nodiscard]] const Flow& flow(int id) const {
    return flows_[static_cast<std::size_t>(slot_of_[static_cast<std::size_t>(id)])];
  }
  [[nodiscard]] int under_way() const {
    return static_cast<int>(flows_.size() - free_slots_.size());
  }
  void leave_out_who_never_limit();
  [[nodiscard]] double taken_together_until(double now_s) const;
  [[nodiscard]] double first_end_s();
  void find_ending();
  void change(int resource, double time_s);
  [[nodiscard]] double changed_s(const Flow& flow, double now_s) const;
  void adapt_window();
  void open(int slot);
  void open_held_by(int resource);
  void open_above(int resource, double rate);
  void open_all_tied();
  void fill();
  bool open_who_lose_theirs();
  void settle(double now_s);
  void take_up(Flow& flow, double rate);

  static constexpr int kEnded = -1;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  std::vector<Resource> resources_;  // links, then port groups
  std::vector<Filling> filling_;     // by resource
  std::vector<Use> uses_;            // grouped by path
  std::vector<std::size_t> uses_from_ = {0};
  double mean_s_ = 0;                   // that transfers which ended of late took
  double num_ended_ = 0;                // of these
  double window_ = 0, largest_window_;  // of mean_s_
  double opened_ = 0, changed_ = 0;     // transfers, since it was set
  int updates_ = 0;
  Changes changes_;
  std::vector<Flow> flows_;  // by slot
  std::vector<int> free_slots_;
  std::vector<int> slot_of_;                      // by id, or kEnded
  std::vector<int> touched_, new_;                // resources, slots
  std::vector<int> ending_;                       // ids
  std::vector<int> open_flows_, open_resources_;  // of one update: slots, resources
  std::vector<Share> shares_;
  using End = std::pair<double, int>;                                // and the id
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;  // never later than they are
};

/// Before when transfers cannot all have ended: what has not begun to flow still has to cross what
/// it shares with the others.
class StillToBegin {
 public:
  /// Each of `bytes`. Keeps a reference to `sharing`.
  StillToBegin(const FairSharing& sharing, const PathsInUse& paths, double bytes)
      : sharing_(sharing), seconds_(sharing.num_resources(), 0), bytes_(bytes) {
    for (const int path : paths.of_transfers()) add(path, 1);
  }

  /// A transfer begins to flow.
  void begin(int path, double now_s) {
    for (const FairSharing::Use& use : sharing_.uses_of(path)) {
      const double left_s = seconds_[static_cast<std::size_t>(use.resource)];
      earliest_end_s_ = std::max(earliest_end_s_, now_s + left_s);
    }
    add(path, -1);
  }

  /// By all that has begun.
  [[nodiscard]] double earliest_end_s() const { return earliest_end_s_; }

 private:
  void add(int path, double transfers) {
    for (const FairSharing::Use& use : sharing_.uses_of(path)) {
      seconds_[static_cast<std::size_t>(use.resource)] +=
          transfers * use.times * bytes_ / sharing_.capacity(use.resource);
    }
  }

  const FairSharing& sharing_;
  std::vector<double> seconds_;  // by resource
  double bytes_;                 // of each
  double earliest_end_s_ = 0;
};

}  // namespace chorus
