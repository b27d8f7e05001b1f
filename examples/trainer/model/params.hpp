// Parameters, their gradients and optimizer states: sliced over tensor-parallel ranks, sharded over
// replicas as ZeRO says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chorus/compress.hpp"
#include "chorus/neighbor.hpp"
#include "comm.hpp"
#include "ops/arena.hpp"
#include "ops/ops.hpp"

namespace trainer {

enum class Init : std::uint8_t { zeros, ones, normal };

/// This rank's rectangle of one tensor [rows, cols]. The value of each element at the start depends
/// on the name and the place in the whole tensor alone.
struct Param {
  std::string name;
  int rows = 1, cols = 1;
  int row = 0, row_count = 1;  ///< rows [row, row + row_count) are here
  int col = 0, col_count = 1;
  Init init = Init::zeros;
  double deviation = 0;
  bool decays = false;
  /// Every tensor-parallel rank sees only a part of the gradient: they must be added.
  bool partial = false;
  std::size_t offset = 0;  ///< in its segment

  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(row_count) * static_cast<std::size_t>(col_count);
  }
  [[nodiscard]] bool sliced() const { return row_count < rows || col_count < cols; }
};

/// Parameters that are gathered, reduced and updated together: one layer's, say.
template <class R>
struct Segment {
  std::string name;
  std::vector<Param> params;
  Group* group = nullptr;   ///< the replicas that hold the same
  bool expert = false;      ///< spread over expert-parallel ranks
  bool end = false;         ///< embedding or output: has buffers of its own under ZeRO-2 and 3
  bool counted = true;      ///< false for the second copy of a tied matrix
  bool tied = false;        ///< gradient is added to that of the copy at the pipeline's other end
  std::size_t count = 0;    ///< elements
  std::size_t padded = 0;   ///< to a multiple of the replicas
  std::size_t shard = 0;    ///< elements that this rank updates
  std::size_t begin = 0;    ///< of the shard, in the segment
  R* values = nullptr;      ///< [padded] while acquired
  R* gradients = nullptr;   ///< [padded] while acquired
  R* own_values = nullptr;  ///< [shard]
  R* own_gradients = nullptr;
  // The host's, whatever computes:
  R* error = nullptr;     ///< [padded] what compression lost so far; EF21: this rank's estimate
  R* estimate = nullptr;  ///< [padded] EF21: the sum of all ranks' estimates
  R* power_q = nullptr;   ///< PowerSGD: the Q of all matrices, kept between steps
  R* moment1 = nullptr;
  R* moment2 = nullptr;
  Pending gathering;
  std::uint8_t* packed = nullptr;  ///< where quantized values arrive while they are gathered
  R* secondary = nullptr;          ///< [padded / replicas of a node]
  bool fresh = false;              ///< `secondary` is of the values that are current
  int holders = 0;
  int bucket = -1;

  [[nodiscard]] const R* value(std::size_t param) const { return values + params[param].offset; }
  [[nodiscard]] R* gradient(std::size_t param) const { return gradients + params[param].offset; }
};

/// The compressor that `training` names; null for none.
[[nodiscard]] std::unique_ptr<chorus::compress::Compressor> make_compressor(
    const Training& training);

/// The segments of one rank.
///
/// Around the use of values: acquire(), release(); around additions to gradients:
/// acquire_gradients(), release_gradients(). What moves when:
///   ZeRO-0  the last release of a bucket starts its all_reduce
///   ZeRO-1  the last release starts a reduce_scatter; the update ends in an all_gather
///   ZeRO-2  every release starts a reduce_scatter out of one of two buffers
///   ZeRO-3  also acquire() gathers the values into one of two buffers (prefetch() earlier); what a
///           pass left there the next one finds, until the buffer is needed or the values change
///   ZeRO++  values travel quantized, and after their first use in a step inside the node only;
///           gradients travel quantized to who sums them, first inside the node, then across
template <class R>
class Store {
 public:
  Store(const Config& config, Ops<R>& ops, Groups& groups)
      : config_(config),
        ops_(ops),
        groups_(groups),
        compressor_(make_compressor(config.training)) {}

  /// Adds a segment; its params get their offsets. The segment of that name where there is one: the
  /// halves of a micro-batch share it. Before lay_out().
  Segment<R>* add(const std::string& name, const std::vector<Param>& params, bool expert, bool end);
  void lay_out(Arena& arena);
  /// Fills this rank's values by their names.
  void initialize();

  void acquire(Segment<R>& segment);
  /// Starts to gather the values if that may go beside the passes and a buffer is free.
  void prefetch(Segment<R>* segment);
  void release(Segment<R>& segment);

