#include "synth/packing/flowing.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"
#include "model/price/message_time.hpp"
#include "model/price/simulate_sharing.hpp"
#include "synth/ordering/predict.hpp"

namespace chorus::synth {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What hops cross: resources, and which of the routes over them leads from rank to rank.
struct Carriers {
  const Topology& resources;
  const std::vector<Route>& routes;
  RouteOf route_of;
};

struct FlowJob {
  Transfer transfer;
  int piece = 0;
  int made = 0;   // hops before it
  int way = 0;    // hops of the longest way on, itself counted
  int waits = 0;  // hops that must end before it is ready
  int lane = 0;
  int step = 0;  // at least, so far
  int slot = 0;  // (tree · pieces + piece) · world_size + the tree's rank at the far end
  int turn = 0;  // of the mirror run: those that ended late go early
  double begin_s = 0, end_s = 0;
  std::size_t route = 0;
  std::vector<int> unlocks;
};

/// The jobs of a flow and which waits for which.
class Jobs {
 public:
  Jobs(const TreeFlow& flow, int world_size, const RouteOf& route_of)
      : n_(world_size), flow_(flow), route_of_(route_of) {
    const TreePacking& any = flow.spread != nullptr ? *flow.spread : *flow.combine;
    trees_ = static_cast<int>(any.trees.size());
    for (int tree = 0; tree < trees_; ++tree) {
      for (int piece = 0; piece < flow.pieces; ++piece) {
        std::vector<int> last;  // the hops that complete the chunk at the root
        if (flow.combine != nullptr) last = combine(tree, piece);
        if (flow.spread != nullptr) spread(tree, piece, last);
      }
    }
    for (std::size_t i = jobs.size(); i-- > 0;) {
      for (const int next : jobs[i].unlocks) {
        jobs[i].way = std::max(jobs[i].way, jobs[at(next)].way);
      }
      ++jobs[i].way;
    }
  }

  [[nodiscard]] int num_chunks() const { return trees_ * flow_.pieces; }

  std::vector<FlowJob> jobs;  // what waits comes after what it waits for
  int num_lanes = 0;

 private:
  [[nodiscard]] ChunkId chunk(const TreePacking& packing, int tree, int piece) const {
    const int k = packing.trees_per_root;
    return tree / k * k * flow_.pieces + piece * k + tree % k;
  }

  int add(Transfer transfer, int slot, std::span<const int> after) {
    const auto index = static_cast<int>(jobs.size());
    FlowJob job;
    job.transfer = transfer;
    job.piece = slot / n_ % flow_.pieces;
    job.slot = slot;
    job.route = route_of_(transfer.src, transfer.dst);
    const std::size_t key = 2 * job.route + (transfer.action == Action::reduce ? 1 : 0);
    const auto [lane, is_new] = lanes_.try_emplace(key, num_lanes);
    if (is_new) ++num_lanes;
    job.lane = lane->second;
    for (const int before : after) {
      jobs[at(before)].unlocks.push_back(index);
      job.made = std::max(job.made, jobs[at(before)].made + 1);
      ++job.waits;
    }
    jobs.push_back(std::move(job));
    return index;
  }

  void spread(int index, int piece, const std::vector<int>& complete) {
    const SpanningTree& tree = flow_.spread->trees[at(index)];
    std::vector<int> brought_by(at(n_), -1);
    for (const Rank rank : from_root(tree)) {
      const Rank parent = tree.parent[at(rank)];
      if (parent < 0) continue;
      const Transfer hop{parent, rank, chunk(*flow_.spread, index, piece), Action::copy};
      const int before = brought_by[at(parent)];
      const int slot = (index * flow_.pieces + piece) * n_ + rank;
      brought_by[at(rank)] =
          parent == tree.root ? add(hop, slot, complete) : add(hop, slot, std::span(&before, 1));
    }
  }

