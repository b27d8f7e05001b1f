#include "plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "chorus/error.hpp"
#include "report.hpp"
#include "schedule.hpp"
#include "volume.hpp"

namespace trainer {
namespace {

using chorus::GridFlow;
using chorus::GridMapping;

enum Dim : int { stages, twins, experts, slices };
enum FlowIndex : std::size_t { data_flow, twin_flow, expert_flow, tensor_flow, pipeline_flow };

/// An update reads and writes a value, its gradient and two moments: as long as so many operations.
constexpr double kUpdateFlops = 100;

/// Bytes of rows that leave a rank per step for experts, if the gate has no preferences.
double expert_row_bytes(const Config& config, int layers) {
  const Model& m = config.model;
  const Layout& l = config.layout;
  if (m.experts == 0 || l.ep == 1) return 0;
  const double rows = double(config.training.batch) * m.context * m.top_k * (l.ep - 1) / l.ep;
  const int forwards = l.recompute == Recompute::full ? 2 : 1;
  return l.micro_batches * double(layers) * (2 * forwards + 2) * rows * m.width * sizeof(float);
}

int most_layers(const Config& config) {
  const std::vector<int> sizes = partition_of(config.model, config.layout);
  return *std::ranges::max_element(sizes) * config.layout.virtual_stages;
}

Pace pace_on(const Machine& machine) {
  return machine.pace.forward > 0 ? machine.pace : pace_of(machine.flops_per_s);
}

/// Seconds of one layer, forward and backward, and of the output, both ways, per micro-batch.
struct Work {
  double forward_s, backward_s, head_s;
};
Work work_of(const Config& config, const Machine& machine) {
  const Operations of = operations_of(config.model);
  const Pace pace = pace_on(machine);
  const double tokens = double(config.training.batch) * config.model.context / config.layout.tp;
  return {tokens * of.layer / pace.forward, 2 * tokens * of.layer / pace.backward,
          3 * tokens * of.head / pace.head};
}

/// Seconds that one micro-batch stands still in one layer.
struct Stalls {
  double tensor_forward = 0, tensor_backward = 0;
  double expert_forward = 0, expert_backward = 0;
};
Stalls stalls_of(const Config& config, const Machine& machine, const GridMapping& mapping,
                 const Work& work) {
  const Layout& l = config.layout;
  const Model& m = config.model;
  const double n = double(config.training.batch) * m.context;
  Stalls stalls;
  if (l.tp > 1) {
    const auto& price = mapping.prices[tensor_flow];
    const double call = (l.tp - 1) * price.alpha_s +
                        n * m.width * sizeof(float) * (l.tp - 1) / l.tp * price.beta_s_per_byte;
    stalls.tensor_forward = 4 * call;
    stalls.tensor_backward = (l.sequence_parallel ? 6 : 4) * call;
    // Backward, the weight gradients, as long as a forward pass, run beside the sums.
    if (machine.overlaps) {
      stalls.tensor_backward -= std::min(stalls.tensor_backward / 2, work.backward_s / 2);
    }
  }
  if (m.experts > 0 && l.ep > 1) {
    const auto& price = mapping.prices[expert_flow];
    const double rows = n * m.top_k * (l.ep - 1) / l.ep * m.width * sizeof(float);
    const double call = (l.ep - 1) * price.alpha_s + rows * price.beta_s_per_byte;
    stalls.expert_forward = stalls.expert_backward = 2 * call;
  }
  return stalls;
}

/// Gradients and values between replicas: what is not hidden behind the passes that allow it.
double exposed_data(const Config& config, const Machine& machine, const GridMapping& mapping,
                    double backward_s, double forward_s) {
  const std::vector<GridFlow> flows = flows_of(config);
  double all = 0;
  for (const FlowIndex f : {data_flow, twin_flow}) {
    all += flows[f].messages * mapping.prices[f].alpha_s +
           flows[f].bytes * mapping.prices[f].beta_s_per_byte;
  }
  const Layout& l = config.layout;
  if (!machine.overlaps || !l.overlap || all == 0) return all;
  // ZeRO-0 and 1 wait for the last micro-batch; ZeRO-1 and 2 gather under the next forward pass.
  double hideable = l.zero < 2 ? backward_s : l.micro_batches * backward_s;
  if (l.zero > 0) hideable += l.zero == 3 ? l.micro_batches * forward_s : forward_s;
  const double tail = all / (most_layers(config) + 1);  // the first layer's comes last
  return std::max(tail, all - hideable);
}

double memory_of(const Config& config) {
  const Layout& l = config.layout;
  double most = 0;
  for (const int stage : {0, l.pp - 1}) {
    Config placed = config;
    placed.layout.ranks.clear();
    const Trainer<float> rank(placed, stage * l.dp * l.tp);
    most = std::max(most, static_cast<double>(rank.memory().used_bytes()));
  }
  return most;
}

std::vector<PassTimes> pass_times(const Config& config, const Work& work, const Stalls& stalls) {
  const Layout& l = config.layout;
  const std::vector<int> sizes = partition_of(config.model, l);
  const bool split = l.pipeline == Pipeline::zero_bubble;
  const double forward = work.forward_s + stalls.tensor_forward + stalls.expert_forward;
  const double anew = l.recompute == Recompute::full        ? forward
                      : l.recompute == Recompute::selective ? 0.02 * work.forward_s
                                                            : 0;
  const double gradients = stalls.tensor_backward + stalls.expert_backward;
  std::vector<PassTimes> times;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    // The loss runs its backward pass at once.
    const double head = c + 1 == sizes.size() ? work.head_s : 0;
    const double layers = sizes[c];
    times.push_back({.forward = layers * forward + head,
                     .backward = layers * (work.backward_s / (split ? 2 : 1) + gradients + anew),
                     .weights = split ? layers * (work.backward_s / 2 + anew) : 0});
  }
  return times;
}

Estimate estimate_on(const Config& config, const Machine& machine, const GridMapping& mapping) {
  const Layout& l = config.layout;
  const Work work = work_of(config, machine);
  const Stalls stalls = stalls_of(config, machine, mapping, work);
  const std::vector<PassTimes> times = pass_times(config, work, stalls);
  const double rows = double(config.training.batch) * config.model.context * config.model.width /
                      (l.sequence_parallel ? l.tp : 1);
  const auto& hop = mapping.prices[pipeline_flow];
  const double message_s = l.pp > 1 ? hop.alpha_s + rows * sizeof(float) * hop.beta_s_per_byte : 0;
  const Timeline line = simulated(pipeline_order(l), l, times, message_s);
  Estimate e{.config = config, .nesting = mapping.nesting};
  // The busiest rank: what its passes take, and of that what is communication.
  double busiest = 0;
  double backward = 0;
  double forward = 0;
  for (int r = 0; r < l.pp; ++r) {
    double busy = 0, back = 0, ahead = 0;
    for (int c = r; c < l.chunks(); c += l.pp) {
      const PassTimes& t = times[static_cast<std::size_t>(c)];
      busy += l.micro_batches * (t.forward + t.backward + t.weights);
      back += t.backward + t.weights;
      ahead += t.forward;
    }
    if (busy > busiest) std::tie(busiest, backward, forward) = std::tuple(busy, back, ahead);
  }
  const double passes = l.micro_batches * double(most_layers(config));
  const int forwards = l.recompute == Recompute::full ? 2 : 1;
  e.tensor_s = passes * (forwards * stalls.tensor_forward + stalls.tensor_backward);
  e.expert_s = passes * (forwards * stalls.expert_forward + stalls.expert_backward);
  const double held = static_cast<double>(parameters(config.model)) /
                      (double(l.tp) * l.pp * (l.zero > 0 ? l.dp : 1));
  const double update = held * pace_on(machine).step_s;
  e.compute_s = busiest - e.tensor_s - e.expert_s + update;
  e.idle_s = line.makespan_s - busiest;
  e.data_s = exposed_data(config, machine, mapping, backward, forward);
  e.seconds = line.makespan_s + update + e.data_s;
  return e;
}

/// Calls visit(layout) for every way to divide `ranks` that the model allows in principle.
template <class Visit>
void for_each_division(const Model& m, int ranks, Visit visit) {
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp != 0 || m.heads % tp != 0 || m.f() % tp != 0 || m.vocab % tp != 0) continue;
    for (int pp = 1; pp <= std::min(ranks / tp, m.layers); ++pp) {
      if (ranks / tp % pp != 0) continue;
      const int dp = ranks / tp / pp;
      for (int ep = 1; ep <= (m.experts > 0 ? dp : 1); ++ep) {
        if (dp % ep == 0 && (m.experts == 0 || m.experts % ep == 0)) {
          visit(Layout{.dp = dp, .tp = tp, .pp = pp, .ep = ep});
        }
      }
    }
  }
}

