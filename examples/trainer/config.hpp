// What is trained, how it is laid out over the ranks, and how the optimizer works.
//
// The letters of all shapes: V vocabulary, T tokens per sequence, L layers, h width, a heads,
// f feed-forward width, E experts, k experts per token, B sequences per micro-batch and replica.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/products.hpp"

namespace trainer {

struct Model {
  int vocab = 256;
  int context = 128;  ///< T
  int layers = 4;
  int width = 128;
  int heads = 4;
  int feed_forward = 0;  ///< 0: 4 · width
  bool tied = true;      ///< one matrix for embedding and output
  int experts = 0;       ///< 0: dense; else every layer's feed-forward is a mixture of experts
  int top_k = 2;
  /// Most (token, expert) pairs that an expert takes from one rank's micro-batch, as a share of an
  /// even distribution; 0: no limit (dropless).
  double capacity = 0;
  double balance_loss = 0.01;  ///< weight of the load-balancing loss

  [[nodiscard]] int f() const { return feed_forward > 0 ? feed_forward : 4 * width; }
  [[nodiscard]] int head_width() const { return width / heads; }

  /// Everything that must agree for a checkpoint to fit.
  [[nodiscard]] std::string signature() const;
  bool operator==(const Model&) const = default;
};

enum class Pipeline : std::uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble };
enum class Recompute : std::uint8_t { none, selective, full };

/// How the world is divided: world size = dp · tp · pp. Experts are spread over ep ranks of dp.
struct Layout {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int ep = 1;  ///< divides dp
  /// Rows go to a rank's experts in so many parts, one under the work on another (FasterMoE).
  int expert_chunks = 1;
  /// Every micro-batch is computed in two halves, one while messages between slices or experts of
  /// the other travel (as HiDup and Oases do).
  bool halves = false;
  int zero = 0;  ///< 0: replicas keep everything; 1, 2, 3: shard optimizer, gradients, parameters
  // ZeRO++ (Wang et al., 2023): with ZeRO-3, gradients also with ZeRO-2.
  bool quantize_weights = false;    ///< gathered in 8 bits per value
  bool quantize_gradients = false;  ///< reduced in 8 bits per value, by all_to_all
  /// Replicas of one node, side by side in dp; > 0: each node keeps the values of the whole model
  /// sharded among them, so that only a step's first use gathers across nodes.
  int secondary = 0;
  /// Replicas that die are done without, and others may take their places (Communicator::take_in).
  bool elastic = false;
  int replica = -1;  ///< with it: the place that this rank takes; -1: that of its number
  bool sequence_parallel = false;  ///< activations between tensor-parallel blocks are sharded too
  int micro_batches = 1;           ///< per step and replica
  int virtual_stages = 1;          ///< chunks of layers per pipeline rank (interleaved)
  Pipeline pipeline = Pipeline::one_f_one_b;
  Recompute recompute = Recompute::none;
  bool overlap = true;  ///< communication of data parallelism runs under the backward pass
  std::size_t bucket_bytes = 4U << 20;  ///< gradients reduced at once without ZeRO
  /// Layers of each chunk in order, [pp · virtual_stages]; empty: the planner's choice.
  std::vector<int> partition = {};
  /// Sequences per micro-batch of each replica, [dp]; empty: Training::batch of each.
  std::vector<int> shares = {};
  /// Rank by place in the grid (comm.hpp), [world_size]; empty: places are numbered like ranks.
  std::vector<int> ranks = {};

  [[nodiscard]] int world_size() const { return dp * tp * pp; }
  [[nodiscard]] int chunks() const { return pp * virtual_stages; }
  bool operator==(const Layout&) const = default;
};

/// What computes: the host; a GPU; the host in a GPU's place, for checks of the way there.
enum class Backend : std::uint8_t { cpu, cuda, cuda_emulated };

enum class Compression : std::uint8_t { none, qsgd, one_bit, top_k, power, threshold };
/// What replicas average: gradients, so that they stay equal; or now and then their values, with
/// neighbours of a graph in between or (local) with nobody.
enum class Average : std::uint8_t { gradients, local, ring, grid, exponential };

