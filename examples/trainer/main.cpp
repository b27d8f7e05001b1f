// train: trains a transformer over the ranks it is launched with, e.g. by `chorus run -n 4 --
// train`.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <optional>

#include "checkpoint.hpp"
#include "compare.hpp"
#include "report.hpp"
#include "volume.hpp"

namespace trainer {
namespace {

/// Of a trace, per rank.
constexpr std::size_t kMostSpans = 200'000;

struct Arguments {
  Config config;
  std::string preset = "tiny";
  std::string schedule = "1f1b";
  std::string recompute = "none";
  std::string compress = "none";
  std::string average = "gradients";
  std::string backend = "cpu";
  bool no_error_feedback = false;
  bool dry_run = false;
  bool dry_run_json = false;
  bool break_even = false;
  std::string plan;  ///< topology
  int sequences = 0;
  std::vector<double> speeds;
  double gflops = 0;
  double memory_gb = 0;
  std::string mapping = "auto";
  bool list_presets = false;
  bool no_overlap = false;
  bool untied = false;
  bool deterministic = false;
  bool report = false;
  int evaluate_every = 0;
  int print_every = 10;
  std::string report_json;
  std::string trace;
  int trace_steps = 2;
  int compare_overlap = 0;
  int compare_plan = 0;
  std::string compare_json;
  std::string checkpoint;
  int checkpoint_every = 0;
  bool resume = false;
};

void add_model_options(CLI::App& app, Arguments& a) {
  Model& m = a.config.model;
  app.add_flag("--presets", a.list_presets, "list the presets");
  app.add_option("--preset", a.preset, "model to begin with");
  app.add_option("--vocab", m.vocab, "entries of the vocabulary")->group("Model");
  app.add_option("--context", m.context, "tokens per sequence")->group("Model");
  app.add_option("--layers", m.layers)->group("Model");
  app.add_option("--width", m.width)->group("Model");
  app.add_option("--heads", m.heads)->group("Model");
  app.add_option("--feed-forward", m.feed_forward, "0: 4 x width")->group("Model");
  app.add_flag("--untied", a.untied, "an output matrix of its own")->group("Model");
  app.add_option("--experts", m.experts, "experts per layer; 0: dense")->group("Model");
  app.add_option("--top-k", m.top_k, "experts per token")->group("Model");
  app.add_option("--capacity", m.capacity, "of an expert over an even share; 0: no limit")
      ->group("Model");
  app.add_option("--balance-loss", m.balance_loss, "weight of the load-balancing loss")
      ->group("Model");
}

void add_layout_options(CLI::App& app, Arguments& a) {
  Layout& l = a.config.layout;
  const char* group = "Layout";
  app.add_option("--dp", l.dp, "replicas")->group(group);
  app.add_option("--tp", l.tp, "tensor-parallel ranks")->group(group);
  app.add_option("--pp", l.pp, "pipeline stages")->group(group);
  app.add_option("--ep", l.ep, "ranks of dp that share the experts")->group(group);
  app.add_option("--expert-chunks", l.expert_chunks,
                 "parts in which rows travel to and from experts, while the experts of others work")
      ->group(group);
  app.add_flag("--halves", l.halves,
               "compute every micro-batch in two halves, one while the other's messages between "
               "slices or experts travel")
      ->group(group);
  app.add_option("--zero", l.zero, "shard: 1 optimizer, 2 gradients, 3 parameters")->group(group);
  app.add_flag("--quantize-weights", l.quantize_weights, "ZeRO++: gather values in 8 bits")
      ->group(group);
  app.add_flag("--quantize-gradients", l.quantize_gradients, "ZeRO++: reduce gradients in 8 bits")
      ->group(group);
  app.add_option("--secondary", l.secondary,
                 "ZeRO++: replicas per node, among which each node keeps all values; 0: none")
      ->group(group);
  app.add_flag("--sequence-parallel", l.sequence_parallel)->group(group);
  app.add_option("--micro-batches", l.micro_batches, "per step and replica")->group(group);
  app.add_option("--virtual-stages", l.virtual_stages, "chunks per rank (interleaved)")
      ->group(group);
  app.add_option("--schedule", a.schedule, "gpipe, 1f1b, interleaved, zero-bubble")->group(group);
  app.add_option("--recompute", a.recompute, "none, selective, full")->group(group);
  app.add_option("--partition", l.partition, "layers of each chunk; default: the planner's")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--bucket-bytes", l.bucket_bytes, "gradients reduced at once")->group(group);
  app.add_flag("--no-overlap", a.no_overlap, "reduce gradients after the backward pass")
      ->group(group);
}

void add_training_options(CLI::App& app, Arguments& a) {
  Training& t = a.config.training;
  const char* group = "Training";
  app.add_option("--batch", t.batch, "sequences per micro-batch and replica")->group(group);
  app.add_option("--batch-shares", a.config.layout.shares,
                 "in place of --batch: of each replica, for unequal machines")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--steps", t.steps)->group(group);
  app.add_option("--learning-rate", t.learning_rate)->group(group);
  app.add_option("--min-learning-rate", t.min_learning_rate)->group(group);
  app.add_option("--warmup-steps", t.warmup_steps)->group(group);
  app.add_option("--base-batch", t.base_batch, "scale the rate by sequences per step over this")
      ->group(group);
  app.add_option("--weight-decay", t.weight_decay)->group(group);
  app.add_option("--clip", t.clip, "largest gradient norm; 0: none")->group(group);
  app.add_option("--compress", a.compress,
                 "gradients between replicas: none, qsgd, 1bit, topk, power")
      ->group(group);
  app.add_option("--levels", t.levels, "of qsgd, up to 127")->group(group);
  app.add_option("--share", t.share, "of the gradient that topk sends")->group(group);
  app.add_option("--rank", t.power_rank, "of power: columns of the factors")->group(group);
  app.add_option("--neolithic", t.rounds,
                 "rounds in which what is left of a gradient is compressed again; 1: none")
      ->group(group);
  app.add_flag("--ef21", t.differences, "compress differences to an estimate (EF21)")->group(group);
  app.add_option("--average", a.average,
                 "between replicas: gradients, or values: local, ring, grid, exponential")
      ->group(group);
  app.add_option("--global-every", t.global_every, "steps between averages of values over all")
      ->group(group);
  app.add_flag("--no-error-feedback", a.no_error_feedback, "forget what compression lost")
      ->group(group);
  app.add_flag("--bfloat16", t.bfloat16,
               "round the factors of matrix products to bfloat16; values stay float32")
      ->group(group);
  app.add_option("--loss-scale", t.loss_scale,
                 "a power of two that multiplies the loss in the backward pass, halved where "
                 "gradients overflow, doubled after 1000 steps; 0: none")
      ->group(group);
  app.add_option(
         "--backend", a.backend,
         "what computes: cpu, cuda (GPUs), cuda-emulated (the host does what GPUs would: to "
         "see what the cuda backend computes, not how fast)")
      ->group(group);
  app.add_option("--seed", t.seed)->group(group);
  app.add_option("--data", t.data, "file of bytes; default: a synthetic source")->group(group);
}

void add_other_options(CLI::App& app, Arguments& a) {
  app.add_flag("--dry-run", a.dry_run, "count parameters, memory and communication, and end");
  app.add_flag("--dry-run-json", a.dry_run_json, "the communication of it as JSON, and end");
  app.add_flag("--break-even", a.break_even,
               "measure what compressing this model's gradients costs and below which rate of the "
               "network it pays between --dp replicas, and end");
  const char* plan = "Planning";
  app.add_option("--plan", a.plan,
                 "find the best layouts on this topology (a JSON file or a name of `chorus topo "
                 "--list`; \"\": this machine) instead of training")
      ->group(plan);
  app.add_option("--sequences", a.sequences, "per step, over all replicas; default: 4 per rank")
      ->group(plan);
  app.add_option("--gflops", a.gflops, "of a rank's matrix products; default: measured here")
      ->group(plan);
  app.add_option("--speeds", a.speeds,
                 "of each rank, as factors on --gflops; default: all are alike")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(plan);
  app.add_option("--memory-gb", a.memory_gb, "of a rank; default: no limit")->group(plan);
  app.add_option("--mapping", a.mapping,
                 "of the layout's axes to ranks: auto, the library's choice, or numbers")
      ->check(CLI::IsMember({"auto", "numbers"}))
      ->group("Layout");
  app.add_flag("--report", a.report, "print the communication report at the end");
  app.add_option("--report-json", a.report_json, "write it as JSON to this file");
  app.add_option("--trace", a.trace,
                 "write a timeline of the last steps: Chrome's JSON to this file, a picture to the "
                 "same name with .svg");
  app.add_option("--trace-steps", a.trace_steps)->check(CLI::Range(1, 100));
  app.add_option("--compare-overlap", a.compare_overlap,
                 "after training, so many pairs of steps with and without overlap, side by side");
  app.add_option("--compare-plan", a.compare_plan,
                 "after training, so many steps beside the planner's estimate, which is given this "
                 "machine's measured operations and messages");
  app.add_option("--compare-json", a.compare_json, "write what was compared as JSON to this file");
  app.add_option("--checkpoint", a.checkpoint, "directory of checkpoints")->group("Checkpoints");
  app.add_option("--checkpoint-every", a.checkpoint_every, "steps; default: at the end")
      ->group("Checkpoints");
  app.add_flag("--resume", a.resume, "go on from the last checkpoint, if there is one")
      ->group("Checkpoints");
  app.add_option("--evaluate-every", a.evaluate_every, "steps between held-out losses");
  app.add_option("--print-every", a.print_every, "steps between lines")->check(CLI::PositiveNumber);
  app.add_flag("--deterministic", a.deterministic, "fold contributions in the order of ranks");
}

/// The preset must be known before the options that change it are bound to it. The last one counts.
std::string preset_in(int argc, char** argv, std::string name) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--preset" && i + 1 < argc) name = argv[i + 1];
    if (argument.starts_with("--preset=")) name = argument.substr(9);
  }
  return name;
}

