#include "report/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "model/random.hpp"
#include "report/report.hpp"
#include "report/volume.hpp"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;
using Price = chorus::GridMapping::Price;

double median(std::vector<double>& of) {
  const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::ranges::nth_element(of, middle);
  return *middle;
}

/// Of one rank that trains by itself with the batch of `config`, while all ranks do the same.
Config alone(const Config& config) {
  Config c = config;
  c.layout = {};
  c.layout.micro_batches = config.layout.micro_batches;
  c.training.compression = Compression::none;
  c.training.rounds = 1;
  c.training.differences = false;
  c.training.average = Average::gradients;
  c.training.global_every = 0;
  return c;
}

/// One rank's passes, medians.
struct ComparedPasses {
  double forward_s = 0, backward_s = 0;
  double rest_s = 0;  ///< of a step beside its passes
};

/// A model of a few layers on this rank, whose passes are timed step by step.
class Sample {
 public:
  Sample(chorus::Communicator& self, const Config& config, int layers)
      : trainer_(self, of(config, layers)) {
    trainer_.step();
  }
  void step() {
    Trace& trace = trainer_.groups().flights.trace;
    if (trainer_.gpu() == nullptr) trace.start(1000);
    double left = trainer_.timed_step().seconds;
    for (const Span& s : trace.spans()) {
      if (s.lane != Span::Lane::compute || s.chunk < 0) continue;
      const double length = s.end_s - s.begin_s;
      (std::string_view(s.name) == "forward" ? forward_ : backward_).push_back(length);
      left -= length;
    }
    rest_.push_back(left);
  }
  [[nodiscard]] ComparedPasses passes() {
    return {median(forward_), median(backward_), median(rest_)};
  }
  [[nodiscard]] Trainer<float>& trainer() { return trainer_; }

 private:
  static Config of(const Config& config, int layers) {
    Config c = alone(config);
    c.model.layers = layers;
    c.layout.micro_batches = 2;
    return c;
  }
  Trainer<float> trainer_;
  std::vector<double> forward_, backward_, rest_;
};

/// Memory that calls of `trainer` work on.
class Room {
 public:
  Room(Trainer<float>& trainer, std::size_t count) : gpu_(trainer.gpu()) {
    if (gpu_ == nullptr) {
      here_.resize(count);
    } else {
      there_ = static_cast<float*>(gpu_->allocate(count * sizeof(float)));
    }
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    if (gpu_ != nullptr) gpu_->release(there_);
  }
  [[nodiscard]] float* data() { return gpu_ == nullptr ? here_.data() : there_; }

 private:
  Gpu* gpu_;
  std::vector<float> here_;
  float* there_ = nullptr;
};

constexpr std::size_t kShort = 256, kLong = 1U << 18U;  ///< floats of a call
/// Floats of the memory that calls take turns in: no cache holds it, as none holds what a step
/// sends.
constexpr std::size_t kCold = 64 * kLong;

/// The slowest rank's median time of `call`, which all ranks make at once; given is where in kCold
/// floats it may work.
double seconds_of(chorus::Communicator& world, const std::function<void(std::size_t)>& call) {
  std::vector<double> all;
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t at = i * 5 * kLong % kCold;
    world.barrier();
    const auto begin = Clock::now();
    call(at);
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    if (i >= 3) all.push_back(took);
  }
  double slowest = median(all);
  world.all_reduce<double>(std::span<double>(&slowest, 1), chorus::ReduceOp::max);
  return slowest;
}

/// From the times of a short and a long call of `count` floats; what a rank sends of them, in
/// bytes per float and in messages.
Price price_of(chorus::Communicator& world,
               const std::function<void(std::size_t at, std::size_t count)>& call,
               double bytes_per_count, double messages) {
  const double brief = seconds_of(world, [&](std::size_t at) { call(at, kShort); });
  const double extended = seconds_of(world, [&](std::size_t at) { call(at, kLong); });
  const double beta = std::max(0.0, extended - brief) / (double(kLong - kShort) * bytes_per_count);
  const double alpha = brief - double(kShort) * bytes_per_count * beta;
  return {std::max(0.0, alpha) / messages, beta};
}

/// A wait for a call on a device lets the device wait, not the host.
void finish(Trainer<float>& trainer) {
  if (trainer.gpu() != nullptr) trainer.gpu()->finish();
}

