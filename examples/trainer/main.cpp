// train: trains a transformer over the ranks it is launched with, e.g. by `chorus run -n 4 --
// train`.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iostream>
#include <new>
#include <optional>

#include "arguments.hpp"
#include "checkpoint.hpp"
#include "elastic.hpp"
#include "report/compare.hpp"
#include "report/outputs.hpp"
#include "report/report.hpp"
#include "report/volume.hpp"

namespace trainer {
namespace {

/// Of a trace, per rank.
constexpr std::size_t kMostSpans = 200'000;
constexpr std::size_t kMostTimed = 50'000;  ///< by a device, two events each
/// A product of matrices takes 1 to 8 ms, and Flights::poll() has its turn between two.
constexpr int kPollUs = 2000;

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

/// Why standard output could not be written when that was first seen; 0: it could.
int output_error = 0;

void flush_output() {
  if (std::fflush(stdout) != 0 && output_error == 0) output_error = errno;
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
    flush_output();
  }
  [[nodiscard]] double seconds() const { return seconds_; }
  /// Another rank may have to once some have died.
  void let_speak(bool speaks) { speaks_ = speaks; }

 private:
  const Arguments& a_;
  bool speaks_;
  bool terminal_;
  double peak_;
  double seconds_ = 0;
};

/// Collective: the timelines of all ranks, by rank 0.
void write_trace(chorus::Communicator& world, Trainer<float>& trainer, const std::string& path) {
  const auto ranks = gather_spans(world, trainer.groups().flights.trace);
  const std::string picture = picture_of(path);
  agree(world, [&] {
    if (ranks.empty()) return;
    write_output(path, chrome_trace(ranks));
    write_output(picture, trace_svg(ranks));
  });
  if (ranks.empty()) return;
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
    world.await_plan();
    plan = compare_plan(world, trainer, machine_of(world.topology()), a.compare_plan);
  }
  const bool speaks = world.rank() == 0;
  if (speaks && overlap) fmt::print("{}", describe(*overlap));
  if (speaks && plan) fmt::print("{}", describe(*plan));
  if (a.compare_json.empty()) return;
  agree(world, [&] {
    if (!speaks) return;
    write_output(a.compare_json, figures_json(trainer.config(), overlap ? &*overlap : nullptr,
                                              plan ? &*plan : nullptr));
  });
}

/// Collective: the library's mapping of a layout that fits, as rank 0 sees the wiring.
void map_axes(chorus::Communicator& world, Config& config) {
  world.await_plan();  // the network is known then
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
  machine.flops_per_s =
      a.gflops > 0 ? a.gflops * 1e9 : measured_gemm_peak(a.config.training.precision());
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
    return;
  }
  fmt::print("going on from {}{}{}\n", last, notes.empty() ? "" : "; ", notes);
  const int steps = trainer.config().training.steps;
  if (trainer.steps_done() >= steps) {
    fmt::print("it has done all of --steps {}: nothing is left to train\n", steps);
  }
}

/// Before anything is trained: whether what it leads to can be written.
void check_files(const Arguments& a) {
  check_outputs(
      {a.report_json, a.compare_json, a.trace, a.trace.empty() ? "" : picture_of(a.trace)});
  if (a.checkpoint.empty()) return;
  check_folder(a.checkpoint);
  // A run that is restarted later must not go on from what another one left here.
  if (const auto last = last_checkpoint(a.checkpoint); last && !a.resume) {
    throw chorus::InputError(
        fmt::format("{} is there from an earlier run: go on from it with --resume, or give another "
                    "--checkpoint directory",
                    *last));
  }
}