void list_presets() {
  for (const Preset& p : presets()) {
    fmt::print("{:<11} {:>16} parameters  {}\n", p.name, parameters(p.model), p.about);
  }
}

class Screen {
 public:
  Screen(const Arguments& arguments, bool speaks, double peak)
      : a_(arguments), speaks_(speaks), terminal_(isatty(STDERR_FILENO) != 0), peak_(peak) {}

  void step(const StepResult& r) {
    if (!speaks_) return;
    seconds_ += r.seconds;
    const int steps = a_.config.training.steps;
    if (terminal_) {
      const int filled = 30 * r.step / steps;
      fmt::print(stderr, "\r[{:<30}] {}/{}\033[K",
                 std::string(static_cast<std::size_t>(filled), '='), r.step, steps);
      if (r.step == steps) fmt::print(stderr, "\r\033[K");
    }
    if (r.step != 1 && r.step % a_.print_every != 0 && r.step != steps) return;
    if (terminal_) fmt::print(stderr, "\r\033[K");
    const double speed = static_cast<double>(r.tokens) / r.seconds;
    const double used = speed * flops_per_token(a_.config.model);
    fmt::print(
        "step {:>5}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:>8.0f} tokens/s  MFU {:4.1f} %  "
        "waiting {:4.1f} %{}{}\n",
        r.step, r.loss, r.gradient_norm, r.learning_rate, speed, 100 * used / peak_,
        100 * r.exposed_s / r.seconds, r.dropped > 0 ? fmt::format("  dropped {}", r.dropped) : "",
        r.skipped ? "  skipped: gradients overflowed" : "");
    std::fflush(stdout);
  }
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  const Arguments& a_;
  bool speaks_;
  bool terminal_;
  double peak_;
  double seconds_ = 0;
};

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw chorus::InputError("cannot write " + path);
}