/// Along the chain of a pipeline, hop by hop.
Price pipeline_price(chorus::Communicator& world, Trainer<float>& trainer, Room& memory) {
  Group& ahead = trainer.groups().ahead;
  const int hops = ahead.size() - 1;
  const auto pass_on = [&](std::size_t at, std::size_t count) {
    float* const rows = memory.data() + at;
    if (ahead.rank() > 0) ahead.wait(ahead.recv(rows, count, ahead.rank() - 1));
    if (ahead.rank() < hops) {
      ahead.wait(ahead.send(static_cast<const float*>(rows), count, ahead.rank() + 1));
    }
    finish(trainer);
  };
  return price_of(world, pass_on, sizeof(float) * double(hops), hops);
}

/// Read or written, by adding vectors.
double seconds_per_byte(chorus::Communicator& world, Trainer<float>& trainer) {
  Room memory(trainer, kCold + kLong);
  float* const sums = memory.data() + kCold;
  const double took = seconds_of(world, [&](std::size_t at) {
    trainer.ops().add(sums, memory.data() + at, kLong);
    finish(trainer);
  });
  return took / (double(kLong) * sizeof(float));
}

std::string layout_text(const Layout& l) {
  std::string text = fmt::format("dp {} tp {} pp {}", l.dp, l.tp, l.pp);
  if (l.ep > 1) text += fmt::format(" ep {}", l.ep);
  if (l.zero > 0) text += fmt::format(" ZeRO-{}", l.zero);
  if (l.sequence_parallel) text += " SP";
  text += fmt::format(", {} micro-batches", l.micro_batches);
  if (l.pp > 1) text += fmt::format(", {}", name_of(l.pipeline));
  return text;
}

}  // namespace

OverlapFigures compare_overlap(chorus::Communicator& world, Trainer<float>& trainer, int pairs) {
  const Layout& l = trainer.config().layout;
  std::optional<chorus::Communicator> self;
  std::unique_ptr<Trainer<float>> lone;
  if (l.dp > 1 && l.tp == 1 && l.pp == 1 && l.ep == 1 && l.shares.empty()) {
    self = world.split(world.rank(), 0);
    lone = std::make_unique<Trainer<float>>(*self, alone(trainer.config()));
    lone->step();
  }
  std::vector<double> seconds[2], exposed[2], apart;
  for (int i = 0; i < pairs; ++i) {
    for (const std::size_t off : {0U, 1U}) {
      trainer.overlap(off == 0);
      world.barrier();
      const StepResult r = trainer.timed_step();
      seconds[off].push_back(r.seconds);
      exposed[off].push_back(r.exposed_s);
    }
    if (!lone) continue;
    world.barrier();
    double slowest = lone->timed_step().seconds;
    world.all_reduce<double>(std::span<double>(&slowest, 1), chorus::ReduceOp::max);
    apart.push_back(slowest);
  }
  trainer.overlap(true);
  return {.pairs = pairs,
          .with_s = median(seconds[0]),
          .with_exposed_s = median(exposed[0]),
          .without_s = median(seconds[1]),
          .without_exposed_s = median(exposed[1]),
          .alone_s = lone ? median(apart) : 0};
}

struct Calibration::Samples {
  Samples(chorus::Communicator& world, const Config& config)
      : self(world.split(world.rank(), 0)), one(*self, config, 1), three(*self, config, 3) {}
  std::optional<chorus::Communicator> self;
  Sample one, three;
};

Calibration::Calibration(chorus::Communicator& world, const Config& config)
    : world_(world), config_(config), samples_(std::make_unique<Samples>(world, config)) {}
Calibration::~Calibration() = default;

void Calibration::round() {
  for (Sample* sample : {&samples_->one, &samples_->three}) {
    world_.barrier();
    sample->step();
  }
}

Pace Calibration::pace() {
  const ComparedPasses one = samples_->one.passes();
  const ComparedPasses three = samples_->three.passes();
  const Operations of = operations_of(config_.model);
  const double tokens = double(config_.training.batch) * config_.model.context;
  Model model = config_.model;
  model.layers = 3;
  const double forward_s = (three.forward_s - one.forward_s) / 2;
  const double backward_s = (three.backward_s - one.backward_s) / 2;
  // Seconds per operation, of the slowest rank: a step is done when all are. The ends, embedding
  // and output, are what one layer's passes take beyond those of a layer.
  const double ends = one.forward_s - forward_s + one.backward_s - backward_s;
  std::array<double, 4> spent = {forward_s / (tokens * of.layer),
                                 backward_s / (2 * tokens * of.layer),
                                 std::max(1e-9, ends) / (3 * tokens * of.head),
                                 three.rest_s / static_cast<double>(parameters(model))};
  world_.all_reduce<double>(std::span<double>(spent), chorus::ReduceOp::max);
  for (double& s : spent) s = std::max(s, 1e-18);
  return {.forward = 1 / spent[0],
          .backward = 1 / spent[1],
          .head = 1 / spent[2],
          .step_s = spent[3],
          .byte_s = seconds_per_byte(world_, samples_->one.trainer())};
}

