// Training runs on ranks as threads of this process, and what became of them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "report/volume.hpp"
#include "trainer.hpp"

namespace trainer::testing {

/// Runs body(communicator) on `ranks` threads; contributions are folded in the order of ranks.
template <class Body>
void on_ranks(int ranks, Body body) {
  const auto id = chorus::UniqueId::make(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        chorus::Options options;
        options.deterministic = true;
        options.timeout_ms = 60'000;
        options.flight_dir = "";
        auto world = chorus::Communicator::join(id, r, ranks, options);
        body(world);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

using Tensors = std::map<std::string, std::vector<double>>;

/// Everything a run showed.
struct Outcome {
  std::vector<double> losses, norms;
  Tensors gradients;  ///< of the first step
  Tensors values;     ///< after the last
  double held_out = 0;
  CommLog log;  ///< of rank 0, without the first step
  std::size_t arena_bytes = 0;
};

/// Adds the elements that this rank updates to whole tensors.
template <class R>
void collect(Trainer<R>& trainer, bool gradients, Tensors& into) {
  for (const auto& s : trainer.store().segments()) {
    const R* own = gradients ? s->own_gradients : s->own_values;
    for (const Param& p : s->params) {
      auto& whole = into[p.name];
      whole.resize(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.cols));
      for (std::size_t i = 0; i < p.count(); ++i) {
        const std::size_t at = p.offset + i;
        if (at < s->begin || at >= s->begin + s->shard) continue;
        const std::size_t row =
            static_cast<std::size_t>(p.row) + i / static_cast<std::size_t>(p.col_count);
        const std::size_t col =
            static_cast<std::size_t>(p.col) + i % static_cast<std::size_t>(p.col_count);
        whole[row * static_cast<std::size_t>(p.cols) + col] =
            static_cast<double>(own[at - s->begin]);
      }
    }
  }
}

/// `sabotage` is given every rank's trainer before its first step.
template <class R = float>
Outcome train(const Config& config, int steps,
              const std::function<void(Trainer<R>&)>& sabotage = nullptr) {
  Outcome run;
  std::mutex mutex;
  on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
    Trainer<R> trainer(world, config);
    if (sabotage) sabotage(trainer);
    for (int i = 0; i < steps; ++i) {
      const StepResult result = trainer.step();
      const std::lock_guard lock(mutex);
      if (i == 0) {
        collect(trainer, true, run.gradients);
        trainer.log().clear();
      }
      if (world.rank() != 0) continue;
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradient_norm);
    }
    {
      const std::lock_guard lock(mutex);
      collect(trainer, false, run.values);
      if (world.rank() == 0) {
        run.log = trainer.log();
        run.arena_bytes = trainer.memory().used_bytes();
      }
    }
    const double held_out = trainer.evaluate(12 / config.layout.dp);
    if (world.rank() == 0) run.held_out = held_out;
  });
  return run;
}

/// The largest relative distance ‖a − b‖ / ‖b‖ over tensors, with the name of the tensor. Tensors
/// whose gradient is zero but for rounding (the keys' biases) are measured against the whole.
inline std::pair<double, std::string> distance(const Tensors& a, const Tensors& b) {
  std::pair<double, std::string> worst{0, ""};
  double whole = 0;
  for (const auto& [name, values] : b) {
    for (const double v : values) whole += v * v;
  }
  for (const auto& [name, values] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second.size() != values.size()) return {1e9, name + " (absent)"};
    double gap = 0;
    double norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      gap += (found->second[i] - values[i]) * (found->second[i] - values[i]);
      norm += values[i] * values[i];
    }
    const double relative = std::sqrt(gap / std::max(norm, 1e-6 * whole));
    if (relative > worst.first) worst = {relative, name};
  }
  return worst;
}

/// Runs two steps and leaves the second alone in the log: the first also sends what is sent once.
template <class R>
void log_second_step(Trainer<R>& trainer) {
  trainer.step();
  trainer.groups().flights.wait_all();
  trainer.log().clear();
  trainer.step();
  trainer.groups().flights.wait_all();
}

/// Every rank sends in its second step what the formulas say, to the byte.
inline void expect_predicted(const Config& config) {
  std::mutex mutex;
  on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    log_second_step(trainer);
    const Volume predicted = predicted_volume(config, world.rank(), sizeof(float));
    const std::lock_guard lock(mutex);
    for (std::size_t a = 0; a < predicted.size(); ++a) {
      const auto axis = static_cast<Axis>(a);
      std::uint64_t counted = trainer.log().sent_bytes(axis);
      if (axis == Axis::expert) counted -= trainer.log().at(axis, Kind::all_to_all_v).sent_bytes;
      EXPECT_EQ(counted, predicted[a]) << kAxisNames[a] << ", rank " << world.rank();
    }
  });
}

inline Config small(int layers = 2) {
  Config config;
  config.model = {.vocab = 64, .context = 16, .layers = layers, .width = 32, .heads = 4};
  config.model.tied = false;
  config.training = {.batch = 2, .steps = 8, .learning_rate = 1e-2, .warmup_steps = 2};
  return config;
}

}  // namespace trainer::testing