  void acquire_gradients(Segment<R>& segment);
  /// `last`: no further micro-batch adds to it in this step.
  void release_gradients(Segment<R>& segment, bool last);
  void zero_gradients();
  /// Completes all reductions.
  void finish_gradients();
  /// Σ of squares of the gradient elements that this rank counts for the world.
  [[nodiscard]] double sum_of_squares();
  /// Updates the shards and sends them to the other replicas.
  void update(AdamW how);
  /// Floats of the two sums that PowerSGD needs for a segment.
  [[nodiscard]] std::pair<std::size_t, std::size_t> power_counts(const Segment<R>& segment) const;
  /// What was kept of gathered values is no longer current.
  void values_changed();
  /// Lets go of gathered values that nobody uses.
  void forget_gathered();

  /// What no other rank has and the next step depends on: what compression lost so far, estimates,
  /// factors; where replicas drift apart also values and moments. In the order of segments.
  struct Kept {
    std::string name;
    std::span<R> elements;
  };
  [[nodiscard]] std::vector<Kept> kept();
  [[nodiscard]] std::uint64_t reductions() const { return reductions_; }
  /// After values, moments and kept() were restored.
  void resume_at(std::uint64_t reductions) {
    reductions_ = reductions;
    values_changed();
  }

  [[nodiscard]] const std::vector<std::unique_ptr<Segment<R>>>& segments() const {
    return segments_;
  }

 private:
  struct Buffer {
    R* memory = nullptr;
    Segment<R>* user = nullptr;
    Pending reducing;
    std::uint8_t* packed = nullptr;  ///< quantized: what arrives, then what leaves
    /// When it was let go last, as a number that grows; 0: it holds values that wait for their use.
    std::uint64_t left = 0;
  };
  struct Bucket {
    R* begin = nullptr;
    std::size_t count = 0;
    int members = 0;
    int waiting = 0;
    Group* group = nullptr;
    Pending pending;
  };
  void lay_out_gradients(Arena& arena);
  void lay_out_buffers(Arena& arena);
  Buffer* buffer_for_values(Segment<R>& segment);
  Buffer& buffer_for_gradients(Segment<R>& segment);
  void drop_values(Buffer& buffer);
  void settle(Buffer& buffer);
  /// `bytes` of `elements` quantized.
  [[nodiscard]] static std::size_t packed_bytes(std::size_t elements);
  void start_gathering(Segment<R>& segment, std::uint8_t* packed);
  void finish_gathering(Segment<R>& segment);
  Pending start_quantized(Segment<R>& segment, Buffer& buffer);
  void finish_quantized(Segment<R>& segment, Buffer& buffer);
  void lay_out_exchange(Arena& arena);
  R* borrow_gradients(Segment<R>& segment);
  void return_gradients(Segment<R>& segment);
  void reduce_compressed(Segment<R>& segment);
  void reduce_by_power(Segment<R>& segment);
  void average_values(int step);
  template <class Visit>
  void for_each_matrix(const Segment<R>& segment, Visit visit) const;
  void add_partials_over_tensor();
  template <class Visit>
  void for_each_own(Visit visit);

  const Config& config_;
  Ops<R>& ops_;
  Groups& groups_;
  std::vector<std::unique_ptr<Segment<R>>> segments_;
  std::vector<Bucket> buckets_;
  std::vector<Buffer> value_buffers_[2], gradient_buffers_[2];  ///< [expert]
  std::uint64_t times_left_ = 0;                                ///< Buffer::left of the last one
  std::unique_ptr<chorus::compress::Compressor> compressor_;
  R* borrowed_ = nullptr;             ///< gradients of the largest segment, of a device
  std::uint8_t* payloads_ = nullptr;  ///< of all replicas, for the largest segment
  std::uint64_t* lengths_ = nullptr;  ///< of all replicas' payloads, where they vary
  R* power_p_ = nullptr;              ///< P of all matrices and the vectors of a segment
  R* theirs_ = nullptr;               ///< values of the neighbours, of the largest segment
  std::vector<chorus::neighbor::Weight> row_;
  /// [replicas]: how much each gets of this rank's values, and where theirs arrive.
  std::vector<std::size_t> mixed_, mixed_at_, from_start_;
  std::uint64_t reductions_ = 0;  ///< seeds random rounding
  R* node_sums_ = nullptr;  ///< [nodes · shard] of the segment whose gradients are being summed
  R* partials_ = nullptr;
  std::size_t partial_count_ = 0;
  double* squares_ = nullptr;
};

}  // namespace trainer
