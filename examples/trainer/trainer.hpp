// One rank of a training run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "interleaver.hpp"
#include "model/data.hpp"
#include "model/layer.hpp"
#include "schedule.hpp"

namespace trainer {

struct StepResult {
  int step = 0;     ///< 1-based
  double loss = 0;  ///< nats per token, the mean over the step
  double balance_loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  double seconds = 0;
  double exposed_s = 0;       ///< of which this rank waited for communication
  std::uint64_t tokens = 0;   ///< over all ranks
  std::uint64_t dropped = 0;  ///< (token, expert) pairs over the capacity
  bool skipped = false;       ///< gradients overflowed under Training::loss_scale: no update
};

/// How far a run is: with values, moments and Store::kept(), all that its next step depends on.
struct Progress {
  int steps = 0;
  std::uint64_t sequences = 0;   ///< that the steps saw, over all replicas
  double loss_scale = 0;         ///< of the next step; 0: none
  int good_steps = 0;            ///< since the loss scale changed
  std::uint64_t reductions = 0;  ///< compressed so far on this rank: they seed random rounding
};

/// What every rank throws together: none waits for another, so all may take their leave.
class Refusal : public chorus::InputError {
  using InputError::InputError;
};

/// Collective: runs `local`, and where it threw chorus::InputError on a rank, throws Refusal on all
/// with that rank's sentence, and which rank it was, unless it was all.
void agree(chorus::Communicator& world, const std::function<void()>& local);

/// The model's slice, memory, groups and position in the pipeline of one rank.
template <class R>
class Trainer {
 public:
  /// Collective over `world`, which must outlive this. Throws chorus::InputError where the backend
  /// has no GPU.
  Trainer(chorus::Communicator& world, const Config& config);
  /// What `rank` of a run would be, without its memory and peers: only memory() may be asked.
  Trainer(const Config& config, int rank);
  ~Trainer();

  /// Collective. Throws chorus::Error when the gradient is not finite, but for what a loss scale
  /// above 1 makes overflow.
  StepResult step();
  /// A step whose seconds and exposed_s are whole where a device computes, too: the host waits for
  /// it before and after, and what the device stood still is taken from its clock.
  StepResult timed_step();
  /// Computes the gradients of the next step without updating; for tests of gradients.
  StepResult gradients();
  /// Collective: the mean loss over held-out sequences.
  double evaluate(int micro_batches);

  [[nodiscard]] const Arena& memory() const { return *arena_; }
  [[nodiscard]] CommLog& log() { return log_; }
  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] Store<R>& store() { return *store_; }
  [[nodiscard]] const Store<R>& store() const { return *store_; }
  [[nodiscard]] Groups& groups() { return *groups_; }
  [[nodiscard]] Ops<R>& ops() { return *ops_; }
  [[nodiscard]] Gpu* gpu() { return gpu_.get(); }
  [[nodiscard]] const Data& data() const { return *data_; }
  [[nodiscard]] int steps_done() const { return steps_done_; }
  [[nodiscard]] Progress progress() const;
  /// Among all ranks that train.
  void agree(const std::function<void()>& local) { trainer::agree(*everyone_, local); }
  /// Returns when every rank has called it.
  void barrier();
  /// Whether communication of data parallelism runs under the passes of the steps to come; alike on
  /// all ranks, between steps.
  void overlap(bool on) {
    groups_->flights.wait_all();
    config_.layout.overlap = on;
  }
  /// Goes on from there, after the states were restored. A loss scale goes on where both runs
  /// have one.
  void resume_at(const Progress& progress);

 private:
  /// One half of every micro-batch, or all of it where it is not split: its shapes, scratch memory
  /// and loss. Halves share the parameters.
  struct Side {
    std::unique_ptr<Config> config;
    std::unique_ptr<LayerContext<R>> shop;
    std::unique_ptr<Embedding<R>> embedding;
    std::unique_ptr<Head<R>> head;
    Saved<R> shared{};
    ActivationGradients<R> grads{};
    R* ping[2] = {};
    R* spare = nullptr;
  };
  /// Of one side, by layer.
  struct Kept {
    std::vector<Saved<R>> saved;
    std::vector<ActivationGradients<R>> grads;  ///< under zero-bubble each layer's own
    std::vector<R*> between;                    ///< gradients between layers, under zero-bubble
  };
  struct Slot {
    int micro_batch = -1;    ///< whose activations are here
    std::vector<Kept> kept;  ///< by side
    /// The rows of all sides, one after the other.
    R *x = nullptr, *out = nullptr, *dy = nullptr, *dx = nullptr;
    Pending x_arrives, dy_arrives, out_leaves, dx_leaves;
  };
  struct Chunk {
    bool first = false, last = false;
    std::vector<std::vector<std::unique_ptr<Layer<R>>>> layers;  ///< [side][layer]
    std::vector<Slot> slots;
  };

  void build();
  void lay_out(Arena& arena);
  void lay_out_side(Side& side, Arena& arena);
  void lay_out_chunk(Chunk& chunk, int index, Arena& arena);
  void compute_gradients();
  StepResult summary();
  void rescale(double loss_scale);
  void run(const Work& work);
  void forward(Chunk& chunk, Slot& slot, int micro_batch, bool train);
  void backward(Chunk& chunk, Slot& slot, int micro_batch);
  void weights(Chunk& chunk, Slot& slot, int micro_batch);
  void forward_side(Chunk& chunk, Slot& slot, std::size_t side, bool last, bool train);
  void backward_side(Chunk& chunk, Slot& slot, std::size_t side, bool last);
  void weights_side(Chunk& chunk, Slot& slot, std::size_t side, bool last);
  /// body(side) for every side; halves in turn.
  template <class Body>
  void in_turn(Body body);
  /// Where the rows of `side` are in [all rows, h].
  [[nodiscard]] std::size_t rows_at(std::size_t side) const {
    return side * static_cast<std::size_t>(sides_[0].shop->s) * sides_[0].shop->h;
  }
  [[nodiscard]] std::size_t tokens_at(std::size_t side) const {
    return side * static_cast<std::size_t>(sides_[0].shop->n);
  }
  /// Posts the receives whose buffers are free, in the order in which the peers send.
  void post_receives();
  void load(int micro_batch, bool held_out);
  [[nodiscard]] bool is_last(int micro_batch) const {
    return micro_batch == config_.layout.micro_batches - 1;
  }
  Slot& slot_of(const Work& work) {
    auto& slots = chunks_[static_cast<std::size_t>(work.chunk)].slots;
    return slots[static_cast<std::size_t>(work.micro_batch) % slots.size()];
  }

  Config config_;
  chorus::Communicator* everyone_ = nullptr;
  CommLog log_;
  std::unique_ptr<Gpu> gpu_;  ///< null: the host computes
  std::unique_ptr<Ops<R>> ops_;
  std::unique_ptr<Groups> groups_;
  std::unique_ptr<Store<R>> store_;
  std::vector<Side> sides_;
  std::unique_ptr<Data> data_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<Arena> arena_;
  Order order_;
  std::vector<Work> x_order_, dy_order_;
  std::size_t next_x_ = 0, next_dy_ = 0;
  Both<std::int32_t> tokens_, targets_;
  double* totals_ = nullptr;
  double loss_ = 0;
  int steps_done_ = 0;
  std::uint64_t sequences_seen_ = 0;  ///< over all replicas
  double loss_scale_ = 1;             ///< of the step to come
  int good_steps_ = 0;                ///< since it changed
  std::unique_ptr<MicroBatchInterleaver>
      interleaver_;  ///< where micro-batches are computed in halves
};

}  // namespace trainer
