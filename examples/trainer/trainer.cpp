#include "trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "ops/cuda_ops.hpp"

namespace trainer {
namespace {

enum Total : std::size_t { loss_sum, square_sum, balance_sum, dropped_sum, num_totals };

}  // namespace

template <class R>
Trainer<R>::Trainer(chorus::Communicator& world, const Config& config)
    : config_(config), everyone_(&world) {
  agree([&] {
    check(config_, world.world_size());
    data_ = std::make_unique<Data>(config_);
    const Backend backend = config_.training.backend;
    if (backend == Backend::cuda) gpu_ = open_gpu(world.rank());
    if (backend == Backend::cuda_emulated) gpu_ = emulate_gpu();
  });
  groups_ = std::make_unique<Groups>(world, config_.layout, config_.model.tied, log_, gpu_.get());
  build();
  Arena measure(ops_->apart());
  lay_out(measure);
  arena_ = std::make_unique<Arena>(measure, gpu_.get());
  lay_out(*arena_);
  store_->initialize();
  ops_->idle = [this] { groups_->flights.poll_now_and_then(); };
  if (sides_.size() == 1) return;
  interleaver_ = std::make_unique<MicroBatchInterleaver>();
  groups_->flights.give_way = [this] { interleaver_->give_way(); };
}

template <class R>
Trainer<R>::Trainer(const Config& config, int rank) : config_(config) {
  check(config_, config_.layout.world_size());
  groups_ = std::make_unique<Groups>(config_.layout, rank, log_);
  build();
  arena_ = std::make_unique<Arena>(ops_->apart());
  lay_out(*arena_);
}

/// Updated values may still travel out of the arena.
template <class R>
Trainer<R>::~Trainer() {
  groups_->flights.finish();
  if (gpu_) {
    groups_.reset();  // its lanes work in the arena
    ops_.reset();
  }
}

void agree(chorus::Communicator& world, const std::function<void()>& local) {
  constexpr std::size_t kLongest = 1024;
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<std::uint8_t> mine(kLongest, 0);
  std::vector<std::uint8_t> all(kLongest * ranks);
  try {
    local();
  } catch (const chorus::InputError& error) {
    const std::string_view said(error.what());
    std::copy_n(said.begin(), std::min(said.size(), kLongest - 1), mine.begin());
  }
  world.all_gather<std::uint8_t>(mine, all);
  const auto said = [&](std::size_t r) {
    return reinterpret_cast<const char*>(all.data() + r * kLongest);
  };
  std::size_t complaints = 0;
  for (std::size_t r = 0; r < ranks; ++r) complaints += *said(r) != 0 ? 1 : 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (*said(r) == 0) continue;
    const std::string who = complaints == ranks ? "" : fmt::format("rank {}: ", r);
    throw Refusal(who + said(r));
  }
}

template <class R>
void Trainer<R>::build() {
  const Layout& layout = config_.layout;
  config_ = config_.of_replica(groups_->place.dp);
  const Precision precision = config_.training.precision();
  ops_ = config_.training.backend == Backend::cpu
             ? make_cpu_ops<R>(config_.model.context, precision)
             : make_cuda_ops<R>(gpu_.get(), precision);
  store_ = std::make_unique<Store<R>>(config_, *ops_, *groups_);
  loss_scale_ = config_.training.scale();
  sides_.resize(layout.halves ? 2 : 1);
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    Side& side = sides_[i];
    side.config = std::make_unique<Config>(layout.halves ? config_.half() : config_);
    side.shop = std::make_unique<LayerContext<R>>(*side.config, *ops_, *groups_, *store_);
    side.shop->closes = i + 1 == sides_.size();
  }
  const std::vector<int> sizes = partition_of(config_.model, layout);
  const int stage = groups_->place.pp;
  for (int c = 0; c < layout.virtual_stages; ++c) {
    const int global = c * layout.pp + stage;
    Chunk chunk;
    chunk.first = global == 0;
    chunk.last = global == layout.chunks() - 1;
    const int begin = std::accumulate(sizes.begin(), sizes.begin() + global, 0);
    for (Side& side : sides_) {
      LayerContext<R>& shop = *side.shop;
      if (chunk.first) side.embedding = std::make_unique<Embedding<R>>(shop);
      auto& layers = chunk.layers.emplace_back();
      for (int l = begin; l < begin + sizes[static_cast<std::size_t>(global)]; ++l) {
        layers.push_back(std::make_unique<Layer<R>>(shop, l));
      }
      if (!chunk.last) continue;
      const bool shares = config_.model.tied && side.embedding;
      side.head = std::make_unique<Head<R>>(shop, shares ? side.embedding->tokens() : nullptr);
    }
    chunks_.push_back(std::move(chunk));
  }
  order_ = pipeline_order(layout)[static_cast<std::size_t>(stage)];
  for (const Work& work : order_) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(work.chunk)];
    if (work.pass == Pass::forward && !chunk.first) x_order_.push_back(work);
    if (work.pass == Pass::backward && !chunk.last) dy_order_.push_back(work);
  }
}