/// Collective: the timelines of all ranks, by rank 0.
void write_trace(chorus::Communicator& world, Trainer<float>& trainer, const std::string& path) {
  const auto ranks = gather_spans(world, trainer.groups().flights.trace);
  if (ranks.empty()) return;
  write(path, chrome_trace(ranks));
  const std::size_t dot = path.rfind('.');
  const std::string picture = path.substr(0, dot == std::string::npos ? path.size() : dot) + ".svg";
  write(picture, trace_svg(ranks));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    fmt::print("timeline of rank {}: {:.0f} % of the time that calls are in flight is hidden\n", r,
               100 * overlap_share(ranks[r]));
  }
  fmt::print("wrote {} and {}\n", path, picture);
}

/// The machine of `topology`; a rank that is a core moves its own bytes.
Machine machine_of(chorus::Topology topology) {
  const auto kind = topology.nodes[static_cast<std::size_t>(topology.rank_nodes[0])].kind;
  return {.topology = std::move(topology), .overlaps = kind != chorus::NodeKind::core};
}

/// Collective: what a run was asked to measure of itself, by rank 0.
void compare(chorus::Communicator& world, Trainer<float>& trainer, const Arguments& a) {
  std::optional<OverlapFigures> overlap;
  std::optional<PlanFigures> plan;
  if (a.compare_overlap > 0) overlap = compare_overlap(world, trainer, a.compare_overlap);
  if (a.compare_plan > 0) {
    plan = compare_plan(world, trainer, machine_of(world.topology()), a.compare_plan);
  }
  if (world.rank() != 0) return;
  if (overlap) fmt::print("{}", describe(*overlap));
  if (plan) fmt::print("{}", describe(*plan));
  if (a.compare_json.empty()) return;
  write(a.compare_json,
        figures_json(trainer.config(), overlap ? &*overlap : nullptr, plan ? &*plan : nullptr));
}