/// The variants of one division that may differ in time or memory.
std::vector<Config> variants(const Config& base, const Layout& division, int sequences) {
  std::vector<Config> all;
  const int per_replica = sequences / division.dp;
  for (int m = 1; m <= per_replica; m *= 2) {
    if (per_replica % m != 0) continue;
    for (const Pipeline pipeline :
         {Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
      if (division.pp == 1 && pipeline != Pipeline::one_f_one_b) continue;
      const bool interleaved = pipeline == Pipeline::interleaved;
      if (interleaved && (m % division.pp != 0 || 2 * division.pp > base.model.layers)) continue;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (int zero = 0; zero <= (division.dp > 1 ? 3 : 0); ++zero) {
          Config c = base;
          c.layout = division;
          c.layout.micro_batches = m;
          c.layout.pipeline = pipeline;
          c.layout.virtual_stages = interleaved ? 2 : 1;
          c.layout.recompute = recompute;
          c.layout.zero = zero;
          c.training.batch = per_replica / m;
          c.layout.sequence_parallel =
              division.tp > 1 && c.training.batch * base.model.context % division.tp == 0;
          all.push_back(std::move(c));
        }
      }
    }
  }
  return all;
}

}  // namespace

Pace pace_of(double flops_per_s) {
  return {flops_per_s, flops_per_s, flops_per_s, kUpdateFlops / flops_per_s};
}