template <class R>
void Trainer<R>::lay_out(Arena& arena) {
  store_->lay_out(arena);
  for (Side& side : sides_) lay_out_side(side, arena);
  tokens_ = arena.take_both<std::int32_t>(tokens_at(sides_.size()), Use::scratch);
  targets_ = arena.take_both<std::int32_t>(tokens_at(sides_.size()), Use::scratch);
  totals_ = arena.take_host<double>(num_totals, Use::scratch);
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    lay_out_chunk(chunks_[c], static_cast<int>(c), arena);
  }
}

template <class R>
void Trainer<R>::lay_out_side(Side& side, Arena& arena) {
  side.shop->lay_out(arena);
  const Layer<R>& any = *chunks_[0].layers[static_cast<std::size_t>(&side - sides_.data())][0];
  const bool anew = config_.layout.recompute != Recompute::none;
  if (anew) side.shared = any.lay_out_saved(arena, nullptr);
  side.spare = arena.take<R>(rows_at(1), Use::scratch);
  side.grads = any.lay_out_activation_gradients(arena);
  any.lay_out_scratch(arena);
  for (R*& p : side.ping) p = arena.take<R>(rows_at(1), Use::scratch);
  if (side.head) side.head->lay_out(arena);
}

template <class R>
void Trainer<R>::lay_out_chunk(Chunk& chunk, int index, Arena& arena) {
  const bool split = config_.layout.pipeline == Pipeline::zero_bubble;
  const bool anew = config_.layout.recompute != Recompute::none;
  const std::size_t rows = rows_at(sides_.size());
  chunk.slots.assign(static_cast<std::size_t>(most_alive(order_, index)), Slot{});
  for (Slot& slot : chunk.slots) {
    slot.x = arena.take<R>(rows, Use::activations);
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      Side& side = sides_[i];
      Kept& kept = slot.kept.emplace_back();
      for (auto& layer : chunk.layers[i]) {
        const bool first = kept.saved.empty();
        kept.saved.push_back(layer->lay_out_saved(arena, anew ? &side.shared : nullptr, !first));
        if (first && slot.x != nullptr) kept.saved[0].x = slot.x + rows_at(i);
        kept.grads.push_back(split ? layer->lay_out_activation_gradients(arena) : side.grads);
        kept.between.push_back(split ? arena.take<R>(rows_at(1), Use::activations) : nullptr);
      }
    }
    slot.out = arena.take<R>(rows, Use::activations);
    slot.dy = arena.take<R>(rows, Use::activations);
    slot.dx = arena.take<R>(rows, Use::activations);
  }
}

template <class R>
template <class Body>
void Trainer<R>::in_turn(Body body) {
  if (interleaver_) {
    interleaver_->run(body);
  } else {
    body(0);
  }
}

template <class R>
void Trainer<R>::load(int micro_batch, bool held_out) {
  const int batch = config_.training.batch;
  const int T = config_.model.context;
  // Micro-batch m of replica r holds the sequences that micro-batch m · dp + r of one replica
  // would: a step sees the same sequences however it is spread, in equal shares or not.
  const std::uint64_t first =
      (held_out ? 0 : sequences_seen_) +
      static_cast<std::uint64_t>(micro_batch) * static_cast<std::uint64_t>(config_.sequences()) +
      static_cast<std::uint64_t>(config_.sequences_before(groups_->place.dp));
  for (int b = 0; b < batch; ++b) {
    const std::size_t at = static_cast<std::size_t>(b) * T;
    data_->sequence(first + static_cast<std::uint64_t>(b), held_out, tokens_.host + at,
                    targets_.host + at);
  }
  ops_->upload(tokens_, static_cast<std::size_t>(batch) * T);
  ops_->upload(targets_, static_cast<std::size_t>(batch) * T);
}