/// The library's mapping, as rank 0 sees the wiring.
void map_axes(chorus::Communicator& world, Config& config) {
  check(config, world.world_size());
  config.layout.ranks = mapped(config, world.topology());
  world.broadcast<int>(config.layout.ranks, 0);
}

void plan(const Arguments& a) {
  if (a.sequences < 0 || !(a.gflops >= 0) || !(a.memory_gb >= 0)) {
    throw chorus::InputError(fmt::format(
        "--sequences {}, --gflops {} and --memory-gb {} must be at least 0, which stands "
        "for the default",
        a.sequences, a.gflops, a.memory_gb));
  }
  Machine machine = machine_of(chorus::find_topology(a.plan));
  const chorus::Topology& t = machine.topology;
  machine.flops_per_s = a.gflops > 0 ? a.gflops * 1e9 : measured_gemm_peak();
  machine.memory_bytes = a.memory_gb * 1e9;
  machine.speeds = a.speeds;
  check_speeds(machine);
  const int sequences = a.sequences > 0 ? a.sequences : 4 * t.world_size();
  fmt::print("{}, {} sequences of {} tokens per step on {}\n", a.config.name, sequences,
             a.config.model.context, t.name);
  fmt::print("{}", describe(best_layouts(a.config, sequences, machine, 10), machine));
}

/// Collective: goes on from the last checkpoint that rank 0 sees.
void resume(chorus::Communicator& world, Trainer<float>& trainer, const std::string& directory) {
  std::string last;
  if (world.rank() == 0) last = last_checkpoint(directory).value_or("");
  auto size = static_cast<std::int64_t>(last.size());
  world.broadcast<std::int64_t>(std::span(&size, 1), 0);
  last.resize(static_cast<std::size_t>(size));
  if (size > 0) {
    world.broadcast<std::uint8_t>(
        std::span(reinterpret_cast<std::uint8_t*>(last.data()), last.size()), 0);
  }
  const std::string notes = last.empty() ? "" : load_checkpoint(trainer, last);
  if (world.rank() != 0) return;
  if (last.empty()) {
    fmt::print("no checkpoint in {}: beginning anew\n", directory);
  } else {
    fmt::print("going on from {}{}{}\n", last, notes.empty() ? "" : "; ", notes);
  }
}