void run_steps(chorus::Communicator& world, Trainer<float>& trainer, const Arguments& a,
               double peak) {
  const bool speaks = world.rank() == 0;
  const int first = trainer.steps_done();
  Screen screen(a, speaks, peak);
  for (int i = first; i < a.config.training.steps; ++i) {
    if (!a.trace.empty() && i == std::max(first, a.config.training.steps - a.trace_steps)) {
      world.barrier();
      trainer.groups().flights.trace.start(trainer.gpu() == nullptr ? kMostSpans : kMostTimed,
                                           trainer.gpu());
    }
    screen.let_speak(world.rank() == 0);
    screen.step(trainer.step());
    if (a.config.layout.elastic) look_after(world, trainer);
    const bool end = i + 1 == a.config.training.steps;
    const bool due = a.checkpoint_every > 0 && (i + 1) % a.checkpoint_every == 0;
    if (!a.checkpoint.empty() && (end || due)) save_checkpoint(trainer, a.checkpoint);
    if (a.evaluate_every > 0 && (end || (i + 1) % a.evaluate_every == 0)) {
      const CommLog log = trainer.log();
      const double loss = trainer.evaluate(4);
      trainer.log() = log;  // the report is of training
      if (world.rank() == 0)
        fmt::print("held out: {:.4f} nats, {:.3f} bits per byte\n", loss, loss / std::log(2));
    }
  }
  trainer.groups().flights.wait_all();  // the last update's values: all bytes are counted
  trainer.groups().flights.trace.stop();
  const CommLog log = trainer.log();
  if (!a.trace.empty()) write_trace(world, trainer, a.trace);
  compare(world, trainer, a);
  const int steps = std::max(1, trainer.steps_done() - first);
  if (speaks && a.report) {
    fmt::print("\n{}", comm_report(a.config, log, 0, steps, screen.seconds()));
  }
  if (a.report_json.empty()) return;
  agree(world, [&] {
    if (speaks) write_output(a.report_json, comm_json(a.config, log, 0, steps, screen.seconds()));
  });
}

/// Of a replica that was taken in: from where the others are.
void go_on(chorus::Communicator& world, Arguments& a) {
  Layout& layout = a.config.layout;
  if (!layout.elastic) {
    throw chorus::InputError("a rank that is started anew goes on with --elastic alone");
  }
  layout.replica = settle_place(world, layout.dp, -1);
  Trainer<float> trainer(world, a.config);
  share_state(world, trainer, false);
  const double peak = measured_gemm_peak(a.config.training.precision()) * layout.dp;
  run_steps(world, trainer, a, peak);
}

void train(chorus::Communicator& world, Arguments& a) {
  if (world.was_taken_in()) return go_on(world, a);
  const bool speaks = world.rank() == 0;
  agree(world, [&] {
    check(a.config, world.world_size());
    if (speaks) check_files(a);
  });
  if (a.mapping == "auto" && !a.config.layout.elastic) map_axes(world, a.config);
  Trainer<float> trainer(world, a.config);
  // The peak of all ranks at the same time, since they may share cores.
  world.barrier();
  double peak = trainer.gpu() == nullptr
                    ? measured_gemm_peak(a.config.training.precision())
                    : measured_gemm_peak(*trainer.gpu(), a.config.training.bfloat16);
  world.all_reduce<double>(std::span<double>(&peak, 1));
  if (speaks && trainer.gpu() != nullptr) {
    fmt::print("computing on {}\n", trainer.gpu()->name());
  } else if (speaks) {
    fmt::print("matrix products of {}: {}\n", a.config.training.bfloat16 ? "bfloat16" : "float32",
               products_by(a.config.training.precision()));
  }
  if (speaks) {
    fmt::print("{} rank{}, {} parameters, {} per rank; {:.0f} GFLOP/s of matrix products in all\n",
               world.world_size(), world.world_size() == 1 ? "" : "s", parameters(a.config.model),
               human_bytes(static_cast<double>(trainer.memory().used_bytes())), peak / 1e9);
  }
  if (a.resume) {
    resume(world, trainer, a.checkpoint);
  }
  run_steps(world, trainer, a, peak);
}

void train(Arguments& a) {
  chorus::Options options = chorus::Options::from_env();
  options.deterministic = options.deterministic || a.deterministic;
  if (a.config.layout.elastic) options.on_loss = "finish";
  const Layout& l = a.config.layout;
  const bool computes_meanwhile =
      l.overlap && l.dp > 1 && a.config.training.backend == Backend::cpu;
  if (options.poll_us == 0 && computes_meanwhile) options.poll_us = kPollUs;
  std::string refused;
  {
    auto world = chorus::Communicator::join(options);
    try {
      train(world, a);
    } catch (const Refusal& refusal) {
      refused = refusal.what();  // leaving as usual, so that no rank dies of another's leave
    }
  }
  if (!refused.empty()) throw chorus::InputError(refused);
}

void check_numbers(const Arguments& a) {
  const std::pair<const char*, int> numbers[] = {{"--checkpoint-every", a.checkpoint_every},
                                                 {"--evaluate-every", a.evaluate_every},
                                                 {"--compare-overlap", a.compare_overlap},
                                                 {"--compare-plan", a.compare_plan}};
  for (const auto& [option, value] : numbers) {
    if (value >= 0) continue;
    throw chorus::InputError(
        fmt::format("{} is {}; it is a number of steps, 0 or more", option, value));
  }
  if (a.print_every < 1) {
    throw chorus::InputError(
        fmt::format("--print-every is {}; it must be at least 1", a.print_every));
  }
  if (a.trace_steps < 1 || a.trace_steps > 100) {
    throw chorus::InputError(
        fmt::format("--trace-steps is {}; it must be in 1 … 100", a.trace_steps));
  }
}

