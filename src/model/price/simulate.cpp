#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"
#include "model/price/cost.hpp"
#include "model/price/message_time.hpp"
#include "model/price/simulate_sharing.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What each transfer waits for.
///
/// The chunks a rank holds go through versions: one for each step in which something arrives. A
/// version is there when the one before it is and all its arrivals have ended.
class Readiness {
 public:
  explicit Readiness(const Schedule& schedule) {
    const auto num_chunks = static_cast<std::int64_t>(schedule.num_chunks);
    std::unordered_map<std::int64_t, int> held;  // (rank, chunk) to its newest version
    const auto place = [&](Rank rank, ChunkId chunk) { return rank * num_chunks + chunk; };
    for (const Step& step : schedule.steps) {
      const std::size_t first = waiting_for_.size();
      for (const Transfer& transfer : step) {
        waiting_for_.push_back(0);
        wait(held, place(transfer.src, transfer.chunk));
      }
      // Only now do the arrivals of this step count.
      const auto first_version = static_cast<int>(versions_.size());
      for (std::size_t i = 0; i < step.size(); ++i) {
        const std::int64_t where = place(step[i].dst, step[i].chunk);
        const auto [newest, is_first] = held.try_emplace(where, -1);
        if (newest->second < first_version) {
          const auto made = static_cast<int>(versions_.size());
          versions_.emplace_back();
          if (!is_first) {
            versions_[at(newest->second)].next = made;
            ++versions_[at(made)].missing;
          }
          newest->second = made;
        }
        ++versions_[at(newest->second)].missing;
        makes_.resize(first + i + 1);
        makes_[first + i] = newest->second;
      }
    }
  }

  [[nodiscard]] bool ready(int transfer) const { return waiting_for_[at(transfer)] == 0; }

  /// Appends to `now_ready` the transfers that waited for the end of `transfer` alone.
  void ended(int transfer, std::vector<int>& now_ready) {
    for (int version = makes_[at(transfer)]; version >= 0; version = versions_[at(version)].next) {
      if (--versions_[at(version)].missing > 0) return;
      for (const int waiter : versions_[at(version)].waiters) {
        if (--waiting_for_[at(waiter)] == 0) now_ready.push_back(waiter);
      }
    }
  }

 private:
  struct Version {
    int missing = 0;  // arrivals, and the version before
    int next = -1;
    std::vector<int> waiters;
  };

  void wait(const std::unordered_map<std::int64_t, int>& held, std::int64_t place) {
    const auto newest = held.find(place);
    if (newest == held.end()) return;  // there from the beginning
    ++waiting_for_.back();
    versions_[at(newest->second)].waiters.push_back(static_cast<int>(waiting_for_.size()) - 1);
  }

  std::vector<Version> versions_;
  std::vector<int> waiting_for_;  // by transfer
  std::vector<int> makes_;        // by transfer: the version it helps to make
};