template <class R>
void Trainer<R>::post_receives() {
  const std::size_t rows = rows_at(sides_.size());
  const int pp = config_.layout.pp;
  const int stage = groups_->place.pp;
  for (; next_x_ < x_order_.size(); ++next_x_) {
    Slot& slot = slot_of(x_order_[next_x_]);
    if (slot.micro_batch >= 0) break;
    slot.micro_batch = x_order_[next_x_].micro_batch;
    slot.x_arrives = groups_->ahead.recv(slot.x, rows, (stage + pp - 1) % pp);
  }
  for (; next_dy_ < dy_order_.size(); ++next_dy_) {
    Slot& slot = slot_of(dy_order_[next_dy_]);
    if (slot.micro_batch != dy_order_[next_dy_].micro_batch) break;
    slot.dy_arrives = groups_->back.recv(slot.dy, rows, (stage + 1) % pp);
  }
}

template <class R>
void Trainer<R>::run(const Work& work) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(work.chunk)];
  Slot& slot = slot_of(work);
  const bool split = config_.layout.pipeline == Pipeline::zero_bubble;
  Trace& trace = groups_->flights.trace;
  const Trace::Mark begin = trace.mark();
  static constexpr const char* kNames[] = {"forward", "backward", "weights"};
  switch (work.pass) {
    case Pass::forward:
      slot.micro_batch = work.micro_batch;
      post_receives();
      forward(chunk, slot, work.micro_batch, true);
      break;
    case Pass::backward:
      backward(chunk, slot, work.micro_batch);
      if (!split) slot.micro_batch = -1;
      break;
    case Pass::weights:
      weights(chunk, slot, work.micro_batch);
      slot.micro_batch = -1;
      break;
  }
  trace.add(Span::Lane::compute, kNames[static_cast<int>(work.pass)], "", begin, trace.mark(),
            work.chunk, work.micro_batch);
  post_receives();
}

template <class R>
void Trainer<R>::forward(Chunk& chunk, Slot& slot, int micro_batch, bool train) {
  const int pp = config_.layout.pp;
  if (chunk.first) sides_[0].embedding->prefetch();
  chunk.layers[0].front()->prefetch();
  if (chunk.first || chunk.last) load(micro_batch, !train);
  if (!chunk.first) groups_->flights.wait(slot.x_arrives);
  groups_->flights.wait(slot.out_leaves);
  // What both halves use, one after the other, is gathered once.
  const bool held = interleaver_ && config_.layout.zero == 3;
  if (held && chunk.first) sides_[0].embedding->hold();
  if (held && chunk.last) sides_[0].head->hold();
  in_turn([&](int side) {
    forward_side(chunk, slot, static_cast<std::size_t>(side), is_last(micro_batch), train);
  });
  if (held && chunk.first) sides_[0].embedding->let_go();
  if (held && chunk.last) sides_[0].head->let_go();
  if (chunk.last) return;
  slot.out_leaves = groups_->ahead.send(static_cast<const R*>(slot.out), rows_at(sides_.size()),
                                        (groups_->place.pp + 1) % pp);
}

template <class R>
void Trainer<R>::forward_side(Chunk& chunk, Slot& slot, std::size_t side, bool last, bool train) {
  Side& s = sides_[side];
  auto& layers = chunk.layers[side];
  const std::vector<Saved<R>>& saved = slot.kept[side].saved;
  const std::size_t at = rows_at(side);
  if (chunk.first) s.embedding->forward(tokens_.from(tokens_at(side)), slot.x + at);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const bool more = l + 1 < layers.size();
    layers[l]->acquire();
    if (more) layers[l + 1]->prefetch();
    if (!more && chunk.last) s.head->prefetch();
    layers[l]->forward(saved[l], more ? saved[l + 1].x : slot.out + at);
    layers[l]->release();
  }
  if (!chunk.last) return;
  const double loss = s.head->run(slot.out + at, targets_.device + tokens_at(side),
                                  train ? slot.dy + at : nullptr, last);
  loss_ += loss;
}

template <class R>
void Trainer<R>::backward(Chunk& chunk, Slot& slot, int micro_batch) {
  chunk.layers[0].back()->prefetch();
  groups_->flights.wait(slot.dy_arrives);
  groups_->flights.wait(slot.dx_leaves);
  if (chunk.first) load(micro_batch, false);
  in_turn([&](int side) {
    backward_side(chunk, slot, static_cast<std::size_t>(side), is_last(micro_batch));
  });
  if (chunk.first) return;
  const int pp = config_.layout.pp;
  slot.dx_leaves = groups_->back.send(static_cast<const R*>(slot.dx), rows_at(sides_.size()),
                                      (groups_->place.pp + pp - 1) % pp);
}