struct Training {
  int batch = 4;  ///< B
  int steps = 100;
  double learning_rate = 1e-3;
  double min_learning_rate = 1e-4;  ///< reached by a cosine at the last step
  int warmup_steps = 10;
  int base_batch = 0;  ///< > 0: the rate grows linearly with sequences per step over this many
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;                            ///< largest gradient norm; 0: no clipping
  Compression compression = Compression::none;  ///< of gradients between replicas
  int levels = 127;                             ///< of QSGD
  double share = 0.01;         ///< of the gradient that top-k sends, or threshold at most
  double threshold = 1e-3;     ///< magnitude from which on `threshold` sends a value
  int power_rank = 4;          ///< of PowerSGD
  bool error_feedback = true;  ///< what compression lost is added to the next gradient
  /// Rounds in which what is left of a gradient is compressed again (NEOLITHIC).
  int rounds = 1;
  bool differences = false;  ///< EF21 in its place: differences to an estimate are compressed
  Average average = Average::gradients;
  /// Steps from one average over all replicas to the next, of those that average values; 0: never.
  int global_every = 0;
  /// Matrix products of bfloat16; values, gradients, moments and everything else stay float32.
  bool bfloat16 = false;
  [[nodiscard]] Precision precision() const {
    return bfloat16 ? Precision::bfloat16 : Precision::full;
  }
  /// > 0: the loss is multiplied by this before the backward pass and gradients divided again; half
  /// as much after a step whose gradients overflow, which is skipped, twice after 1,000 others.
  double loss_scale = 0;
  [[nodiscard]] double scale() const { return loss_scale > 0 ? loss_scale : 1; }
  Backend backend = Backend::cpu;
  std::uint64_t seed = 1;
  std::string data = {};  ///< file of bytes; empty: a seeded synthetic source
};

struct Config {
  std::string name = "custom";
  Model model;
  Layout layout;
  Training training;

  /// Of a micro-batch, over all replicas.
  [[nodiscard]] int sequences() const;
  /// Of a micro-batch, of the replicas before `replica`.
  [[nodiscard]] int sequences_before(int replica) const;
  /// With the batch that `replica` has of an unequal one.
  [[nodiscard]] Config of_replica(int replica) const {
    Config c = *this;
    if (!layout.shares.empty()) {
      c.training.batch = layout.shares[static_cast<std::size_t>(replica)];
    }
    return c;
  }
  /// What one half of a micro-batch is: one of twice as many of half the sequences.
  [[nodiscard]] Config half() const {
    Config c = *this;
    c.training.batch /= 2;
    for (int& share : c.layout.shares) share /= 2;
    c.layout.micro_batches *= 2;
    return c;
  }
};

/// A named model with the figures its authors published.
struct Preset {
  std::string_view name;
  std::string_view about;
  Model model;
};
[[nodiscard]] const std::vector<Preset>& presets();

/// Throws chorus::InputError for an unknown name, with the list of names.
[[nodiscard]] Model preset(std::string_view name);

/// Throws chorus::InputError with the numbers and the nearest values that work.
void check(const Config& config, int world_size);

/// The learning rate of `step` (0-based): linear warm-up, then a cosine.
[[nodiscard]] double learning_rate(const Config& config, int step);

[[nodiscard]] std::string_view name_of(Pipeline pipeline);
[[nodiscard]] std::string_view name_of(Recompute recompute);
[[nodiscard]] std::string_view name_of(Compression compression);
[[nodiscard]] std::string_view name_of(Average average);
[[nodiscard]] Pipeline pipeline_of(std::string_view name);
[[nodiscard]] Recompute recompute_of(std::string_view name);
[[nodiscard]] Compression compression_of(std::string_view name);
[[nodiscard]] Average average_of(std::string_view name);
[[nodiscard]] Backend backend_of(std::string_view name);

}  // namespace trainer