std::vector<Price> measured_prices(chorus::Communicator& world, Trainer<float>& trainer) {
  Groups& groups = trainer.groups();
  const CommLog log = trainer.log();
  Room memory(trainer, kCold);
  const auto ring = [&](Group& group) {
    const double d = group.size();
    if (group.size() == 1) return Price{};
    const auto call = [&](std::size_t at, std::size_t count) {
      group.wait(group.all_reduce(memory.data() + at, count));
      finish(trainer);
    };
    return price_of(world, call, 2 * (d - 1) / d * sizeof(float), 2 * (d - 1));
  };
  std::vector<Price> prices{ring(groups.data), ring(groups.expert_data)};
  const auto e = static_cast<std::size_t>(groups.expert.size());
  Room arrived(trainer, e == 1 ? 1 : kCold);
  prices.push_back(e == 1 ? Price{}
                          : price_of(
                                world,
                                [&](std::size_t at, std::size_t count) {
                                  groups.expert.wait(groups.expert.all_to_all(
                                      static_cast<const float*>(memory.data()) + at,
                                      arrived.data() + at, count / e));
                                  finish(trainer);
                                },
                                double(e - 1) / double(e) * sizeof(float), double(e - 1)));
  prices.push_back(ring(groups.tensor));
  prices.push_back(groups.ahead.size() == 1 ? Price{} : pipeline_price(world, trainer, memory));
  prices.push_back(ring(groups.node));
  prices.push_back(ring(groups.across));
  trainer.log() = log;
  return prices;
}

PlanFigures compare_plan(chorus::Communicator& world, Trainer<float>& trainer, Machine machine,
                         int steps) {
  constexpr int kRounds = 4;  // at least
  PlanFigures figures;
  figures.machine = std::move(machine);
  figures.steps = steps;
  Calibration calibration(world, trainer.config());
  std::vector<Price> prices = measured_prices(world, trainer);
  std::vector<double> seconds, exposed;
  // In turn, so that what else the machine does meets the steps and what they are held against.
  const int rounds = std::max(kRounds, (steps + 1) / 2);
  for (int round = 0; round < rounds; ++round) {
    calibration.round();
    world.barrier();
    for (int i = steps * round / rounds; i < steps * (round + 1) / rounds; ++i) {
      const StepResult r = trainer.timed_step();
      seconds.push_back(r.seconds);
      exposed.push_back(r.exposed_s);
    }
  }
  const std::vector<Price> later = measured_prices(world, trainer);
  for (std::size_t i = 0; i < prices.size(); ++i) {
    prices[i].alpha_s = (prices[i].alpha_s + later[i].alpha_s) / 2;
    prices[i].beta_s_per_byte = (prices[i].beta_s_per_byte + later[i].beta_s_per_byte) / 2;
  }
  figures.machine.pace = calibration.pace();
  figures.by_topology = estimate(trainer.config(), figures.machine, false);
  figures.machine.prices = std::move(prices);
  figures.estimate = estimate(trainer.config(), figures.machine, false);
  figures.measured_s = median(seconds);
  figures.exposed_s = median(exposed);
  return figures;
}

std::vector<BreakEven> break_even(const Training& training, std::size_t count, int replicas) {
  std::vector<float> values(count), error(count), sum(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(random_normal(training.seed, 1, i));
  }
  std::vector<BreakEven> all;
  for (const auto& [name, how] :
       {std::pair{"qsgd", Compression::qsgd}, std::pair{"1bit", Compression::one_bit},
        std::pair{"topk", Compression::top_k}}) {
    Training of = training;
    of.compression = how;
    const auto compressor = make_compressor(of);
    std::vector<std::byte> payload(compressor->bytes(count));
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      std::vector<float> gradient = values;
      std::ranges::fill(error, 0.0F);
      const auto begin = Clock::now();
      chorus::compress::encode_with_feedback(*compressor, gradient, error, 1, payload);
      for (int r = 0; r < replicas; ++r) {
        compressor->add(payload, 1.0F / static_cast<float>(replicas), sum);
      }
      times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    const double d = replicas;
    all.push_back({.name = name,
                   .dense_bytes = 2 * double(count) * sizeof(float) * (d - 1) / d,
                   .sent_bytes = (d - 1) * static_cast<double>(payload.size()),
                   .work_s = median(times)});
  }
  return all;
}