template <class R>
void Trainer<R>::backward_side(Chunk& chunk, Slot& slot, std::size_t side, bool last) {
  const bool split = config_.layout.pipeline == Pipeline::zero_bubble;
  Side& s = sides_[side];
  auto& layers = chunk.layers[side];
  Kept& kept = slot.kept[side];
  const R* dy = slot.dy + rows_at(side);
  for (std::size_t l = layers.size(); l-- > 0;) {
    Layer<R>& layer = *layers[l];
    R* dx = l == 0 ? slot.dx + rows_at(side) : (split ? kept.between[l] : s.ping[l % 2]);
    layer.acquire();
    if (l > 0) layers[l - 1]->prefetch();
    if (config_.layout.recompute == Recompute::full) layer.forward(kept.saved[l], s.spare);
    layer.backward(kept.saved[l], kept.grads[l], dy, dx, !split, last);
    layer.release();
    dy = dx;
  }
  if (chunk.first && !split) s.embedding->backward(tokens_.from(tokens_at(side)), dy, last);
}

template <class R>
void Trainer<R>::weights(Chunk& chunk, Slot& slot, int micro_batch) {
  if (chunk.first) load(micro_batch, false);
  in_turn([&](int side) {
    weights_side(chunk, slot, static_cast<std::size_t>(side), is_last(micro_batch));
  });
}

template <class R>
void Trainer<R>::weights_side(Chunk& chunk, Slot& slot, std::size_t side, bool last) {
  const Recompute recompute = config_.layout.recompute;
  Side& s = sides_[side];
  auto& layers = chunk.layers[side];
  const Kept& kept = slot.kept[side];
  for (std::size_t l = layers.size(); l-- > 0;) {
    Layer<R>& layer = *layers[l];
    if (recompute != Recompute::none) {
      layer.acquire();
      if (l > 0) layers[l - 1]->prefetch();
    }
    if (recompute == Recompute::full) layer.forward(kept.saved[l], s.spare);
    layer.weights(kept.saved[l], kept.grads[l], last);
    if (recompute != Recompute::none) layer.release();
  }
  if (!chunk.first) return;
  s.embedding->backward(tokens_.from(tokens_at(side)), slot.dx + rows_at(side), last);
}

template <class R>
void Trainer<R>::compute_gradients() {
  loss_ = 0;
  next_x_ = next_dy_ = 0;
  store_->forget_gathered();  // of an evaluation: what steps send is alike
  store_->zero_gradients();
  post_receives();
  for (const Work& work : order_) run(work);
  for (Chunk& chunk : chunks_) {
    for (Slot& slot : chunk.slots) {
      groups_->flights.wait(slot.out_leaves);
      groups_->flights.wait(slot.dx_leaves);
    }
  }
  store_->finish_gradients();
}

template <class R>
StepResult Trainer<R>::summary() {
  const bool counts = groups_->place.tp == 0;
  double balance = 0;
  std::uint64_t dropped = 0;
  for (Chunk& chunk : chunks_) {
    for (auto& side : chunk.layers) {
      for (auto& layer : side) {
        balance += layer->take_balance_loss();
        dropped += layer->take_dropped();
      }
    }
  }
  totals_[loss_sum] = counts ? loss_ : 0;
  totals_[square_sum] = store_->sum_of_squares();
  totals_[balance_sum] = counts ? balance : 0;
  totals_[dropped_sum] = counts ? static_cast<double>(dropped) : 0;
  groups_->world.wait(groups_->world.all_reduce(totals_, num_totals, {}, On::host));
  StepResult result;
  result.tokens = static_cast<std::uint64_t>(config_.sequences()) *
                  static_cast<std::uint64_t>(config_.model.context) *
                  static_cast<std::uint64_t>(config_.layout.micro_batches);
  result.loss = totals_[loss_sum] / static_cast<double>(result.tokens);
  result.balance_loss = totals_[balance_sum];
  result.gradient_norm = std::sqrt(totals_[square_sum]) / loss_scale_;
  result.dropped = static_cast<std::uint64_t>(totals_[dropped_sum]);
  result.learning_rate = learning_rate(config_, steps_done_);
  result.step = steps_done_ + 1;
  return result;
}

template <class R>
StepResult Trainer<R>::gradients() {
  compute_gradients();
  return summary();
}

