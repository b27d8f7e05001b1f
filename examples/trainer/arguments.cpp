#include "arguments.hpp"

#include <charconv>
#include <string>
#include <system_error>

namespace trainer {
namespace {

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
  app.add_flag("--elastic", l.elastic,
               "go on without replicas that die, and take in those that are started anew")
      ->group(group);
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
                 "gradients between replicas: none, qsgd, 1bit, topk, threshold, power")
      ->group(group);
  app.add_option("--levels", t.levels, "of qsgd, up to 127")->group(group);
  app.add_option("--share", t.share, "of the gradient that topk sends, and threshold at most")
      ->group(group);
  app.add_option("--threshold", t.threshold, "magnitude from which on threshold sends a value")
      ->group(group);
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
  app.add_option_function<std::string>(
         "--seed",
         [&t](const std::string& text) {
           const auto [end, error] =
               std::from_chars(text.data(), text.data() + text.size(), t.seed);
           if (error == std::errc() && end == text.data() + text.size()) return;
           throw CLI::ValidationError("--seed",
                                      text + " is no whole number from 0 to 18446744073709551615");
         })
      ->type_name("UINT")
      ->default_str(std::to_string(t.seed))
      ->group(group);
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
  app.add_option("--trace-steps", a.trace_steps, "up to 100");
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
  app.add_option("--print-every", a.print_every, "steps between lines");
  app.add_flag("--deterministic", a.deterministic, "fold contributions in the order of ranks");
}

}  // namespace

std::unique_ptr<CLI::App> make_app(Arguments& a) {
  auto app = std::make_unique<CLI::App>(
      "Trains a GPT over the ranks that `chorus run` (or mpirun, srun, torchrun) starts.", "train");
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_model_options(*app, a);
  add_layout_options(*app, a);
  add_training_options(*app, a);
  add_other_options(*app, a);
  app->footer(
      "Examples:\n"
      "  chorus run -n 4 -- train --preset tiny --dp 4 --steps 100\n"
      "  train --preset 13B --dp 16 --tp 8 --pp 4 --dry-run");
  return app;
}

}  // namespace trainer
