#include "model/params.hpp"

#include <algorithm>

#include "model/random.hpp"

namespace trainer {

/// The slot of a Pending whose result has been added.
constexpr int kSettled = -2;

template <class R>
Segment<R>* Store<R>::add(const std::string& name, const std::vector<Param>& params, bool expert,
                          bool end) {
  for (auto& there : segments_) {
    if (there->name == name) return there.get();
  }
  auto segment = std::make_unique<Segment<R>>();
  Segment<R>& s = *segment;
  s.name = name;
  s.params = params;
  s.expert = expert;
  s.end = end;
  s.group = expert ? &groups_.expert_data : &groups_.data;
  for (Param& p : s.params) {
    p.offset = s.count;
    s.count += p.count();
  }
  const auto replicas = static_cast<std::size_t>(s.group->size());
  s.padded = (s.count + replicas - 1) / replicas * replicas;
  s.shard = config_.layout.zero > 0 ? s.padded / replicas : s.padded;
  s.begin = config_.layout.zero > 0 ? s.shard * static_cast<std::size_t>(s.group->rank()) : 0;
  segments_.push_back(std::move(segment));
  return segments_.back().get();
}

template <class R>
void Store<R>::lay_out(Arena& arena) {
  const int zero = config_.layout.zero;
  for (auto& s : segments_) {
    if (zero < 3) {
      s->values = arena.take<R>(s->padded, Use::parameters);
      s->own_values = s->values == nullptr ? nullptr : s->values + s->begin;
    } else {
      s->own_values = arena.take<R>(s->shard, Use::parameters);
    }
    s->moment1 = arena.take<R>(s->shard, Use::optimizer);
    s->moment2 = arena.take<R>(s->shard, Use::optimizer);
    s->holders = 0;
    if (config_.layout.secondary > 0) {
      s->secondary = arena.take<R>(s->padded / static_cast<std::size_t>(config_.layout.secondary),
                                   Use::parameters);
    }
  }
  lay_out_exchange(arena);
  lay_out_gradients(arena);
  lay_out_buffers(arena);
  partial_count_ = 0;
  for_each_own([&](Segment<R>&, const Param& p, std::size_t, std::size_t n) {
    if (p.partial) partial_count_ += n;
  });
  partials_ = arena.take<R>(partial_count_, Use::scratch);
  squares_ = arena.take<double>(1, Use::scratch);
  std::size_t largest_shard = 0;
  for (auto& s : segments_) largest_shard = std::max(largest_shard, s->shard);
  const bool sums = config_.layout.quantize_gradients && config_.layout.secondary > 0;
  node_sums_ = arena.take<R>(
      sums ? largest_shard * static_cast<std::size_t>(groups_.across.size()) : 0, Use::scratch);
}

/// Without ZeRO the gradients lie in the order in which the backward pass completes them, so that a
/// bucket is one piece of memory.
template <class R>
void Store<R>::lay_out_gradients(Arena& arena) {
  const Layout& layout = config_.layout;
  buckets_.clear();
  for (const bool expert : {false, true}) {
    std::size_t total = 0;
    for (auto& s : segments_) total += s->expert == expert ? s->padded : 0;
    if (layout.zero >= 2 || total == 0) continue;
    R* at = arena.take<R>(total, Use::gradients);
    for (auto s = segments_.rbegin(); s != segments_.rend(); ++s) {
      Segment<R>& segment = **s;
      if (segment.expert != expert) continue;
      segment.gradients = at;
      segment.own_gradients = at == nullptr ? nullptr : at + segment.begin;
      const bool fits = !buckets_.empty() && buckets_.back().group == segment.group &&
                        buckets_.back().count * sizeof(R) < layout.bucket_bytes && layout.zero == 0;
      if (!fits) buckets_.push_back({.begin = at, .group = segment.group, .pending = {}});
      buckets_.back().count += segment.padded;
      ++buckets_.back().members;
      segment.bucket = static_cast<int>(buckets_.size()) - 1;
      if (at != nullptr) at += segment.padded;
    }
  }
}

template <class R>
void Store<R>::lay_out_buffers(Arena& arena) {
  const int zero = config_.layout.zero;
  for (const bool expert : {false, true}) {
    value_buffers_[expert].clear();
    gradient_buffers_[expert].clear();
    std::size_t largest = 0;
    for (auto& s : segments_) {
      if (s->expert != expert) continue;
      if (zero >= 2) s->own_gradients = arena.take<R>(s->shard, Use::gradients);
      if (!s->end) largest = std::max(largest, s->padded);
    }
    const Group& group = expert ? groups_.expert_data : groups_.data;
    const auto replicas = static_cast<std::size_t>(group.size());
    const auto buffers = [&](std::vector<Buffer>& pool, Use use, std::size_t packed) {
      const auto add = [&](std::size_t elements, Segment<R>* user) {
        const std::size_t bytes = packed * replicas * packed_bytes(elements / replicas);
        pool.push_back({.memory = arena.take<R>(elements, use),
                        .user = user,
                        .reducing = {kSettled, 0, Axis::data},
                        .packed = arena.take<std::uint8_t>(bytes, Use::scratch)});
      };
      for (int i = 0; i < 2 && largest > 0; ++i) add(largest, nullptr);
      for (auto& s : segments_) {
        if (s->expert == expert && s->end) add(s->padded, s.get());
      }
    };
    const Layout& l = config_.layout;
    if (zero >= 3) buffers(value_buffers_[expert], Use::parameters, l.quantize_weights ? 1 : 0);
    if (zero >= 2) buffers(gradient_buffers_[expert], Use::gradients, l.quantize_gradients ? 2 : 0);
  }
}

template <class R>
std::size_t Store<R>::packed_bytes(std::size_t elements) {
  return chorus::compress::Nearest8().bytes(elements);
}

template <class R>
void Store<R>::initialize() {
  std::vector<R> values;
  for (auto& s : segments_) {
    for (const Param& p : s->params) {
      const std::uint64_t stream = stream_of(p.name);
      const bool all = config_.layout.zero < 3;
      const std::size_t first = all ? p.offset : std::max(p.offset, s->begin);
      const std::size_t last =
          all ? p.offset + p.count() : std::min(p.offset + p.count(), s->begin + s->shard);
      if (first >= last) continue;
      values.resize(last - first);
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t row = static_cast<std::size_t>(p.row) + (i - p.offset) / p.col_count;
        const std::size_t col = static_cast<std::size_t>(p.col) + (i - p.offset) % p.col_count;
        R value = p.init == Init::ones ? R(1) : R(0);
        if (p.init == Init::normal) {
          value = R(p.deviation * random_normal(config_.training.seed, stream, row * p.cols + col));
        }
        values[i - first] = value;
      }
      ops_.to_device(all ? s->values + first : s->own_values + (first - s->begin), values.data(),
                     values.size() * sizeof(R));
    }
  }
}