  std::vector<int> combine(int index, int piece) {
    const SpanningTree& tree = flow_.combine->trees[at(index)];
    std::vector<std::vector<int>> arrivals(at(n_));
    const std::vector<Rank> order = from_root(tree);
    for (std::size_t i = order.size(); i-- > 1;) {
      const Rank rank = order[i];
      const Rank parent = tree.parent[at(rank)];
      const Transfer hop{rank, parent, chunk(*flow_.combine, index, piece), Action::reduce};
      const int slot = (index * flow_.pieces + piece) * n_ + rank;
      arrivals[at(parent)].push_back(add(hop, slot, arrivals[at(rank)]));
    }
    return arrivals[at(tree.root)];
  }

  int n_;
  const TreeFlow flow_;
  int trees_ = 0;
  const RouteOf& route_of_;
  std::unordered_map<std::size_t, int> lanes_;
};

class Flowing {
 public:
  Flowing(const Carriers& carriers, bool folded, Jobs jobs, Urgency urgency, double bytes,
          bool turned_round, double largest_window)
      : carriers_(carriers),
        folded_(folded),
        sums_alone_(std::ranges::all_of(
            jobs.jobs, [](const FlowJob& j) { return j.transfer.action == Action::reduce; })),
        message_time_(carriers.resources),
        jobs_(std::move(jobs.jobs)),
        urgency_(urgency),
        bytes_(bytes),
        turned_round_(turned_round),
        paths_(carriers.routes, routes_taken()),
        sharing_(carriers.resources, paths_.all(), largest_window),
        still_to_begin_(sharing_, paths_, bytes),
        lanes_(at(jobs.num_lanes)) {
    count_work(jobs_.size(), 350);
  }

  /// The seconds it takes; nothing if the budget is spent, or if they are more than `give_up_s`.
  std::optional<double> run(const Budget& budget, double give_up_s) {
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (jobs_[job].waits == 0) ready(static_cast<int>(job), 0);
    }
    std::size_t round = 0;
    const auto all_ended_s = sharing_.pass_time(
        events_, [this](const Event& event) { handle(event, event.time_s); },
        [this](int job, double end_s) { ended(job, end_s); },
        [&] {
          return still_to_begin_.earliest_end_s() <= give_up_s &&
                 (round++ % 1024 != 0 || !budget.spent());
        });
    CHORUS_CHECK(!all_ended_s || begun_ == jobs_.size(),
                 "every hop of a tree is ready at some time");
    return all_ended_s;
  }

  /// The slots of the hops in the order in which they ended.
  [[nodiscard]] const std::vector<int>& ended() const { return ended_; }
  [[nodiscard]] std::vector<Step> steps() && { return std::move(steps_); }
  [[nodiscard]] std::vector<TimelineEntry> timeline() const {
    std::vector<TimelineEntry> timeline;
    for (const FlowJob& job : jobs_) {
      timeline.push_back({job.step, job.transfer, job.begin_s, job.end_s});
    }
    return timeline;
  }

 private:
  enum class What : std::uint8_t { prepared, begins };
  struct Event {
    double time_s = 0;
    What what = What::prepared;
    int job = 0;

    bool operator>(const Event& other) const {
      return std::tie(time_s, what, job) > std::tie(other.time_s, other.what, other.job);
    }
  };
  using Key = std::tuple<int, int, int>;  // less is more urgent; the job comes last
  struct Lane {
    bool busy = false;
    int last_step = -1;
    Transfer last;
    std::priority_queue<Key, std::vector<Key>, std::greater<>> waiting;
  };

  /// A rank's copy of a chunk that is being reduced.
  struct Place {
    int step = -1;      // of the latest arrivals
    int under_way = 0;  // arrivals that have begun
    std::vector<int> waiting;
  };

  /// True if a lane keeps two hops of one step in this order: executors go by chunk, and on a
  /// folded network hops of other images, which leave other ranks, are in the same lane.
  static bool keeps_order(const Transfer& first, const Transfer& then) {
    return first.src == then.src && first.chunk < then.chunk;
  }