std::string describe(const std::vector<BreakEven>& all) {
  std::string text;
  for (const BreakEven& b : all) {
    const double rate = b.bytes_per_s();
    text += fmt::format(
        "{:<6} {:>10} in place of {:>10}, {:>8.2f} ms of work: {}\n", b.name,
        human_bytes(b.sent_bytes), human_bytes(b.dense_bytes), 1e3 * b.work_s,
        rate > 0 ? "pays below " + human_bytes(rate) + "/s" : "sends no less: pays nowhere");
  }
  return text;
}

std::string describe(const OverlapFigures& f) {
  std::string text = fmt::format(
      "overlap, {} pairs of steps, medians of rank 0: with {:.2f} ms, {:.2f} ms of them standing "
      "still; without {:.2f} ms, {:.2f} ms; {:.0f} % of what is exposed without is hidden\n",
      f.pairs, 1e3 * f.with_s, 1e3 * f.with_exposed_s, 1e3 * f.without_s, 1e3 * f.without_exposed_s,
      100 * std::max(0.0, f.hidden_share()));
  if (f.alone_s > 0) {
    text += fmt::format("a step without communication, of the slowest rank: {:.2f} ms\n",
                        1e3 * f.alone_s);
  }
  return text;
}

std::string describe(const PlanFigures& f) {
  const auto row = [&](const char* name, const Estimate& e) {
    return fmt::format("{:<22} {:>8.2f}ms {:>8.2f} {:>7.2f} {:>7.2f} {:>7.2f} {:>7.2f} {:>8.3f}\n",
                       name, 1e3 * e.seconds, 1e3 * e.compute_s, 1e3 * e.idle_s, 1e3 * e.tensor_s,
                       1e3 * e.expert_s, 1e3 * e.data_s, e.seconds / f.measured_s);
  };
  return fmt::format("{:<22} {:>10} {:>8} {:>7} {:>7} {:>7} {:>7} {:>8}\n", "", "step", "compute",
                     "idle", "tensor", "experts", "data", "of true") +
         row("messages by topology", f.by_topology) + row("messages measured", f.estimate) +
         fmt::format("{:<22} {:>8.2f}ms, {:.2f} ms of them standing still; median of {} steps\n",
                     "measured", 1e3 * f.measured_s, 1e3 * f.exposed_s, f.steps);
}

std::string figures_json(const Config& config, const OverlapFigures* overlap,
                         const PlanFigures* plan) {
  std::string text = fmt::format("{{\"version\": 1, \"layout\": \"{}\", \"overlap\": ",
                                 layout_text(config.layout));
  text += overlap == nullptr
              ? "null"
              : fmt::format(
                    "{{\"pairs\": {}, \"with_s\": {:.6g}, \"with_exposed_s\": {:.6g}, "
                    "\"without_s\": {:.6g}, \"without_exposed_s\": {:.6g}, \"alone_s\": {:.6g}}}",
                    overlap->pairs, overlap->with_s, overlap->with_exposed_s, overlap->without_s,
                    overlap->without_exposed_s, overlap->alone_s);
  text += ", \"plan\": ";
  if (plan == nullptr) return text + "null}\n";
  const auto parts = [](const Estimate& e) {
    return fmt::format(
        "{{\"step_s\": {:.6g}, \"compute_s\": {:.6g}, \"idle_s\": {:.6g}, "
        "\"tensor_s\": {:.6g}, \"expert_s\": {:.6g}, \"data_s\": {:.6g}}}",
        e.seconds, e.compute_s, e.idle_s, e.tensor_s, e.expert_s, e.data_s);
  };
  const Pace& pace = plan->machine.pace;
  text += fmt::format(
      "{{\"steps\": {}, \"measured_s\": {:.6g}, \"exposed_s\": {:.6g}, "
      "\"estimate\": {}, \"by_topology\": {}, \"pace\": {{\"forward\": {:.6g}, "
      "\"backward\": {:.6g}, \"head\": {:.6g}, \"step_s_per_parameter\": {:.6g}, "
      "\"s_per_byte\": {:.6g}}}, "
      "\"prices\": [",
      plan->steps, plan->measured_s, plan->exposed_s, parts(plan->estimate),
      parts(plan->by_topology), pace.forward, pace.backward, pace.head, pace.step_s, pace.byte_s);
  const char* comma = "";
  for (const Price& p : plan->machine.prices) {
    text += fmt::format("{}{{\"alpha_s\": {:.6g}, \"beta_s_per_byte\": {:.6g}}}", comma, p.alpha_s,
                        p.beta_s_per_byte);
    comma = ", ";
  }
  return text + "]}}\n";
}

}  // namespace trainer