/// Calls visit(segment, param, index in the shard, count) for the part of each param that this rank
/// updates.
template <class R>
template <class Visit>
void Store<R>::for_each_own(Visit visit) {
  for (auto& s : segments_) {
    for (const Param& p : s->params) {
      const std::size_t first = std::max(p.offset, s->begin);
      const std::size_t last = std::min(p.offset + p.count(), s->begin + s->shard);
      if (first < last) visit(*s, p, first - s->begin, last - first);
    }
  }
}

/// Where the values of `segment` may be gathered: its own buffer at the ends; else one that is
/// free, or that has been left longest. Null: all are in use, or wait for their use.
template <class R>
typename Store<R>::Buffer* Store<R>::buffer_for_values(Segment<R>& segment) {
  Buffer* longest = nullptr;
  for (Buffer& b : value_buffers_[segment.expert]) {
    if (b.user == &segment) return &b;
    if (segment.end || (b.user != nullptr && b.user->end)) continue;
    if (b.user == nullptr) return &b;
    const bool left = b.left > 0 && b.user->holders == 0;
    if (left && (longest == nullptr || b.left < longest->left)) longest = &b;
  }
  return longest;
}

template <class R>
void Store<R>::drop_values(Buffer& buffer) {
  Segment<R>* const s = buffer.user;
  if (s == nullptr || s->values == nullptr) return;
  groups_.flights.wait(s->gathering);
  finish_gathering(*s);
  s->values = nullptr;
  if (!s->end) buffer.user = nullptr;
}

template <class R>
void Store<R>::prefetch(Segment<R>* segment) {
  if (segment == nullptr || config_.layout.zero < 3 || segment->values != nullptr) return;
  Buffer* const buffer = buffer_for_values(*segment);
  if (buffer == nullptr) return;
  drop_values(*buffer);
  buffer->user = segment;
  buffer->left = 0;
  segment->values = buffer->memory;
  start_gathering(*segment, buffer->packed);
}