  [[nodiscard]] Key key(int index) const {
    const FlowJob& job = jobs_[at(index)];
    if (job.transfer.action == Action::reduce && job.turn != 0) return {-job.turn, 0, index};
    switch (urgency_) {
      case Urgency::piece:
        return {job.piece, -job.way, index};
      case Urgency::round:
        return {job.piece + job.made, -job.way, index};
      case Urgency::way:
        break;
    }
    return {-job.way, job.piece, index};
  }

  [[nodiscard]] std::size_t route_taken(const FlowJob& job) const {
    return turned_round_ ? carriers_.route_of(job.transfer.dst, job.transfer.src) : job.route;
  }
  [[nodiscard]] std::vector<std::size_t> routes_taken() const {
    std::vector<std::size_t> routes;
    for (const FlowJob& job : jobs_) routes.push_back(route_taken(job));
    return routes;
  }
  [[nodiscard]] const std::vector<int>& path(int job) const {
    return carriers_.routes[route_taken(jobs_[at(job)])].path;
  }

  void ready(int index, double now_s) {
    const double alpha_s = carriers_.routes[jobs_[at(index)].route].alpha_s;
    events_.push({now_s + alpha_s, What::prepared, index});
  }

  void handle(const Event& event, double now_s) {
    switch (event.what) {
      case What::prepared: {
        Lane& lane = lanes_[at(jobs_[at(event.job)].lane)];
        lane.waiting.push(key(event.job));
        if (!lane.busy) take_next(lane, now_s);
        break;
      }
      case What::begins:
        if (bytes_ <= 0 || path(event.job).empty()) {
          ended(event.job, now_s);
        } else {
          still_to_begin_.begin(paths_.of(event.job), now_s);
          sharing_.begin(event.job, paths_.of(event.job), bytes_, now_s);
        }
        break;
    }
  }

  /// Lets the most urgent hop flow that may.
  void take_next(Lane& lane, double now_s) {
    lane.busy = false;
    while (!lane.busy && !lane.waiting.empty()) {
      const int index = std::get<2>(lane.waiting.top());
      lane.waiting.pop();
      const int before = lane.last_step;
      if (!number_step(index, lane)) continue;
      lane.busy = true;
      FlowJob& job = jobs_[at(index)];
      job.begin_s = now_s;
      if (at(job.step) >= steps_.size()) steps_.resize(at(job.step) + 1);
      steps_[at(job.step)].push_back(job.transfer);
      ++begun_;
      const double served_s =
          job.step == before ? now_s : message_time_.served_s(path(index), now_s);
      events_.push({served_s, What::begins, index});
    }
  }

  /// Gives a hop a step that is not before that of its predecessor in the lane. False if it has to
  /// wait: where all that moves are sums, what arrives in one step is reduced together, and later
  /// steps find what earlier ones left. Left to come as they may, sums over TCP took 1.04 to 1.09
  /// times as long (a reduce-scatter on one emulated cluster); an all-reduce is better off so.
  bool number_step(int index, Lane& lane) {
    FlowJob& job = jobs_[at(index)];
    int step = std::max(lane.last_step, job.step);
    if (folded_ && step == lane.last_step && !keeps_order(lane.last, job.transfer)) ++step;
    if (sums_alone_) {
      Place& place = places_[place_of(job)];
      step = std::max(step, place.step);
      if (step > place.step && place.under_way > 0) {
        place.waiting.push_back(index);
        return false;
      }
      place.step = step;
      ++place.under_way;
    }
    job.step = lane.last_step = step;
    lane.last = job.transfer;
    return true;
  }

  [[nodiscard]] static std::int64_t place_of(const FlowJob& job) {
    return (std::int64_t{job.transfer.chunk} << 32) + job.transfer.dst;
  }

  void ended(int index, double now_s) {
    ended_.push_back(jobs_[at(index)].slot);
    FlowJob& job = jobs_[at(index)];
    job.end_s = now_s;
    take_next(lanes_[at(job.lane)], now_s);
    if (sums_alone_) {
      Place& place = places_[place_of(job)];
      if (--place.under_way == 0) {
        for (const int waiter : std::exchange(place.waiting, {})) ready(waiter, now_s);
      }
    }
    for (const int next : job.unlocks) {
      FlowJob& waiter = jobs_[at(next)];
      waiter.step = std::max(waiter.step, job.step + 1);
      if (--waiter.waits == 0) ready(next, now_s);
    }
  }

