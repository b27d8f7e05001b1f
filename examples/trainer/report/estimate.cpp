// What a step of a layout takes on a machine.
#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "report/plan.hpp"
#include "report/volume.hpp"
#include "schedule.hpp"
#include "trainer.hpp"

namespace trainer {
namespace {

using chorus::GridFlow;
using chorus::GridMapping;

enum Dim : int { stages, twins, experts, slices };
enum FlowIndex : std::size_t {
  data_flow,
  twin_flow,
  expert_flow,
  tensor_flow,
  pipeline_flow,
  node_flow,
  across_flow
};

/// An update reads and writes a value, its gradient and two moments: as long as so many operations.
constexpr double kUpdateFlops = 100;
/// To pack a value, what was lost included, and to add one that was packed: by the bytes that they
/// touch beside those of an update, not by measurement.
constexpr double kPackFlops = 100;
constexpr double kUnpackFlops = 40;

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

/// The replica that has most to do, of those that the shares of a batch tell apart.
int fullest_replica(const Layout& l) {
  return static_cast<int>(std::ranges::max_element(l.shares) - l.shares.begin());
}

/// A rank of `stage`, of the fullest replica, where places are numbered like ranks.
int rank_of(const Layout& l, int stage) {
  return (stage * l.dp + (l.shares.empty() ? 0 : fullest_replica(l))) * l.tp;
}

Pace pace_on(const Machine& machine) {
  return machine.pace.forward > 0 ? machine.pace : pace_of(machine.flops_per_s);
}

/// Seconds of one layer, forward and backward, and of the output, both ways, per micro-batch of a
/// rank of speed 1.
struct Passes {
  double forward_s, backward_s, head_s;
};
Passes passes_of(const Config& config, const Machine& machine) {
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

/// In how many parts rows go to and from the experts of a rank.
int parts_of(const Config& config) {
  return std::min(config.layout.expert_chunks, config.model.experts / config.layout.ep);
}

/// All messages of a layer, hidden or not.
Stalls messages_of(const Config& config, const GridMapping& mapping) {
  const Layout& l = config.layout;
  const Model& m = config.model;
  if (l.halves) {
    Config half = config.half();
    half.layout.halves = false;
    const Stalls s = messages_of(half, mapping);
    return {2 * s.tensor_forward, 2 * s.tensor_backward, 2 * s.expert_forward,
            2 * s.expert_backward};
  }
  const double n = double(config.training.batch) * m.context;
  Stalls stalls;
  if (l.tp > 1) {
    const auto& price = mapping.prices[tensor_flow];
    const double call = (l.tp - 1) * price.alpha_s +
                        n * m.width * sizeof(float) * (l.tp - 1) / l.tp * price.beta_s_per_byte;
    stalls.tensor_forward = 4 * call;
    stalls.tensor_backward = (l.sequence_parallel ? 6 : 4) * call;
  }
  if (m.experts > 0 && l.ep > 1) {
    const auto& price = mapping.prices[expert_flow];
    const double rows = n * m.top_k * (l.ep - 1) / l.ep * m.width * sizeof(float);
    const double call =
        parts_of(config) * (l.ep - 1) * price.alpha_s + rows * price.beta_s_per_byte;
    stalls.expert_forward = stalls.expert_backward = 2 * call;
  }
  return stalls;
}

/// Takes off two kinds of messages what the work of `cover_s` hides, of both in proportion.
void hide(double& a, double& b, double cover_s) {
  const double all = a + b;
  if (all == 0) return;
  const double left = std::max(0.0, all - cover_s) / all;
  a *= left;
  b *= left;
}

/// The share of a layer's operations that experts do.
double expert_share(const Model& m) {
  return 4.0 * m.top_k * m.width * m.f() / operations_of(m).layer;
}

Stalls stalls_of(const Config& config, const Machine& machine, const GridMapping& mapping,
                 const Passes& passes) {
  Stalls s = messages_of(config, mapping);
  if (!machine.overlaps) return s;
  if (config.layout.halves) {
    // While one half waits, the other computes.
    hide(s.tensor_forward, s.expert_forward, passes.forward_s);
    hide(s.tensor_backward, s.expert_backward, passes.backward_s);
    return s;
  }
  // Backward, the weight gradients, as long as a forward pass, run beside the sums.
  s.tensor_backward -= std::min(s.tensor_backward / 2, passes.backward_s / 2);
  if (s.expert_forward == 0) return s;
  const int parts = parts_of(config);
  const auto chunked = [&](double all, double work_s) {
    // The first part to the experts and the last one back have no work beside them.
    const double ends = all / parts;
    return ends + std::max(0.0, (all - ends) - work_s * (parts - 1) / parts);
  };
  const double share = expert_share(config.model);
  s.expert_forward = chunked(s.expert_forward, share * passes.forward_s);
  s.expert_backward = chunked(s.expert_backward, share * passes.backward_s);
  return s;
}

/// Gradients and values between replicas: what is not hidden behind the passes that allow it.
double exposed_data(const Config& config, const Machine& machine, const GridMapping& mapping,
                    const std::vector<GridFlow>& flows, double backward_s, double forward_s) {
  const auto seconds = [&](FlowIndex f) {
    return flows[f].messages * mapping.prices[f].alpha_s +
           flows[f].bytes * mapping.prices[f].beta_s_per_byte;
  };
  const double all = seconds(data_flow) + seconds(twin_flow) + seconds(node_flow);
  const double last_hop = seconds(across_flow);  // of quantized gradients: never hidden
  const Layout& l = config.layout;
  const Training& t = config.training;
  // Compressed gradients and averages of values travel when all passes are over.
  const bool after = t.compression != Compression::none || t.average != Average::gradients;
  if (!machine.overlaps || !l.overlap || after || all == 0) return all + last_hop;
  // ZeRO-0 and 1 wait for the last micro-batch; ZeRO-1 and 2 gather under the next forward pass.
  double hideable = l.zero < 2 ? backward_s : l.micro_batches * backward_s;
  if (l.zero > 0) hideable += l.zero == 3 ? l.micro_batches * forward_s : forward_s;
  const double tail = all / (most_layers(config) + 1);  // the first layer's comes last
  return std::max(tail, all - hideable) + last_hop;
}

/// Operations of a step that pack and unpack what replicas send each other, per value of a rank.
double packing_flops(const Config& config) {
  const Layout& l = config.layout;
  const Training& t = config.training;
  if (l.dp == 1) return 0;
  const bool sparse =
      t.compression == Compression::top_k || t.compression == Compression::threshold;
  switch (t.compression) {
    case Compression::none:
      break;
    case Compression::power:
      return 8.0 * t.power_rank + kUnpackFlops;  // four products with thin matrices
    case Compression::qsgd:
    case Compression::one_bit:
    case Compression::top_k:
    case Compression::threshold:
      return t.rounds * (kPackFlops + l.dp * kUnpackFlops * (sparse ? t.share : 1.0));
  }
  double flops = 0;
  if (l.quantize_weights) {
    const double gathers = l.secondary > 0 ? 1 : 2.0 * l.micro_batches;
    flops += gathers * (kPackFlops / l.dp + kUnpackFlops);
  }
  if (l.quantize_gradients) {
    flops += l.micro_batches * (kPackFlops + kUnpackFlops);
    if (l.secondary > 0) flops += l.micro_batches * (kPackFlops + kUnpackFlops) / l.secondary;
  }
  return flops;
}

/// Bytes of memory that buffers of sharded gradients and values cost a rank in a step: emptied,
/// added to the shard, and the shard copied to where the others' come beside it.
double buffered_bytes(const Layout& l, double values) {
  if (l.dp == 1 || l.zero < 2) return 0;
  const double shard = values / l.dp;
  const double gradients = l.quantize_gradients ? values : values + 3 * shard;
  const double gathered = l.zero < 3 || l.quantize_weights ? 0 : 2 * 2 * shard;
  return l.micro_batches * (gradients + gathered) * sizeof(float);
}

/// The speed of a replica's stage: of its slowest slice.
double speed_of(const Machine& machine, const GridMapping& mapping, const Layout& l, int stage,
                int replica) {
  if (machine.speeds.empty()) return 1;
  double slowest = std::numeric_limits<double>::infinity();
  for (int slice = 0; slice < l.tp; ++slice) {
    const int place = (stage * l.dp + replica) * l.tp + slice;
    const auto rank = static_cast<std::size_t>(mapping.ranks[static_cast<std::size_t>(place)]);
    slowest = std::min(slowest, machine.speeds[rank]);
  }
  return slowest;
}

/// Of each chunk; `speeds` by stage.
std::vector<PassTimes> pass_times(const Config& config, const Passes& passes, const Stalls& stalls,
                                  const std::vector<double>& speeds) {
  const Layout& l = config.layout;
  const std::vector<int> sizes = partition_of(config.model, l);
  const bool split = l.pipeline == Pipeline::zero_bubble;
  const double gradients = stalls.tensor_backward + stalls.expert_backward;
  std::vector<PassTimes> times;
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    const double speed = speeds[c % speeds.size()];
    const double forward = passes.forward_s / speed + stalls.tensor_forward + stalls.expert_forward;
    const double backward_s = passes.backward_s / speed;
    const double anew = l.recompute == Recompute::full        ? forward
                        : l.recompute == Recompute::selective ? 0.02 * passes.forward_s / speed
                                                              : 0;
    // The loss runs its backward pass at once.
    const double head = c + 1 == sizes.size() ? passes.head_s / speed : 0;
    const double layers = sizes[c];
    times.push_back({.forward = layers * forward + head,
                     .backward = layers * (backward_s / (split ? 2 : 1) + gradients + anew),
                     .weights = split ? layers * (backward_s / 2 + anew) : 0});
  }
  return times;
}

/// Of one replica, `config` with its share of the batch.
Estimate estimate_replica(const Config& config, const Machine& machine, const GridMapping& mapping,
                          const std::vector<GridFlow>& flows, int replica) {
  const Layout& l = config.layout;
  const Passes passes = passes_of(config, machine);
  std::vector<double> speeds;
  for (int stage = 0; stage < l.pp; ++stage) {
    speeds.push_back(speed_of(machine, mapping, l, stage, replica));
  }
  const Stalls stalls = stalls_of(config, machine, mapping, passes);
  const std::vector<PassTimes> times = pass_times(config, passes, stalls, speeds);
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
  const double layers = l.micro_batches * double(most_layers(config));
  const int forwards = l.recompute == Recompute::full ? 2 : 1;
  e.tensor_s = layers * (forwards * stalls.tensor_forward + stalls.tensor_backward);
  e.expert_s = layers * (forwards * stalls.expert_forward + stalls.expert_backward);
  const Pace pace = pace_on(machine);
  const double of_rank = static_cast<double>(parameters(config.model)) / (double(l.tp) * l.pp);
  const double rest =
      (of_rank / (l.zero > 0 ? l.dp : 1) * pace.step_s +
       of_rank * packing_flops(config) / pace.forward + buffered_bytes(l, of_rank) * pace.byte_s) /
      std::ranges::min(speeds);
  e.compute_s = busiest - e.tensor_s - e.expert_s + rest;
  e.idle_s = std::max(0.0, line.makespan_s - busiest);  // not −0 of two roundings
  e.data_s = exposed_data(config, machine, mapping, flows, backward, forward);
  e.seconds = line.makespan_s + rest + e.data_s;
  return e;
}

/// `all` sequences in units of `unit`, one after the other to the replica that would be done first
/// with it: the slowest is as fast as can be. seconds [dp]: of one sequence.
std::vector<int> shared_out(int all, int unit, const std::vector<double>& seconds) {
  std::vector<int> shares(seconds.size(), unit);  // each replica has one at least
  for (int left = all / unit - static_cast<int>(shares.size()); left > 0; --left) {
    std::size_t first = 0;
    for (std::size_t r = 1; r < shares.size(); ++r) {
      if ((shares[r] + unit) * seconds[r] < (shares[first] + unit) * seconds[first]) first = r;
    }
    shares[first] += unit;
  }
  return shares;
}

}  // namespace

Config balanced(Config config, const Machine& machine, const GridMapping& mapping) {
  Layout& l = config.layout;
  const Operations of = operations_of(config.model);
  const std::vector<double> layers(static_cast<std::size_t>(config.model.layers), 3 * of.layer);
  const bool batches = !l.shares.empty();
  const auto share = [&](int r) {
    return batches ? l.shares[static_cast<std::size_t>(r)] : config.training.batch;
  };
  for (int round = 0; round < 8; ++round) {
    const Layout before = l;
    std::vector<double> speeds;
    for (int c = 0; c < l.chunks(); ++c) {
      double slowest = 0;
      for (int r = 0; r < l.dp; ++r) {
        slowest = std::max(slowest, share(r) / speed_of(machine, mapping, l, c % l.pp, r));
      }
      speeds.push_back(1 / slowest);
    }
    l.partition = balanced_partition(layers, 0, 3 * of.head, l.chunks(), speeds);
    if (!batches) break;
    std::vector<double> seconds;
    for (int r = 0; r < l.dp; ++r) {
      double slowest = 0;
      for (int stage = 0; stage < l.pp; ++stage) {
        double operations = stage == l.pp - 1 ? 3 * of.head : 0;
        for (int c = stage; c < l.chunks(); c += l.pp) {
          operations += 3 * of.layer * l.partition[static_cast<std::size_t>(c)];
        }
        slowest = std::max(slowest, operations / speed_of(machine, mapping, l, stage, r));
      }
      seconds.push_back(slowest);
    }
    l.shares = shared_out(config.sequences(), l.halves ? 2 : 1, seconds);
    if (l == before) break;
  }
  if (l.pp == 1) l.partition.clear();
  return config;
}

Pace pace_of(double flops_per_s) {
  return {flops_per_s, flops_per_s, flops_per_s, kUpdateFlops / flops_per_s};
}

Operations operations_of(const Model& m) {
  const double h = m.width;
  const double visited = m.experts > 0 ? m.top_k : 1;
  return {2 * (4 * h * h + 2 * visited * h * m.f() + h * m.context), 2 * h * m.vocab};
}

std::vector<int> grid_of(const Layout& l) {
  // Nodes of replicas are for dense models, so that one dimension serves them and experts.
  const int inner = l.secondary > 0 ? l.secondary : l.ep;
  return {l.pp, l.dp / inner, inner, l.tp};
}

std::vector<GridFlow> flows_of(const Config& config) {
  const Layout& l = config.layout;
  std::array<double, kAxes> bytes{};
  std::array<double, kAxes> messages{};
  Config placed = config;
  placed.layout.ranks.clear();
  for (int stage = 0; stage < l.pp; ++stage) {
    const int rank = rank_of(l, stage);
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
  std::vector<GridFlow> flows{flow("data", {twins, experts}, Axis::data),
                              flow("expert replicas", {twins}, Axis::expert_data),
                              flow("experts", {experts}, Axis::expert),
                              flow("tensor", {slices}, Axis::tensor),
                              flow("pipeline", {stages}, Axis::pipeline),
                              flow("inside nodes", {experts}, Axis::node),
                              flow("across nodes", {twins}, Axis::across)};
  const Config fullest = l.shares.empty() ? config : config.of_replica(fullest_replica(l));
  flows[expert_flow].pattern = GridFlow::Pattern::pairs;
  flows[expert_flow].bytes += expert_row_bytes(fullest, most_layers(config));
  flows[across_flow].pattern = GridFlow::Pattern::pairs;
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

Estimate estimate(const Config& config, const Machine& machine, const GridMapping& mapping) {
  const std::vector<GridFlow> flows = flows_of(config);
  const bool alike = config.layout.shares.empty() && machine.speeds.empty();
  Estimate slowest;
  for (int replica = 0; replica < (alike ? 1 : config.layout.dp); ++replica) {
    Estimate e = estimate_replica(config.of_replica(replica), machine, mapping, flows, replica);
    if (e.seconds > slowest.seconds) slowest = std::move(e);
  }
  slowest.config = config;
  slowest.config.layout.ranks = mapping.ranks;
  return slowest;
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
  Estimate e = estimate(config, machine, mapping);
  if (count_memory) e.memory_bytes = memory_of(config);
  return e;
}

double memory_of(const Config& config) {
  const Layout& l = config.layout;
  double most = 0;
  for (const int stage : {0, l.pp - 1}) {
    Config placed = config;
    placed.layout.ranks.clear();
    const Trainer<float> rank(placed, rank_of(l, stage));
    most = std::max(most, static_cast<double>(rank.memory().used_bytes()));
  }
  return most;
}

}  // namespace trainer