template <class R>
void Store<R>::acquire(Segment<R>& segment) {
  prefetch(&segment);
  if (config_.layout.zero >= 3 && segment.values == nullptr) {
    // A prefetched segment that is not in use makes room.
    for (Buffer& b : value_buffers_[segment.expert]) {
      if (b.user == nullptr || b.user->end || b.user->holders > 0) continue;
      drop_values(b);
      break;
    }
    prefetch(&segment);
    if (segment.values == nullptr) throw chorus::Error("no buffer is free for " + segment.name);
  }
  groups_.flights.wait(segment.gathering);
  if (config_.layout.zero >= 3) finish_gathering(segment);
  ++segment.holders;
}

template <class R>
void Store<R>::release(Segment<R>& segment) {
  --segment.holders;
  if (config_.layout.zero < 3 || segment.holders > 0) return;
  for (Buffer& b : value_buffers_[segment.expert]) {
    if (b.user == &segment) b.left = ++times_left_;
  }
}

template <class R>
void Store<R>::forget_gathered() {
  for (auto& pool : value_buffers_) {
    for (Buffer& b : pool) drop_values(b);
  }
}

/// Waits for the reduction out of `buffer` and adds this rank's block to its shard.
template <class R>
void Store<R>::settle(Buffer& buffer) {
  Segment<R>* s = buffer.user;
  if (s == nullptr || s->gradients == buffer.memory || buffer.reducing.slot == kSettled) return;
  groups_.flights.wait(buffer.reducing);
  if (config_.layout.quantize_gradients) {
    finish_quantized(*s, buffer);
  } else {
    ops_.add(s->own_gradients, buffer.memory + s->begin, s->shard);
  }
  buffer.reducing.slot = kSettled;
  if (!s->end) buffer.user = nullptr;
}

/// The buffer of `segment` at the ends; else one that is free, or whose reduction began first: the
/// others travel on.
template <class R>
typename Store<R>::Buffer& Store<R>::buffer_for_gradients(Segment<R>& segment) {
  Buffer* first = nullptr;
  for (Buffer& b : gradient_buffers_[segment.expert]) {
    if (segment.end ? b.user == &segment : b.user == nullptr) return b;
    if (segment.end || b.user->end || b.user->gradients == b.memory) continue;
    if (first == nullptr || b.left < first->left) first = &b;
  }
  if (first == nullptr) throw chorus::Error("no buffer is free for " + segment.name);
  return *first;
}

template <class R>
void Store<R>::acquire_gradients(Segment<R>& segment) {
  if (config_.layout.zero < 2 || segment.gradients != nullptr) return;
  Buffer& buffer = buffer_for_gradients(segment);
  settle(buffer);
  buffer.user = &segment;
  buffer.reducing = {};
  segment.gradients = buffer.memory;
  ops_.zero(segment.gradients, segment.padded);
}

template <class R>
void Store<R>::release_gradients(Segment<R>& segment, bool last) {
  const Layout& layout = config_.layout;
  if (layout.zero >= 2) {
    for (Buffer& b : gradient_buffers_[segment.expert]) {
      if (b.user != &segment || b.memory != segment.gradients) continue;
      segment.gradients = nullptr;
      b.left = ++times_left_;
      b.reducing =
          layout.quantize_gradients
              ? start_quantized(segment, b)
              : segment.group->reduce_scatter(b.memory, b.memory + segment.begin, segment.shard);
      if (!layout.overlap) settle(b);
      return;
    }
    return;
  }
  const bool summed = config_.training.compression == Compression::none &&
                      config_.training.average == Average::gradients;
  if (!last || !summed) return;
  Bucket& bucket = buckets_[static_cast<std::size_t>(segment.bucket)];
  if (--bucket.waiting > 0 || !layout.overlap) return;
  bucket.pending = layout.zero == 0 ? bucket.group->all_reduce(bucket.begin, bucket.count)
                                    : segment.group->reduce_scatter(
                                          segment.gradients, segment.own_gradients, segment.shard);
}

template <class R>
void Store<R>::zero_gradients() {
  for (auto& s : segments_) {
    ops_.zero(config_.layout.zero >= 2 ? s->own_gradients : s->gradients,
              config_.layout.zero >= 2 ? s->shard : s->padded);
  }
  for (Bucket& b : buckets_) {
    b.waiting = b.members;
    b.pending = {};
  }
}