class Simulator {
 public:
  /// `give_up_s`: if all cannot have ended by then the time is infinite.
  Simulator(const Schedule& schedule, const Topology& topology, const std::vector<Route>& routes,
            const RouteOf& route_of, double bytes, double give_up_s, double largest_window)
      : message_time_(topology),
        routes_(routes),
        bytes_(bytes),
        give_up_s_(give_up_s),
        readiness_(schedule),
        route_(routes_taken(schedule, route_of)),
        paths_(routes, route_),
        sharing_(topology, paths_.all(), largest_window),
        still_to_begin_(sharing_, paths_, bytes) {
    for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
      for (const Transfer& transfer : schedule.steps[step]) {
        entries_.push_back({static_cast<int>(step), transfer, 0, -1});
      }
    }
    queue_up();
    busy_since_s_.assign(topology.links.size(), 0);
    users_.assign(topology.links.size(), 0);
    result_.link_busy_s.assign(topology.links.size(), 0);
    count_work(entries_.size(), 100);
  }

  Simulation run() {
    for (int id = 0; at(id) < entries_.size(); ++id) {
      if (readiness_.ready(id)) begin(id, 0);
    }
    const auto all_ended_s = sharing_.pass_time(
        events_, [this](const Event& event) { prepared(event.id, event.time_s); },
        [this](int id, double now_s) { left(id, now_s); },
        [this] { return still_to_begin_.earliest_end_s() <= give_up_s_; });
    if (!all_ended_s) return {kNever, {}, {}};
    for (const TimelineEntry& entry : entries_) {
      CHORUS_CHECK(entry.end_s >= 0, "every transfer waits for earlier steps alone");
      result_.seconds = std::max(result_.seconds, entry.end_s);
    }
    result_.timeline = std::move(entries_);
    std::stable_sort(
        result_.timeline.begin(), result_.timeline.end(),
        [](const TimelineEntry& a, const TimelineEntry& b) { return a.begin_s < b.begin_s; });
    return std::move(result_);
  }

 private:
  /// A transfer starts to flow, after its route's alpha.
  struct Event {
    double time_s = 0;
    int id = 0;

    bool operator>(const Event& other) const {
      return std::tie(time_s, id) > std::tie(other.time_s, other.id);
    }
  };

  /// By transfer.
  static std::vector<std::size_t> routes_taken(const Schedule& schedule, const RouteOf& route_of) {
    std::vector<std::size_t> routes;
    for (const Step& step : schedule.steps) {
      for (const Transfer& transfer : step) {
        routes.push_back(route_of(transfer.src, transfer.dst));
      }
    }
    return routes;
  }

  const Route& route(int id) const { return routes_[route_[at(id)]]; }
  const std::vector<int>& path(int id) const { return route(id).path; }

  /// Lanes: transfers with one source, destination and action go in the order of the schedule.
  void queue_up() {
    std::unordered_map<std::size_t, int> last;
    turns_.resize(entries_.size());
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      const Transfer& transfer = entries_[id].transfer;
      const std::size_t lane = route_[id] * 2 + (transfer.action == Action::reduce ? 1 : 0);
      const auto [before, is_first] = last.try_emplace(lane, -1);
      if (is_first) {
        turns_[id].has_turn = true;
      } else {
        turns_[at(before->second)].next = static_cast<int>(id);
        // Chunks of one step that follow each other are one message.
        const TimelineEntry& other = entries_[at(before->second)];
        turns_[id].opens_message =
            entries_[id].step != other.step || transfer.chunk != other.transfer.chunk + 1;
      }
      before->second = static_cast<int>(id);
    }
  }

  void begin(int id, double now_s) {
    TimelineEntry& entry = entries_[at(id)];
    entry.begin_s = now_s;
    const double served_s =
        turns_[at(id)].opens_message ? message_time_.served_s(path(id), now_s) : now_s;
    events_.push({served_s + route(id).alpha_s, id});
  }

  /// The transfer is prepared: its bytes follow when those before it in its lane have left.
  void prepared(int id, double now_s) {
    turns_[at(id)].prepared = true;
    if (turns_[at(id)].has_turn) flow(id, now_s);
  }

  /// The bytes of `id` have left, and its lane is free for the next.
  void pass_turn(int id, double now_s) {
    const int next = turns_[at(id)].next;
    if (next < 0) return;
    Turn& turn = turns_[at(next)];
    turn.has_turn = true;
    if (!turn.prepared) return;
    TimelineEntry& entry = entries_[at(next)];
    entry.begin_s = std::max(entry.begin_s, now_s - route(next).alpha_s);
    turn.prepared = false;
    events_.push({now_s, next});
  }

  void flow(int id, double now_s) {
    if (bytes_ <= 0 || path(id).empty()) {
      finish(id, now_s);
      return;
    }
    for (const int link : path(id)) {
      if (users_[at(link)]++ == 0) busy_since_s_[at(link)] = now_s;
    }
    still_to_begin_.begin(paths_.of(id), now_s);
    sharing_.begin(id, paths_.of(id), bytes_, now_s);
  }

  /// All bytes of `id` have flowed.
  void left(int id, double now_s) {
    for (const int link : path(id)) {
      if (--users_[at(link)] == 0) {
        result_.link_busy_s[at(link)] += now_s - busy_since_s_[at(link)];
      }
    }
    finish(id, now_s);
  }

  void finish(int id, double now_s) {
    entries_[at(id)].end_s = now_s;
    pass_turn(id, now_s);
    std::vector<int> now_ready;
    readiness_.ended(id, now_ready);
    for (const int next : now_ready) begin(next, now_s);
  }

  MessageTime message_time_;
  const std::vector<Route>& routes_;
  double bytes_;
  double give_up_s_;
  Readiness readiness_;
  std::vector<std::size_t> route_;  // by transfer
  PathsInUse paths_;
  FairSharing sharing_;
  StillToBegin still_to_begin_;
  struct Turn {
    int next = -1;  // of its lane
    bool has_turn = false;
    bool prepared = false;
    bool opens_message = true;
  };

  std::vector<TimelineEntry> entries_;
  std::vector<Turn> turns_;  // by transfer
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<double> busy_since_s_;  // by link
  std::vector<int> users_;            // by link: transfers that flow over it
  Simulation result_;
};

/// Of a schedule for `topology` itself.
Simulation simulated(const Schedule& schedule, const Topology& topology, const Routes& routes,
                     double size_bytes, double give_up_s, double largest_window) {
  if (!schedule.symmetry.empty()) {
    return simulated(expanded(schedule), topology, routes, size_bytes, give_up_s, largest_window);
  }
  require_routes(schedule, topology, routes);
  const std::size_t n = at(schedule.world_size);
  return Simulator(
             schedule, topology, routes.all(),
             [n](Rank src, Rank dst) { return at(src) * n + at(dst); },
             chunk_bytes(schedule, size_bytes), give_up_s, largest_window)
      .run();
}

}  // namespace

Simulation simulate(const Schedule& schedule, const Topology& topology, const Routes& routes,
                    double size_bytes, double give_up_s) {
  return simulated(schedule, topology, routes, size_bytes, give_up_s, FairSharing::kAccurateWindow);
}

double roughly_simulated_seconds(const Schedule& schedule, const Topology& topology,
                                 const Routes& routes, double size_bytes) {
  return simulated(schedule, topology, routes, size_bytes, kNever, FairSharing::kRoughWindow)
      .seconds;
}

double simulated_seconds(const Schedule& schedule, const Topology& resources,
                         const std::vector<Route>& routes, const RouteOf& route_of,
                         double size_bytes, double give_up_s) {
  return Simulator(schedule, resources, routes, route_of, chunk_bytes(schedule, size_bytes),
                   give_up_s, FairSharing::kAccurateWindow)
      .run()
      .seconds;
}

}  // namespace chorus