  const Carriers& carriers_;
  bool folded_;
  bool sums_alone_;
  MessageTime message_time_;
  std::vector<FlowJob> jobs_;
  Urgency urgency_;
  double bytes_;
  bool turned_round_;  // every hop takes the way back
  PathsInUse paths_;
  FairSharing sharing_;
  StillToBegin still_to_begin_;
  std::vector<Lane> lanes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::unordered_map<std::int64_t, Place> places_;  // where sums alone move
  std::vector<Step> steps_;
  std::vector<int> ended_;
  std::size_t begun_ = 0;
};

std::optional<OrderedFlow> order(std::string_view name, const Carriers& carriers,
                                 const Cells& cells, const TreeFlow& flow, Ordering ordering,
                                 double size_bytes, const Budget& budget, double give_up_s) {
  const int n = cells.count() * cells.size();
  const bool folded = cells.count() > 1;
  Jobs jobs(flow, n, carriers.route_of);
  const int chunks = jobs.num_chunks();
  OrderedFlow result{{std::string(name), flow.collective, n, chunks * cells.count(), {}}, {}};
  result.schedule.symmetry = cells.radices();
  const double bytes = chunk_bytes(result.schedule, size_bytes);
  if (ordering.mirrored && flow.combine != nullptr) {
    Flowing spreading(carriers, folded,
                      Jobs({{}, nullptr, flow.combine, flow.pieces}, n, carriers.route_of),
                      ordering.urgency, bytes, true, FairSharing::kAccurateWindow);
    if (!spreading.run(budget, kNever)) return std::nullopt;
    std::vector<int> turn(at(chunks) * at(n), 0);
    for (std::size_t i = 0; i < spreading.ended().size(); ++i) {
      turn[at(spreading.ended()[i])] = static_cast<int>(i) + 1;
    }
    for (FlowJob& job : jobs.jobs) job.turn = turn[at(job.slot)];
  }
  // All_gathers of mixes whose order comes from a rough run lose up to 8 %.
  const bool both = flow.combine != nullptr && flow.spread != nullptr;
  Flowing flowing(carriers, folded, std::move(jobs), ordering.urgency, bytes, false,
                  both ? FairSharing::kRoughWindow : FairSharing::kAccurateWindow);
  const std::optional<double> seconds = flowing.run(budget, give_up_s);
  if (!seconds) return std::nullopt;
  result.simulation = {*seconds, flowing.timeline(), {}};
  result.schedule.steps = std::move(flowing).steps();
  for (Step& step : result.schedule.steps) {
    std::stable_sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.action) < std::tie(b.src, b.dst, b.action);
    });
  }
  return result;
}

}  // namespace

std::optional<OrderedFlow> flowing_order(std::string_view name, const Topology& topology,
                                         const Routes& routes, const TreeFlow& flow,
                                         Ordering ordering, double size_bytes, const Budget& budget,
                                         double give_up_s) {
  const int n = topology.world_size();
  const Carriers carriers{topology, routes.all(),
                          [n](Rank src, Rank dst) { return at(src) * at(n) + at(dst); }};
  return order(name, carriers, Cells(n, {}), flow, ordering, size_bytes, budget, give_up_s);
}

std::optional<OrderedFlow> flowing_order(std::string_view name, const Network& network,
                                         const TreeFlow& flow, Ordering ordering, double size_bytes,
                                         const Budget& budget) {
  const Topology resources = as_topology(network);
  const std::vector<Route> routes = edge_routes(network);
  const Carriers carriers{resources, routes,
                          [&](Rank src, Rank dst) { return at(*network.edge(src, dst)); }};
  return order(name, carriers, network.cells(), flow, ordering, size_bytes, budget,
               budget.useless_s);
}

}  // namespace chorus::synth
