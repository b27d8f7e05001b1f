// What replicas exchange in place of plain sums of gradients: compressed gradients, factors of low
// rank, or now and then their values. Compressors work in the host's memory: gradients that lie on
// a device are taken there segment by segment, and what is compressed travels between hosts.
#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>

#include "model/params.hpp"
#include "model/random.hpp"

namespace trainer {
namespace {

namespace compress = chorus::compress;
namespace neighbor = chorus::neighbor;

std::vector<neighbor::Weight> row_of(Average average, int replicas, int rank) {
  switch (average) {
    case Average::ring:
      return neighbor::mixing_row(neighbor::Graph::ring, replicas, rank);
    case Average::grid:
      return neighbor::mixing_row(neighbor::Graph::grid, replicas, rank);
    case Average::exponential:
      return neighbor::mixing_row(neighbor::Graph::exponential, replicas, rank);
    case Average::gradients:
    case Average::local:
      break;
  }
  return {};
}

}  // namespace

std::unique_ptr<compress::Compressor> make_compressor(const Training& training) {
  if (training.rounds > 1) {
    Training once = training;
    once.rounds = 1;
    auto how = make_compressor(once);
    if (how == nullptr) return nullptr;
    return std::make_unique<compress::Neolithic>(std::move(how), training.rounds);
  }
  switch (training.compression) {
    case Compression::qsgd:
      return std::make_unique<compress::Qsgd>(training.levels);
    case Compression::one_bit:
      return std::make_unique<compress::OneBit>();
    case Compression::top_k:
      return std::make_unique<compress::TopK>(training.share);
    case Compression::threshold:
      return std::make_unique<compress::Threshold>(static_cast<float>(training.threshold),
                                                   training.share);
    case Compression::power:
    case Compression::none:
      break;
  }
  return nullptr;
}

/// The gradients of `s` where compressors reach them.
template <class R>
R* Store<R>::borrow_gradients(Segment<R>& s) {
  if (!ops_.apart()) return s.gradients;
  ops_.to_host(borrowed_, s.gradients, s.padded * sizeof(R));
  return borrowed_;
}

/// After all work on borrow_gradients().
template <class R>
void Store<R>::return_gradients(Segment<R>& s) {
  if (ops_.apart()) ops_.to_device(s.gradients, borrowed_, s.padded * sizeof(R));
}

/// Calls visit(param, compressor, P's offset, Q's offset) for every matrix.
template <class R>
template <class Visit>
void Store<R>::for_each_matrix(const Segment<R>& s, Visit visit) const {
  std::size_t p_at = 0;
  std::size_t q_at = 0;
  for (const Param& p : s.params) {
    const auto rows = static_cast<std::size_t>(p.row_count);
    const auto cols = static_cast<std::size_t>(p.col_count);
    if (rows == 1 || cols == 1) continue;
    const compress::PowerSgd how(rows, cols, static_cast<std::size_t>(config_.training.power_rank));
    visit(p, how, p_at, q_at);
    p_at += how.p_count();
    q_at += how.q_count();
  }
}

template <class R>
std::pair<std::size_t, std::size_t> Store<R>::power_counts(const Segment<R>& s) const {
  std::size_t first = s.count;
  std::size_t second = 0;
  for_each_matrix(s, [&](const Param& p, const compress::PowerSgd& how, std::size_t, std::size_t) {
    first += how.p_count() - p.count();
    second += how.q_count();
  });
  return {first, second};
}

template <class R>
void Store<R>::lay_out_exchange(Arena& arena) {
  const Training& t = config_.training;
  const bool power = t.compression == Compression::power;
  std::size_t payloads = 0;
  std::size_t factors = 0;
  std::size_t theirs = 0;
  std::size_t borrowed = 0;
  for (auto& s : segments_) {
    if (ops_.apart() && (compressor_ || power)) borrowed = std::max(borrowed, s->padded);
    const auto replicas = static_cast<std::size_t>(s->group->size());
    if ((compressor_ || power) && (t.error_feedback || t.differences)) {
      s->error = arena.take_host<R>(s->padded, Use::gradients);
    }
    if (compressor_ && t.differences) s->estimate = arena.take_host<R>(s->padded, Use::gradients);
    if (compressor_) payloads = std::max(payloads, compressor_->bytes(s->padded) * replicas);
    if (power) {
      const auto [first, second] = power_counts(*s);
      s->power_q = arena.take_host<R>(second, Use::gradients);
      factors = std::max(factors, first);
    }
    row_ = row_of(t.average, s->group->size(), s->group->rank());
    if (!row_.empty()) theirs = std::max(theirs, s->padded * (row_.size() - 1));
  }
  borrowed_ = arena.take_host<R>(borrowed, Use::scratch);
  payloads_ = arena.take_host<std::uint8_t>(payloads, Use::scratch);
  const bool varies = compressor_ && compressor_->varies();
  const auto replicas = static_cast<std::size_t>(config_.layout.dp);
  lengths_ = arena.take_host<std::uint64_t>(varies ? replicas : 0, Use::scratch);
  power_p_ = arena.take_host<R>(factors, Use::scratch);
  theirs_ = arena.take<R>(theirs, Use::scratch);
  for (auto* each : {&mixed_, &mixed_at_, &from_start_}) each->assign(replicas, 0);
}

template <class R>
std::vector<typename Store<R>::Kept> Store<R>::kept() {
  const bool apart = config_.training.average != Average::gradients;
  std::vector<Kept> all;
  for (auto& s : segments_) {
    const auto add = [&](const char* what, R* elements, std::size_t count) {
      if (elements != nullptr && count > 0) all.push_back({s->name + what, {elements, count}});
    };
    add(".error", s->error, s->padded);
    add(".estimate", s->estimate, s->padded);
    add(".factors", s->power_q, s->power_q == nullptr ? 0 : power_counts(*s).second);
    if (!apart) continue;
    add(".values", s->values, s->padded);
    add(".moment1", s->moment1, s->shard);
    add(".moment2", s->moment2, s->shard);
  }
  return all;
}

/// Every replica's compressed gradient, added in the order of ranks: all end with the same bits.
template <class R>
void Store<R>::reduce_compressed(Segment<R>& s) {
  if constexpr (!std::is_same_v<R, float>) {
    throw chorus::InputError("gradients can be compressed in float32 only");
  } else {
    ++reductions_;
    const auto replicas = static_cast<std::size_t>(s.group->size());
    if (replicas == 1) return;
    std::size_t size = compressor_->bytes(s.padded);
    const auto rank = static_cast<std::size_t>(s.group->rank());
    std::uint8_t* mine = payloads_ + size * rank;
    const std::span<float> values(borrow_gradients(s), s.padded);
    const std::span<float> error(s.error, s.error == nullptr ? 0 : s.padded);
    const std::uint64_t seed = random_bits(config_.training.seed, reductions_,
                                           static_cast<std::uint64_t>(groups_.world.rank()));
    const auto payload = std::as_writable_bytes(std::span(mine, size));
    if (s.estimate != nullptr) {
      compress::encode_difference(*compressor_, values, error, seed, payload);
    } else {
      compress::encode_with_feedback(*compressor_, values, error, seed, payload);
    }
    if (compressor_->varies()) {
      // As much of each as the longest is.
      lengths_[rank] = compressor_->used(payload);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(lengths_ + rank);
      s.group->wait(s.group->all_gather(bytes, reinterpret_cast<std::uint8_t*>(lengths_),
                                        sizeof(std::uint64_t), On::host));
      size = *std::max_element(lengths_, lengths_ + replicas);
      std::memmove(payloads_ + size * rank, mine, size);
      mine = payloads_ + size * rank;
    }
    s.group->wait(
        s.group->all_gather(static_cast<const std::uint8_t*>(mine), payloads_, size, On::host));
    const std::span<float> sum =
        s.estimate != nullptr ? std::span<float>(s.estimate, s.padded) : values;
    if (s.estimate == nullptr) std::ranges::fill(values, 0.0F);
    for (std::size_t r = 0; r < replicas; ++r) {
      compressor_->add(std::as_bytes(std::span(payloads_ + r * size, size)), 1.0F, sum);
    }
    if (s.estimate != nullptr) std::ranges::copy(sum, values.begin());
    return_gradients(s);
  }
}

/// Two sums: of the P of all matrices and the vectors as they are; of the Q.
template <class R>
void Store<R>::reduce_by_power(Segment<R>& s) {
  if constexpr (!std::is_same_v<R, float>) {
    throw chorus::InputError("gradients can be compressed in float32 only");
  } else {
    if (s.group->size() == 1) return;
    const auto [first, second] = power_counts(s);
    const std::uint64_t seed = random_bits(config_.training.seed, stream_of(s.name), 0);
    R* const gradients = borrow_gradients(s);
    const auto matrix = [&](const Param& p) { return std::span(gradients + p.offset, p.count()); };
    const auto lost = [&](const Param& p) { return std::span(s.error + p.offset, p.count()); };
    const auto left = [&](const compress::PowerSgd& how, std::size_t at) {
      return std::span(power_p_ + at, how.p_count());
    };
    const auto right = [&](const compress::PowerSgd& how, std::size_t at) {
      return std::span(s.power_q + at, how.q_count());
    };
    std::size_t vectors = 0;
    for_each_matrix(
        s, [&](const Param& p, const compress::PowerSgd& how, std::size_t p_at, std::size_t q_at) {
          if (reductions_ == 0) how.start(right(how, q_at), seed + p.offset);
          if (s.error != nullptr) {
            std::ranges::transform(matrix(p), lost(p), matrix(p).begin(), std::plus<>());
          }
          how.left(matrix(p), right(how, q_at), left(how, p_at));
          vectors = p_at + how.p_count();
        });
    const auto for_each_vector = [&](auto visit) {
      std::size_t at = vectors;
      for (const Param& p : s.params) {
        if (p.row_count > 1 && p.col_count > 1) continue;
        visit(gradients + p.offset, power_p_ + at, p.count());
        at += p.count();
      }
    };
    for_each_vector([&](R* own, R* sum, std::size_t n) { std::copy_n(own, n, sum); });
    s.group->wait(s.group->all_reduce(power_p_, first, {}, On::host));
    for_each_vector([&](R* own, R* sum, std::size_t n) { std::copy_n(sum, n, own); });
    for_each_matrix(
        s, [&](const Param& p, const compress::PowerSgd& how, std::size_t p_at, std::size_t q_at) {
          how.orthonormalize(left(how, p_at));
          how.right(matrix(p), left(how, p_at), right(how, q_at));
          if (s.error == nullptr) return;
          std::ranges::copy(matrix(p), lost(p).begin());
          how.add_product(left(how, p_at), right(how, q_at), -1.0F, lost(p));
        });
    if (second > 0) s.group->wait(s.group->all_reduce(s.power_q, second, {}, On::host));
    for_each_matrix(
        s, [&](const Param& p, const compress::PowerSgd& how, std::size_t p_at, std::size_t q_at) {
          std::ranges::fill(matrix(p), R(0));
          how.add_product(left(how, p_at), right(how, q_at), 1.0F, matrix(p));
        });
    return_gradients(s);
  }
}

/// After the update of `step` (1-based): with the neighbours, or with everybody where it is due.
template <class R>
void Store<R>::average_values(int step) {
  if constexpr (!std::is_same_v<R, float>) {
    throw chorus::InputError("replicas average values in float32 only");
  } else {
    const int every = config_.training.global_every;
    const bool global = every > 0 && step % every == 0;
    for (auto& s : segments_) {
      if (s->group->size() == 1) continue;
      if (global) {
        s->group->wait(s->group->all_reduce(s->values, s->padded, chorus::ReduceOp::avg));
        continue;
      }
      if (row_.empty()) continue;
      // The same to each neighbour, and to no other.
      std::ranges::fill(mixed_, 0);
      double own = 0;
      std::size_t at = 0;
      for (const neighbor::Weight& w : row_) {
        const auto rank = static_cast<std::size_t>(w.rank);
        if (w.rank == s->group->rank()) {
          own = w.weight;
          continue;
        }
        mixed_[rank] = s->padded;
        mixed_at_[rank] = at;
        at += s->padded;
      }
      s->group->wait(s->group->all_to_all_v(static_cast<const R*>(s->values), mixed_, from_start_,
                                            theirs_, mixed_, mixed_at_));
      at = 0;
      for (const neighbor::Weight& w : row_) {
        if (w.rank == s->group->rank()) continue;
        ops_.mix(s->values, own, theirs_ + at, w.weight, s->padded);
        own = 1;
        at += s->padded;
      }
    }
  }
}

template std::pair<std::size_t, std::size_t> Store<float>::power_counts(
    const Segment<float>&) const;
template std::pair<std::size_t, std::size_t> Store<double>::power_counts(
    const Segment<double>&) const;
template std::vector<Store<float>::Kept> Store<float>::kept();
template std::vector<Store<double>::Kept> Store<double>::kept();
template void Store<float>::lay_out_exchange(Arena&);
template void Store<double>::lay_out_exchange(Arena&);
template void Store<float>::reduce_compressed(Segment<float>&);
template void Store<double>::reduce_compressed(Segment<double>&);
template void Store<float>::reduce_by_power(Segment<float>&);
template void Store<double>::reduce_by_power(Segment<double>&);
template void Store<float>::average_values(int);
template void Store<double>::average_values(int);

}  // namespace trainer