Operations operations_of(const Model& m) {
  const double h = m.width;
  const double visited = m.experts > 0 ? m.top_k : 1;
  return {2 * (4 * h * h + 2 * visited * h * m.f() + h * m.context), 2 * h * m.vocab};
}

std::vector<int> grid_of(const Layout& l) { return {l.pp, l.dp / l.ep, l.ep, l.tp}; }

std::vector<GridFlow> flows_of(const Config& config) {
  const Layout& l = config.layout;
  std::array<double, kAxes> bytes{};
  std::array<double, kAxes> messages{};
  for (int stage = 0; stage < l.pp; ++stage) {
    Config placed = config;
    placed.layout.ranks.clear();
    const int rank = stage * l.dp * l.tp;
    const Volume volume = predicted_volume(placed, rank, sizeof(float));
    const Volume calls = predicted_messages(placed, rank);
    for (std::size_t a = 0; a < volume.size(); ++a) {
      bytes[a] = std::max(bytes[a], static_cast<double>(volume[a]));
      messages[a] = std::max(messages[a], static_cast<double>(calls[a]));
    }
  }
  const auto at = [](const auto& of, Axis axis) { return of[static_cast<std::size_t>(axis)]; };
  const auto flow = [&](const char* name, std::vector<int> dims, Axis axis) {
    return GridFlow{.name = name,
                    .dims = std::move(dims),
                    .bytes = at(bytes, axis),
                    .messages = at(messages, axis)};
  };
  std::vector<GridFlow> flows{
      flow("data", {twins, experts}, Axis::data),
      flow("expert replicas", {twins}, Axis::expert_data), flow("experts", {experts}, Axis::expert),
      flow("tensor", {slices}, Axis::tensor), flow("pipeline", {stages}, Axis::pipeline)};
  flows[expert_flow].pattern = GridFlow::Pattern::pairs;
  flows[expert_flow].bytes += expert_row_bytes(config, most_layers(config));
  flows[pipeline_flow].bytes /= 2;
  flows[pipeline_flow].messages /= 2;
  // Interleaved stages also send from the last rank to the first.
  flows[pipeline_flow].pattern =
      l.virtual_stages > 1 ? GridFlow::Pattern::ring : GridFlow::Pattern::chain;
  return flows;
}

std::vector<int> mapped(const Config& config, const chorus::Topology& topology) {
  return chorus::map_grid(topology, grid_of(config.layout), flows_of(config)).ranks;
}

Estimate estimate(const Config& config, const Machine& machine, bool count_memory) {
  check(config, machine.topology.world_size());
  const auto sizes = grid_of(config.layout);
  const auto flows = flows_of(config);
  GridMapping mapping =
      config.layout.ranks.empty()
          ? chorus::map_grid(machine.topology, sizes, flows)
          : chorus::price_grid(machine.topology, sizes, flows, config.layout.ranks);
  if (!machine.prices.empty()) mapping.prices = machine.prices;
  Estimate e = estimate_on(config, machine, mapping);
  e.config.layout.ranks = mapping.ranks;
  if (count_memory) e.memory_bytes = memory_of(config);
  return e;
}

