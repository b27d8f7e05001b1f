// A feed-forward block made of experts: each token goes to the k that its gate prefers, on
// whichever rank they live.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "model/params.hpp"

namespace trainer {

/// Letters as in config.hpp; rows: (token, expert) pairs. `most` is the largest number of rows that
/// can come to this rank.
template <class R>
struct MoeSaved {
  R* probabilities;            ///< [n, E]
  R* weights;                  ///< [n · k]
  Both<std::int32_t> experts;  ///< [n · k]
  Both<std::int32_t> places;   ///< [n · k] row in what is sent; −1: dropped
  Both<std::int32_t> order;    ///< [most] received row of each row sorted by expert
  std::int32_t* received;      ///< [ep · E/ep] rows from each rank for each expert here
  std::size_t* counts;         ///< [chunks · 4 · ep] elements: sent, offsets, received, offsets
  R* x;                        ///< [most, h] rows sorted by expert
  R* f1;                       ///< [most, f/t]
  R* act;                      ///< [most, f/t]
  R* out;                      ///< [n · k, h] what the experts answered, in the order of `places`
};

template <class R>
struct MoeActivationGradients {
  R* dy;       ///< [most, h] gradient of the answers, sorted by expert
  R* df1;      ///< [most, f/t]
  R* dlogits;  ///< [n, E]
};

/// What one layer at a time needs; all layers of a rank share it.
template <class R>
struct MoeScratch {
  R* sent = nullptr;               ///< [n · k, h]
  R* arrived = nullptr;            ///< [most, h] in the order of the senders
  R* answers = nullptr;            ///< [most, h] sorted by expert
  R* dweights = nullptr;           ///< [n · k]
  std::int32_t* totals = nullptr;  ///< [3 · E]
  Both<double> lift;               ///< [E] slope of the balance loss by mean probability
  double* balance = nullptr;       ///< [1] Σ over layers and micro-batches of the balance loss
};

[[nodiscard]] Param gate_param(const Model& model, int layer, int tensor_ranks);

template <class R>
class Moe {
 public:
  /// `dense` holds the gate as its last param; the experts get a segment of their own.
  Moe(const Config& config, Ops<R>& ops, Groups& groups, Store<R>& store, Segment<R>& dense,
      MoeScratch<R>& scratch, int layer);

  [[nodiscard]] Segment<R>* segment() const { return experts_; }
  MoeSaved<R> lay_out_saved(Arena& arena) const;
  MoeActivationGradients<R> lay_out_activation_gradients(Arena& arena) const;
  void lay_out_scratch(Arena& arena);

  /// in [n, h] → out [n, h], this tensor-parallel rank's part of the sum.
  void forward(const MoeSaved<R>& saved, const R* in, R* out);
  /// dy [n, h]; dx [n, h] += this rank's part.
  void backward(const MoeSaved<R>& saved, const MoeActivationGradients<R>& grads, const R* dy,
                R* dx);
  void weights(const MoeSaved<R>& saved, const MoeActivationGradients<R>& grads, const R* in);

  double take_balance_loss();
  std::uint64_t take_dropped();

 private:
  void route(const MoeSaved<R>& saved);
  void exchange_counts(const MoeSaved<R>& saved);
  /// What one chunk of the experts here exchanges with each rank: elements and where they begin.
  struct Part {
    std::span<std::size_t> sent, sent_at, arrived, arrived_at;  // [ep]
  };
  [[nodiscard]] Part part_of(const MoeSaved<R>& saved, std::size_t chunk) const {
    const std::span<std::size_t> all(saved.counts + chunk * 4 * ep_, 4 * ep_);
    return {all.subspan(0, ep_), all.subspan(ep_, ep_), all.subspan(2 * ep_, ep_),
            all.subspan(3 * ep_, ep_)};
  }
  [[nodiscard]] std::size_t first_of(std::size_t chunk) const { return chunk * here_ / chunks_; }
  [[nodiscard]] std::size_t chunk_of(std::size_t expert) const {
    std::size_t chunk = 0;
    while (first_of(chunk + 1) <= expert) ++chunk;
    return chunk;
  }
  /// First row and number of rows of a chunk, sorted by expert.
  [[nodiscard]] std::pair<std::size_t, std::size_t> sorted_rows(const Part& part) const;
  void order_chunk(const MoeSaved<R>& saved, std::size_t chunk, std::size_t& row) const;
  Pending send_rows(const MoeSaved<R>& saved, std::size_t chunk, const R* rows);
  Pending return_rows(const MoeSaved<R>& saved, std::size_t chunk, const R* sorted, R* rows);
  template <class Visit>
  void exchange(const MoeSaved<R>& saved, const R* rows, R* sorted, const R* answers, R* back,
                Visit visit);
  /// Calls visit(param, first row, rows) for the experts [first, last) here.
  template <class Visit>
  void for_each_expert(const MoeSaved<R>& saved, std::size_t first, std::size_t last,
                       Visit visit) const;
  void gate_activation_gradients(const MoeSaved<R>& saved, const R* dweights, R* dlogits);

  const Config& config_;
  Ops<R>& ops_;
  Groups& groups_;
  Segment<R>& dense_;
  MoeScratch<R>& scratch_;
  Segment<R>* experts_ = nullptr;
  std::size_t n_, h_, f_, k_, all_, here_, ep_, most_, chunks_;
  std::size_t gate_;
  std::uint64_t dropped_ = 0;
};

}  // namespace trainer