template <class R>
void Store<R>::finish_gradients() {
  const Layout& layout = config_.layout;
  if (layout.zero >= 2) {
    // As they began: contributions to a segment are added in the order of micro-batches.
    for (auto& pool : gradient_buffers_) {
      std::ranges::sort(pool, {}, &Buffer::left);
      for (Buffer& b : pool) settle(b);
    }
  } else if (config_.training.compression == Compression::power) {
    for (auto& s : segments_) reduce_by_power(*s);
    ++reductions_;
  } else if (compressor_) {
    for (auto& s : segments_) reduce_compressed(*s);
  } else if (config_.training.average != Average::gradients) {
    // Replicas go on with what they have.
  } else if (!layout.overlap) {
    for (auto& s : segments_) {
      Bucket& bucket = buckets_[static_cast<std::size_t>(s->bucket)];
      if (bucket.waiting != 0) continue;
      bucket.waiting = -1;
      Pending pending = layout.zero == 0
                            ? bucket.group->all_reduce(bucket.begin, bucket.count)
                            : s->group->reduce_scatter(s->gradients, s->own_gradients, s->shard);
      groups_.flights.wait(pending);
    }
  }
  for (Bucket& b : buckets_) groups_.flights.wait(b.pending);
  for (auto& s : segments_) {
    if (s->tied) groups_.tie.wait(groups_.tie.all_reduce(s->own_gradients, s->shard));
  }
  add_partials_over_tensor();
}

template <class R>
void Store<R>::add_partials_over_tensor() {
  if (partial_count_ == 0 || groups_.tensor.size() == 1) return;
  std::size_t at = 0;
  for_each_own([&](Segment<R>& s, const Param& p, std::size_t index, std::size_t n) {
    if (!p.partial) return;
    ops_.copy(partials_ + at, s.own_gradients + index, n);
    at += n;
  });
  groups_.tensor.wait(groups_.tensor.all_reduce(partials_, partial_count_));
  at = 0;
  for_each_own([&](Segment<R>& s, const Param& p, std::size_t index, std::size_t n) {
    if (!p.partial) return;
    ops_.copy(s.own_gradients + index, partials_ + at, n);
    at += n;
  });
}

template <class R>
double Store<R>::sum_of_squares() {
  const bool apart = config_.training.average != Average::gradients;
  // Whoever counts for all replicas could be the one that dies: each counts for itself.
  const bool elastic = config_.layout.elastic;
  ops_.zero_sum(squares_);
  for_each_own([&](Segment<R>& s, const Param& p, std::size_t index, std::size_t n) {
    const bool copy_elsewhere =
        (!p.sliced() && groups_.tensor.rank() > 0) || !s.counted ||
        (!apart && !elastic && config_.layout.zero == 0 && s.group->rank() > 0);
    if (!copy_elsewhere) ops_.add_squares(squares_, s.own_gradients + index, n);
  });
  const double sum = ops_.value(squares_);
  // Replicas that drift apart: the mean over them of the squares of what would be their gradients.
  if (elastic) return sum / config_.layout.dp;
  return apart ? sum * config_.layout.dp : sum;
}

template <class R>
void Store<R>::values_changed() {
  forget_gathered();
  for (auto& s : segments_) s->fresh = false;
}

template <class R>
void Store<R>::update(AdamW how) {
  const double decay = how.weight_decay;
  const bool apart = config_.training.average != Average::gradients;
  // A gradient is a share of the mean over all replicas.
  if (apart) how.scale *= config_.layout.dp;
  for_each_own([&](Segment<R>& s, const Param& p, std::size_t index, std::size_t n) {
    how.weight_decay = p.decays ? decay : 0;
    ops_.adamw(s.own_values + index, s.moment1 + index, s.moment2 + index, s.own_gradients + index,
               n, how);
  });
  values_changed();
  if (apart) average_values(how.step);
  const int zero = config_.layout.zero;
  if (zero != 1 && zero != 2) return;
  for (auto& s : segments_) {
    s->gathering = s->group->all_gather(s->own_values, s->values, s->shard);
    if (!config_.layout.overlap) groups_.flights.wait(s->gathering);
  }
}

template class Store<float>;
template class Store<double>;

}  // namespace trainer