template <class R>
StepResult Trainer<R>::step() {
  const auto begin = std::chrono::steady_clock::now();
  const double exposed = log_.exposed_s();
  compute_gradients();
  StepResult result = summary();
  const Training& t = config_.training;
  const auto done = [&] {
    ++steps_done_;
    sequences_seen_ += result.tokens / static_cast<std::uint64_t>(config_.model.context);
    result.exposed_s = log_.exposed_s() - exposed;
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
  };
  if (t.loss_scale > 0 && loss_scale_ > 1 && !std::isfinite(result.gradient_norm)) {
    // Too large for the numbers that they were computed with: this batch is left out.
    rescale(loss_scale_ / 2);
    result.skipped = true;
    return done();
  }
  if (!std::isfinite(result.gradient_norm) || !std::isfinite(result.loss)) {
    throw chorus::Error(fmt::format(
        "step {}: the loss is {} and the gradient's norm {}; go on from the last checkpoint with a "
        "lower --learning-rate than {}",
        result.step, result.loss, result.gradient_norm, config_.training.learning_rate));
  }
  const double scale = t.clip > 0 ? std::min(1.0, t.clip / (result.gradient_norm + 1e-6)) : 1.0;
  Trace& trace = groups_->flights.trace;
  const Trace::Mark updating = trace.mark();
  store_->update({.learning_rate = result.learning_rate,
                  .beta1 = t.beta1,
                  .beta2 = t.beta2,
                  .epsilon = t.epsilon,
                  .weight_decay = t.weight_decay,
                  .scale = static_cast<double>(static_cast<float>(scale)) / loss_scale_,
                  .step = result.step});
  constexpr int kGoodSteps = 1000;
  if (t.loss_scale > 0 && ++good_steps_ >= kGoodSteps) rescale(loss_scale_ * 2);
  trace.add(Span::Lane::compute, "update", "", updating, trace.mark());
  return done();
}

template <class R>
StepResult Trainer<R>::timed_step() {
  if (!gpu_) return step();
  constexpr std::size_t kMostSpans = 20'000;
  Trace& trace = groups_->flights.trace;
  trace.start(kMostSpans, gpu_.get());
  const auto begin = std::chrono::steady_clock::now();
  StepResult result = step();
  gpu_->finish();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  trace.stop();
  result.exposed_s = 0;
  for (const Span& span : trace.spans()) {
    if (span.lane == Span::Lane::exposed) result.exposed_s += span.end_s - span.begin_s;
  }
  return result;
}

template <class R>
Progress Trainer<R>::progress() const {
  return {.steps = steps_done_,
          .sequences = sequences_seen_,
          .loss_scale = config_.training.loss_scale > 0 ? loss_scale_ : 0,
          .good_steps = good_steps_,
          .reductions = store_->reductions()};
}

template <class R>
void Trainer<R>::resume_at(const Progress& progress) {
  steps_done_ = progress.steps;
  sequences_seen_ = progress.sequences;
  if (config_.training.loss_scale > 0 && progress.loss_scale > 0) {
    rescale(progress.loss_scale);
    good_steps_ = progress.good_steps;
  }
  store_->resume_at(progress.reductions);
}

template <class R>
void Trainer<R>::rescale(double loss_scale) {
  good_steps_ = 0;
  loss_scale_ = loss_scale;
  for (Side& side : sides_) side.config->training.loss_scale = loss_scale;
}

template <class R>
void Trainer<R>::barrier() {
  totals_[0] = 0;
  groups_->world.wait(groups_->world.all_reduce(totals_, 1, {}, On::host));
}

template <class R>
double Trainer<R>::evaluate(int micro_batches) {
  const std::size_t rows = rows_at(sides_.size());
  const int pp = config_.layout.pp;
  loss_ = 0;
  for (int m = 0; m < micro_batches; ++m) {
    for (Chunk& chunk : chunks_) {
      Slot& slot = chunk.slots[0];
      if (!chunk.first) {
        slot.x_arrives = groups_->ahead.recv(slot.x, rows, (groups_->place.pp + pp - 1) % pp);
      }
      forward(chunk, slot, m, false);
      groups_->flights.wait(slot.out_leaves);
    }
  }
  totals_[0] = groups_->place.tp == 0 ? loss_ : 0;
  groups_->world.wait(groups_->world.all_reduce(totals_, 1, {}, On::host));
  return totals_[0] /
         (static_cast<double>(config_.sequences()) * config_.model.context * micro_batches);
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace trainer