Plan best_layouts(const Config& base, int sequences, const Machine& machine, std::size_t most) {
  const int ranks = machine.topology.world_size();
  Plan plan;
  std::vector<Estimate> all;
  for_each_division(base.model, ranks, [&](const Layout& division) {
    if (sequences % division.dp != 0) return;
    GridMapping mapping;
    for (const Config& config : variants(base, division, sequences)) {
      // One mapping per division: its variants move alike.
      if (mapping.ranks.empty()) {
        mapping = chorus::map_grid(machine.topology, grid_of(division), flows_of(config));
      }
      Estimate e = estimate_on(config, machine, mapping);
      e.config.layout.ranks = mapping.ranks;
      all.push_back(std::move(e));
    }
  });
  plan.considered = static_cast<int>(all.size());
  if (all.empty()) {
    throw chorus::InputError(
        fmt::format("no layout divides {} heads and {} layers over {} ranks and {} sequences over "
                    "its replicas; "
                    "use a number of ranks and --sequences that share factors with them",
                    base.model.heads, base.model.layers, ranks, sequences));
  }
  // Fastest first; of equals what shards less, for it has less to go wrong.
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  std::map<std::tuple<int, int, int, int>, int> shown;
  for (Estimate& e : all) {
    const Layout& l = e.config.layout;
    int& same = shown[{l.dp, l.tp, l.pp, l.ep}];
    if (same == 2) continue;  // two variants of one division are enough to compare
    e.memory_bytes = memory_of(e.config);
    if (machine.memory_bytes > 0 && e.memory_bytes > machine.memory_bytes) {
      ++plan.too_large;
      if (plan.least_bytes == 0) plan.least_bytes = e.memory_bytes;
      plan.least_bytes = std::min(plan.least_bytes, e.memory_bytes);
      continue;
    }
    ++same;
    plan.best.push_back(std::move(e));
    if (plan.best.size() == most) break;
  }
  if (plan.best.empty()) {
    throw chorus::InputError(fmt::format(
        "none of {} layouts over {} ranks fits {} per rank: the smallest needs {}", plan.considered,
        ranks, human_bytes(machine.memory_bytes), human_bytes(plan.least_bytes)));
  }
  return plan;
}

std::string describe(const Plan& plan, const Machine& machine) {
  static constexpr const char* kDims[] = {"pp", "dp", "ep", "tp"};
  std::string text =
      fmt::format("{} layouts considered on {} ranks of {:.3g} GFLOP/s", plan.considered,
                  machine.topology.world_size(), machine.flops_per_s / 1e9);
  if (machine.memory_bytes > 0) {
    text += fmt::format(" and {}; {} of the fastest do not fit", human_bytes(machine.memory_bytes),
                        plan.too_large);
  }
  text +=
      fmt::format("\n{:>10} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}  {:<13} {}\n", "step", "compute",
                  "idle", "tensor", "experts", "data", "memory", "near to far", "layout");
  for (const Estimate& e : plan.best) {
    const Layout& l = e.config.layout;
    const auto share = [&](double s) { return fmt::format("{:.1f} %", 100 * s / e.seconds); };
    std::vector<const char*> nesting;
    for (const int d : e.nesting) {
      if (grid_of(l)[static_cast<std::size_t>(d)] > 1) {
        nesting.push_back(kDims[static_cast<std::size_t>(d)]);
      }
    }
    std::string options = fmt::format("--dp {} --tp {} --pp {}", l.dp, l.tp, l.pp);
    if (l.ep > 1) options += fmt::format(" --ep {}", l.ep);
    if (l.zero > 0) options += fmt::format(" --zero {}", l.zero);
    if (l.sequence_parallel) options += " --sequence-parallel";
    options +=
        fmt::format(" --batch {} --micro-batches {}", e.config.training.batch, l.micro_batches);
    if (l.pp > 1) options += fmt::format(" --schedule {}", name_of(l.pipeline));
    if (l.virtual_stages > 1) options += fmt::format(" --virtual-stages {}", l.virtual_stages);
    if (l.recompute != Recompute::none)
      options += fmt::format(" --recompute {}", name_of(l.recompute));
    text += fmt::format("{:>8.2f}ms {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}  {:<13} {}\n",
                        1e3 * e.seconds, share(e.compute_s), share(e.idle_s), share(e.tensor_s),
                        share(e.expert_s), share(e.data_s), human_bytes(e.memory_bytes),
                        fmt::format("{}", fmt::join(nesting, " ")), options);
  }
  return text;
}

}  // namespace trainer