/// Options that would change nothing: who gives one expects something of it.
void check_effects(const CLI::App& app, const Arguments& a) {
  const Training& t = a.config.training;
  const Compression how = t.compression;
  const bool plans = app.count("--plan") > 0;
  const bool experts = a.config.model.experts > 0;
  const bool compresses = how != Compression::none;
  const auto needs = [&](const char* option, bool has, const char* what) {
    if (app.count(option) == 0 || has) return;
    throw chorus::InputError(fmt::format("{} changes nothing without {}", option, what));
  };
  for (const char* option : {"--sequences", "--gflops", "--speeds", "--memory-gb"}) {
    needs(option, plans, "--plan TOPOLOGY");
  }
  for (const char* option : {"--capacity", "--balance-loss", "--top-k", "--expert-chunks"}) {
    needs(option, experts, "--experts");
  }
  needs("--trace-steps", !a.trace.empty(), "--trace FILE");
  if (a.break_even) return;  // it tries several compressors
  needs("--no-error-feedback", compresses, "--compress");
  needs("--levels", how == Compression::qsgd, "--compress qsgd");
  needs("--rank", how == Compression::power, "--compress power");
  needs("--threshold", how == Compression::threshold, "--compress threshold");
  needs("--share", how == Compression::top_k || how == Compression::threshold,
        "--compress topk or threshold");
}

int run(int argc, char** argv) {
  Arguments a;
  a.preset = preset_in(argc, argv, a.preset);
  a.config.model = preset(a.preset);
  a.config.name = a.preset;
  const std::unique_ptr<CLI::App> owned = make_app(a);
  CLI::App& app = *owned;
  app.set_version_flag("--version", "train " CHORUS_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Every rank reads the same arguments: one answers.
    if (chorus::Launch::from_env().rank != 0) return error.get_exit_code() == 0 ? 0 : 2;
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "train: {}; see train --help\n", error.what());
    return 2;
  }
  if (!a.compare_json.empty() && a.compare_overlap == 0 && a.compare_plan == 0) {
    throw chorus::InputError("--compare-json needs --compare-overlap N or --compare-plan N");
  }
  if (a.checkpoint.empty() && (a.resume || a.checkpoint_every > 0)) {
    throw chorus::InputError("--resume and --checkpoint-every need --checkpoint DIR");
  }
  check_numbers(a);
  if (a.config.layout.elastic &&
      (!a.checkpoint.empty() || !a.trace.empty() || !a.compare_json.empty() ||
       a.compare_overlap > 0 || a.compare_plan > 0)) {
    throw chorus::InputError(
        "--elastic keeps the state in the replicas that are left, and measures nothing: leave "
        "--checkpoint, --trace, --compare-overlap and --compare-plan away");
  }
  if (a.untied) a.config.model.tied = false;
  a.config.layout.overlap = !a.no_overlap;
  a.config.layout.pipeline = pipeline_of(a.schedule);
  a.config.layout.recompute = recompute_of(a.recompute);
  a.config.training.compression = compression_of(a.compress);
  a.config.training.average = average_of(a.average);
  a.config.training.backend = backend_of(a.backend);
  a.config.training.error_feedback = !a.no_error_feedback;
  check_effects(app, a);
  const bool trains =
      !a.list_presets && app.count("--plan") == 0 && !a.break_even && !a.dry_run && !a.dry_run_json;
  if (!trains && chorus::Launch::from_env().rank != 0) return 0;  // rank 0 answers for all
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
    const int status = trainer::run(argc, argv);
    // What was printed is a run's result: a full disk must not go unnoticed.
    trainer::flush_output();
    if (trainer::output_error != 0) {
      std::fprintf(stderr, "train: cannot write to standard output: %s\n",
                   std::strerror(trainer::output_error));
      return 2;
    }
    return status;
  } catch (const chorus::InputError& error) {
    // Every rank reads the same arguments: one says what is wrong with them.
    if (chorus::Launch::from_env().rank == 0) std::fprintf(stderr, "train: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "train: memory is exhausted: choose a smaller model or batch, more ranks to share "
                 "it (--tp, --pp, --zero 3), or allow more (ulimit -v)\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 1;
  }
}