void train(Arguments& a) {
  chorus::Options options = chorus::Options::from_env();
  options.deterministic = options.deterministic || a.deterministic;
  auto world = chorus::Communicator::join(options);
  const bool speaks = world.rank() == 0;
  if (a.mapping == "auto") map_axes(world, a.config);
  Trainer<float> trainer(world, a.config);
  // The peak of all ranks at the same time, since they may share cores.
  world.barrier();
  double peak = trainer.gpu() == nullptr
                    ? measured_gemm_peak()
                    : measured_gemm_peak(*trainer.gpu(), a.config.training.bfloat16);
  world.all_reduce<double>(std::span<double>(&peak, 1));
  if (speaks && trainer.gpu() != nullptr) fmt::print("computing on {}\n", trainer.gpu()->name());
  if (speaks) {
    fmt::print("{} ranks, {} parameters, {} per rank; {:.0f} GFLOP/s of matrix products in all\n",
               world.world_size(), parameters(a.config.model),
               human_bytes(static_cast<double>(trainer.memory().used_bytes())), peak / 1e9);
  }
  if (a.resume) {
    resume(world, trainer, a.checkpoint);
  }
  const int first = trainer.steps_done();
  Screen screen(a, speaks, peak);
  for (int i = first; i < a.config.training.steps; ++i) {
    if (!a.trace.empty() && i == std::max(first, a.config.training.steps - a.trace_steps)) {
      world.barrier();
      trainer.groups().flights.trace.start(kMostSpans);
    }
    screen.step(trainer.step());
    const bool end = i + 1 == a.config.training.steps;
    const bool due = a.checkpoint_every > 0 && (i + 1) % a.checkpoint_every == 0;
    if (!a.checkpoint.empty() && (end || due)) save_checkpoint(trainer, a.checkpoint);
    if (a.evaluate_every > 0 && (end || (i + 1) % a.evaluate_every == 0)) {
      const CommLog log = trainer.log();
      const double loss = trainer.evaluate(4);
      trainer.log() = log;  // the report is of training
      if (speaks)
        fmt::print("held out: {:.4f} nats, {:.3f} bits per byte\n", loss, loss / std::log(2));
    }
  }
  trainer.groups().flights.wait_all();  // the last update's values: all bytes are counted
  trainer.groups().flights.trace.stop();
  const CommLog log = trainer.log();
  if (!a.trace.empty()) write_trace(world, trainer, a.trace);
  compare(world, trainer, a);
  if (!speaks) return;
  const int steps = std::max(1, trainer.steps_done() - first);
  if (a.report) {
    fmt::print("\n{}", comm_report(a.config, log, 0, steps, screen.seconds()));
  }
  if (a.report_json.empty()) return;
  write(a.report_json, comm_json(a.config, log, 0, steps, screen.seconds()));
}

/// What the host does on values and times of its own.
void check_backend_options(const Arguments& a) {
  if (a.config.training.backend == Backend::cpu) return;
  const char* what = nullptr;
  if (!a.checkpoint.empty()) what = "--checkpoint";
  if (a.compare_overlap > 0) what = "--compare-overlap";
  if (a.compare_plan > 0) what = "--compare-plan";
  if (!a.trace.empty()) what = "--trace";
  if (what == nullptr) return;
  throw chorus::InputError(fmt::format(
      "{} is of the host's values and clock: leave it out of --backend {} or take --backend cpu",
      what, a.backend));
}

int run(int argc, char** argv) {
  Arguments a;
  CLI::App app{"Trains a GPT over the ranks that `chorus run` (or mpirun, srun, torchrun) starts."};
  a.preset = preset_in(argc, argv, a.preset);
  a.config.model = preset(a.preset);
  a.config.name = a.preset;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_model_options(app, a);
  add_layout_options(app, a);
  add_training_options(app, a);
  add_other_options(app, a);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (a.checkpoint.empty() && (a.resume || a.checkpoint_every > 0)) {
    throw chorus::InputError("--resume and --checkpoint-every need --checkpoint DIR");
  }
  if (a.checkpoint_every < 0 || a.evaluate_every < 0) {
    throw chorus::InputError(
        "--checkpoint-every and --evaluate-every are numbers of steps, 0 or more");
  }
  if (a.untied) a.config.model.tied = false;
  a.config.layout.overlap = !a.no_overlap;
  a.config.layout.pipeline = pipeline_of(a.schedule);
  a.config.layout.recompute = recompute_of(a.recompute);
  a.config.training.compression = compression_of(a.compress);
  a.config.training.average = average_of(a.average);
  a.config.training.backend = backend_of(a.backend);
  check_backend_options(a);
  a.config.training.error_feedback = !a.no_error_feedback;
  if (a.list_presets) {
    list_presets();
  } else if (app.count("--plan") > 0) {
    plan(a);
  } else if (a.break_even) {
    check(a.config, a.config.layout.world_size());
    const auto count = static_cast<std::size_t>(parameters(a.config.model));
    fmt::print("{} gradients between {} replicas\n{}", count, a.config.layout.dp,
               describe(break_even(a.config.training, count, a.config.layout.dp)));
  } else if (a.dry_run || a.dry_run_json) {
    check(a.config, a.config.layout.world_size());
    fmt::print("{}", a.dry_run_json ? dry_run_json(a.config) : dry_run_report(a.config));
  } else {
    train(a);
  }
  return 0;
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  try {
    return trainer::run(argc, argv);
  } catch (const chorus::InputError& error) {
    // Every rank reads the same arguments: one says what is wrong with them.
    if (chorus::Launch::from_env().rank == 0) std::fprintf(stderr, "train: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 1;
  }
}
