#include "report/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "chorus/error.hpp"
#include "report/report.hpp"
#include "report/volume.hpp"
#include "schedule.hpp"

namespace trainer {
namespace {

using chorus::GridMapping;

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

/// What `base` asks for beside the layout may need gradients or values as they are.
bool allows(const Config& base, int zero, int ep) {
  const Training& t = base.training;
  if (t.compression != Compression::none) return zero == 0;
  if (t.average != Average::gradients) return zero == 0 && ep == 1;
  if (base.layout.quantize_weights) return zero == 3;
  return zero >= 2 || !base.layout.quantize_gradients;
}

/// Adds what change() makes of each of `all`, where it says so.
template <class Change>
void also(std::vector<Config>& all, Change change) {
  const std::size_t count = all.size();
  for (std::size_t i = 0; i < count; ++i) {
    Config c = all[i];
    if (change(c)) all.push_back(std::move(c));
  }
}

/// A micro-batch of `sequences` in equal parts, or, where ranks are not alike, in others too.
std::vector<Config> batches(const Config& of, int sequences, bool alike) {
  std::vector<Config> all;
  const int dp = of.layout.dp;
  Config c = of;
  c.training.batch = std::max(1, sequences / dp);
  if (sequences % dp == 0) all.push_back(c);
  if (alike || dp == 1 || of.training.average != Average::gradients) return all;
  c.layout.shares.assign(static_cast<std::size_t>(dp), sequences / dp);
  for (int r = 0; r < sequences % dp; ++r) ++c.layout.shares[static_cast<std::size_t>(r)];
  all.push_back(std::move(c));
  return all;
}

/// What keeps the arithmetic and hides or saves messages.
void add_communication_variants(std::vector<Config>& all) {
  also(all, [](Config& c) {
    const Layout& l = c.layout;
    const bool even = std::ranges::all_of(l.shares, [](int s) { return s % 2 == 0; });
    c.layout.halves = true;
    const int tokens = c.training.batch / 2 * c.model.context;
    return (l.tp > 1 || l.ep > 1) && (l.shares.empty() ? c.training.batch % 2 == 0 : even) &&
           (!l.sequence_parallel || tokens % l.tp == 0);
  });
  for (const int parts : {2, 4}) {
    also(all, [parts](Config& c) {
      Layout& l = c.layout;
      if (l.ep == 1 || l.expert_chunks > 1 || c.model.experts / l.ep < parts) return false;
      l.expert_chunks = parts;
      return true;
    });
  }
  const int dp = all.empty() ? 1 : all.front().layout.dp;
  for (int node = 2; node < dp; ++node) {
    if (dp % node != 0) continue;
    also(all, [node](Config& c) {
      Layout& l = c.layout;
      if (l.zero != 3 || c.model.experts > 0 || l.secondary > 0) return false;
      l.secondary = node;
      return true;
    });
  }
}

/// The variants of one division that may differ in time or memory.
std::vector<Config> variants(const Config& base, const Layout& division, int sequences,
                             bool alike) {
  std::vector<Config> all;
  for (int m = 1; sequences / m >= division.dp; m *= 2) {
    if (sequences % m != 0) continue;
    for (const Pipeline pipeline :
         {Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
      if (division.pp == 1 && pipeline != Pipeline::one_f_one_b) continue;
      const bool interleaved = pipeline == Pipeline::interleaved;
      if (interleaved && (m % division.pp != 0 || 2 * division.pp > base.model.layers)) continue;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        for (int zero = 0; zero <= (division.dp > 1 ? 3 : 0); ++zero) {
          if (division.dp > 1 && !allows(base, zero, division.ep)) continue;
          Config c = base;
          c.layout = division;
          c.layout.micro_batches = m;
          c.layout.pipeline = pipeline;
          c.layout.virtual_stages = interleaved ? 2 : 1;
          c.layout.recompute = recompute;
          c.layout.zero = zero;
          if (zero == 3) c.layout.quantize_weights = base.layout.quantize_weights;
          if (zero >= 2) c.layout.quantize_gradients = base.layout.quantize_gradients;
          for (Config& of : batches(c, sequences / m, alike)) {
            const int tokens =
                of.layout.shares.empty() ? of.training.batch * of.model.context : of.model.context;
            of.layout.sequence_parallel = division.tp > 1 && tokens % division.tp == 0;
            all.push_back(std::move(of));
          }
        }
      }
    }
  }
  add_communication_variants(all);
  return all;
}

/// The options of `train` for it.
std::string options_of(const Config& config) {
  const Layout& l = config.layout;
  const Training& t = config.training;
  std::string text = fmt::format("--dp {} --tp {} --pp {}", l.dp, l.tp, l.pp);
  if (l.ep > 1) text += fmt::format(" --ep {}", l.ep);
  if (l.expert_chunks > 1) text += fmt::format(" --expert-chunks {}", l.expert_chunks);
  if (l.zero > 0) text += fmt::format(" --zero {}", l.zero);
  if (l.secondary > 0) text += fmt::format(" --secondary {}", l.secondary);
  if (l.quantize_weights) text += " --quantize-weights";
  if (l.quantize_gradients) text += " --quantize-gradients";
  if (l.sequence_parallel) text += " --sequence-parallel";
  if (l.halves) text += " --halves";
  text += l.shares.empty() ? fmt::format(" --batch {}", t.batch)
                           : fmt::format(" --batch-shares {}", fmt::join(l.shares, ","));
  text += fmt::format(" --micro-batches {}", l.micro_batches);
  if (l.pp > 1) text += fmt::format(" --schedule {}", name_of(l.pipeline));
  if (l.virtual_stages > 1) text += fmt::format(" --virtual-stages {}", l.virtual_stages);
  if (!l.partition.empty()) text += fmt::format(" --partition {}", fmt::join(l.partition, ","));
  if (l.recompute != Recompute::none) text += fmt::format(" --recompute {}", name_of(l.recompute));
  if (t.compression != Compression::none) {
    text += fmt::format(" --compress {}", name_of(t.compression));
  }
  if (t.average != Average::gradients) text += fmt::format(" --average {}", name_of(t.average));
  return text;
}

}  // namespace

void check_speeds(const Machine& machine) {
  const auto& speeds = machine.speeds;
  const auto ranks = static_cast<std::size_t>(machine.topology.world_size());
  if (speeds.empty()) return;
  if (speeds.size() != ranks ||
      !std::ranges::all_of(speeds, [](double s) { return s > 0 && std::isfinite(s); })) {
    throw chorus::InputError(
        fmt::format("--speeds {} must give each of the topology's {} ranks a factor above 0",
                    fmt::join(speeds, ","), ranks));
  }
}

Plan best_layouts(const Config& base, int sequences, const Machine& machine, std::size_t most) {
  const int ranks = machine.topology.world_size();
  Plan plan;
  std::vector<Estimate> all;
  const bool alike = machine.speeds.empty();
  for_each_division(base.model, ranks, [&](const Layout& division) {
    // One mapping per division and size of nodes: their variants move alike.
    std::map<int, GridMapping> mappings;
    for (Config config : variants(base, division, sequences, alike)) {
      GridMapping& mapping = mappings[config.layout.secondary];
      if (mapping.ranks.empty()) {
        mapping = chorus::map_grid(machine.topology, grid_of(config.layout), flows_of(config));
      }
      if (!alike) config = balanced(std::move(config), machine, mapping);
      // Equal shares are the variant that has a batch.
      const std::vector<int>& shares = config.layout.shares;
      if (!shares.empty() && std::ranges::count(shares, shares[0]) == config.layout.dp) continue;
      all.push_back(estimate(config, machine, mapping));
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
    const char* const dims[] = {"pp", l.secondary > 0 ? "nodes" : "dp",
                                l.secondary > 0 ? "node" : "ep", "tp"};
    std::vector<const char*> nesting;
    for (const int d : e.nesting) {
      if (grid_of(l)[static_cast<std::size_t>(d)] > 1) {
        nesting.push_back(dims[static_cast<std::size_t>(d)]);
      }
    }
    text += fmt::format("{:>8.2f}ms {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}  {:<13} {}\n",
                        1e3 * e.seconds, share(e.compute_s), share(e.idle_s), share(e.tensor_s),
                        share(e.expert_s), share(e.data_s), human_bytes(e.memory_bytes),
                        fmt::format("{}", fmt::join(nesting, " ")), options_of(e.config));
  }
  return text;
}

}  // namespace trainer
